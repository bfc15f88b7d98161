package kit_test

import (
	"testing"

	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/kit"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// A block is refused if its last byte is beyond the device's address width, and only then. An arena grows if a block
// does not fit, and the first error of Rings is kept.
func TestBlocks(t *testing.T) {
	c := &kit.Card{Fn: toy(t)}
	must.OK(t, c.Allocate(1<<16))
	t.Cleanup(func() { check.OK(t, c.Deallocate()) })
	b := must.Get(c.Block(4096, 4096))(t)
	check.Equal(t, len(b.Bytes), 4096, "%d bytes")
	check.Equal(t, b.IOVA%4096, 0, "%d bytes behind the start of a page")
	at := must.Get(c.Block(4096, 4096))(t).IOVA
	for width := range uint32(65) {
		if c.AddressBits = width; width == 0 {
			continue
		}
		b, err := c.Block(64, 64)
		if fits := (b.IOVA+63)>>width == 0; fits != (err == nil) {
			t.Errorf("%d bits: %v for %#x", width, err, b.IOVA)
		} else if !fits {
			check.Fails(t, "an address beyond the device's", err, nil, "is beyond the device's")
		}
	}
	if at == 0 {
		t.Error("the second page is at 0")
	}
	c.AddressBits = 0
	check.Equal(t, len(must.Get(c.Block(1<<20, 4096))(t).Bytes), 1<<20, "%d bytes of an arena that grows")
	c.AddressBits = 1
	r := kit.Rings{Card: c}
	p, iova := r.Page(100)
	check.Equal(t, p == nil && iova == 0, true, "nothing after an error: %t")
	first := r.Err
	c.AddressBits = 0
	p, _ = r.Whole(100)
	check.Equal(t, p == nil && r.Err == first && first != nil, true, "the first error is kept: %t")
	r.Err = nil
	_, iova = r.Whole(10_000)
	check.Equal(t, iova%(16<<10), 0, "%d bytes behind a power of two")
	_, iova = r.Whole(16 << 10)
	check.Equal(t, iova%(16<<10), 0, "%d bytes behind a power of two")
	check.Equal(t, r.Block(64, 64).IOVA%64, 0, "%d")
	check.Equal(t, r.Table(64) != nil, true, "a table: %t")
	check.OK(t, r.Err)
}

// counting counts the mappings of a function.
type counting struct {
	pci.Function
	maps []int // sizes
}

func (c *counting) Map(m dma.Memory) (uint64, error) {
	c.maps = append(c.maps, len(m.Bytes))
	return c.Function.Map(m)
}

// What is laid first takes one mapping, of the size that the blocks and their alignment need from the start of a page.
// Later blocks take room that is left.
func TestLay(t *testing.T) {
	const huge = 2 << 20 // the sizes tell one more byte in ordinary and in huge pages
	for _, c := range []struct {
		blocks [][2]int // sizes and alignments
		want   int
	}{
		{[][2]int{{huge, 4096}}, huge},
		{[][2]int{{huge - 64, 64}, {63, 64}, {1, 1}}, huge},
		{[][2]int{{huge - 4097, 64}, {4096, 4096}}, huge},
		{[][2]int{{1, 4096}, {huge - 8192, 4096}, {1, 4096}}, huge},
		{[][2]int{{huge - 64, 4096}, {1, 64}, {64, 64}}, huge + 64},
		{[][2]int{{huge - 12288, 4096}, {8192, 8192}}, huge},
		{[][2]int{{1, 64}, {1 << 16, 1 << 16}, {huge - 1<<17, 1}, {64, 64}}, huge + 64},
	} {
		fn := &counting{Function: toy(t)}
		card := &kit.Card{Fn: fn}
		lay := func(r *kit.Rings) {
			for _, b := range c.blocks {
				if got := r.Block(b[0], b[1]); r.Err == nil && len(got.Bytes) != b[0] {
					t.Errorf("%d: a block of %d bytes", b, len(got.Bytes))
				}
			}
		}
		must.OK(t, card.Lay(lay))
		up := func(page int) int { return (c.want + page - 1) &^ (page - 1) }
		if len(fn.maps) != 1 || fn.maps[0] != up(4096) && fn.maps[0] != up(huge) {
			t.Errorf("%d: mappings of %d bytes, expected one of %d", c.blocks, fn.maps, c.want)
		}
		must.OK(t, card.Allocate(3*huge))
		fn.maps = nil
		must.OK(t, card.Lay(lay))
		check.Equal(t, len(fn.maps), 0, "%d more mappings")
		check.OK(t, card.Deallocate())
	}
	c := &kit.Card{Fn: toy(t), AddressBits: 1}
	t.Cleanup(func() { check.OK(t, c.Deallocate()) })
	check.Fails(t, "an address beyond the device's", c.Lay(func(r *kit.Rings) { r.Page(1) }), nil,
		"is beyond the device's 1 bits")
}
