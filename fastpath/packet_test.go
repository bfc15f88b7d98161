package fastpath

import (
	"bytes"
	"testing"

	"github.com/rebound-nic/rebound/proof/corpus"
)

// pingPacket4 has PingPacket4 or AnswerPacket answer the packet of a frame, whose MACs they do not read.
func pingPacket4(r *Responder, f []byte) bool {
	h, head := (*[64]byte)(f[:cap(f)]), bytes.Clone(f[:14])
	to, from := NewLinkAddress([6]byte(f)), NewLinkAddress([6]byte(f[6:]))
	copy(f, bytes.Repeat([]byte{0xEE}, 10))
	copy(f[10:], []byte{head[12], head[13], 0, 0}) // the encapsulation
	ok := r.PingPacket4(h, len(f), to, from) || r.AnswerPacket(h, len(f), to, from)
	copy(f, head)
	if ok { // as Slow would leave it
		copy(f, head[6:12])
		copy(f[6:], head[:6])
	}
	return ok
}

func ipoib(r *Responder, f []byte) (m int) {
	if pingPacket4(r, f) {
		return len(f)
	}
	return slowly(r, f)
}

// Packets without an Ethernet header are answered, refused and counted like the frames that represent them, in both
// modes and whatever is wrong with them.
func TestIPoIBLeaves(t *testing.T) {
	fast := 0
	for _, mode := range []Mode{Strict, Open} {
		for _, vlans := range [][]uint16{nil, {5}} {
			c := config(mode)
			c.VLANs = vlans
			x, y := responder(t, c), responder(t, c)
			try := func(name string, f []byte) {
				if len(f) < 14 || f[6]&1 != 0 { // a driver never represents a station by a group MAC
					return
				}
				a, b := inBuffer(f), inBuffer(f)
				before := x.Stats()
				n, m := ipoib(x, a), slowly(y, b)
				if after := x.Stats(); x.Stats() != y.Stats() || n != m || n > 0 && !bytes.Equal(a[:n], b[:m]) && !sameButZero(a[:n], b[:m]) {
					t.Fatalf("%s, mode %d, VLANs %v: %d and %d bytes\n%x\n%x\n%v\n%v", name, mode, vlans, n, m, a[:n], b[:m], diff(before, after), y.Stats())
				} else if n > 0 {
					fast++
				}
			}
			for _, q := range requests(0) {
				try(q.name, q.frame)
				for at := range q.frame {
					for _, v := range []byte{1, 0x80, 0xFF} {
						f := bytes.Clone(q.frame)
						f[at] ^= v
						try(q.name, f)
					}
				}
				try(q.name+", longer", append(bytes.Clone(q.frame), 0, 0))
				try(q.name+", shorter", q.frame[:len(q.frame)-1])
			}
		}
	}
	if fast < 100 {
		t.Errorf("%d packets were answered", fast)
	}
	r := responder(t, config(Strict))
	if NewLinkAddress(corpus.OurMAC) != LinkAddress(r.mac) {
		t.Errorf("%x is not %x", NewLinkAddress(corpus.OurMAC), r.mac)
	}
}

func diff(a, b Stats) (s []Verdict) {
	for v := range a {
		if a[v] != b[v] {
			s = append(s, Verdict(v))
		}
	}
	return s
}
