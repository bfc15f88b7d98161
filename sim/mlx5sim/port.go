package mlx5sim

import "sync/atomic"

type port struct {
	wire, up  bool
	adminDown bool
	paused    bool // by a test
	mtu       int  // admin_mtu: FCS included
	node      string
	pause     [4]uint64 // the fields pauses of PFCC
}

const maxMTU = 10240

// reset restores the state at power-on. The port of a virtual function is shared, and its host has configured it.
func (p *port) reset(shared bool) {
	*p = port{wire: p.wire, paused: p.paused, mtu: 1522, node: "rebound model"}
	if shared {
		p.mtu = maxMTU
	}
	p.up = p.wire
}

// frameLimit is the longest frame, without FCS.
func (p *port) frameLimit() int { return p.mtu - 4 }

// linkChanged notifies the driver of a link change.
func (m *Model) linkChanged() {
	up := m.port.wire && !m.port.adminDown
	if up == m.port.up {
		return
	}
	m.port.up = up
	var d [eventData]byte
	d[8] = 1 << 4 // port
	sub := uint8(portDown)
	if up {
		sub = portActive
	}
	m.event(eventPortChange, sub, d[:])
}

// traffic counts frames, and bytes without FCS.
type traffic struct{ frames, bytes uint64 }

func (t *traffic) add(n int) { t.frames++; t.bytes += uint64(n) }

// counters are those of the port and of the vport.
type counters struct {
	rx, tx                        [3]traffic // by unicast, multicast, broadcast
	wireRx, wireTx                [3]traffic
	rxIB, txIB                    [2]traffic // RoCE, by unicast and multicast
	roceDropped                   uint64     // RoCE packets without a matching QP
	ackTimeouts                   uint64
	taken                         traffic // steered to a queue that had a WQE
	filtered, missed, outOfBuffer uint64  // not for this vport; no flow table entry; no WQE
	selfBlocked                   uint64
	portWrites                    uint64
	counterBulks, counterReads    uint64
	rxOversize, txOversize        uint64
	txDiscard                     uint64
	bySize                        [10]uint64
	sessions, compressed          uint64 // completion sessions, and the number of completions in them
}

const (
	unicast = iota
	multicast
	broadcast
)

func cast(f []byte) int {
	switch {
	case string(f[:6]) == "\xff\xff\xff\xff\xff\xff":
		return broadcast
	case f[0]&1 != 0:
		return multicast
	}
	return unicast
}

func total(t [3]traffic) (s traffic) {
	for _, x := range t {
		s.frames += x.frames
		s.bytes += x.bytes
	}
	return s
}

// Counters are the function's counters since its reset: frames, and bytes without FCS.
type Counters struct {
	RxFrames, RxBytes, TxFrames, TxBytes uint64 // arrived at and sent by this function's vport
	Taken, TakenBytes                    uint64 // arrived, and received by a queue
	RxBroadcast, RxMulticast             uint64
	TxBroadcast, TxMulticast             uint64
	WireRxFrames, WireRxBytes            uint64
	Filtered                             uint64 // frames for other addresses
	Missed                               uint64 // frames that matched no flow table entry
	OutOfBuffer                          uint64 // frames without a receive WQE
	SelfBlocked                          uint64 // looped-back frames that no TIR accepts from its own transport domain
	Oversize                             uint64 // frames longer than the port's MTU
	RQPackets, SQPackets                 map[uint32]uint64
	Sessions, Compressed                 uint64 // compressed sessions, and the receive completions in them
	Pushed                               uint64 // WQEs that were pushed completely through BlueFlame
	RoCERx, RoCETx, RoCEDropped          uint64 // RoCE packets received, sent, and received without a matching QP
	AckTimeouts                          uint64 // retransmissions by requesters because of a missing acknowledgement
	PortWrites                           uint64 // writes to port registers by a virtual function, which have no effect
	CounterBulks, CounterReads           uint64 // bulks of flow counters made, and queries of several counters
}

// Counters returns the counters. Use Port.Hold if the port is running.
func (m *Model) Counters() Counters {
	c := &m.count
	rx, tx, wire := total(c.rx), total(c.tx), total(c.wireRx)
	k := Counters{RxFrames: rx.frames, RxBytes: rx.bytes, TxFrames: tx.frames, TxBytes: tx.bytes,
		Taken: c.taken.frames, TakenBytes: c.taken.bytes,
		RxBroadcast: c.rx[broadcast].frames, RxMulticast: c.rx[multicast].frames,
		TxBroadcast: c.tx[broadcast].frames, TxMulticast: c.tx[multicast].frames,
		WireRxFrames: wire.frames, WireRxBytes: wire.bytes, Filtered: c.filtered, Missed: c.missed,
		OutOfBuffer: c.outOfBuffer, SelfBlocked: c.selfBlocked,
		CounterBulks: c.counterBulks, CounterReads: c.counterReads,
		PortWrites: c.portWrites, RoCEDropped: c.roceDropped, AckTimeouts: c.ackTimeouts,
		RoCERx:   c.rxIB[unicast].frames + c.rxIB[multicast].frames,
		RoCETx:   c.txIB[unicast].frames + c.txIB[multicast].frames,
		Oversize: c.rxOversize, Sessions: c.sessions, Compressed: c.compressed, RQPackets: map[uint32]uint64{},
		SQPackets: map[uint32]uint64{}}
	for id, q := range m.obj.rqs.m {
		k.RQPackets[id] = q.packets
	}
	for id, q := range m.obj.sqs.m {
		k.SQPackets[id] = q.packets
		k.Pushed += q.pushed
	}
	return k
}

// faults are the faults that a test turned on.
type faults struct {
	send, receive uint8
	compressed    bool
	fatal         bool
	ask           atomic.Int32 // number of pages
	die           atomic.Uint32
}

func (f *faults) reset() {
	f.send, f.receive, f.compressed, f.fatal = 0, 0, false, false
	f.ask.Store(0)
	f.die.Store(0)
}

// FailNextSend completes the next send WQE with an error CQE with that syndrome.
func (m *Model) FailNextSend(syndrome uint8) { m.fault.send = syndrome }

// FailNextReceive completes the next receive WQE with an error CQE with that syndrome.
func (m *Model) FailNextReceive(syndrome uint8) { m.fault.receive = syndrome }

// CompressNext marks the next receive CQE as compressed, although no driver requested it.
func (m *Model) CompressNext() { m.fault.compressed = true }

// Fatal makes the firmware fail: the health buffer shows the syndrome, the health counter stops, and no command or
// queue makes progress until the driver resets the function. It takes effect in the next Step, and may be called from
// any goroutine.
func (m *Model) Fatal(syndrome uint8) { m.fault.die.Store(uint32(syndrome)) }

func (m *Model) dead() bool { return m.fault.fatal }
