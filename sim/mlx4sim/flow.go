package mlx4sim

import "time"

// Flow control of an Ethernet port: pause frames (IEEE 802.3, annex 31B) and priority flow control (802.1Qbb). A queue
// has the priority of its scheduling queue.

const (
	etherControl = 0x8808
	controlPause = 0x0001
	controlPFC   = 0x0101

	// rxBuffer is the port's receive buffer in bytes, the model's choice. Pause frames are sent above the high mark,
	// and revoked below the low one.
	rxBuffer     = 256 << 10
	rxBufferHigh = rxBuffer * 3 / 4
	rxBufferLow  = rxBuffer / 2

	longestPause = 0xffff // quanta
	priorities   = 8
)

// pauseTime is the time of a pause of quanta, each of 512 bits at 40 Gb/s.
func pauseTime(quanta uint16) time.Duration {
	return time.Duration(quanta) * 512 * time.Nanosecond / 40
}

// flow is the state of flow control.
type flow struct {
	obeys, sends         bool                      // pause frames
	obeysPrio, sendsPrio uint8                     // the same by priority
	until                [priorities]time.Duration // the priority sends nothing before; 0: it is not paused
	held                 [][]byte                  // frames that the host has not taken
	bytes                int                       // of them
	xoff                 bool                      // the peer has been asked to pause
	again                time.Duration             // when it is asked again
	rx, tx               [priorities]pauses
}

// pauses are the counters of one direction.
type pauses struct {
	frames, ends uint64
	time         time.Duration // requested
}

// control handles a MAC control frame, which no queue receives, and reports whether b is one.
func (m *Model) control(b []byte) bool {
	if len(b) < 18 || be.Uint16(b[12:]) != etherControl {
		return false
	}
	m.count.rxControl++
	f := &m.port.flow
	for p := range priorities {
		switch op := be.Uint16(b[14:]); {
		case op == controlPause && f.obeys:
			m.pause(p, be.Uint16(b[16:]))
		case op == controlPFC && len(b) >= 18+2*priorities && b[17]>>p&1 != 0 && f.obeysPrio>>p&1 != 0:
			m.pause(p, be.Uint16(b[18+2*p:]))
		}
	}
	return true
}

// pause stops a priority, or with 0 quanta resumes it.
func (m *Model) pause(prio int, quanta uint16) {
	f := &m.port.flow
	f.rx[prio].frames++
	f.rx[prio].time += pauseTime(quanta)
	if quanta > 0 || f.until[prio] != 0 {
		f.until[prio] = m.host.Now() + pauseTime(quanta)
	}
}

// pausedBy reports whether the peer paused the priority of a queue.
func (m *Model) pausedBy(q *qp) bool {
	f := &m.port.flow
	return f.until != [priorities]time.Duration{} && f.until[q.ctx.U("sched_queue")>>3&(priorities-1)] != 0
}

// hold keeps a frame in the port's buffer while the host takes none.
func (m *Model) hold(b []byte) bool {
	f := &m.port.flow
	if f.bytes+len(b) > rxBuffer {
		m.host.Dropped("the port's receive buffer is full")
		m.count.rxBufferFull++
		return false
	}
	f.held = append(f.held, b)
	f.bytes += len(b)
	m.tellPeer()
	return true
}

// stepFlow ends pauses that are over, and passes frames from the port's buffer to the host.
func (m *Model) stepFlow() (busy bool) {
	f, now := &m.port.flow, m.host.Now()
	for p, until := range f.until {
		if until != 0 && now >= until {
			f.until[p], busy = 0, true
			f.rx[p].ends++
		}
	}
	for len(f.held) > 0 && !m.stalled.Load() {
		b := f.held[0]
		f.held, f.bytes, busy = f.held[1:], f.bytes-len(b), true
		m.accept(b)
	}
	m.tellPeer()
	return busy
}

// tellPeer sends pause frames according to how full the port's buffer is.
func (m *Model) tellPeer() {
	f, now := &m.port.flow, m.host.Now()
	switch {
	case !f.sends && f.sendsPrio == 0:
	case f.bytes > rxBufferHigh && !f.xoff, f.bytes > rxBufferLow && f.xoff && now >= f.again:
		f.xoff, f.again = true, now+pauseTime(longestPause)/2
		m.sendPause(longestPause)
	case f.bytes <= rxBufferLow && f.xoff:
		f.xoff = false
		m.sendPause(0)
	}
}

// sendPause sends a pause frame, or one for each priority that has flow control.
func (m *Model) sendPause(quanta uint16) {
	f := &m.port.flow
	b := make([]byte, 60)
	copy(b, []byte{0x01, 0x80, 0xc2, 0, 0, 1})
	copy(b[6:], m.opt.MAC[:])
	be.PutUint16(b[12:], etherControl)
	prios := uint8(0xff)
	if f.sends {
		be.PutUint16(b[14:], controlPause)
		be.PutUint16(b[16:], quanta)
	} else {
		prios = f.sendsPrio
		be.PutUint16(b[14:], controlPFC)
		b[17] = prios
	}
	for p := range priorities {
		if prios>>p&1 == 0 {
			continue
		}
		if !f.sends {
			be.PutUint16(b[18+2*p:], quanta)
		}
		f.tx[p].frames++
		f.tx[p].time += pauseTime(quanta)
		if quanta == 0 {
			f.tx[p].ends++
		}
	}
	m.host.Transmit(b)
}

// HoldReceive makes the host take no frames, like a root port that is out of credits: they wait in the port's buffer.
// It may be called from any goroutine.
func (m *Model) HoldReceive(on bool) { m.stalled.Store(on) }

// dumpPauses writes the counters of flow control, 64 bytes for each priority, in the order that Linux's mlx4_en reads
// them. Without priority flow control all priorities are equal.
func (m *Model) dumpPauses(b []byte) {
	f := &m.port.flow
	for p := range priorities {
		for i, d := range []pauses{f.rx[p], f.tx[p]} {
			for k, v := range []uint64{d.frames, uint64(d.time / time.Microsecond), d.ends} {
				be.PutUint64(b[64*p+24*i+8*k:], v)
			}
		}
	}
}
