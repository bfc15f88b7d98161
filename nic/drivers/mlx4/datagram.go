package mlx4

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/nic/ib"
	"github.com/rebound-nic/rebound/nic/kit/mlxkit"
	"github.com/rebound-nic/rebound/polling"
)

// Layout of a receive slot of an InfiniBand port: room for a GRH, then the payload, which is IPoIB's encapsulation and
// the packet. The payload starts at a cache line, and an Ethernet header in front of the packet would start at head.
const (
	slotGRH     = slotPayload - ib.GRHSize
	slotPayload = 64
	slotHead    = slotPayload + ib.EncapSize - ib.HeaderSize

	// extra is the difference in length between the payload and the equivalent Ethernet frame.
	extra = ib.HeaderSize - ib.EncapSize

	// The encapsulations of IPoIB that Poll answers, as a little-endian machine loads them.
	encapIPv4, encapIPv6 = 0x0008, 0xDD86

	maxPayload = 4096 // of a packet on any link, so that every received packet fits its slot
)

// destination is the datagram segment of a send WQE in memory order (Linux, mlx4_wqe_datagram_seg and mlx4_av), without
// its last eight bytes, which are reserved.
//
//	0  port 31:24, protection domain 23:0
//	5  GRH 7, path bits of our LID 6:0; 6 LID 15:0
//	9  index of our GID; 10 static rate, 0 for the port's own; 11 hop limit
//	12 SL 31:28, traffic class 27:20, flow label 19:0
//	16 GID
//	32 QP 23:0
//	36 Q_Key
type destination struct {
	path, class, gid0, gid1, queue uint64
}

// datagramHead is the first block of a send WQE in memory order: control and datagram segment.
type datagramHead struct {
	control, flags uint64
	to             destination
	reserved       uint64
}

var _ [txbb]byte = [unsafe.Sizeof(datagramHead{})]byte{}

const (
	withGRH = 0x80
	hops    = 0xFF // of the GRH of a reply

	grhSGID = 8 // in the GRH
	grhDGID = 24
)

// DatagramQueue is the queue pair of an InfiniBand port: one QP for unreliable datagrams with both rings, which carries
// IPoIB. The first block of a send WQE contains control and datagram segment, the following blocks contain the inline
// data.
type DatagramQueue struct {
	Queue

	portPD uint32  // start of a datagram segment
	qkey   uint32  // in the device's order; the subnet's, written before the QP is started
	own    station // ours
	self   uint64  // the station that others see us as: it changes with the LID

	head datagramHead // of the next WQE

	address atomic.Pointer[ib.Address]  // our hardware address
	group   atomic.Pointer[destination] // all nodes of IPv6, once it is known
	scratch [2]neighbourBuffer
}

// neighbourBuffer has room for ARP and neighbour discovery messages. Longer ones are refused.
type neighbourBuffer [512]byte

// Poll is Queue.Poll for IPoIB packets. A reply is sent to the source of its request according to the completion: LID,
// service level, queue pair, and GID if the request had a GRH.
func (q *DatagramQueue) Poll(r *fastpath.Responder) int {
	if q.fault.Load() != faultNone {
		return 0
	}
	next, n := q.rxNext, 0
	for ; next-q.rxNext != maxBatch; next++ {
		c := q.completion(q.rxCQ, next&q.mask)
		last := atomic.LoadUint64(&c.last) // nic/memory-order.md: done, then the rest
		if (last>>cqeOwner^uint64(next>>(q.shift&31)))&1 != 0 {
			break
		}
		if last>>cqeKind&kindMask > kindReceive {
			q.fail(c, faultReceive)
			break
		}
		*q.pending(next) = q.txDone
		l := int(swap(c.byteCount)) - ib.GRHSize + extra
		if uint(l-ib.HeaderSize) > uint(q.size-ib.HeaderSize) {
			q.badRx.Add(1)
			continue
		}
		slot := unsafe.Add(q.buf, next&q.mask*q.stride)
		h := (*[64]byte)(unsafe.Add(slot, slotHead))
		to, from := q.own, senderOf(c)
		remote := *(*uint64)(unsafe.Pointer(&c.remote)) // and source
		q.head.to.path = uint64(q.portPD) | remote&0xFF<<40 | remote>>48<<48
		q.head.to.class = remote & (0xF0 << 32)
		q.head.to.gid0, q.head.to.gid1 = 0, 0
		q.head.to.queue = remote&0xFFFFFF00 | uint64(atomic.LoadUint32(&q.qkey))<<32
		if remote&withGRH != 0 {
			g := (*[4]uint64)(unsafe.Add(slot, slotGRH+grhSGID))
			q.head.to.class |= hops << 24
			q.head.to.gid0, q.head.to.gid1 = g[0], g[1]
			if uint8(g[2]) == 0xFF {
				to = 0 // a group's
			}
		}
		if uint64(from) == atomic.LoadUint64(&q.self) {
			from = q.own
		}
		answered, start := false, (*uint64)(unsafe.Add(slot, slotPayload))
		// the header overwrites the GRH, which names a group
		if was := *start; to != 0 && (uint32(was) == encapIPv4 || uint32(was) == encapIPv6) {
			*(*uint64)(unsafe.Pointer(h)) = uint64(to) | uint64(from)<<48
			*(*uint64)(unsafe.Add(unsafe.Pointer(h), 6)) = uint64(from) | was<<48
			answered = r.Reply(h, l)
			*start = was
		}
		if !answered {
			if l = q.slow(r, slot, l, to, from); l == 0 {
				continue
			}
		}
		r.Departing() // the payload may be copied
		if payload := uint32(l - extra); payload <= q.inlineMax {
			if !q.post(unsafe.Add(slot, slotPayload), payload) {
				q.txFull.Add(1)
				continue
			}
			q.pushed.Add(1) // the payload is in the send queue: its buffer is free
		} else {
			if !q.point(q.iova+uint64(next&q.mask*q.stride)+slotPayload, payload) {
				q.txFull.Add(1)
				continue
			}
			*q.pending(next) = q.txTail
		}
		n++
	}
	q.rxNext = next
	if q.txRung != q.txTail {
		q.ring()
	}
	if n > 0 && next-q.freed < reclaimAt && q.txTail-q.txDone <= q.txMask>>1 {
		return n
	}
	if q.txDone != q.txTail || q.freed != next {
		q.reclaim()
	}
	return n
}

// station is a made-up MAC (ib.Station) in the low 48 bits, the first byte lowest; 0 is a group.
type station uint64

func newStation(mac [6]byte) station {
	return station(binary.LittleEndian.Uint64([]byte{mac[0], mac[1], mac[2], mac[3], mac[4], mac[5], 0, 0}))
}

func (s station) mac() (mac [6]byte) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(s))
	copy(mac[:], b[:])
	return mac
}

// senderOf is the station that sent a datagram.
func senderOf(c *cqe) station { return 2 | station(c.source>>16)<<8 | station(c.remote>>8)<<24 }

// slow handles packets that Reply does not answer: it adds an Ethernet header and calls Responder.Slow. ARP and
// neighbour discovery are translated in both directions. It returns the reply's length including that header, 0 for
// none, and sets the head's destination if the reply does not go back to the source.
//
//go:noinline
func (q *DatagramQueue) slow(r *fastpath.Responder, slot unsafe.Pointer, l int, to, from station) int {
	p := unsafe.Slice((*byte)(unsafe.Add(slot, slotPayload)), maxPayload)
	dst, src := to.mac(), from.mac()
	kind := uint16(p[0])<<8 | uint16(p[1])
	if to == 0 {
		dst = ib.GroupMAC(*(*ib.GID)(unsafe.Add(slot, slotGRH+grhDGID)))
	}
	if n := l - extra; ib.Neighbour(p[:n]) {
		return q.neighbour(r, p, n, dst, src)
	}
	if kind != ib.EtherTypeIPv4 && kind != ib.EtherTypeIPv6 { // a VLAN's, too: there are none here
		r.RefuseFor(fastpath.RefusedEtherType)
		return 0
	}
	h := (*[64]byte)(unsafe.Add(slot, slotHead))
	copy(h[:], dst[:])
	copy(h[6:], src[:])
	h[12], h[13] = byte(kind>>8), byte(kind)
	n := r.Slow(h, l)
	ib.Encapsulate(p, kind)
	return n
}

// neighbour answers ARP and neighbour discovery, n bytes at p.
func (q *DatagramQueue) neighbour(r *fastpath.Responder, p []byte, n int, dst, src [6]byte) int {
	refused := fastpath.RefusedND
	if p[1] == ib.EtherTypeARP&0xFF {
		refused = fastpath.RefusedARP
	}
	own := q.address.Load()
	if n > len(q.scratch[0])-64 || own == nil {
		r.RefuseFor(refused)
		return 0
	}
	f := q.scratch[0][:]
	m, sender, ok := ib.ToEthernet(f, p[:n], dst, src)
	if !ok {
		r.RefuseFor(refused)
		return 0
	}
	if m = r.Slow((*[64]byte)(f), m); m == 0 {
		return 0
	}
	if m, ok = ib.FromEthernet(p, f[:m], *own, sender); !ok {
		return 0
	}
	if f[0]&1 != 0 { // the answer to duplicate address detection, which is sent to all nodes
		all := q.group.Load()
		if all == nil {
			return 0
		}
		q.head.to = *all
	}
	return m + extra
}

// post posts a payload of n bytes at p inline, to the destination in the head, and reports whether there was room.
// nic/memory-order.md: blocks, then their marks; blocks, then BlueFlame.
func (q *DatagramQueue) post(p unsafe.Pointer, n uint32) bool {
	blocks := 1 + (n+inlineNext-1)/inlineNext
	if !q.fits(blocks) {
		return false
	}
	q.head.flags = q.requestCompletion(blocks) &^ flagNoICRC // on InfiniBand that bit requests an event at the receiver
	q.head.control = q.control((txbb + n + (blocks-1)*4 + 15) >> 4)
	mmio.PushHeaded(&q.wq, q.txTail, blocks, unsafe.Pointer(&q.head), p, n, q.window())
	q.advance(blocks)
	return true
}

// point is Queue.point for a payload of n bytes at iova, to the destination in the head. Its pointer is in its own
// block, whose mark is the length. nic/memory-order.md: blocks, then their marks; blocks, then BlueFlame.
func (q *DatagramQueue) point(iova uint64, n uint32) bool {
	if !q.fits(2) {
		return false
	}
	q.head.flags = q.requestCompletion(2) &^ flagNoICRC
	q.head.control = q.control(5)
	b, d := q.block(q.txTail), q.block(q.txTail+1)
	h := (*[8]uint64)(unsafe.Pointer(&q.head))
	for i := 1; i < len(h); i++ { // not by a wide load, which would wait until these words have left the store buffer
		b[i] = h[i]
	}
	w := (*[2]uint32)(unsafe.Pointer(d))
	first, second := mlxkit.NewData(n, q.lkey, iova).Words()
	d[1], w[1] = second, uint32(first>>32)
	mmio.Store32(&w[0], uint32(first))
	w = (*[2]uint32)(unsafe.Pointer(b))
	w[1] = uint32(h[0] >> 32)
	mmio.Store32(&w[0], uint32(h[0]))
	if to := q.window(); to != nil {
		mmio.FenceWC()
		mmio.CopyWC(to, unsafe.Pointer(b), 1) // the ring may wrap between both
		mmio.CopyWC(unsafe.Add(to, txbb), unsafe.Pointer(d), 1)
		mmio.FenceWC()
	}
	q.advance(2)
	q.pointed.Add(1)
	return true
}

// receive returns the next datagram, its completion and when it was seen, and frees its slot. The payload is valid
// until the next call. ok is false if there is none.
func (q *DatagramQueue) receive() (payload []byte, c cqe, to [6]byte, at int64, ok bool) {
	for q.fault.Load() == faultNone {
		slot := q.rxNext & q.mask
		e := q.completion(q.rxCQ, slot)
		last := atomic.LoadUint64(&e.last)
		if (last>>cqeOwner^uint64(q.rxNext>>(q.shift&31)))&1 != 0 {
			break
		}
		at = int64(polling.TSC())
		if last>>cqeKind&kindMask > kindReceive {
			q.fail(e, faultReceive)
			break
		}
		c = *e
		n := int(swap(c.byteCount)) - ib.GRHSize
		*(*uint32)(unsafe.Add(q.pend, slot*4)) = q.txDone
		q.rxNext++
		if n < ib.EncapSize || n > maxPayload {
			q.badRx.Add(1)
			q.reclaim()
			continue
		}
		buf := unsafe.Add(q.buf, slot*q.stride)
		if to = q.own.mac(); c.remote&withGRH != 0 && *(*uint8)(unsafe.Add(buf, slotGRH+grhDGID)) == 0xFF {
			to = ib.GroupMAC(*(*ib.GID)(unsafe.Add(buf, slotGRH+grhDGID)))
		}
		return unsafe.Slice((*byte)(unsafe.Add(buf, slotPayload)), n), c, to, at, true
	}
	q.reclaim()
	return nil, c, to, 0, false
}
