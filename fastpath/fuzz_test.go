package fastpath

import (
	"bytes"
	"testing"

	"github.com/rebound-nic/rebound/proof/must"
)

// For any bytes, the snippet and Slow do what the oracle specifies, count one verdict, and write nothing else.
func FuzzFrame(f *testing.F) {
	for tags := range 3 {
		for _, q := range requests(tags) {
			f.Add(q.frame, tags == 1)
		}
	}
	f.Fuzz(func(t *testing.T, frame []byte, open bool) {
		mode := Strict
		if open {
			mode = Open
		}
		c := config(mode)
		fast, slow := responder(t, c), responder(t, c)
		must.OK(t, judge(&c, fast, slow, frame))
		c.PartialChecksums = true // may repair a checksum, with the same result from both
		fast, slow = responder(t, c), responder(t, c)
		a, b := inBuffer(frame), inBuffer(frame)
		n, m := poll(fast, a), slowly(slow, b)
		if n != m || !bytes.Equal(a, b) && !sameButZero(a, b) || fast.Stats() != slow.Stats() {
			t.Fatalf("snippet %d, Slow %d of\n%x\n%x\n%x", n, m, frame, a, b)
		}
	})
}
