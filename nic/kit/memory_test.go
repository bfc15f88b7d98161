package kit_test

import (
	"testing"

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
