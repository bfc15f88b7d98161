package fastpath

import (
	"bytes"
	"slices"
	"testing"
	"unsafe"

	"rebound/fastpath/oracle"
)

func ping4(r *Responder, frame []byte) bool {
	return r.Ping4((*[64]byte)(unsafe.Pointer(unsafe.SliceData(frame))), len(frame))
}

// Requests of every length: Ping4 verifies the checksum over all of the message and nothing behind it, makes the reply that Slow makes,
// and leaves what it turns down as it was.
func TestPing4Lengths(t *testing.T) {
	c := config(Strict)
	c.ChecksumBytes = 300
	r, other := responder(t, c), responder(t, c)
	for n := range 270 {
		m := make([]byte, 8+n)
		m[0] = 8
		for i := range m[4:] {
			m[4+i] = byte(37*i + n)
		}
		be.PutUint16(m[2:], ^oracle.Sum(m))
		f := eth(ourMAC, theirMAC, 0, 0x0800, ip4(their4, our4, 1, m))
		a, b := inBuffer(f), inBuffer(f)
		if !ping4(r, a) || slowly(other, b) != len(f) || !bytes.Equal(a, b) || !bytes.Equal(a[len(f):][:32], b[len(f):][:32]) {
			t.Fatalf("%d bytes of data: Ping4, Slow\n%x\n%x", n, a, b)
		}
		for i := range m {
			g := inBuffer(f)
			g[34+i] ^= 1 << (n & 7)
			was := slices.Clone(g)
			if ping4(r, g) || !bytes.Equal(g, was) {
				t.Fatalf("%d bytes of data, byte %d of the message is wrong: answered, or changed", n, i)
			}
		}
	}
	if a, b := r.Stats(), other.Stats(); a[AnsweredICMPv4] != 270 || a != b {
		t.Errorf("counted %v, Slow %v", a, b)
	}
}
