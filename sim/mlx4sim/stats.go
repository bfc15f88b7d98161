package mlx4sim

import "github.com/rebound-nic/rebound/sim/rdma"

// untagged and looped are the indices for untagged and looped frames, after those of the eight priorities.
const (
	untagged = 8
	looped   = 9
)

// Kinds of frames by length and destination, in the order of DUMP_ETH_STATS.
const (
	kindGiant     = 9
	kindBroadcast = 10
	kindMulticast = 11
	kindUnicast   = 12
	kinds         = 13
)

// traffic counts frames of one direction.
type traffic struct {
	kind   [kinds][looped + 1]uint64
	frames [looped + 1]uint64
	octets [looped + 1]uint64 // with FCS
	tagged [looped + 1]uint64
	loop   loops
}

// loops counts frames that were looped back.
type loops struct{ frames, octets uint64 }

func (l *loops) add(f []byte) { l.frames++; l.octets += uint64(len(f)) + 4 }

// wire counts a frame that crosses the wire.
func (t *traffic) wire(f []byte) {
	prio, size := untagged, 8
	if e := be.Uint16(f[12:]); (e == 0x8100 || e == 0x88a8) && len(f) >= 18 {
		prio = int(f[14] >> 5)
		t.tagged[prio]++
	}
	for i, most := range [...]int{64, 127, 255, 511, 1023, 1518, 1522, 1548} {
		if len(f)+4 <= most {
			size = i
			break
		}
	}
	t.kind[size][prio]++
	switch {
	case macOf(f) == 1<<48-1:
		t.kind[kindBroadcast][prio]++
	case f[0]&1 != 0:
		t.kind[kindMulticast][prio]++
	default:
		t.kind[kindUnicast][prio]++
	}
	t.frames[prio]++
	t.octets[prio] += uint64(len(f)) + 4
}

func sum(a [looped + 1]uint64) (n uint64) {
	for _, v := range a {
		n += v
	}
	return n
}

// counters are the port's counters.
type counters struct {
	rx, tx                 traffic
	rxShort, rxGiant       uint64
	rxFiltered             uint64 // for no address of this port
	rxNoQueue              uint64 // steered to a QP that does not receive
	rxOverflow             uint64 // no WQE
	txGiant, txDropped     uint64
	packetsIn, packetsOut  uint64 // of InfiniBand
	wordsIn, wordsOut      uint64 // of InfiniBand's packets without their last CRC, four bytes each
	groupsIn, groupsOut    uint64 // multicast packets
	packetsBad, packetsOff uint64
	transport              [rdma.ReadRequests + 1]uint64 // of connections
}

// dumpStats writes the counters, in the order that Linux's mlx4_en reads them. Bit 8 of in_modifier clears them.
func (m *Model) dumpStats(c *call) *refusal {
	if r := onePort(c.mod); r != nil {
		return r
	}
	if c.mod>>12&1 != 0 {
		return cannot(stBadParam, "counters of flow control are not offered")
	}
	k, b := &m.count, c.out.B
	at := 0
	put := func(v uint64) {
		be.PutUint64(b[at:], v)
		at += 8
	}
	direction := func(t *traffic, places int) {
		for i := range t.kind {
			for p := range places {
				put(t.kind[i][p])
			}
		}
		octets, frames := t.octets, t.frames
		octets[looped], frames[looped] = t.loop.octets, t.loop.frames
		for p := range places {
			put(octets[p] + 20*frames[p]) // with preamble and gap
			put(octets[p])
			put(octets[p])
		}
		for p := range places {
			put(frames[p])
			put(t.tagged[p])
			put(0)
		}
	}
	giants := k.rx
	giants.kind[kindGiant][untagged] = k.rxGiant
	direction(&giants, untagged+1)
	at += 8 * (4 + 4) // control frames, reserved; length errors, PCS errors
	sent := k.tx
	sent.kind[kindGiant][untagged] = k.txGiant
	direction(&sent, looped+1)
	for _, v := range []uint64{0, 0, 0, k.rxShort, k.rxOverflow, k.rxOverflow, k.rxGiant, sum(k.rx.frames),
		k.txDropped} {
		be.PutUint32(b[at:], uint32(v))
		at += 4
	}
	if c.mod>>8&1 != 0 {
		m.count = counters{}
	}
	return nil
}

// Counters are the device's counters since its reset: frames and bytes without FCS.
type Counters struct {
	RxFrames, RxBytes, TxFrames, TxBytes uint64 // over the wire
	RxBroadcast, RxMulticast             uint64
	TxBroadcast, TxMulticast             uint64
	Filtered                             uint64            // frames for no address of this port
	NoQueue                              uint64            // frames for a QP that does not receive
	Overflow                             uint64            // frames without a receive WQE
	Giants                               uint64            // longer than the port's MTU
	Looped                               uint64            // looped back
	Received, Sent                       map[uint32]uint64 // by QP
	Pushed                               uint64            // complete WQEs pushed through BlueFlame, of existing QPs
	InfiniBand                           Packets
}

// Packets are an InfiniBand port's counters since its reset.
type Packets struct {
	Out, In          uint64 // over the wire
	Unsent           uint64 // the port was not active, or there was no wire
	Bad              uint64 // not a packet of the model's format, or its checksum is wrong
	NotHere          uint64 // for another LID, or a virtual lane that is not up
	NoQueue          uint64 // for a QP that does not exist, or does not receive
	Overflow         uint64 // without a receive WQE
	BadPKey, BadQKey uint64
}

// Counters returns the counters. On a running port, call it in Port.Hold, which stops the device.
func (m *Model) Counters() Counters {
	k := &m.count
	c := Counters{RxFrames: sum(k.rx.frames), TxFrames: sum(k.tx.frames), RxBroadcast: sum(k.rx.kind[kindBroadcast]),
		RxMulticast: sum(k.rx.kind[kindMulticast]),
		TxBroadcast: sum(k.tx.kind[kindBroadcast]), TxMulticast: sum(k.tx.kind[kindMulticast]), Filtered: k.rxFiltered,
		NoQueue: k.rxNoQueue, Overflow: k.rxOverflow,
		Giants: k.rxGiant, Looped: k.tx.loop.frames, Received: map[uint32]uint64{}, Sent: map[uint32]uint64{}}
	c.RxBytes, c.TxBytes = sum(k.rx.octets)-4*c.RxFrames, sum(k.tx.octets)-4*c.TxFrames
	c.InfiniBand = Packets{Out: k.packetsOut, In: k.packetsIn, Unsent: k.packetsOff, Bad: k.packetsBad,
		NotHere: k.rxFiltered, NoQueue: k.rxNoQueue,
		Overflow: k.rxOverflow, BadPKey: uint64(m.port.ib.badPKeys), BadQKey: uint64(m.port.ib.badQKeys)}
	for _, q := range m.obj.qps {
		if q.received > 0 {
			c.Received[q.id] = q.received
		}
		if q.sent > 0 {
			c.Sent[q.id] = q.sent
		}
		c.Pushed += q.pushes
	}
	return c
}
