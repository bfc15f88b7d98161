package route

import (
	"bytes"
	"errors"
	"net/netip"
	"testing"
	"time"
)

var (
	macA, macB = [6]byte{2, 0, 0, 0, 0, 0xa}, [6]byte{2, 0, 0, 0, 0, 0xb}
	four       = [2]netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")}
	six        = [2]netip.Addr{netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")}
)

// wire connects to another Neighbour, and first delivers some unrelated frames.
type wire struct {
	far   *Neighbour
	noise [][]byte
	back  [][]byte
	sent  int
}

func (w *wire) Send(b []byte) error {
	w.sent++
	w.back = append(w.back, w.noise...)
	if out := w.far.Answer(bytes.Clone(b)); out != nil {
		w.back = append(w.back, bytes.Clone(out))
	}
	return nil
}

func (w *wire) Recv(buf []byte) (int, int64, error) {
	if len(w.back) == 0 {
		return 0, 0, nil
	}
	n := copy(buf, w.back[0])
	w.back = w.back[1:]
	return n, 0, nil
}

func TestResolve(t *testing.T) {
	for _, ip := range [][2]netip.Addr{four, six} {
		near, far := NewNeighbour(ip[0], macA), NewNeighbour(ip[1], macB)
		w := &wire{far: far, noise: [][]byte{{}, make([]byte, 14), make([]byte, 60), bytes.Clone(near.question(ip[0]))}}
		// our request, and our reply to the request among the unrelated frames
		if got, err := near.Resolve(w, ip[1], Tries, time.Minute); err != nil || got != macB || w.sent != 1+1 {
			t.Errorf("%v: %x, %v, %d frames sent", ip[1], got, err, w.sent)
		}
		w = &wire{far: far}
		if _, err := near.Resolve(w, netip.MustParseAddr("10.0.0.9"), Tries, time.Millisecond); ip[0].Is4() &&
			(!errors.Is(err, ErrNoAnswer) || w.sent != 3) {
			t.Errorf("nobody there: %v after %d questions", err, w.sent)
		}
	}
}

func TestAnswerBytes(t *testing.T) {
	near, far := NewNeighbour(four[0], macA), NewNeighbour(four[1], macB)
	want := []byte{
		2, 0, 0, 0, 0, 0xa, 2, 0, 0, 0, 0, 0xb, 0x08, 0x06, // to the requester, ARP
		0, 1, 0x08, 0, 6, 4, 0, 2, // Ethernet, IPv4, reply
		2, 0, 0, 0, 0, 0xb, 10, 0, 0, 2,
		2, 0, 0, 0, 0, 0xa, 10, 0, 0, 1,
	}
	if got := far.Answer(bytes.Clone(near.question(four[1]))); len(got) != 60 || !bytes.Equal(got[:42], want) {
		t.Errorf("ARP reply\n%x\nwant\n%x", got, want)
	}
	near, far = NewNeighbour(six[0], macA), NewNeighbour(six[1], macB)
	got := far.Answer(bytes.Clone(near.question(six[1])))
	if len(got) != 86 || got[54] != 136 || got[58] != 0x60 || got[21] != 255 || !bytes.Equal(got[80:86], macB[:]) ||
		sum(got) != 0xffff ||
		netip.AddrFrom16([16]byte(got[22:38])) != six[1] || netip.AddrFrom16([16]byte(got[38:54])) != six[0] ||
		netip.AddrFrom16([16]byte(got[62:78])) != six[1] {
		t.Errorf("neighbour advertisement %x", got)
	}
}

// If one byte of a request is changed, there is no reply, except for the requester's own data.
func TestWrongQuestions(t *testing.T) {
	near, far := NewNeighbour(six[0], macA), NewNeighbour(six[1], macB)
	q := bytes.Clone(near.question(six[1]))
	for i := 12; i < len(q); i++ {
		b := bytes.Clone(q)
		b[i] ^= 1
		free := i >= 14 && i < 18 // version's low bits are traffic class; the checksum covers everything except these
		if out := far.Answer(b); (out != nil) != free {
			t.Errorf("solicitation with byte %d changed: %x", i, out)
		}
	}
	near, far = NewNeighbour(four[0], macA), NewNeighbour(four[1], macB)
	q = bytes.Clone(near.question(four[1]))
	for _, i := range []int{12, 13, 20, 21, 38, 39, 40, 41} {
		b := bytes.Clone(q)
		b[i] ^= 1
		if out := far.Answer(b); out != nil {
			t.Errorf("request with byte %d changed: %x", i, out)
		}
	}
}

func TestAnswerAllocatesNothing(t *testing.T) {
	for _, ip := range [][2]netip.Addr{four, six} {
		near, far := NewNeighbour(ip[0], macA), NewNeighbour(ip[1], macB)
		q := bytes.Clone(near.question(ip[1]))
		if n := testing.AllocsPerRun(100, func() { far.Answer(q) }); n != 0 {
			t.Errorf("%v: %v allocations", ip[1], n)
		}
	}
}

func FuzzNeighbour(f *testing.F) {
	for _, ip := range [][2]netip.Addr{four, six} {
		near, far := NewNeighbour(ip[0], macA), NewNeighbour(ip[1], macB)
		q := bytes.Clone(near.question(ip[1]))
		f.Add(q)
		f.Add(bytes.Clone(far.Answer(q)))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, ip := range [][2]netip.Addr{four, six} {
			n := NewNeighbour(ip[0], macA)
			Announced(b)
			if out := n.Answer(b); out != nil {
				if again := NewNeighbour(ip[1], macB).Answer(bytes.Clone(out)); again != nil {
					t.Fatalf("an answer draws an answer: %x", again)
				}
			}
		}
	})
}
