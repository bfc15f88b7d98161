package efa

import (
	"errors"
	"fmt"
	"net/netip"
	"unsafe"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/kit"
	"github.com/rebound-nic/rebound/nic/kit/amazonadmin"
)

func (a *admin) protect() error {
	var r allocated
	if err := amazonadmin.Exec(a.aq, "allocate protection domain", &allocPD{amazonadmin.Header{Opcode: opAllocPD}},
		&r); err != nil {
		return err
	}
	a.pd = r.number
	if err := amazonadmin.Exec(a.aq, "allocate doorbell pages", &allocPD{amazonadmin.Header{Opcode: opAllocUAR}},
		&r); err != nil {
		return err
	}
	a.uar = r.number
	return nil
}

// register creates one memory region of size bytes for all messages, with pages as large as memory and device permit.
func (a *admin) register(size int) (dma.Block, uint32, error) {
	d := a.d
	const small, huge = 12, 21
	shift := huge
	round := func() int { return (size + 1<<shift - 1) &^ (1<<shift - 1) }
	var b dma.Block
	err := error(nil)
	if d.attr.pageSizes>>huge&1 != 0 {
		b, err = d.card.Block(round(), 1<<huge)
	}
	if d.attr.pageSizes>>huge&1 == 0 || errors.Is(err, dma.ErrNoRoom) { // no larger host pages are available
		if shift = small; d.attr.pageSizes>>small&1 == 0 {
			return b, 0, d.card.Errorf("%w: no memory region in pages of 4 KiB (page sizes %#x)", amazonadmin.ErrDevice,
				d.attr.pageSizes)
		}
		b, err = d.card.Block(round(), 1<<small)
	}
	if err != nil {
		return b, 0, err
	}
	pages := len(b.Bytes) >> shift
	if pages > int(d.queue.maxMRPages) {
		return b, 0, d.card.Errorf(
			"messages take %d pages of %d KiB, the device has up to %d in a region: take a smaller ring, or huge pages",
			pages, 1<<shift>>10, d.queue.maxMRPages)
	}
	c := regMR{Header: amazonadmin.Header{Opcode: opRegMR}, pd: a.pd, length: uint64(len(b.Bytes)), flags: uint8(shift),
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
		addresses := unsafe.Slice((*uint64)(kit.Pointer(list)), pages)
		for i := range addresses {
			addresses[i] = b.IOVA + uint64(i)<<shift
		}
		addr := amazonadmin.PutAddr(list.IOVA)
		c.Flags = amazonadmin.FlagCtrlData
		control := (*[maxInlinePages * 8]byte)(unsafe.Pointer(&c.pages))
		*(*uint32)(unsafe.Pointer(control)) = uint32(8 * pages)
		copy(control[4:], addr[:])
	}
	var r regdMR
	if err := amazonadmin.Exec(a.aq, "register memory", &c, &r); err != nil {
		return b, 0, err
	}
	if r.lkey>>24 != 0 {
		return b, 0, d.card.Errorf("%w: local key %#x has more than 24 bits", amazonadmin.ErrDevice, r.lkey)
	}
	return b, r.lkey, nil
}

func (a *admin) createCQ(name string, depth uint32, entry int) (made createdRings, err error) {
	d := a.d
	subs := d.queue.subCQs
	b, err := d.card.Block((int(subs)*int(depth)*entry+4095)&^4095, 4096)
	if err != nil {
		return made, err
	}
	c := createCQ{Header: amazonadmin.Header{Opcode: opCreateCQ}, caps2: uint8(entry / 4), depth: uint16(depth),
		base: amazonadmin.PutAddr(b.IOVA), subCQs: subs, uar: a.uar}
	if entry == rxCQE {
		c.caps2 |= senderGID
	}
	var r createdCQ
	if err := amazonadmin.Exec(a.aq, name, &c, &r); err != nil {
		return made, err
	}
	made.index, made.at = uint32(r.index), kit.Pointer(b)
	if r.flags&1 != 0 {
		made.doorbell, err = a.doorbell(r.doorbell)
	}
	return made, err
}

func (a *admin) createQP(p *pair, s nic.Service, rx, tx uint32) error {
	d := a.d
	rq, err := d.card.Block(d.ring*descSize, 4096)
	if err != nil {
		return err
	}
	p.rq = kit.Pointer(rq)
	c := createQP{Header: amazonadmin.Header{Opcode: opCreateQP}, pd: a.pd, kind: 2, rqBase: rq.IOVA, sendCQ: tx,
		recvCQ:  rx,
		sqBytes: d.sqDepth * d.entry, sqDepth: d.sqDepth, rqBytes: uint32(d.ring * descSize), rqDepth: uint32(d.ring),
		uar: a.uar}
	if !s.Reliable() {
		c.kind = 1
	}
	var r createdQP
	if err := amazonadmin.Exec(a.aq, "create queue pair", &c, &r); refused(err) && d.entry > 64 {
		return fmt.Errorf("%w: %w", errNarrow, err)
	} else if err != nil {
		return err
	}
	p.number = uint32(r.number)
	if uint32(r.sendSub) >= uint32(d.queue.subCQs) || uint32(r.recvSub) >= uint32(d.queue.subCQs) {
		return d.card.Errorf("%w: queue pair %d goes by rings %d and %d of %d", amazonadmin.ErrDevice, r.number,
			r.sendSub, r.recvSub, d.queue.subCQs)
	}
	if p.sqDB, err = a.doorbell(r.sqDoorbell); err != nil {
		return err
	}
	if p.rqDB, err = a.doorbell(r.rqDoorbell); err != nil {
		return err
	}
	size := uint64(d.sqDepth * d.entry)
	if uint64(r.llq)+size > a.mem.Size() || r.llq%64 != 0 {
		return d.card.Errorf("%w: send queue of %#x bytes at %#x of BAR 2, which has %#x", amazonadmin.ErrDevice, size,
			r.llq, a.mem.Size())
	}
	if p.llq, err = a.mem.Pointer(uint64(r.llq), size); err != nil {
		return err
	}
	ready := uint32(maskState | maskFrom | maskPSN)
	if d.limitsRetries(s) {
		ready |= maskRNR // rnr is 0
	}
	for _, m := range []modifyQP{
		{mask: maskState | maskFrom | maskQKey, from: stateReset, state: stateInit, qkey: d.own.QKey},
		{mask: maskState | maskFrom, from: stateInit, state: stateRTR},
		{mask: ready, from: stateRTR, state: stateRTS},
	} {
		m.Header, m.handle = amazonadmin.Header{Opcode: opModifyQP}, r.handle
		if err := amazonadmin.Exec(a.aq, fmt.Sprintf("modify queue pair to state %d", m.state), &m,
			new(amazonadmin.Completion)); err != nil {
			return err
		}
	}
	return nil
}

// doorbell returns the address of the doorbell at off.
func (a *admin) doorbell(off uint32) (*uint32, error) {
	d := a.d
	if uint64(off)+4 > a.db.Size() || off%4 != 0 {
		return nil, d.card.Errorf("%w: doorbell at %#x of BAR %d, which has %#x bytes", amazonadmin.ErrDevice, off,
			d.attr.doorbellBAR, a.db.Size())
	}
	p, err := a.db.Pointer(uint64(off), 4)
	return (*uint32)(p), err
}

func (a *admin) createAH(gid netip.Addr) (uint16, error) {
	var r createdAH
	c := createAH{Header: amazonadmin.Header{Opcode: opCreateAH}, gid: gid.As16(), pd: a.pd}
	err := amazonadmin.Exec(a.aq, "create address handle", &c, &r)
	return r.handle, err
}

func (a *admin) destroyAH(number uint16) error {
	c := destroyAH{Header: amazonadmin.Header{Opcode: opDestroyAH}, handle: number, pd: a.pd}
	return amazonadmin.Exec(a.aq, "destroy address handle", &c, new(amazonadmin.Completion))
}
