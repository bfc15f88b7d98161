package mlx4

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/nic/ib"
	"github.com/rebound-nic/rebound/nic/kit"
	"github.com/rebound-nic/rebound/nic/kit/mlxkit"
)

// specialQP is queue pair 0 or 1 of the port. The subnet manager sends requests to 0; 1 is used to ask subnet
// administration. Software builds the headers of their packets. One goroutine uses each; they are not time-critical.
type specialQP struct {
	d      *Device
	number uint32 // 0 or 1
	qpn    uint32 // the device's number of it

	sends, receives slowCQ
	sq, rq          unsafe.Pointer
	sent, recvd     []byte // buffers
	sentIOVA        uint64
	db, rqRec       *uint32

	tail, done, posted, psn uint32 // blocks handed over and sent, receives posted, packets
}

const (
	gsiPages    = 2 * 4 // of the rings of both, at most: 1 for each CQ, 2 for the others
	gsiCQs      = 2 * 2
	gsiBlocks   = 64  // of the send queue, mostly headroom
	gsiSend     = 2   // blocks of each send
	gsiReceives = 32  //
	gsiCQ       = 64  // entries of the completion queue
	gsiStride   = 320 // of the receive buffers: a GRH and a datagram
	gsiTimeout  = 2 * time.Second

	perPort = 2 // the special QPs are the QP0s of both ports, then the QP1s

	scheduleQP0 = 0x3F // instead of scheduleBase

	gsiMessage = 11 // log of the longest message, as Linux has it for these QPs
)

var errStopped = errors.New("the port is being stopped")

// createSpecial makes queue pair 0 or 1.
func (d *Device) createSpecial(number uint32) (*specialQP, error) {
	g := &specialQP{d: d, number: number, qpn: d.icm.specialQP + perPort*number + d.port - 1}
	uar := uint32(firstUAR+d.card.Options.Queues) + number
	records, err := d.card.Block(3*64, 64)
	if err != nil {
		return nil, err
	}
	record := func(line int) *uint32 { return (*uint32)(unsafe.Pointer(&records.Bytes[64*line])) }
	g.rqRec, g.sends.ci, g.receives.ci = record(0), record(1), record(2)
	cqn := d.icm.cq + 2*uint32(d.card.Options.Queues) + 2*number
	for i, q := range []*slowCQ{&g.sends, &g.receives} {
		if q.mem, err = d.createCQ(cqn+uint32(i), gsiCQ, records.IOVA+uint64(64+64*i)); err != nil {
			return nil, err
		}
	}
	rings, err := d.card.Block(gsiBlocks*txbb+gsiReceives*rxWQE, 4096)
	if err != nil {
		return nil, err
	}
	g.sq = kit.Pointer(rings)
	g.rq = unsafe.Add(g.sq, gsiBlocks*txbb)
	buffers, err := d.card.Block(ib.MADSize+gsiReceives*gsiStride, 4096)
	if err != nil {
		return nil, err
	}
	g.sent, g.recvd, g.sentIOVA = buffers.Bytes[:ib.MADSize], buffers.Bytes[ib.MADSize:], buffers.IOVA
	for n := range uint32(gsiReceives) {
		*(*mlxkit.DataSegment)(unsafe.Add(g.rq, n*rxWQE)) = mlxkit.NewData(ib.GRHSize+ib.MADSize, d.lkey,
			buffers.IOVA+ib.MADSize+uint64(n*gsiStride))
	}
	for n := range uint32(gsiBlocks) {
		*g.block(n) = ^uint32(0)
	}
	g.posted = gsiReceives
	mmio.Store32(g.rqRec, swap(g.posted))
	p, err := d.uars.Pointer(uint64(uar)*uarPage+uarSend, 4)
	if err != nil {
		return nil, err
	}
	g.db = (*uint32)(p)
	qkey := uint32(ib.GSIQKey)
	if number == 0 {
		qkey = 0
	}
	in := d.datagramContext(serviceMLX, g.qpn, cqn, cqn+1, uar, qkey)
	if number == 0 {
		in.set8(qpcSchedule, scheduleQP0|uint8(d.port-1)<<6)
	}
	in.set8(qpcMTU, ib.MTUCode(maxPayload)<<5|gsiMessage)
	in.set8(qpcRQ, sizeStride(gsiReceives, rxWQE))
	in.set8(qpcSQ, sizeStride(gsiBlocks, txbb))
	in.set64(qpcRecord, records.IOVA)
	if err := d.place(in[qpcPlace:], rings); err != nil {
		return nil, err
	}
	return g, d.createQP(g.qpn, in)
}

func (g *specialQP) block(n uint32) *uint32 { return (*uint32)(unsafe.Add(g.sq, n%gsiBlocks*txbb)) }

// send sends a management datagram to the same queue pair at a LID, and waits until it has left.
//
// Its WQE is control with the LID, the headers inline, a pointer to the datagram, and a segment in which the card puts
// the checksum (Linux, mlx4_ib's build_mlx_header; mlx4_wqe_mlx_seg).
func (g *specialQP) send(mad []byte, to ib.Datagram) error {
	if err := g.flush(); err != nil { // an interrupted send may still be pending and use the buffer
		return err
	}
	copy(g.sent, mad)
	to.PSN = g.psn
	g.psn++
	head := to.Headers(len(mad))
	b := make([]byte, gsiSend*txbb)
	const (
		mlxComplete = 3 << 2
		mlxSLR      = 1 << 16 // from the permissive LID, as it is to it
		mlxVL15     = 1 << 17
	)
	flags := uint32(mlxComplete) | uint32(to.SL)<<8
	if to.VL == 15 {
		flags |= mlxVL15
	}
	if to.DLID == ib.LIDPermissive {
		flags |= mlxSLR
	}
	binary.BigEndian.PutUint32(b[4:], 5) // units of 16 bytes: 16, 4 + 28, 16, 8 rounded up
	binary.BigEndian.PutUint32(b[8:], flags)
	binary.BigEndian.PutUint16(b[12:], to.DLID)
	binary.BigEndian.PutUint32(b[16:], inlineSegment|uint32(len(head)))
	copy(b[20:], head)
	data := mlxkit.NewData(uint32(len(mad)), g.d.lkey, g.sentIOVA)
	*(*mlxkit.DataSegment)(unsafe.Pointer(&b[48])) = data
	binary.BigEndian.PutUint32(b[64:], inlineSegment|4)
	mmio.Store32(g.block(g.tail+1), *(*uint32)(unsafe.Pointer(&b[txbb])))
	first := unsafe.Slice((*byte)(unsafe.Pointer(g.block(g.tail))), txbb)
	copy(first[4:], b[4:txbb])
	mmio.Store32(g.block(g.tail), swap(g.tail/gsiBlocks&1<<31|wqeSend))
	g.tail += gsiSend
	mmio.Store32(g.db, swap(g.qpn<<8))
	return g.flush()
}

// flush waits until no send is pending.
func (g *specialQP) flush() error {
	for end := kit.NewDeadline(gsiTimeout, leastLooks); g.done != g.tail; time.Sleep(commandLook) {
		late := end.Over()
		if err := g.complete(); err != nil || g.done == g.tail {
			return err
		}
		if g.d.subnet.stopped() {
			return errStopped
		}
		if late {
			return fmt.Errorf("%s: %w: queue pair %d sent nothing for %v", g.d.card.Name, nic.ErrTimeout, g.number,
				gsiTimeout)
		}
	}
	return nil
}

// complete polls for the completion of the pending send.
func (g *specialQP) complete() error {
	c, ok := g.sends.pop()
	if !ok {
		return nil
	}
	if c.last>>cqeKind&opcodeMask == opcodeError {
		return g.failed("send", c)
	}
	for range gsiSend {
		mmio.Store32(g.block(g.done), swap(stamp|g.done/gsiBlocks&1<<31))
		g.done++
	}
	return nil
}

func (g *specialQP) failed(side string, c cqe) error {
	return g.d.card.Errorf("%w: queue pair %d: %s completion with error: syndrome %v, vendor syndrome %#02x",
		nic.ErrHardware, g.number, side,
		mlxkit.Syndrome(c.last>>24), uint8(c.last>>16))
}

// recv returns the next datagram, or nil if none arrives within limit.
func (g *specialQP) recv(limit time.Duration) ([]byte, error) {
	for end := kit.NewDeadline(limit, 2); ; time.Sleep(commandLook) {
		late := end.Over()
		if mad, _, err := g.next(); mad != nil || err != nil {
			return mad, err
		}
		if g.d.subnet.stopped() {
			return nil, errStopped
		}
		if late {
			return nil, nil
		}
	}
}

// next returns a received datagram and its completion, or nil if there is none. It frees the slot: the caller may keep
// mad.
func (g *specialQP) next() (mad []byte, c cqe, err error) {
	for {
		c, ok := g.receives.pop()
		if !ok {
			return nil, c, nil
		}
		if c.last>>cqeKind&kindMask > kindReceive {
			return nil, c, g.failed("receive", c)
		}
		slot := g.posted % gsiReceives // receives complete in order
		if n := int(swap(c.byteCount)) - ib.GRHSize; n == ib.MADSize {
			mad = bytes.Clone(g.recvd[slot*gsiStride+ib.GRHSize:][:ib.MADSize])
		}
		g.posted++
		mmio.Store32(g.rqRec, swap(g.posted&0xFFFF))
		if mad != nil {
			return mad, c, nil
		}
	}
}

// slowCQ is a completion queue that one goroutine polls occasionally.
type slowCQ struct {
	mem  unsafe.Pointer
	ci   *uint32 // its doorbell record
	next uint32
}

// pop takes the next completion.
func (q *slowCQ) pop() (c cqe, ok bool) {
	e := (*cqe)(unsafe.Add(q.mem, q.next%gsiCQ*cqeSize))
	last := atomic.LoadUint64(&e.last) // nic/memory-order.md: done, then the rest
	if uint32(last>>cqeOwner)&1 != q.next/gsiCQ&1 {
		return c, false
	}
	c = *e
	q.next++
	mmio.Store32(q.ci, swap(q.next&0xFFFFFF))
	return c, true
}
