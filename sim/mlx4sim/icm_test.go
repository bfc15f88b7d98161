package mlx4sim

import (
	"maps"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
)

// Each page of a mapping is at its own address, and is mapped once.
func TestMapICM(t *testing.T) {
	x := openRig(t, Options{})
	const at = 0x20000000
	from := (x.fb.IOVA + 0x1fff) &^ 0x1fff // aligned to two pages
	was := maps.Clone(x.m.icm.page)
	in := append(dwords(16, 4, at, 8, uint32(from>>32), 12, uint32(from)|1), // two pages in one entry
		dwords(16, 4, at+0x2000, 8, uint32(from>>32), 12, uint32(from)+0x8000)...)
	x.do(0xffa, 0, 2, in, false)
	for i, offset := range []uint64{0, 0x1000, 0x8000} {
		check.Equal(t, x.m.icm.page[at>>12+uint64(i)], from+offset, "a page is at %#x")
	}
	check.Equal(t, len(x.m.icm.page), len(was)+3, "%d pages")
	for _, taken := range []uint64{at, at + 0x1000, at + 0x2000} {
		x.fails(stBadResState, 0xffa, 0, 1, mappings(taken, x.fb, 1), false, "is mapped already")
	}
	x.do(0xffa, 0, 1, mappings(at-0x1000, x.fb, 1), false)
	x.do(0xffa, 0, 1, mappings(at+0x3000, x.fb, 1), false)
}
