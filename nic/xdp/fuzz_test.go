package xdp

import (
	"testing"

	"rebound/fastpath/corpus"
)

// The program, in this machine's kernel, makes of any frame what fastpath makes of it, and counts it for the same reason, in each of
// the configurations that the other tests have.
func FuzzProgram(f *testing.F) {
	for tags := range 3 {
		for _, q := range corpus.Requests(tags) {
			f.Add(q.Frame, uint8(tags))
		}
	}
	all := pairs(f)
	f.Fuzz(func(t *testing.T, frame []byte, which uint8) {
		if err := all[int(which)%len(all)].judge(frame[:min(len(frame), 1514)]); err != nil {
			t.Fatal(err)
		}
	})
}
