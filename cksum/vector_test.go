package cksum

import (
	"bytes"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
)

// words16 is Sum without vectors.
func words16(b []byte, acc uint16) uint16 { return sumWords(b, uint64(bits.ReverseBytes16(acc))) }

// The vector sum equals the one without vectors, which TestSumLengths compares with RFC 1071, at every length of a
// jumbo frame and every alignment to 32 bytes.
func TestVectorSumEqualsWords(t *testing.T) {
	if !vector {
		t.Skip("no vector sum: the processor has no AVX2, or the build has the tag purego")
	}
	const longest = 9216
	rnd := rand.NewChaCha8([32]byte{1})
	random := make([]byte, longest+32)
	rnd.Read(random)
	for _, buf := range [][]byte{random, bytes.Repeat([]byte{0xff}, longest+32), make([]byte, longest+32)} {
		for at := range 32 {
			for n := range longest + 1 {
				b, acc := buf[at:at+n], uint16(n)*uint16(at)
				if got, want := Sum(b, acc), words16(b, acc); got != want {
					t.Fatalf("%d bytes at %d, acc %#04x: sum %#04x, want %#04x", n, at, acc, got, want)
				}
			}
		}
	}
}

// Blocks is the sum modulo 65535, with vectors if the processor has them, and without.
func TestBlocks(t *testing.T) {
	const longest = 32 * 40
	random := make([]byte, longest+32)
	rand.NewChaCha8([32]byte{1}).Read(random)
	for _, buf := range [][]byte{random, bytes.Repeat([]byte{0xff}, longest+32), make([]byte, longest+32)} {
		for n := 0; n <= longest; n += 32 {
			want := bits.ReverseBytes16(naive(buf[:n], 0))
			for name, got := range map[string]uint64{"Blocks": Blocks(&buf[0], n), "blocks": blocks(&buf[0], n)} {
				if got%0xffff != uint64(want%0xffff) || (got == 0) != (want == 0) {
					t.Fatalf("%s of %d bytes: %#x, want %#x", name, n, got, want)
				}
			}
			if vector {
				check.Equal(t, Blocks(&buf[0], n), sumVector(&buf[0], n), "with vectors %#x")
			}
		}
	}
}

// One word that is not zero, at every place of a piece, carries into the sum unchanged: no lane is lost or added twice.
func TestVectorSumOfOneWord(t *testing.T) {
	b := make([]byte, 512)
	for at := range b {
		for _, v := range []byte{1, 0x80, 0xff} {
			b[at] = v
			sums(t, b, 0)
		}
		b[at] = 0
	}
}

// BenchmarkSum has both ways at the sizes of small, usual and jumbo frames, in the first-level cache.
func BenchmarkSum(b *testing.B) {
	buf := make([]byte, 9000)
	for _, n := range []int{20, 64, 128, 192, 256, 512, 1500, 9000} {
		for _, way := range []struct {
			name string
			sum  func([]byte, uint16) uint16
		}{{"words", words16}, {"Sum", Sum}} {
			b.Run(fmt.Sprintf("%d/%s", n, way.name), func(b *testing.B) {
				b.SetBytes(int64(n))
				for b.Loop() {
					way.sum(buf[:n], 0)
				}
			})
		}
	}
}
