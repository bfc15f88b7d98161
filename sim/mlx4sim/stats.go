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
}

func isTagged(f []byte) bool {
	e := be.Uint16(f[12:])
	return (e == 0x8100 || e == 0x88a8) && len(f) >= 18
}

// wire counts a frame that crosses the wire.
func (t *traffic) wire(f []byte) {
	if isTagged(f) {
		t.add(f, int(f[14]>>5))
	} else {
		t.add(f, untagged)
	}
}

// looped counts a frame that is looped back.
func (t *traffic) looped(f []byte) { t.add(f, looped) }

func (t *traffic) add(f []byte, prio int) {
	size := 8
	if isTagged(f) {
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

// sum is the number of frames over the wire.
func sum(a [looped + 1]uint64) (n uint64) {
	for _, v := range a[:looped] {
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
	rxBufferFull           uint64 // no room in the port's buffer
	rxControl              uint64 // MAC control frames, such as pause frames
	rxInRange, rxOutRange  uint64 // a length that is not the frame's, or neither a length nor a type
	rxLong                 uint64 // longer than IEEE 802.3 allows
	txGiant, txDropped     uint64
	packetsIn, packetsOut  uint64 // of InfiniBand
	wordsIn, wordsOut      uint64 // of InfiniBand's packets without their last CRC, four bytes each
	groupsIn, groupsOut    uint64 // multicast packets
	packetsBad, packetsOff uint64
	managementDrops        uint64 // packets of virtual lane 15
	linkDowns              uint64
}

// rxLength counts a frame whose length is not what IEEE 802.3 allows.
func (k *counters) rxLength(f []byte) {
	at, most := 12, 1518
	if isTagged(f) {
		at, most = 16, 1522
	}
	n, data := int(be.Uint16(f[at:])), len(f)-at-2
	switch {
	case n > 1500 && n < 1536:
		k.rxOutRange++
	case n >= 46 && n <= 1500 && n != data:
		k.rxInRange++
	}
	if len(f)+4 > most {
		k.rxLong++
	}
}

// diagnostics are the counters of DIAG_RPRT: errors in completions by the queue's direction and syndrome, and the
// transport's.
type diagnostics struct {
	failed    [2][32]uint64 // receive, send
	refused   [32]uint64    // requests of peers, by the syndrome at the peer
	transport [rdma.ReadRequests + 1]uint64
	overruns  uint64 // of CQs
	dropped   uint64 // datagrams without a receive WQE
}

// report is DIAG_RPRT: 32-bit counters at the offsets that Linux's mlx4_ib reads them from. A device has more of them,
// whose offsets no source names.
func (m *Model) report(c *call) *refusal {
	d := &m.diag
	put := func(at int, v uint64) { be.PutUint32(c.out.B[at:], uint32(v)) }
	for at, synd := range map[int]uint8{0x00: syndLocalLength, 0x08: syndLocalOp, 0x18: syndLocalProt,
		0x20: syndFlushed} {
		put(at, d.failed[0][synd])
		put(at+4, d.failed[1][synd])
	}
	for at, synd := range map[int]uint8{0x34: syndBadResponse, 0x44: syndRemoteInvalid, 0x4c: syndRemoteAccess,
		0x54: syndRemoteOp, 0x5c: syndRetries, 0x64: syndRNRRetries} {
		put(at, d.failed[1][synd])
	}
	put(0x48, d.refused[syndRemoteInvalid])
	put(0x50, d.refused[syndRemoteAccess])
	for at, e := range map[int]rdma.Event{0x68: rdma.OutOfBuffer, 0x6c: rdma.RNRNaks, 0x100: rdma.OutOfSequence,
		0x104: rdma.SequenceNaks, 0x130: rdma.Duplicates, 0x134: rdma.AckTimeout} {
		put(at, d.transport[e])
	}
	put(0x118, d.dropped)
	put(0x1a0, d.overruns)
	return nil
}

// dumpStats writes the counters, in the order that Linux's mlx4_en reads them. Bit 8 of in_modifier clears them.
func (m *Model) dumpStats(c *call) *refusal {
	if r := onePort(c.mod); r != nil {
		return r
	}
	if c.mod>>12&1 != 0 {
		m.dumpPauses(c.out.B)
		if c.mod>>8&1 != 0 {
			m.port.flow.rx, m.port.flow.tx = [priorities]pauses{}, [priorities]pauses{}
		}
		return nil
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
		for p := range places {
			put(t.octets[p] + 20*t.frames[p]) // with preamble and gap
			put(t.octets[p])
			put(t.octets[p])
		}
		for p := range places {
			put(t.frames[p])
			put(t.tagged[p])
			put(0)
		}
	}
	giants := k.rx
	giants.kind[kindGiant][untagged] = k.rxGiant
	direction(&giants, untagged+1)
	put(k.rxControl)
	at += 8 * 3                                                          // reserved
	for _, v := range []uint64{k.rxInRange, k.rxOutRange, k.rxLong, 0} { // no errors of the line's code
		put(v)
	}
	sent := k.tx
	sent.kind[kindGiant][untagged] = k.txGiant
	direction(&sent, looped+1)
	lost := k.rxOverflow + k.rxBufferFull
	// The first three are of frames with a bad FCS, which the model's wire does not carry.
	for _, v := range []uint64{0, 0, 0, k.rxShort, lost, lost, k.rxGiant, sum(k.rx.frames), k.txDropped} {
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
		Giants: k.rxGiant, Looped: k.tx.frames[looped], Received: map[uint32]uint64{}, Sent: map[uint32]uint64{}}
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
