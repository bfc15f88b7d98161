package efa

import (
	"errors"
	"fmt"
	"math/bits"
	"unsafe"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/kit"
	"github.com/rebound-nic/rebound/nic/kit/amazonadmin"
)

// startQueues makes what all queue pairs share, and then the queues.
func (d *Device) startQueues() error {
	var r allocated
	if err := amazonadmin.Exec(d.aq, "allocate protection domain", &allocPD{amazonadmin.Header{Opcode: opAllocPD}}, &r); err != nil {
		return err
	}
	d.pd = r.number
	if err := amazonadmin.Exec(d.aq, "allocate doorbell pages", &allocPD{amazonadmin.Header{Opcode: opAllocUAR}}, &r); err != nil {
		return err
	}
	d.uar = r.number
	pairs := len(d.own.Services)
	slots := pairs * (d.ring + sendSlots)
	stride := kit.Stride(room + d.card.MTU)
	memory, key, err := d.register(d.card.Options.Queues * slots * int(stride))
	if err != nil {
		return err
	}
	if d.queues == nil {
		for range d.card.Options.Queues {
			d.queues = append(d.queues, &Queue{})
			d.sends, d.looks = append(d.sends, make([]uint32, slots)), append(d.looks, make([]uint16, slots))
		}
		d.missed = make([][maxPairs]kit.Progress, len(d.queues))
	}
	var endpoints []nic.Endpoint
	for i, q := range d.queues {
		q.buf, q.iova = unsafe.Add(kit.Pointer(memory), i*slots*int(stride)), memory.IOVA+uint64(i*slots)*uint64(stride)
		q.stride, q.size, q.key = stride, uint32(d.card.MTU), uint64(key)
		if err := d.startQueue(q); err != nil {
			return fmt.Errorf("queue %d: %w", i, err)
		}
		for j, s := range d.own.Services {
			endpoints = append(endpoints, d.endpoint(i, s, q.pairs[j].number))
		}
	}
	d.endpoints.Store(&endpoints)
	return nil
}

// register makes one memory region of size bytes for all messages, of pages as large as memory and device allow.
func (d *Device) register(size int) (dma.Block, uint32, error) {
	const small, huge = 12, 21
	shift := huge
	round := func() int { return (size + 1<<shift - 1) &^ (1<<shift - 1) }
	var b dma.Block
	err := error(nil)
	if d.attr.pageSizes>>huge&1 != 0 {
		b, err = d.card.Block(round(), 1<<huge)
	}
	if d.attr.pageSizes>>huge&1 == 0 || errors.Is(err, dma.ErrNoRoom) { // pages of the host that are no larger
		if shift = small; d.attr.pageSizes>>small&1 == 0 {
			return b, 0, d.card.Errorf("%w: no memory region in pages of 4 KiB (page sizes %#x)", amazonadmin.ErrDevice, d.attr.pageSizes)
		}
		b, err = d.card.Block(round(), 1<<small)
	}
	if err != nil {
		return b, 0, err
	}
	pages := len(b.Bytes) >> shift
	if pages > int(d.queue.maxMRPages) {
		return b, 0, d.card.Errorf("messages take %d pages of %d KiB, the device has up to %d in a region: take a smaller ring, or huge pages",
			pages, 1<<shift>>10, d.queue.maxMRPages)
	}
	c := regMR{Header: amazonadmin.Header{Opcode: opRegMR}, pd: d.pd, length: uint64(len(b.Bytes)), flags: uint8(shift),
		permissions: localWrite, iova: b.IOVA}
	if pages <= maxInlinePages {
		for i := range pages {
			c.pages[i] = b.IOVA + uint64(i)<<shift
		}
	} else {
		list, err := d.card.Block(8*pages, 4096)
		if err != nil {
			return b, 0, err
		}
		for i, p := range unsafe.Slice((*[8]byte)(kit.Pointer(list)), pages) {
			_ = p
			*(*uint64)(unsafe.Add(kit.Pointer(list), 8*i)) = b.IOVA + uint64(i)<<shift
		}
		addr := amazonadmin.PutAddr(list.IOVA)
		c.Flags = amazonadmin.FlagCtrlData
		control := (*[maxInlinePages * 8]byte)(unsafe.Pointer(&c.pages))
		*(*uint32)(unsafe.Pointer(control)) = uint32(8 * pages)
		copy(control[4:], addr[:])
	}
	var r regdMR
	if err := amazonadmin.Exec(d.aq, "register memory", &c, &r); err != nil {
		return b, 0, err
	}
	if r.lkey>>24 != 0 {
		return b, 0, d.card.Errorf("%w: local key %#x has more than 24 bits", amazonadmin.ErrDevice, r.lkey)
	}
	return b, r.lkey, nil
}

func (d *Device) startQueue(q *Queue) error {
	pairs := len(d.own.Services)
	q.npairs, q.pairShift = uint32(pairs), uint32(bits.TrailingZeros(uint(d.ring)))
	q.slots = uint32(pairs * d.ring)
	q.all = q.slots + uint32(pairs*sendSlots)
	q.word = kit.Words(int(q.all))
	q.qkey = uint64(d.own.QKey)
	q.entry, q.maxInline = d.entry, d.inline
	q.sqMask, q.sqShift = d.sqDepth-1, uint32(bits.TrailingZeros32(d.sqDepth))
	q.burst = d.sqDepth
	if d.queue.minSQDepth != 0 { // the device then holds one less than its ring
		q.burst = d.sqDepth - 1
	}
	if batch := uint32(d.queue.maxBatch) * 64 / d.entry; d.queue.maxBatch != 0 {
		if batch == 0 {
			return d.card.Errorf("%w: bursts of %d bytes hold no entry of %d", amazonadmin.ErrDevice, 64*int(d.queue.maxBatch), d.entry)
		}
		q.burst = min(q.burst, batch)
	}
	scratch, err := d.card.Block(128, 128) // zeros behind what transmit writes
	if err != nil {
		return err
	}
	q.scratch = kit.Pointer(scratch)
	rx, err := d.createCQ("create receive CQ", pairs*d.ring, rxCQE, q.rx[:])
	if err != nil {
		return err
	}
	q.rxSubs, q.rxMask, q.rxShift, q.rxCQDB = rx.subs, rx.depth-1, uint32(bits.TrailingZeros32(rx.depth)), rx.doorbell
	tx, err := d.createCQ("create send CQ", pairs*int(d.sqDepth)+refillBatch, txCQE, q.tx[:])
	if err != nil {
		return err
	}
	q.txSubs, q.txMask, q.txShift, q.txCQDB = tx.subs, tx.depth-1, uint32(bits.TrailingZeros32(tx.depth)), tx.doorbell
	for i, s := range d.own.Services {
		if err := d.createPair(&q.pairs[i], s, rx.index, tx.index); err != nil {
			return fmt.Errorf("%v: %w", s, err)
		}
	}
	q.reset()
	q.fill()
	return nil
}

type completionQueue struct {
	index       uint32
	subs, depth uint32
	doorbell    *uint32
}

// createCQ makes a completion queue for n completions at a time in each of its rings, and sets those.
func (d *Device) createCQ(name string, n, entry int, rings []ring) (cq completionQueue, err error) {
	cq.subs, cq.depth = uint32(d.queue.subCQs), 1
	for cq.depth < uint32(n) {
		cq.depth *= 2
	}
	bytes := int(cq.depth) * entry
	b, err := d.card.Block((int(cq.subs)*bytes+4095)&^4095, 4096)
	if err != nil {
		return cq, err
	}
	c := createCQ{Header: amazonadmin.Header{Opcode: opCreateCQ}, caps2: uint8(entry / 4), depth: uint16(cq.depth),
		base: amazonadmin.PutAddr(b.IOVA), subCQs: uint16(cq.subs), uar: d.uar}
	if entry == rxCQE {
		c.caps2 |= senderGID
	}
	var r createdCQ
	if err := amazonadmin.Exec(d.aq, name, &c, &r); err != nil {
		return cq, err
	}
	for i := range cq.subs {
		rings[i] = ring{at: unsafe.Add(kit.Pointer(b), int(i)*bytes)}
	}
	cq.index = uint32(r.index)
	if r.flags&1 != 0 {
		cq.doorbell, err = d.doorbell(r.doorbell)
	}
	return cq, err
}

// createPair makes a queue pair and takes it to the state in which it sends and receives.
func (d *Device) createPair(p *pair, s nic.Service, rx, tx uint32) error {
	rq, err := d.card.Block(d.ring*descSize, 4096)
	if err != nil {
		return err
	}
	*p = pair{rq: kit.Pointer(rq), stamp: s.STAMP(), free: array(d.ring), sendFree: array(sendSlots)}
	c := createQP{Header: amazonadmin.Header{Opcode: opCreateQP}, pd: d.pd, kind: 2, rqBase: rq.IOVA, sendCQ: tx, recvCQ: rx,
		sqBytes: d.sqDepth * d.entry, sqDepth: d.sqDepth, rqBytes: uint32(d.ring * descSize), rqDepth: uint32(d.ring), uar: d.uar}
	if !s.Reliable() {
		c.kind, p.skip = 1, grh
	}
	var r createdQP
	if err := amazonadmin.Exec(d.aq, "create queue pair", &c, &r); err != nil {
		return err
	}
	p.number = uint32(r.number)
	if uint32(r.sendSub) >= uint32(d.queue.subCQs) || uint32(r.recvSub) >= uint32(d.queue.subCQs) {
		return d.card.Errorf("%w: queue pair %d goes by rings %d and %d of %d", amazonadmin.ErrDevice, r.number, r.sendSub, r.recvSub, d.queue.subCQs)
	}
	if p.sqDB, err = d.doorbell(r.sqDoorbell); err != nil {
		return err
	}
	if p.rqDB, err = d.doorbell(r.rqDoorbell); err != nil {
		return err
	}
	size := uint64(d.sqDepth * d.entry)
	if uint64(r.llq)+size > d.mem.Size() || r.llq%64 != 0 {
		return d.card.Errorf("%w: send queue of %#x bytes at %#x of BAR 2, which has %#x", amazonadmin.ErrDevice, size, r.llq, d.mem.Size())
	}
	if p.llq, err = d.mem.Pointer(uint64(r.llq), size); err != nil {
		return err
	}
	for _, m := range []modifyQP{
		{mask: maskState | maskFrom | maskQKey, from: stateReset, state: stateInit, qkey: d.own.QKey},
		{mask: maskState | maskFrom, from: stateInit, state: stateRTR},
		{mask: maskState | maskFrom | maskPSN, from: stateRTR, state: stateRTS},
	} {
		m.Header, m.handle = amazonadmin.Header{Opcode: opModifyQP}, r.handle
		if err := amazonadmin.Exec(d.aq, fmt.Sprintf("modify queue pair to state %d", m.state), &m, new(amazonadmin.Completion)); err != nil {
			return err
		}
	}
	return nil
}

// array returns zeroed memory for n elements, which Poll reads without bounds checks.
func array(n int) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(make([]uint16, n))) }

// doorbell returns where the doorbell at off lies.
func (d *Device) doorbell(off uint32) (*uint32, error) {
	if uint64(off)+4 > d.db.Size() || off%4 != 0 {
		return nil, d.card.Errorf("%w: doorbell at %#x of BAR %d, which has %#x bytes", amazonadmin.ErrDevice, off, d.attr.doorbellBAR, d.db.Size())
	}
	p, err := d.db.Pointer(uint64(off), 4)
	return (*uint32)(p), err
}
