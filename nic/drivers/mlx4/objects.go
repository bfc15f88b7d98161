package mlx4

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/nic/kit"
	"github.com/rebound-nic/rebound/nic/kit/mlxkit"
)

// memoryKey creates a key to all memory by address, within what the IOMMU allows (Linux, mlx4_en's mr).
func (d *Device) memoryKey() error {
	d.pd = d.caps.reservedPDs
	index := d.icm.mpt
	in := make(mailbox, 0x40)
	const (
		software = 0xF << 28
		moderate = 1 << 17 // MIO
		write    = 1 << 11 // locally
		read     = 1 << 10
		physical = 1 << 9
		region   = 1 << 8
	)
	in.set32(0x00, software|moderate|write|read|physical|region)
	in.set32(0x08, index)
	in.set32(0x0C, d.pd|3<<24) // permits remote invalidation, as Linux does
	in.set64(0x18, ^uint64(0)) // length
	in.set32(0x38, 12)         // log of the page size
	if err := d.commands.run(command{op: opSW2HWMPT, modifier: index, in: in}); err != nil {
		return err
	}
	d.steps.Done(opHW2SWMPT.String(), func() error {
		return d.commands.run(command{op: opHW2SWMPT, opMod: 1, modifier: index})
	})
	d.lkey = index<<8 | index>>24
	return nil
}

// place writes the location of a queue's memory to its context: the same fields at the same distance in every kind.
func (d *Device) place(ctx mailbox, b dma.Block) error {
	at, err := d.translate(b)
	ctx.set8(0, 0) // pages of 4 KiB
	ctx.set8(3, uint8(at>>32))
	ctx.set32(4, uint32(at))
	return err
}

// createCQ makes a completion queue that raises no events.
func (d *Device) createCQ(cqn, entries uint32, record uint64) (unsafe.Pointer, error) {
	b, err := d.card.Block(int(entries)*cqeSize, 4096)
	if err != nil {
		return nil, err
	}
	return kit.Pointer(b), d.startCQ(b, cqn, entries, record)
}

// startCQ is createCQ in b.
func (d *Device) startCQ(b dma.Block, cqn, entries uint32, record uint64) error {
	mem := kit.Pointer(b)
	emptyCQ(mem, entries)
	in := make(mailbox, 0x40)
	in.set32(0x0C, log2(entries)<<24|firstUAR)
	in.set8(0x17, uint8(d.icm.eq))
	if err := d.place(in[0x18:], b); err != nil {
		return err
	}
	in.set64(0x38, record)
	var mode uint8
	if d.caps.swCQInit {
		mode = 1 // the entries are in the state that firmware expects
	}
	if err := d.commands.run(command{op: opSW2HWCQ, opMod: mode, modifier: cqn, in: in}); err != nil {
		return err
	}
	d.steps.Done(opHW2SWCQ.String(), func() error {
		return d.commands.run(command{op: opHW2SWCQ, opMod: 1, modifier: cqn})
	})
	emptyCQ(mem, entries) // firmware without that mode wrote its own
	return nil
}

// QP context, at byte 8 of the mailbox, after the mask of optional parameters (Linux, mlx4_qp_context).
const (
	qpcAt       = 8
	qpcFlags    = qpcAt + 0x00 // state 31:28, service type 19:16, RSS 13
	qpcPD       = qpcAt + 0x04
	qpcMTU      = qpcAt + 0x08
	qpcRQ       = qpcAt + 0x09 // log of size 6:3, log of stride less 4 2:0
	qpcSQ       = qpcAt + 0x0A
	qpcUAR      = qpcAt + 0x0C
	qpcNumber   = qpcAt + 0x10
	qpcPath     = qpcAt + 0x18
	qpcCounter  = qpcPath + 0x04
	qpcAckTO    = qpcPath + 0x08 // ACK timeout 7:3, link type 2:0
	qpcSchedule = qpcPath + 0x20 // port 6, and Linux's value for Ethernet
	qpcRSS      = qpcPath + 0x24 // with bit 13 of the flags
	qpcSendCQ   = qpcAt + 0x7C
	qpcRecvCQ   = qpcAt + 0x9C
	qpcRecord   = qpcAt + 0xA0
	qpcQKey     = qpcAt + 0xA8
	qpcParam3   = qpcAt + 0xC0
	qpcPlace    = qpcAt + 0xC8
	qpcSize     = qpcAt + 0xF8

	serviceUD    = 3 << 16 // unreliable datagrams
	serviceMLX   = 7 << 16 // raw frames, and packets whose headers software builds
	migrated     = 3 << 11 // path migration state of a QP without an alternate path
	qpRSS        = 1 << 13
	keepVLAN     = 1 << 30 // in param3: tags stay in received frames
	noCounter    = 0xFF
	mtuRaw       = 0xFF
	scheduleBase = 0x83
	linkEthernet = 1 // Linux, MLX4_LINK_TYPE_ETH

	stateINIT = 1
	stateRTR  = 2
	stateRTS  = 3
)

// qpContext returns the fields that the contexts of all QPs share (Linux, mlx4_en_fill_qp_context).
func (d *Device) qpContext(qpn, cqn, uar uint32) mailbox {
	in := make(mailbox, qpcSize)
	in.set32(qpcFlags, serviceMLX)
	in.set32(qpcPD, d.pd)
	in.set8(qpcMTU, mtuRaw)
	in.set32(qpcUAR, uar)
	in.set32(qpcNumber, qpn)
	in.set8(qpcCounter, noCounter)
	in.set8(qpcAckTO, linkEthernet)
	in.set8(qpcSchedule, scheduleBase|uint8(d.port-1)<<6)
	in.set32(qpcSendCQ, cqn)
	in.set32(qpcRecvCQ, cqn)
	in.set32(qpcParam3, keepVLAN)
	return in
}

// startQP moves a QP from reset to ready-to-send.
func (d *Device) startQP(qpn uint32, ctx mailbox) error {
	flags := ctx.u32(qpcFlags) &^ (15 << 28)
	for _, s := range []struct {
		op    opcode
		state uint32
	}{{opRST2INIT, stateINIT}, {opINIT2RTR, stateRTR}, {opRTR2RTS, stateRTS}} {
		ctx.set32(qpcFlags, flags|s.state<<28)
		if err := d.commands.run(command{op: s.op, modifier: qpn, in: ctx}); err != nil {
			return err
		}
	}
	return nil
}

// resetQP resets a QP from any state. Pending work is lost, without completions.
func (d *Device) resetQP(qpn uint32) error {
	return d.commands.run(command{op: op2RST, opMod: 2, modifier: qpn})
}

// createQP is startQP for a QP that is reset on Close.
func (d *Device) createQP(qpn uint32, ctx mailbox) error {
	err := d.startQP(qpn, ctx)
	var e *CommandError
	if errors.As(err, &e) && e.op == opRST2INIT {
		return err // it is still reset
	}
	d.steps.Done(op2RST.String(), func() error { return d.resetQP(qpn) })
	return err
}

func sizeStride(entries, stride uint32) uint8 { return uint8(log2(entries)<<3 | (log2(stride) - 4)) }

// createSQ makes the QP that sends. It has no receive queue.
func (d *Device) createSQ(q *Queue, b dma.Block) error {
	in := d.qpContext(q.txQPN, q.txCQN, q.uar)
	in.set8(qpcSQ, sizeStride(q.txMask+1, txbb))
	if err := d.place(in[qpcPlace:], b); err != nil {
		return err
	}
	q.sendContext = in
	return nil
}

// createRQ creates the receive QP. Its send queue is one unused block in front: of the two queues, the one with wider
// entries comes first.
func (d *Device) createRQ(q *Queue, b dma.Block, record uint64) error {
	*(*uint32)(kit.Pointer(b)) = swap(ownerBit)
	in := d.qpContext(q.rxQPN, q.rxCQN, q.uar)
	in.set8(qpcRQ, sizeStride(q.mask+1, rxWQE))
	in.set8(qpcSQ, sizeStride(1, txbb))
	in.set64(qpcRecord, record)
	if err := d.place(in[qpcPlace:], b); err != nil {
		return err
	}
	q.fillReceives()
	return d.createQP(q.rxQPN, in)
}

// queuePages returns the largest number of pages of a queue pair's rings.
func (d *Device) queuePages() uint64 {
	n := uint64(d.card.Options.RingSize)
	pages := func(bytes uint64) uint64 { return align(bytes, icmPage) / icmPage }
	return pages(n*cqeSize) + pages(n*maxBlocks*cqeSize) + pages(n*maxBlocks*txbb) + pages(txbb+n*rxWQE)
}

// startQueues creates the queue pairs, and the RSS QP that spreads frames over the receive queues.
func (d *Device) startQueues() (err error) {
	d.choosePush()
	if d.subnet != nil {
		return d.createDatagrams()
	}
	memory, err := d.allocate()
	if err != nil {
		return err
	}
	for i, q := range d.queues {
		if err := d.startQueue(q, memory[i]); err != nil {
			return fmt.Errorf("queue %d: %w", i, err)
		}
	}
	d.deflt = d.icm.rxQP
	if len(d.queues) == 1 {
		return nil
	}
	if !d.caps.toeplitz || d.caps.maxRSS == 0 {
		d.card.FallBackToOne("QUERY_DEV_CAP offers no RSS with a Toeplitz hash")
		return nil
	}
	if err := d.createRSS(); refused(err) {
		d.card.FallBackToOne("%v", err)
		return nil
	} else if err != nil {
		return err
	}
	d.deflt = d.icm.rssQP
	return nil
}

// blocks are the parts of a queue pair's memory whose addresses the device gets when they are created.
type blocks struct{ records, rxCQ, txCQ, sq, rq dma.Block }

// allocate makes the rings, buffers and tables of the queue pairs. A loop keeps its Queue over restarts.
func (d *Device) allocate() (all []blocks, err error) {
	m, n := &d.icm, d.card.Options.RingSize
	for len(d.queues) < d.card.Options.Queues {
		d.queues = append(d.queues, &Queue{})
	}
	err = d.card.Lay(func(memory *kit.Rings) {
		all = make([]blocks, len(d.queues))
		for i, q := range d.queues {
			q.uar = firstUAR + uint32(i) // a BlueFlame register has one writer
			q.rxQPN, q.txQPN = m.rxQP+uint32(i), m.txQP+uint32(i)
			q.rxCQN, q.txCQN = m.cq+2*uint32(i), m.cq+2*uint32(i)+1
			d.layout(q)
			all[i] = blocks{records: memory.Block(3*64, 64), // doorbell records, a cache line each
				rxCQ: memory.Block(n*cqeSize, 4096), txCQ: memory.Block(n*maxBlocks*cqeSize, 4096),
				sq: memory.Block(n*maxBlocks*txbb, 4096),
				rq: memory.Block(txbb+n*rxWQE, 4096)}
			q.allocate(memory, i == 0)
		}
	})
	if err != nil {
		return nil, err
	}
	for i, q := range d.queues {
		b := &all[i]
		record := func(line int) *uint32 { return (*uint32)(unsafe.Pointer(&b.records.Bytes[64*line])) }
		q.rqRec, q.rxCQRec, q.txCQRec = record(0), record(1), record(2)
		q.rxCQ, q.txCQ, q.rq = kit.Pointer(b.rxCQ), kit.Pointer(b.txCQ), unsafe.Add(kit.Pointer(b.rq), txbb)
		q.wq = mmio.SendRing{Base: kit.Pointer(b.sq), Mask: q.txMask}
	}
	return all, nil
}

func (d *Device) startQueue(q *Queue, b blocks) error {
	if err := d.startCQ(b.rxCQ, q.rxCQN, q.mask+1, b.records.IOVA+64); err != nil {
		return err
	}
	if err := d.startCQ(b.txCQ, q.txCQN, q.txMask+1, b.records.IOVA+2*64); err != nil {
		return err
	}
	if err := d.createSQ(q, b.sq); err != nil {
		return err
	}
	if err := d.doorbell(q); err != nil {
		return err
	}
	if err := d.createRQ(q, b.rq, b.records.IOVA); err != nil {
		return err
	}
	q.reset() // the send queue's blocks are stamped before the device may read them
	return d.createQP(q.txQPN, q.sendContext)
}

// bufferStride is the distance between buffers for frames of up to size bytes.
func bufferStride(size int) uint32 { return kit.Stride(size + slack) }

// buffers allocates the buffers and tables, and writes the receive WQEs.
func (d *Device) buffers(q *Queue, send bool) error {
	memory := kit.Rings{Card: &d.card}
	if q.allocate(&memory, send); memory.Err != nil {
		return memory.Err
	}
	q.fillReceives()
	return nil
}

// allocate makes the buffers of the receive slots and of Send, and the tables.
func (q *Queue) allocate(memory *kit.Rings, send bool) {
	n := int(q.mask + 1)
	q.buf, q.iova = memory.Page(n * int(q.stride))
	if send {
		out, ends := memory.Block(n*int(q.stride), 4096), memory.Table(4*n)
		if memory.Err == nil {
			q.out = mlxkit.NewBuffers(out, unsafe.Slice((*uint32)(ends), n))
		}
	}
	q.pend, q.asked = memory.Table(4*n), memory.Table(8*n*maxBlocks)
}

// fillReceives writes the receive WQEs.
func (q *Queue) fillReceives() {
	for slot := range q.mask + 1 {
		*(*mlxkit.DataSegment)(unsafe.Add(q.rq, slot*rxWQE)) = mlxkit.NewData(q.size, q.lkey,
			q.iova+uint64(slot*q.stride))
	}
}

// Hash inputs of RSS, in the flags of its context.
const (
	hashUDPv6 = 1 << 0
	hashUDPv4 = 1 << 1
	hashIPv6  = 1 << 3
	hashIPv4  = 1 << 5

	hashToeplitz = 1
)

// createRSS creates the QP without queues that spreads received frames over the receive QPs.
func (d *Device) createRSS() error {
	in := d.qpContext(d.icm.rssQP, d.icm.cq, firstUAR)
	in.set32(qpcFlags, serviceMLX|qpRSS)
	in.set8(qpcSQ, sizeStride(1, txbb))
	// never used; the first translations are the device's own (Linux, mlx4_en: priv->res)
	b, err := d.card.Block(icmPage, icmPage)
	if err != nil {
		return err
	}
	if err := d.place(in[qpcPlace:], b); err != nil {
		return err
	}
	in.set32(qpcRSS, log2(uint32(len(d.queues)))<<24|d.icm.rxQP)
	in.set32(qpcRSS+4, d.icm.rxQP) // frames that have nothing to hash
	flags := uint8(hashIPv4 | hashIPv6)
	if d.caps.udpRSS {
		flags |= hashUDPv4 | hashUDPv6
		in.set32(qpcRSS+0x34, d.icm.rxQP)
	}
	in.set8(qpcRSS+0x0A, hashToeplitz)
	in.set8(qpcRSS+0x0B, flags)
	for i := range 10 { // this key makes both directions of a flow hash alike
		in.set32(qpcRSS+0x0C+4*i, 0x6D5A6D5A)
	}
	return d.createQP(d.icm.rssQP, in)
}
