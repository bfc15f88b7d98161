package xdp

import (
	"fmt"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
)

// The pieces of a frame are those that the program loads, and together they are all of it.
func TestPieces(t *testing.T) {
	for _, c := range []struct {
		kind   uint16
		length int
		want   string
	}{
		{0x0800, 42, "[4 2 4 2 2 4 4 4 4 4 4 4]"},
		{0x0800, 45, "[4 2 4 2 2 4 4 4 4 4 4 4 2 1]"},
		{0x0800, 44, "[4 2 4 2 2 4 4 4 4 4 4 4 2]"},
		{0x86dd, 54, "[4 2 4 2 2 4 2 1 1 8 8 8 8]"},
		{0x86dd, 63, "[4 2 4 2 2 4 2 1 1 8 8 8 8 4 4 1]"},
		{0x0806, 42, "[4 2 4 2 2 8 4 2 4 4 2 4]"},
		{0x0806, 60, "[4 2 4 2 2 8 4 2 4 4 2 4 4 4 4 4 2]"},
	} {
		frame := make([]byte, c.length)
		frame[12], frame[13] = byte(c.kind>>8), byte(c.kind)
		at, lengths := 0, []int{}
		for _, p := range pieces(frame) {
			check.Equal(t, p[0], at, "a piece at %d")
			at, lengths = at+p[1], append(lengths, p[1])
		}
		check.Equal(t, fmt.Sprint(lengths), c.want, fmt.Sprintf("%#x of %d bytes: %%s", c.kind, c.length))
	}
}
