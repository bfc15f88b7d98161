package fastpath

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"unsafe"

	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/oracle"
)

// replies has Reply answer a frame, followed by long if Reply leaves it to that.
func replies(r *Responder, frame []byte) bool {
	h := (*[64]byte)(unsafe.Pointer(unsafe.SliceData(frame)))
	ok := r.Reply(h, len(frame)) || r.left != 0 && r.long(h, len(frame))
	r.Departing()
	return ok
}

// lengths are payload lengths that cover each branch of the sum, around the limits of a part that is summed at once.
func lengths() (all []int) {
	step := needs.Cases(1, 5)
	for n := 0; n < 300; n += step {
		all = append(all, n)
	}
	for n := 512; n < 8972; n += 509 { // every remainder modulo 32
		all = append(all, n, n+1)
	}
	return append(all, 1472, 8971, 8972)
}

func data(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(37*i + n + i>>8)
	}
	return b
}

// answersLikeSlow gives f, with n bytes of data, to fast and to other's Slow: the replies are equal. A copy of f with a
// wrong byte, at each step from first, is neither answered nor changed.
func answersLikeSlow(t *testing.T, fast func(*Responder, []byte) bool, r, other *Responder, f []byte, n, first,
	step int) {
	t.Helper()
	a, b := inBuffer(f), inBuffer(f)
	if !fast(r, a) || slowly(other, b) != len(f) || !bytes.Equal(a, b) ||
		!bytes.Equal(a[len(f):cap(a)], b[len(f):cap(b)]) {
		t.Fatalf("%d bytes of data: fast, Slow\n%x\n%x", n, a, b)
	}
	for i := first; i < len(f); i += step {
		g := inBuffer(f)
		g[i] ^= 1 << (n & 7)
		was := slices.Clone(g)
		if fast(r, g) || !bytes.Equal(g, was) {
			t.Fatalf("%d bytes of data, byte %d of the frame is wrong: answered, or changed", n, i)
		}
	}
}

// kinds are requests with data, where their transport header is in an untagged frame, and their verdict.
var kinds = []struct {
	packet func(data []byte) []byte
	l4     int
	kind   Verdict
}{
	{func(data []byte) []byte { return icmp4Of(data) }, 34, AnsweredICMPv4},
	{func(data []byte) []byte { return udp(their4, our4, 40000, 7, data) }, 34, AnsweredUDPv4},
	{func(data []byte) []byte { return udp(their4, our4, 40000, 862, data) }, 34, AnsweredSTAMPv4},
	{func(data []byte) []byte { return icmp6(their6, our6, 64, append(echo(128, 0), data...)) }, 54, AnsweredICMPv6},
	{func(data []byte) []byte { return udp(their6, our6, 40000, 7, data) }, 54, AnsweredUDPv6},
	{func(data []byte) []byte { return udp(their6, our6, 40000, 862, data) }, 54, AnsweredSTAMPv6},
}

func icmp4Of(data []byte) []byte {
	m := append([]byte{8, 0, 0, 0, 1, 2, 3, 4}, data...)
	be.PutUint16(m[2:], ^oracle.Sum(m))
	return ip4(their4, our4, 1, m)
}

// Requests of every kind and length, untagged and tagged: Reply verifies the checksum over exactly the segment, makes
// the same reply as Slow, and leaves refused frames unchanged.
func TestReplyLengths(t *testing.T) {
	for _, k := range kinds {
		for tags := range 2 {
			t.Run(fmt.Sprintf("%s/%d tags", k.kind, tags), func(t *testing.T) {
				c := config(Strict)
				c.ChecksumBytes = DefaultChecksumBytes
				r, other := responder(t, c), responder(t, c)
				answered := uint64(0)
				for _, n := range lengths() {
					if n < stampLength && k.kind >= AnsweredSTAMPv4 {
						continue
					}
					f := toUs(tags, k.packet(data(n)))
					answersLikeSlow(t, replies, r, other, f, n, k.l4+4*tags+8, 1+n/300)
					answered++
				}
				if a, b := r.Stats(), other.Stats(); a[k.kind] != answered || a != b {
					t.Errorf("counted %v, Slow %v", a, b)
				}
			})
		}
	}
}
