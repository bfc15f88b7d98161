package efasim

import (
	"slices"
	"time"
)

// partSize is the payload of an RDMA operation in one frame. window limits unacknowledged frames to one peer, opWindow
// those of one operation. A responder keeps the results of the last frames of a peer, twice as many. leastTries is the
// minimum number of retries before a frame is given up.
const (
	partSize   = 8192
	window     = 1024
	opWindow   = 16
	leastTries = 4
)

// buffer is local memory of a work request.
type buffer struct {
	addr uint64
	n    int
	key  uint32
}

// op is a pending send work request.
type op struct {
	qp           uint32 // handle
	src, req     uint16
	domain       uint16
	code         uint8
	srd, silent  bool
	ah, dest     uint16
	gid          [16]byte
	qkey, imm    uint32
	hasImm       bool
	inline, data []byte
	bufs         []buffer
	raddr        uint64
	rkey         uint32
	length       int

	next    int // parts sent
	pending int // sent and not acknowledged
	immSent bool
	rnr     int           // receiver-not-ready answers so far
	wait    time.Duration // not retried before
	dead    bool          // completed, or its QP no longer exists
}

// parts returns the number of frames, without the one for the immediate of a write.
func (o *op) parts() int {
	if o.code == opSend {
		return 1
	}
	return max(1, (o.length+partSize-1)/partSize)
}

// frame returns a frame of an operation.
func (o *op) frame(m *Model, typ uint8, payload []byte) *frame {
	f := &frame{typ: typ, src: m.gid, dst: o.gid, srcQP: o.src, dstQP: o.dest, qkey: o.qkey, rkey: o.rkey,
		epoch: m.epoch, payload: payload}
	if o.hasImm && (typ == typeUDSend || typ == typeSRDSend || typ == typeWriteImm) {
		f.flags, f.imm = flagImm, o.imm
	}
	return f
}

// packet is a frame that waits for an acknowledgement.
type packet struct {
	op         *op
	part       int
	f          *frame
	first, due time.Duration // time of the first transmission, and of the next
	interval   time.Duration
	tries      int
}

// peer is the reliability context of a pair of devices, for all frames in both directions.
type peer struct {
	gid        [16]byte
	nextSeq    uint32
	out        map[uint32]*packet
	order      []uint32 // sent, oldest first, including acknowledged ones
	responsive bool     // it has answered at least once
	impaired   bool

	known     bool
	epoch     uint32
	low, high uint32 // range of sequence numbers with kept results; high is excluded
	seen      map[uint32]uint8
}

func (m *Model) peer(gid [16]byte) *peer {
	p := m.peers[gid]
	if p == nil {
		p = &peer{gid: gid, out: map[uint32]*packet{}}
		m.peers[gid] = p
		m.peerOrder = append(m.peerOrder, p)
	}
	return p
}

// advance removes the oldest acknowledged frames.
func (p *peer) advance() {
	for len(p.order) > 0 && p.out[p.order[0]] == nil {
		p.order = p.order[1:]
	}
}

// open reports whether one more frame may be sent.
func (p *peer) open() bool { return len(p.order) == 0 || p.nextSeq-p.order[0] < window }

// stepClock advances the clock of retransmissions. An acknowledgement of a card takes microseconds, but the two models
// and their drivers may share few cores. So the clock stands still while the peer has frames on the wire to take, is
// slow while frames arrive, among which the acknowledgement may be, and does not count the time in which this model was
// descheduled.
func (m *Model) stepClock() {
	now := m.Host.Now()
	passed := min(now-m.last, m.opt.Retransmit/4)
	if m.heard {
		passed = min(passed, m.opt.Retransmit/64)
	}
	if !m.Host.OnWire() {
		m.clock += passed
	}
	m.last, m.heard = now, false
}

// send assigns a sequence number to a frame and sends it.
func (m *Model) send(p *peer, o *op, part int, f *frame) {
	f.seq = p.nextSeq
	p.nextSeq++
	now := m.clock
	p.out[f.seq] = &packet{op: o, part: part, f: f, first: now, due: now + m.opt.Retransmit, interval: m.opt.Retransmit}
	p.order = append(p.order, f.seq)
	o.pending++
	m.tally(m.owner(o), func(t *traffic) { t.TxPackets++; t.TxBytes += uint64(len(f.payload)) })
	m.transmit(f, p.gid)
}

// stepOps sends frames of pending operations, and retransmits frames without an answer.
func (m *Model) stepOps() (busy bool) {
	for _, o := range slices.Clone(m.ops) {
		busy = m.pump(o) || busy
	}
	for _, p := range m.peerOrder {
		busy = m.retransmit(p) || busy
	}
	m.ops = slices.DeleteFunc(m.ops, func(o *op) bool { return o.dead })
	return busy || len(m.ops) > 0 && m.opt.Busy
}

// pump sends more parts of an operation.
func (m *Model) pump(o *op) (busy bool) {
	p := m.peer(o.gid)
	for !o.dead && o.pending < opWindow && p.open() && m.clock >= o.wait {
		var f *frame
		part := o.next
		off := part * partSize
		n := min(partSize, o.length-off)
		switch {
		case part < o.parts() && o.code == opSend:
			f = o.frame(m, typeSRDSend, o.data)
		case part < o.parts() && o.code == opRead:
			f = o.frame(m, typeRead, nil)
		case part < o.parts():
			data, err := m.gather(o, off, n)
			if err != nil {
				m.Host.Errorf("request %d of QP %#x: %v", o.req, o.src, err)
				m.cancel(o, compInvalidLKey)
				return true
			}
			f = o.frame(m, typeWrite, data)
		case o.code == opWrite && o.hasImm && !o.immSent && o.pending == 0:
			f, part = o.frame(m, typeWriteImm, nil), -1
			f.length = uint32(o.length)
			o.immSent = true
		default:
			return busy
		}
		if part >= 0 {
			if o.next++; o.code != opSend {
				f.raddr, f.length = o.raddr+uint64(off), uint32(n)
			}
		}
		m.send(p, o, part, f)
		busy = true
	}
	return busy
}

// retransmit sends unacknowledged frames again, and gives up on those that were retried for too long.
func (m *Model) retransmit(p *peer) (busy bool) {
	now := m.clock
	for _, seq := range slices.Clone(p.order) {
		k := p.out[seq]
		switch {
		case k == nil || now < k.due:
		case now-k.first >= m.opt.Timeout && k.tries >= leastTries:
			busy = true
			m.count.Unresponsive++
			status := uint8(compUnreachable)
			if p.responsive {
				status = compUnresponsive
			}
			m.cancel(k.op, status)
		default:
			busy = true
			k.tries++
			k.interval = min(2*k.interval, m.opt.Timeout/4)
			k.due = now + k.interval
			m.count.RetransTimeouts++
			m.count.RetransPackets++
			m.count.RetransBytes += uint64(len(k.f.payload))
			if k.tries == 3 && !p.impaired {
				p.impaired = true
				m.count.Impaired++
			}
			m.transmit(k.f, p.gid)
		}
	}
	p.advance()
	return busy
}

// cancel completes an operation and drops its frames.
func (m *Model) cancel(o *op, status uint8) {
	m.finish(o, status)
	m.drop(func(x *op) bool { return x == o })
}

// abandon completes operations.
func (m *Model) abandon(which func(*op) bool, status uint8) {
	for _, o := range m.ops {
		if which(o) {
			m.finish(o, status)
		}
	}
	m.drop(which)
}

// drop removes operations and their frames.
func (m *Model) drop(which func(*op) bool) {
	for _, p := range m.peerOrder {
		for _, seq := range p.order {
			if k := p.out[seq]; k != nil && which(k.op) {
				delete(p.out, seq)
			}
		}
		p.advance()
	}
	for _, o := range m.ops {
		if which(o) {
			o.dead = true
		}
	}
}

// acknowledged handles an acknowledgement.
func (m *Model) acknowledged(f *frame) {
	p := m.peers[f.src]
	if p == nil || f.epoch != m.epoch || p.out[f.seq] == nil {
		m.count.LateAcks++
		return
	}
	k := p.out[f.seq]
	p.responsive, p.impaired = true, p.impaired && k.tries > 0
	delete(p.out, f.seq)
	p.advance()
	o := k.op
	o.pending--
	if o.dead {
		return
	}
	q := m.owner(o)
	switch {
	case f.status == compRemoteRNR && q != nil && (q.rnrRetry == rnrInfinite || o.rnr < int(q.rnrRetry)):
		o.rnr++
		o.wait = m.clock + m.opt.RNRDelay
		if k.part < 0 {
			o.immSent = false
		} else {
			o.next = k.part
		}
		return
	case f.status != compOK:
		m.cancel(o, f.status)
		return
	case o.code == opRead:
		if err := m.readData(o, k, f.payload); err != nil {
			m.Host.Errorf("request %d of QP %#x: %v", o.req, o.src, err)
			m.cancel(o, compInvalidLKey)
			return
		}
	}
	if o.next < o.parts() || o.pending > 0 || o.code == opWrite && o.hasImm && !o.immSent {
		return
	}
	switch o.code {
	case opRead:
		m.tally(q, func(t *traffic) { t.ReadBytes += uint64(o.length) })
	case opWrite:
		m.tally(q, func(t *traffic) { t.WriteBytes += uint64(o.length) })
	}
	m.finish(o, compOK)
}

// request handles a request frame of a peer: it is executed once, and answered each time it arrives.
func (m *Model) request(f *frame) {
	p := m.peer(f.src)
	if age := int32(f.epoch - p.epoch); !p.known || age > 0 || age < -1<<16 { // the peer is new, or was reset
		p.known, p.epoch, p.seen = true, f.epoch, map[uint32]uint8{}
		p.low, p.high = f.seq-window, f.seq
	} else if age < 0 {
		m.count.Stale++
		return
	}
	if int32(f.seq-p.low) < 0 {
		m.count.Stale++
		return
	}
	if int32(f.seq-p.high) > window { // many were given up in between
		p.low, p.high, p.seen = f.seq-window, f.seq, map[uint32]uint8{}
	}
	status, twice := p.seen[f.seq]
	var data []byte
	switch {
	case twice && f.typ != typeRead:
		m.count.Duplicates++
	case f.typ == typeRead: // harmless if executed twice
		data, status = m.readPart(f)
	default:
		status = m.consume(f)
	}
	p.seen[f.seq] = status
	if int32(f.seq-p.high) >= 0 {
		p.high = f.seq + 1
	}
	for ; p.high-p.low > 2*window; p.low++ {
		delete(p.seen, p.low)
	}
	a := &frame{typ: typeAck, status: status, src: m.gid, dst: f.src, srcQP: f.dstQP, dstQP: f.srcQP, epoch: f.epoch,
		seq: f.seq}
	if f.typ == typeRead && status == compOK {
		a.typ, a.payload = typeReadData, data
	}
	m.transmit(a, f.src)
}

// target returns the QP for a frame, or the status of a refusal.
func (m *Model) target(f *frame, typ uint8) (*qp, uint8) {
	q := m.numbered(f.dstQP)
	if q == nil || q.typ != typ || q.state < stateRTR || q.state == stateErr {
		m.tally(nil, func(t *traffic) { t.RxDrops++ })
		return nil, compRemoteQPN
	}
	if q.qkey != f.qkey {
		m.tally(q, func(t *traffic) { t.QKeyViolations++; t.RxDrops++ })
		return nil, compRemoteQPN
	}
	m.tally(q, func(t *traffic) { t.RxPackets++; t.RxBytes += uint64(len(f.payload)) })
	return q, compOK
}

// consume executes the request of an SRD frame.
func (m *Model) consume(f *frame) uint8 {
	q, status := m.target(f, typeSRD)
	if q == nil {
		return status
	}
	switch f.typ {
	case typeSRDSend:
		status = m.deliver(q, f)
	case typeWrite:
		status = m.writePart(q, f)
	case typeWriteImm:
		status = m.writeImm(q, f)
	}
	if status != compOK {
		m.tally(q, func(t *traffic) { t.RxDrops++ })
	}
	return status
}

// Receive handles a frame from the wire.
func (m *Model) Receive(b []byte) bool {
	m.Lock()
	defer m.Unlock()
	m.heard = true
	m.arrive(b)
	m.flushWire()
	return true
}

func (m *Model) arrive(b []byte) {
	f, err := parseFrame(b)
	switch {
	case err != nil || m.Resetting():
		m.count.Foreign++
	case f.dst != m.gid:
		m.count.NotOurs++
	case m.deaf:
	case f.typ == typeUDSend:
		if q, _ := m.target(&f, typeUD); q != nil && m.deliver(q, &f) != compOK {
			m.tally(q, func(t *traffic) { t.RxDrops++ })
		}
	case f.typ == typeAck || f.typ == typeReadData:
		m.acknowledged(&f)
	default:
		m.request(&f)
	}
}

// stepLoop handles frames that the device sent to itself.
func (m *Model) stepLoop() (busy bool) {
	in := m.loop
	m.loop = nil
	for _, b := range in {
		m.arrive(b)
	}
	return len(in) > 0
}
