package amazonadmin

import (
	"encoding/binary"
	"testing"

	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// The event doorbell counts from the depth for ENA and from zero for EFA, and only an ENA's revision says how registers
// are read.
func TestEventDoorbell(t *testing.T) {
	const depth = 4
	for _, c := range []struct {
		name    string
		dialect Dialect
		first   uint32
		direct  bool
	}{{"ENA", ENA, depth, true}, {"EFA", EFA, 0, false}} {
		d := &device{depth: depth}
		a := must.Get(dma.NewArena(d, 1<<16))(t)
		defer a.Close()
		r := must.Get(newRegs("test", c.dialect, NoReadLess, mmio.Trapped(0x80, d, nil, nil), a))(t)
		check.Equal(t, r.direct, c.direct, c.name+": registers are read by MMIO: %v")
		e := must.Get(NewEvents(r, a, depth))(t)
		check.Equal(t, binary.LittleEndian.Uint32(d.regs[AENQ_CAPS:]), 64<<16|depth, c.name+": AENQ_CAPS %#x")
		doorbell := func() uint32 { return binary.LittleEndian.Uint32(d.regs[AENQ_HEAD_DB:]) }
		e.Start()
		check.Equal(t, doorbell(), c.first, c.name+": the doorbell starts at %d")
		base := binary.LittleEndian.Uint64(d.regs[AENQ_BASE_LO:])
		for n := range uint32(3 * depth) {
			d.mem[base+uint64(n%depth)*EntrySize+4] = uint8(^(n / depth) & 1)
			if _, ok := e.Next(); !ok {
				t.Fatalf("%s: event %d is not seen", c.name, n)
			}
			e.Done()
			check.Equal(t, doorbell(), c.first+n+1, c.name+": the doorbell after an event is %d")
		}
	}
}
