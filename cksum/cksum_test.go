package cksum

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// naive implements RFC 1071 §1 literally: one word at a time, adding each carry as it appears.
func naive(b []byte, acc uint16) uint16 {
	s := uint32(acc)
	for i := 0; i < len(b); i += 2 {
		w := uint32(b[i]) << 8
		if i+1 < len(b) {
			w |= uint32(b[i+1])
		}
		if s += w; s > 0xffff {
			s -= 0xffff
		}
	}
	return uint16(s)
}

// sums checks Sum of b.
func sums(t *testing.T, b []byte, acc uint16) {
	if got, want := Sum(b, acc), naive(b, acc); got != want {
		t.Fatalf("%x, acc %#04x: sum %#04x, want %#04x", b, acc, got, want)
	}
}

func TestSumExample(t *testing.T) {
	b := []byte{0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7} // RFC 1071 §3
	check.Equal(t, Sum(b, 0), 0xddf2, "sum %#04x")
}

// Every length up to several loops of each width, at every alignment, with contents that carry everywhere and nowhere.
func TestSumLengths(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	buf := make([]byte, 8+200)
	for _, fill := range []func() byte{
		func() byte { return 0xff }, func() byte { return 0 }, func() byte { return byte(rnd.Uint32()) },
		func() byte { return byte(rnd.Uint32()) | 0xfe },
	} {
		for i := range buf {
			buf[i] = fill()
		}
		for at := range 8 {
			for n := range 200 {
				for _, acc := range []uint16{0, 1, 0x8000, 0xfffe, 0xffff} {
					sums(t, buf[at:at+n], acc)
				}
			}
		}
	}
}

// Every 16-bit value in each place, combined with every corner value.
func TestSumEveryWord(t *testing.T) {
	var b [10]byte
	for _, other := range []uint16{0, 1, 0x7fff, 0x8000, 0xfffe, 0xffff} {
		for i := range b {
			b[i] = byte(other >> (8 * (^i & 1)))
		}
		for at := 0; at < len(b); at += 2 {
			for v := range 1 << 16 {
				binary.BigEndian.PutUint16(b[at:], uint16(v))
				sums(t, b[:], 0)
			}
			binary.BigEndian.PutUint16(b[at:], other)
		}
	}
}

// corners are words at which ones' complement arithmetic is prone to errors.
var corners = []uint16{0x0000, 0x0001, 0x0080, 0x07ff, 0x0800, 0x7fff, 0x8000, 0xf7ff, 0xf800, 0xfffe, 0xffff}

// A word changes from every value to each corner and from each corner to every value, next to a word that takes the sum
// through every corner. The updated checksum must equal the recomputed one, bit for bit: 0x0000 is not 0xffff.
func TestUpdate16(t *testing.T) {
	check := func(m, m2, other uint16) {
		const fixed = 0x4500 // a header is never all zeros
		hc := ^naive(words(m, other, fixed), 0)
		want := ^naive(words(m2, other, fixed), 0)
		if got := Update16(hc, m, m2); got != want {
			t.Fatalf("%#04x becomes %#04x beside %#04x, checksum %#04x: %#04x, want %#04x", m, m2, other, hc, got, want)
		}
	}
	for v := range 1 << 16 {
		for _, c := range corners {
			for _, other := range corners {
				check(uint16(v), c, other)
				check(c, uint16(v), other)
				check(c, other, uint16(v)) // the sum takes every value
			}
		}
	}
}

// RFC 1624 §4's example: RFC 1141's equation gives 0xffff here.
func TestUpdateExample(t *testing.T) {
	check.Equal(t, Update16(0xdd2f, 0x5555, 0x3285), 0x0000, "checksum %#04x")
}

func TestUDP(t *testing.T) {
	for v := range 1 << 16 {
		want := uint16(v)
		if v == 0 {
			want = 0xffff
		}
		must.Equal(t, UDP(uint16(v)), want, "%#04x")
	}
}

func words(w ...uint16) []byte {
	var b []byte
	for _, v := range w {
		b = binary.BigEndian.AppendUint16(b, v)
	}
	return b
}

func FuzzSum(f *testing.F) {
	f.Add([]byte{}, uint16(0), uint8(0))
	f.Add([]byte{0xff, 0xff, 0xff}, uint16(0xffff), uint8(1))
	f.Fuzz(func(t *testing.T, b []byte, acc uint16, cut uint8) {
		sums(t, b, acc)
		at := min(int(cut)&^1, len(b)&^1) // in two pieces, the first even
		must.Equal(t, Sum(b[at:], Sum(b[:at], acc)), naive(b, acc), "in two pieces: %#04x")
	})
}

func FuzzUpdate(f *testing.F) {
	f.Add([]byte{0x45, 0, 0, 1, 0, 2}, uint16(0), uint32(0xffff_ffff))
	f.Fuzz(func(t *testing.T, b []byte, at uint16, m2 uint32) {
		if len(b) < 6 {
			return
		}
		b[0] = 0x45
		i := 2 + int(at)%(len(b)-5)&^1
		hc, m := ^naive(b, 0), binary.BigEndian.Uint32(b[i:])
		binary.BigEndian.PutUint32(b[i:], m2)
		want := ^naive(b, 0)
		got := Update16(Update16(hc, uint16(m>>16), uint16(m2>>16)), uint16(m), uint16(m2))
		must.Equal(t, got, want, "twice 16 bits: %#04x")
	})
}
