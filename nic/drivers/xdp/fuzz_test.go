package xdp

import (
	"slices"
	"testing"

	"github.com/rebound-nic/rebound/proof/corpus"
)

// kept is an input's test whose clean-up is that of the whole target.
type kept struct {
	testing.TB
	undo *[]func()
}

func (k kept) Cleanup(f func()) { *k.undo = append(*k.undo, f) }

// The program, in this machine's kernel, makes of any frame what fastpath makes of it, and counts it for the same reason, in each of
// the configurations that the other tests have.
func FuzzProgram(f *testing.F) {
	for tags := range 3 {
		for _, q := range corpus.Requests(tags) {
			f.Add(q.Frame, uint8(tags))
		}
	}
	// The kernel takes a second to verify one: it is loaded when the first frame comes for it, and not by the process that only keeps
	// the corpus.
	loaded := make([]*pair, len(configurations))
	var undo []func()
	f.Cleanup(func() {
		for _, u := range slices.Backward(undo) {
			u()
		}
	})
	f.Fuzz(func(t *testing.T, frame []byte, which uint8) {
		i := int(which) % len(loaded)
		if loaded[i] == nil {
			loaded[i] = configurations[i].pair(kept{t, &undo})
		}
		if err := loaded[i].judge(frame[:min(len(frame), 1514)]); err != nil {
			t.Fatal(err)
		}
	})
}
