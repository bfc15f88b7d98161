package mlx5sim

import (
	"fmt"
	"slices"
)

// Device memory (MEMIC): memory on the card, which drivers allocate in pieces, access through BAR 0, and register with
// memory keys (Linux, mlx5_ifc.h: device_mem_cap, alloc_memic, dealloc_memic; its users are mlx5_ib's dm.c and
// ibv_alloc_dm). What a card reports in these capabilities is not known, except that there are 64 bytes to an
// allocation's unit.
const (
	memicSize     = 128 << 10 // memic_bar_size, max_memic_size
	logMemicUnit  = 6         // log_min_memic_alloc_size
	memicUnit     = 1 << logMemicUnit
	logMemicAlign = 6 // log_max_memic_addr_alignment: of units
	memicPage     = 4096

	// onCard is set in an address of device memory, where the host's memory has IOVAs.
	onCard = 1 << 63
)

// memic is a piece of device memory.
type memic struct {
	at, size uint64 // offset in BAR 0, and bytes
	held     int    // memory keys
}

// deviceMemory is all of it.
type deviceMemory struct {
	bytes  []byte
	pieces []*memic // by address
}

// memicAt is where device memory begins in BAR 0: at its end.
func (p *profile) memicAt() uint64 { return p.barSize() - memicSize }

// Commands for device memory. MODIFY_MEMIC is missing: no operations are reported.
func memicCommands() map[uint16]*command {
	const plainHead = "00.31:16 opcode 04.15:0 op_mod "
	return map[uint16]*command{
		0x205: {name: "ALLOC_MEMIC", in: lay(32,
			plainHead+"0c.7:0 log_memic_addr_alignment 10*2 range_start_addr 18.31:0 range_size 1c.31:0 memic_size"),
			out: lay(16, "08*2 memic_start_addr"), from: hcaReady, run: (*Model).allocMemic},
		0x206: {name: "DEALLOC_MEMIC", in: lay(32, plainHead+"10*2 memic_start_addr 18.31:0 memic_size"), out: plainOut,
			from: hcaReady, run: (*Model).deallocMemic},
	}
}

func (m *Model) allocMemic(c *call) *refusal {
	from, room, size := c.in.U("range_start_addr"), c.in.U("range_size"), c.in.U("memic_size")
	first, end := m.prof.memicAt(), m.prof.memicAt()+memicSize
	switch align := c.in.U("log_memic_addr_alignment"); {
	case !m.prof.memic:
		return refuse(stBadOp, "capability device_memory is not there")
	case size == 0 || size%memicUnit != 0 || size > memicSize:
		return refuse(stBadParam, "memic_size is %d, expected a multiple of %d up to %d", size, memicUnit, memicSize)
	case align > logMemicAlign:
		return refuse(stBadParam, "log_memic_addr_alignment is %d, its greatest value is %d", align, logMemicAlign)
	case from%memicPage != 0 || room%memicPage != 0 || from < first || from > end || room > end-from || room < size:
		return refuse(stBadParam, "range %#x+%#x for %d bytes: device memory is %#x+%#x, in pages", from, room, size,
			first, memicSize)
	}
	unit := uint64(memicUnit) << c.in.U("log_memic_addr_alignment")
	at, i := (from+unit-1)&^(unit-1), 0
	for ; i < len(m.memic.pieces); i++ {
		p := m.memic.pieces[i]
		if at+size <= p.at {
			break
		}
		if p.at+p.size > at {
			at = (p.at + p.size + unit - 1) &^ (unit - 1)
		}
	}
	if at+size > from+room { // another function may have the memory, so that drivers try the next range
		return cannot(stNoRes, "%d bytes of device memory in %#x+%#x", size, from, room)
	}
	m.memic.pieces = slices.Insert(m.memic.pieces, i, &memic{at: at, size: size})
	c.out.Set("memic_start_addr", at)
	return nil
}

func (m *Model) deallocMemic(c *call) *refusal {
	at, size := c.in.U("memic_start_addr"), c.in.U("memic_size")
	i := slices.IndexFunc(m.memic.pieces, func(p *memic) bool { return p.at == at && p.size == size })
	switch {
	case i < 0:
		return refuse(stBadRes, "no device memory %#x+%#x is allocated", at, size)
	case m.memic.pieces[i].held > 0:
		return refuse(stBadResState, "device memory %#x+%#x is in use by %d memory keys", at, size,
			m.memic.pieces[i].held)
	}
	m.memic.pieces = slices.Delete(m.memic.pieces, i, i+1)
	return nil
}

// piece returns the allocation that has n bytes at an offset in BAR 0, nil if there is none.
func (d *deviceMemory) piece(at, n uint64) *memic {
	for _, p := range d.pieces {
		if at >= p.at && at-p.at <= p.size && n <= p.size-(at-p.at) {
			return p
		}
	}
	return nil
}

// memicBytes returns n bytes of device memory at an offset in BAR 0, and an error if they are not allocated.
func (m *Model) memicBytes(at uint64, n int) ([]byte, error) {
	if m.memic.piece(at, uint64(n)) == nil {
		return nil, fmt.Errorf("%d bytes of device memory at %#x are not allocated", n, at)
	}
	if m.memic.bytes == nil {
		m.memic.bytes = make([]byte, memicSize)
	}
	return m.memic.bytes[at-m.prof.memicAt():][:n], nil
}

func (d *deviceMemory) left() string {
	if len(d.pieces) == 0 {
		return ""
	}
	return fmt.Sprintf("%d of device memory", len(d.pieces))
}

// bus is the memory that memory keys refer to: the host's, or the card's own.
type bus struct{ m *Model }

func (b bus) DMARead(at uint64, p []byte) error {
	if at&onCard == 0 {
		return b.m.host.DMARead(at, p)
	}
	from, err := b.m.memicBytes(at&^onCard, len(p))
	copy(p, from)
	return err
}

func (b bus) DMAWrite(at uint64, p []byte) error {
	if at&onCard == 0 {
		return b.m.host.DMAWrite(at, p)
	}
	to, err := b.m.memicBytes(at&^onCard, len(p))
	copy(to, p)
	return err
}
