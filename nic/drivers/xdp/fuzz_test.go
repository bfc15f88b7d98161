package xdp

import (
	"slices"
	"testing"

	"github.com/rebound-nic/rebound/proof/corpus"
	"github.com/rebound-nic/rebound/proof/must"
)

// kept is an input's test whose clean-up is deferred to the end of the whole target.
type kept struct {
	testing.TB
	undo *[]func()
}

func (k kept) Cleanup(f func()) { *k.undo = append(*k.undo, f) }

// The program, in this machine's kernel, gives the same result and the same reason as fastpath for any frame, in each
// configuration of the other tests.
func FuzzProgram(f *testing.F) {
	for tags := range 3 {
		for _, q := range corpus.Requests(tags) {
			f.Add(q.Frame, uint8(tags))
		}
	}
	// The kernel takes a second to verify a program: it is loaded for its first frame, and not by the process that only
	// manages the corpus.
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
		must.OK(t, loaded[i].judge(frame[:min(len(frame), 1514)]))
	})
}
