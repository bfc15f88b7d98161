package mlx4

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/dma"
)

// The device keeps the contexts of its objects in host memory that the driver provides: ICM, a virtual address space
// with a table per kind of context. Only those parts of a table are mapped that contain our objects and the ones that
// the device reserves before them.
const (
	icmPage  = 4096
	icmChunk = 256 << 10 // how much is given in one piece at most, as Linux does

	cmptShift = 24 // the table of cMPTs has four parts of this many entries (log): of QPs, SRQs, CQs and EQs
	logRDMARC = 4  // entries for RDMA reads per QP: as Linux has it, although none is used

	maxFirmwarePages = 64 << 10 // 256 MiB: more than any firmware requests
	specialQPs       = 8
	minTable         = 64   // entries of a table without objects of ours
	groupEntries     = 4096 // of the steering table
	minGroupLog      = 7    // minimum of the log of the size of its entries
	maxGroupLog      = 12   // and at most
	defaultGroupLog  = 10   // without device-managed steering
)

// resource is a kind of context.
type resource int

const (
	resQP resource = iota
	resRDMARC
	resALTC
	resAUXC
	resSRQ
	resCQ
	resEQ
	resDMPT
	resCMPT
	resMTT
	resMCG
	resources
)

var resourceNames = [resources]string{"QP", "RDMARC", "ALTC", "AUXC", "SRQ", "CQ", "EQ", "dMPT", "cMPT", "MTT", "MCG"}

// table describes the contexts of one kind.
type table struct {
	base    uint64
	entry   uint64 // bytes, a power of two
	entries uint64 // a power of two
	used    uint64 // entries from the start that are mapped
}

// icm is the layout of the context memory, and its contents.
type icm struct {
	tables [resources]table
	size   uint64
	mtts   []dma.Block // memory of the mapped part of the MTT table, in order
	mttEnd uint64      // entries given out

	// Numbers of our objects.
	rxQP, rssQP, txQP uint32 // of the first of each
	specialQP         uint32 // of the first QP for InfiniBand's management
	cq, eq, mpt       uint32
	groupLog          uint32
	managed           bool // device-managed flow steering
}

func log2(n uint32) uint32 { return uint32(bits.TrailingZeros32(n)) }

func power(n uint64) uint64 { return 1 << bits.Len64(n-1) }

func align(n, to uint64) uint64 { return (n + to - 1) &^ (to - 1) }

// number chooses the numbers of our objects, after those that the device reserves.
func (d *Device) number() {
	c, m := &d.caps, &d.icm
	// Queues that use BlueFlame need bits 7 and 6 clear, RSS needs adjacent queues that start at a multiple of their
	// number, and steering by the MAC table adds an index to a base.
	m.specialQP = uint32(align(uint64(c.reservedQPs), specialQPs))
	m.rxQP = uint32(align(uint64(m.specialQP+specialQPs), 256))
	m.rssQP, m.txQP = m.rxQP+256, m.rxQP+512
	m.cq, m.mpt = c.reservedCQs, c.reservedMPTs
	m.eq = max(4*c.reservedUARs, c.reservedEQs) // the doorbell of an EQ must not be on a reserved page
	m.managed, m.groupLog = false, defaultGroupLog
	if c.flowSteering && d.own.Steering != steeringA0 && d.subnet == nil { // InfiniBand's groups use this table
		for log := uint32(minGroupLog); log <= maxGroupLog; log++ {
			if uint32(c.steeringQPs) <= 4*(1<<log/16-2) {
				m.managed, m.groupLog = true, log
				break
			}
		}
	}
}

// plan lays the tables out: sizes are powers of two, so that in descending order each is aligned to its own size.
func (d *Device) plan() error {
	d.number()
	c, m := &d.caps, &d.icm
	n := uint64(d.card.Options.Queues)
	qps := uint64(m.txQP) + maxQueues
	set := func(r resource, entry uint16, entries, used uint64) {
		m.tables[r] = table{entry: uint64(entry), entries: power(max(entries, used, minTable)), used: used}
	}
	set(resQP, c.qpcSize, qps, qps)
	set(resRDMARC, c.rdmarcSize, power(qps)<<logRDMARC, qps<<logRDMARC)
	set(resALTC, c.altcSize, qps, qps)
	set(resAUXC, c.auxcSize, qps, qps)
	set(resSRQ, c.srqSize, 2*uint64(c.reservedSRQs), uint64(c.reservedSRQs))
	cqs, pages := 2*n, n*d.queuePages()+2 // and those of the event queue and of the RSS QP
	if d.subnet != nil {
		cqs, pages = cqs+gsiCQs, pages+gsiPages
	}
	set(resCQ, c.cqcSize, 0, uint64(m.cq)+cqs)
	set(resEQ, c.eqcSize, 0, uint64(m.eq)+1)
	set(resDMPT, c.dmptSize, 0, uint64(m.mpt)+1)
	set(resCMPT, c.cmptSize, 4<<cmptShift, 0)
	m.mttEnd = align(uint64(c.reservedMTTs), 8) // the device's share no line with ours
	set(resMTT, c.mttSize, 0, m.mttEnd+pages)
	set(resMCG, 1<<m.groupLog, groupEntries, groupEntries)
	order := make([]resource, resources)
	for r := range resources {
		order[r] = r
		if e := m.tables[r].entry; e == 0 || e&(e-1) != 0 || e > icmPage {
			return d.card.Errorf("%w: QUERY_DEV_CAP says that a context of kind %s has %d bytes, expected a power of two up to %d", nic.ErrHardware,
				resourceNames[r], e, icmPage)
		}
	}
	if e := m.tables[resMTT].entry; e != 8 {
		return d.card.Errorf("%w: QUERY_DEV_CAP says that an MTT has %d bytes, expected 8", nic.ErrHardware, e)
	}
	for _, most := range []struct {
		what  string
		n, of uint64
	}{
		{"QPs", qps, uint64(c.maxQPs)}, {"CQs", m.tables[resCQ].used, uint64(c.maxCQs)}, {"EQs", m.tables[resEQ].used, uint64(c.maxEQs)},
		{"MPTs", m.tables[resDMPT].used, uint64(c.maxMPTs)},
	} {
		if most.n > most.of {
			return d.card.Errorf("%w: %d %s are needed, including the device's own; it has %d", nic.ErrHardware, most.n,
				most.what, most.of)
		}
	}
	bytes := func(r resource) uint64 { return max(m.tables[r].entry*m.tables[r].entries, icmPage) }
	slices.SortStableFunc(order, func(a, b resource) int {
		return int(bits.Len64(bytes(b))) - int(bits.Len64(bytes(a)))
	})
	m.size = 0
	for _, r := range order {
		m.tables[r].base = m.size
		m.size += bytes(r)
	}
	if m.size > c.maxICM {
		return d.card.Errorf("%w: %#x bytes of context memory are needed, the device has room for %#x", nic.ErrHardware,
			m.size, c.maxICM)
	}
	return nil
}

// memory returns n pages for the device, in pieces of at most icmChunk.
func (d *Device) memory(pages uint64) (blocks []dma.Block, err error) {
	for left := pages * icmPage; left > 0; {
		n := min(left, icmChunk)
		n = 1 << (bits.Len64(n) - 1) // a power of two: it is aligned to its size and needs one entry
		b, err := d.card.Block(int(n), int(n))
		if err != nil {
			return nil, err
		}
		blocks = append(blocks, b)
		left -= n
	}
	return blocks, nil
}

// mapMemory passes memory to the device: MAP_FA, MAP_ICM_AUX, or MAP_ICM from a virtual address on. The pieces get
// smaller, and the address is aligned to the smallest power of two that holds them all, so each piece is aligned to its
// size there, too.
func (d *Device) mapMemory(op opcode, blocks []dma.Block, virtual uint64) error {
	const each = 16
	in := mailbox{}
	flush := func() error {
		if len(in) == 0 {
			return nil
		}
		err := d.commands.run(command{op: op, modifier: uint32(len(in) / each), in: in})
		in = in[:0]
		return err
	}
	for _, b := range blocks {
		var v uint64
		if op == opMapICM {
			v = virtual
		}
		n := uint64(len(b.Bytes))
		in = binary.BigEndian.AppendUint64(in, v)
		in = binary.BigEndian.AppendUint64(in, b.IOVA|uint64(bits.TrailingZeros64(n)-12))
		virtual += n
		if len(in) == mailboxSize {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}

// mapContext maps the first used entries of a table from its base on.
func (d *Device) mapContext(what string, base, entry, used uint64) ([]dma.Block, error) {
	pages := align(entry*used, icmPage) / icmPage
	if pages == 0 {
		return nil, nil
	}
	blocks, err := d.memory(pages)
	if err != nil {
		return nil, err
	}
	if err := d.mapMemory(opMapICM, blocks, base); err != nil {
		return nil, fmt.Errorf("context memory for %s: %w", what, err)
	}
	d.steps.Done(opUnmapICM.String(), func() error { // in powers of two, aligned as the pieces of mapMemory are
		var errs []error
		for at, left := base, pages; left > 0; {
			n := uint64(1) << (bits.Len64(left) - 1)
			errs = append(errs, d.commands.run(command{op: opUnmapICM, param: at, modifier: uint32(n)}))
			at, left = at+n*icmPage, left-n
		}
		return errors.Join(errs...)
	})
	return blocks, nil
}

// contexts maps the memory of the contexts.
func (d *Device) contexts() error {
	if err := d.plan(); err != nil {
		return err
	}
	m := &d.icm
	d.chained = 0
	_, aux, err := d.commands.exec(command{op: opSetICMSize, param: m.size})
	if err != nil {
		return err
	}
	if aux > maxFirmwarePages {
		return d.card.Errorf("%w: %v asks for %d pages, expected %d at most", nic.ErrHardware, opSetICMSize, aux,
			maxFirmwarePages)
	}
	blocks, err := d.memory(aux)
	if err != nil {
		return err
	}
	if err := d.mapMemory(opMapICMAux, blocks, 0); err != nil {
		return err
	}
	d.steps.Done(opUnmapICMAux.String(), func() error { return d.commands.run(command{op: opUnmapICMAux}) })
	t := &m.tables
	for i, r := range []resource{resQP, resSRQ, resCQ, resEQ} {
		base := t[resCMPT].base + uint64(i)<<cmptShift*t[resCMPT].entry
		if _, err := d.mapContext("cMPTs of kind "+resourceNames[r], base, t[resCMPT].entry, t[r].used); err != nil {
			return err
		}
	}
	for r := range resources {
		if r == resCMPT {
			continue
		}
		blocks, err := d.mapContext(resourceNames[r]+"s", t[r].base, t[r].entry, t[r].used)
		if err != nil {
			return err
		}
		if r == resMTT {
			m.mtts = blocks
		}
	}
	return nil
}

// translate writes the addresses of a block's pages to the MTT table, and returns the offset in bytes of the first one,
// as contexts need it. The device reads MTTs in place.
func (d *Device) translate(b dma.Block) (uint64, error) {
	m := &d.icm
	first, pages := m.mttEnd, uint64(len(b.Bytes)+icmPage-1)/icmPage
	if first+pages > m.tables[resMTT].used {
		return 0, d.card.Errorf("%d pages are needed, %d MTTs are left", pages, m.tables[resMTT].used-first)
	}
	m.mttEnd += pages
	for i := range pages {
		const present = 1
		off := (first + i) * 8
		for _, piece := range m.mtts {
			if off < uint64(len(piece.Bytes)) {
				binary.BigEndian.PutUint64(piece.Bytes[off:], b.IOVA+i*icmPage|present)
				break
			}
			off -= uint64(len(piece.Bytes))
		}
	}
	return first * 8, nil
}
