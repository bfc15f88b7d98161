package mlx5

import (
	"errors"
	"fmt"
	"math/bits"
	"unsafe"

	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/kit"
	"github.com/rebound-nic/rebound/nic/kit/mlxkit"
)

// maker creates the objects of the queues and moves queues between states: by commands to the firmware, or the kernel
// does.
type maker interface {
	// common creates the objects that all queues share.
	common() error
	// completions, sends and receives create a queue in b, with a doorbell record.
	completions(b dma.Block, entries uint32, record dma.Block) (cqn uint32, err error)
	sends(q *Queue, b, record dma.Block) error
	receives(q *Queue, b, record dma.Block) error
	// ready makes a new pair of queues ready; stopSends resets a send queue in any state, and startSends makes it ready
	// again.
	ready(q *Queue) error
	stopSends(q *Queue) error
	startSends(q *Queue) error
}

// byCommand is the maker that sends commands to the firmware.
type byCommand struct{ *Device }

// create sends a command that creates an object, and returns its number.
func (d *Device) create(in message, destroy opcode, hi int) (uint32, error) {
	return d.fw.create(in, destroy, hi)
}

// common creates a doorbell page, the event queue, protection and transport domains, the memory key, the counter of
// frames dropped for lack of a buffer, and the sender's interface (TIS).
func (d byCommand) common() error {
	if d.caps.driverVersion && d.commands != nil {
		in := command(opSetDriverVersion, 0, 0x50)
		copy(in[0x10:], "Linux,rebound,1.0.0")
		if err := d.run(in); err != nil && !refused(err) {
			return err
		}
	}
	var err error
	if d.uar, err = d.fw.allocUAR(); err != nil {
		return err
	}
	if err := d.fw.protect(); err != nil {
		return err
	}
	if d.counterSet, err = d.create(command(opAllocQCounter, 0, 0x10), opDeallocQCounter, 7); err != nil {
		return err
	}
	in := command(opCreateTIS, 0, 0xC0)
	in.at(0x20).set("transport_domain", 0x24, 23, 0, d.td)
	d.tis, err = d.create(in, opDestroyTIS, 23)
	return err
}

// memoryKey creates a key to all memory that the IOMMU allows. If firmware has no key available, the reserved key does
// the same.
func (d *Device) memoryKey() error {
	in := command(opCreateMKey, 0, 0x110)
	in.at(0x10).
		set("lw", 0x00, 11, 11, 1).
		set("lr", 0x00, 10, 10, 1).
		set("access_mode", 0x00, 9, 8, 0). // PA: physical addresses
		set("qpn", 0x04, 31, 8, 0xFFFFFF). // any queue
		set("length64", 0x0C, 31, 31, 1).
		set("pd", 0x0C, 23, 0, d.pd)
	index, err := d.create(in, opDestroyMKey, 23)
	if err == nil {
		d.lkey = index << 8 // mkey_7_0 is 0
		return nil
	}
	if !refused(err) {
		return err
	}
	out, second := d.exec(command(opQuerySpecial, 0, 0x10), 0x10)
	if second != nil {
		return fmt.Errorf("%w, and the reserved key: %w", err, second)
	}
	d.lkey = out.get(0x0C, 31, 0)
	d.card.FallBack("a memory key", "the reserved key", "%v", err)
	return nil
}

func log2(n uint32) uint32 { return uint32(bits.TrailingZeros32(n)) }

// createCQ creates a completion queue of 64-byte entries without events and compression.
func (d *Device) createCQ(b dma.Block, entries uint32, record dma.Block) (cqn uint32, err error) {
	if log2(entries) > d.caps.logMaxCQ {
		return 0, d.card.Errorf("completion queue of %d entries, the device takes up to 2^%d", entries, d.caps.logMaxCQ)
	}
	emptyCQ(kit.Pointer(b), entries)
	return d.make.completions(b, entries, record)
}

func (d byCommand) completions(b dma.Block, entries uint32, record dma.Block) (cqn uint32, err error) {
	in := command(opCreateCQ, 0, 0x110)
	ctx := in.at(0x10).
		set("cqe_sz", 0x00, 23, 21, 0). // 64 bytes
		set("log_cq_size", 0x0C, 28, 24, log2(entries)).
		set("uar_page", 0x0C, 23, 0, d.uar.number).
		set("c_eqn", 0x14, 31, 0, d.events.eqn).
		set("log_page_size", 0x18, 28, 24, 0)
	d.record(ctx, record, 0x38, 0x04)
	return d.create(d.ring(in, b, 0x50, 0x58), opDestroyCQ, 23)
}

// workQueue sets the part of a context that send and receive queues share (PRM, Work Queue Context).
func (d byCommand) workQueue(wq message, logStride, entries uint32, record dma.Block) message {
	d.record(wq, record, 0x10, 0x28)
	return wq.
		set("wq_type", 0x00, 31, 28, 1). // cyclic
		set("pd", 0x08, 23, 0, d.pd).
		set("log_wq_stride", 0x20, 19, 16, logStride).
		set("log_wq_pg_sz", 0x20, 12, 8, 0).
		set("log_wq_sz", 0x20, 4, 0, log2(entries))
}

// Queue states (PRM, SQ and RQ Context).
const (
	stateRST = 0
	stateRDY = 1
	stateERR = 3
)

func (d *Device) createSQ(q *Queue, b, record dma.Block) error {
	if entries := q.txMask + 1; log2(entries) > d.caps.logMaxWQ {
		return d.card.Errorf("send queue of %d blocks, the device takes up to 2^%d", entries, d.caps.logMaxWQ)
	}
	return d.make.sends(q, b, record)
}

// sends creates the send queue of q, in reset state, with its ring in b and its doorbell record in record.
func (d byCommand) sends(q *Queue, b, record dma.Block) (err error) {
	in := command(opCreateSQ, 0, 0x110)
	ctx := in.at(0x20).
		set("flush_in_error_en", 0x00, 28, 28, 1).
		set("state", 0x00, 23, 20, stateRST).
		set("ts_format", 0x00, 5, 4, timestampFormat(d.caps.sqTimestamps)).
		set("cqn", 0x08, 23, 0, q.txCQN).
		set("tis_lst_sz", 0x20, 31, 16, 1).
		set("tis_num_0", 0x2C, 23, 0, d.tis)
	if d.caps.inlineMode == inlineVport {
		ctx.set("min_wqe_inline_mode", 0x00, 26, 24, d.minInline)
	}
	d.workQueue(ctx.at(0x30), log2(wqebb), q.txMask+1, record).set("uar_page", 0x0C, 23, 0, q.uar.number)
	q.sqn, err = d.create(d.ring(in, b, 0x50+0x30, 0x50+0x2C), opDestroySQ, 23)
	return err
}

// receives is sends for the receive queue, which leaves VLAN tags in the frames.
func (d byCommand) receives(q *Queue, b, record dma.Block) (err error) {
	in := command(opCreateRQ, 0, 0x110)
	ctx := in.at(0x20).
		set("vsd", 0x00, 28, 28, 1). // do not strip VLAN tags
		set("flush_in_error_en", 0x00, 18, 18, 1).
		set("state", 0x00, 23, 20, stateRST).
		set("ts_format", 0x00, 5, 4, timestampFormat(d.caps.rqTimestamps)).
		set("cqn", 0x08, 23, 0, q.rxCQN).
		set("counter_set_id", 0x0C, 31, 24, d.counterSet)
	wq := d.workQueue(ctx.at(0x30), log2(rxWQE), q.mask+1, record)
	if d.caps.endPad {
		wq.set("end_padding_mode", 0x00, 26, 25, 1) // whole cache lines
	}
	q.rqn, err = d.create(d.ring(in, b, 0x50+0x30, 0x50+0x2C), opDestroyRQ, 23)
	return err
}

// modify moves a send or receive queue between states.
func (d *Device) modify(op opcode, number, from, to uint32) error {
	in := command(op, 0, 0x110).
		set("state", 0x08, 31, 28, from).
		set("number", 0x08, 23, 0, number)
	in.at(0x20).set("state", 0x00, 23, 20, to)
	return d.run(in)
}

// blocks are the parts of a queue pair's memory whose addresses the device gets when they are created.
type blocks struct {
	records, rxCQ, txCQ, sq, rq, buf, send dma.Block
	ends                                   unsafe.Pointer
}

// startQueues creates the queue pairs: completion queues, then send and receive queue.
func (d *Device) startQueues() error {
	d.choosePush()
	memory, err := d.allocate()
	if err != nil {
		return err
	}
	for i, q := range d.queues {
		if err := d.startQueue(q, i, memory[i]); err != nil {
			return fmt.Errorf("queue %d: %w", i, err)
		}
	}
	return nil
}

// allocate makes the rings, buffers and tables of the queue pairs. A loop keeps its Queue over restarts.
func (d *Device) allocate() (all []blocks, err error) {
	n := d.card.Options.RingSize
	for len(d.queues) < d.card.Options.Queues {
		d.queues = append(d.queues, &Queue{})
	}
	err = d.card.Lay(func(memory *kit.Rings) {
		all = make([]blocks, len(d.queues))
		for i, q := range d.queues {
			d.layout(q)
			b := blocks{records: memory.Block(4*64, 64), // doorbell records, one cache line each
				rxCQ: memory.Block(n*cqeSize, 4096), txCQ: memory.Block(n*maxBlocks*cqeSize, 4096),
				sq: memory.Block(n*maxBlocks*wqebb, 4096), rq: memory.Block(n*rxWQE, 4096),
				buf: memory.Block(n*int(q.stride), 4096)}
			if i == 0 {
				b.send, b.ends = memory.Block(n*int(q.stride), 4096), memory.Table(4*n)
			}
			q.scratch = memory.Table(maxBlocks * wqebb)
			q.pend, q.asked = memory.Table(4*n), memory.Table(8*n*maxBlocks)
			all[i] = b
		}
	})
	if err != nil {
		return nil, err
	}
	for i, q := range d.queues {
		b := &all[i]
		record := func(line, dword int) *uint32 { return (*uint32)(unsafe.Pointer(&b.records.Bytes[64*line+4*dword])) }
		q.rqRec, q.wq.Record, q.rxCQRec, q.txCQRec = record(0, 0), record(1, 1), record(2, 0), record(3, 0)
		q.rxCQ, q.txCQ, q.wq.Base, q.rq = kit.Pointer(b.rxCQ), kit.Pointer(b.txCQ), kit.Pointer(b.sq), kit.Pointer(b.rq)
		q.buf, q.iova = kit.Pointer(b.buf), b.buf.IOVA
	}
	d.queues[0].out = mlxkit.NewBuffers(all[0].send, unsafe.Slice((*uint32)(all[0].ends), n))
	return all, nil
}

func (d *Device) startQueue(q *Queue, i int, b blocks) (err error) {
	if q.uar = d.uar; i > 0 { // only one thread may write a BlueFlame register
		if q.uar, err = d.fw.allocUAR(); err != nil {
			return err
		}
	}
	line := func(n int) dma.Block {
		return dma.Block{Bytes: b.records.Bytes[64*n:][:64], IOVA: b.records.IOVA + uint64(64*n)}
	}
	if q.rxCQN, err = d.createCQ(b.rxCQ, q.mask+1, line(2)); err != nil {
		return err
	}
	if q.txCQN, err = d.createCQ(b.txCQ, q.txMask+1, line(3)); err != nil {
		return err
	}
	if err := d.createSQ(q, b.sq, line(1)); err != nil {
		return err
	}
	if err := d.make.receives(q, b.rq, line(0)); err != nil {
		return err
	}
	if err := d.keys(q, b); err != nil {
		return err
	}
	if err := d.doorbell(q); err != nil {
		return err
	}
	q.reset()
	return d.make.ready(q)
}

func (d byCommand) ready(q *Queue) error {
	if err := d.startSends(q); err != nil {
		return err
	}
	return d.modify(opModifyRQ, q.rqn, stateRST, stateRDY)
}

// askEvery is how many blocks there are between requests for a completion. With timestamps each frame requests one.
func (d *Device) askEvery() uint32 {
	if d.stamps.on {
		return 1
	}
	return min(32, uint32(d.card.Options.RingSize)/8)
}

// layout sets a queue's sizes.
func (d *Device) layout(q *Queue) {
	q.mask, q.txMask = uint32(d.card.Options.RingSize-1), uint32(d.card.Options.RingSize*maxBlocks-1)
	q.wq.Mask = q.txMask
	q.shift, q.txShift = log2(uint32(d.card.Options.RingSize)), log2(uint32(d.card.Options.RingSize*maxBlocks))
	q.askEvery = d.askEvery()
	q.stride = kit.Stride(room + d.card.MaxFrame())
	q.size = q.stride - room
	q.headers = headerBytes[d.minInline]
	q.maxInline = uint32(d.maxInline)
}

// keys finds the key of the buffers, and points the receive WQEs to them.
func (d *Device) keys(q *Queue, b blocks) (err error) {
	if q.lkey, err = d.fw.key(b.buf); err != nil {
		return err
	}
	if b.send.Bytes != nil {
		if key, err := d.fw.key(b.send); err != nil || key != q.lkey {
			return errors.Join(err, d.card.Errorf("memory of one queue has keys %#x and %#x", q.lkey, key))
		}
	}
	for slot := range q.mask + 1 {
		*(*mlxkit.DataSegment)(unsafe.Add(q.rq, slot*rxWQE)) = mlxkit.NewData(q.size, q.lkey,
			q.iova+uint64(slot*q.stride)+room)
	}
	return nil
}
