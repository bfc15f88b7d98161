package engine

import (
	"time"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/polling"
)

// Stamper counts the frames sent through a port with timestamping: timestamps of sent frames are identified by that
// count. Streams that share the port share it.
type Stamper struct {
	from  nic.Timestamper
	card  nic.CardClock // nil if the card's clock cannot be read
	sends uint32
	both  [2]bool // whether the kernel, and the card, stamp replies and sent frames
}

// NewStamper is called right after timestamping was enabled on from, before anything is sent. active is the result of
// EnableTimestamps.
func NewStamper(from nic.Timestamper, active nic.Timestamping) *Stamper {
	one := active.RxPTP // such a card timestamps one frame at a time, so that probes of stamped replies may have none
	s := &Stamper{from: from, both: [2]bool{active.RxSoftware && active.TxSoftware, active.RxHardware &&
		active.TxHardware && !one}}
	s.card, _ = from.(nic.CardClock)
	return s
}

// Other counts a frame that is sent outside of all streams.
func (s *Stamper) Other() {
	if s != nil {
		s.sends++
	}
}

// stamps pairs the kernel's and the card's timestamps of a probe and of its reply.
type stamps struct {
	*Stamper
	kernel, hardware *latency.Track
	ring             []stamped // by sequence number; the length is the window
	sent             []sent    // by send count; the length is the window
	mask             uint32
	clock            *latency.Clock
	slow             *slowest // these two get timestamps that arrive after the reply
	sample           *sample
	replies, pairs   [2]int64 // by the kernel, by the card: stamped replies, and those whose probe's timestamp arrived
	reading          NIC      // of the card's clock, the one that is the most exact now
	tried            uint64   // tick of the latest
}

type stamped struct {
	seq    uint32
	at     uint64   // tick of the reply, 0 before it arrives
	tx, rx [2]int64 // by the kernel, by the card; ns, 0 if unknown
	paired [2]bool
	kept   bool // among the slowest
	place  int  // in the random sample, from 1; 0 if it is not there
}

type sent struct {
	id, seq uint32
	probe   bool
}

func newStamps(s *Stamper, rec *latency.Recorder, size int) *stamps {
	return &stamps{Stamper: s, clock: rec.Clock(), kernel: rec.Track(latency.KernelSeries),
		hardware: rec.Track(latency.HardwareSeries),
		ring:     make([]stamped, size), sent: make([]sent, size), mask: uint32(size - 1)}
}

// send records that the next frame sent is the measured probe seq.
func (s *stamps) send(seq uint32, measured bool) {
	if measured {
		s.ring[seq&s.mask] = stamped{seq: seq}
	}
	s.sent[s.sends&s.mask] = sent{s.sends, seq, measured}
	s.sends++
}

// other records that the next frame sent is not a probe.
func (s *stamps) other() {
	s.sent[s.sends&s.mask] = sent{id: s.sends}
	s.sends++
}

// receive records the reply to the measured probe seq, which the last Recv returned.
func (s *stamps) receive(seq uint32, at uint64) {
	e := &s.ring[seq&s.mask]
	if e.seq != seq {
		return
	}
	e.at = at
	if t := s.from.RxTimestamp(); t.Nanoseconds != 0 {
		e.rx[clock(t)] = t.Nanoseconds
		s.replies[clock(t)]++
	}
	s.pair(e)
}

// collect reads the available timestamps of sent frames. A port that does not support them reported this when
// timestamping was enabled; a later error means that single timestamps are missing, which the histograms' counts show.
func (s *stamps) collect() {
	for {
		id, t, ok, err := s.from.TxTimestamp()
		if !ok || err != nil {
			return
		}
		from := &s.sent[id&s.mask]
		if from.id != id || !from.probe {
			continue
		}
		if e := &s.ring[from.seq&s.mask]; e.seq == from.seq {
			e.tx[clock(t)] = t.Nanoseconds
			if e.kept {
				s.slow.sent(e.seq, &t)
			}
			if e.place > 0 {
				s.sample.kept[e.place-1].NIC.sent(e.seq, &t)
			}
			s.pair(e)
		}
	}
}

// pair records the time between a probe's departure and its reply's arrival by the kernel's and by the hardware's
// timestamps, once for each kind of which both are known.
func (s *stamps) pair(e *stamped) {
	if e.at == 0 {
		return
	}
	for i, track := range [...]*latency.Track{s.kernel, s.hardware} {
		if e.tx[i] != 0 && e.rx[i] != 0 && !e.paired[i] {
			track.Record(e.at, e.rx[i]-e.tx[i])
			s.pairs[i]++
			e.paired[i] = true
		}
	}
}

// keep returns the timestamps of the probe seq, whose reply was just received and is kept: the card's if its clock can
// be read, otherwise the kernel's. place is its place in the random sample, from 1, or 0 if it is one of the slowest.
func (s *stamps) keep(seq uint32, place int) (n NIC) {
	e := &s.ring[seq&s.mask]
	if e.seq != seq {
		return n
	}
	switch {
	case e.rx[1] != 0 && s.card != nil:
		if n = s.readCard(); n.Tick == 0 {
			return n
		}
		n.Sent, n.Seen = e.tx[1], e.rx[1]
	case e.rx[0] != 0:
		n = readKernel()
		n.Sent, n.Seen = e.tx[0], e.rx[0]
	default:
		return n
	}
	if n.seq = seq; place > 0 {
		e.place = place
	} else {
		e.kept = true
	}
	return n
}

// readKernel compares CLOCK_REALTIME with ticks.
func readKernel() (n NIC) {
	for range 3 { // the thread may be descheduled in between
		from := polling.TSC()
		shows := time.Now().UnixNano()
		if within := polling.TSC() - from; n.Tick == 0 || within < n.Within {
			n.Clock, n.Tick, n.Within = shows, from, within
		}
	}
	return n
}

// readEvery is how often the card's clock is read at most, because a reading takes microseconds. Where it takes longer,
// the thread spends a tenth of its time on readings, but reads at least every 50 * readEvery.
const readEvery = 200 * time.Microsecond

// CardSlew is how fast a card's clock may run compared with the cycle counter: its oscillator is within 100 ppm (IEEE
// 802.3), as the counter's is assumed to be.
const CardSlew = 200e-6

// off is by how many ticks a reading may be wrong at a later time.
func (n *NIC) off(tick uint64) float64 { return float64(n.Within)/2 + CardSlew*float64(tick-n.Tick) }

// readCard compares the card's clock with ticks. The result is zero if it cannot be read.
func (s *stamps) readCard() NIC {
	every := s.clock.Ticks(readEvery)
	rest := max(min(2*10*s.reading.Within, 50*every), every) // it is read twice
	if s.reading.Tick != 0 && polling.TSC()-s.tried < rest {
		return s.reading
	}
	for range 2 { // the thread may be descheduled in between
		s.tried = polling.TSC()
		shows, err := s.card.ReadClock()
		if err != nil {
			s.reading = NIC{}
			break
		}
		n := NIC{Clock: shows, Tick: s.tried, Within: polling.TSC() - s.tried, Card: true}
		was := &s.reading
		passed := shows - was.Clock - s.clock.Between(was.Tick+was.Within/2, n.Tick+n.Within/2)
		both := s.clock.Nanoseconds(uint64(was.off(n.Tick)+n.off(n.Tick))) + 1
		if was.Tick == 0 || n.off(n.Tick) <= was.off(n.Tick) || max(passed, -passed) > both { // the clock was set
			s.reading = n
		}
	}
	return s.reading
}

// behind reports whether timestamps of sent frames are still missing.
func (s *stamps) behind() bool {
	for i, n := range s.pairs {
		if s.both[i] && n < s.replies[i] {
			return true
		}
	}
	return false
}

// abandon gives up on missing timestamps, so that the next run does not wait for them.
func (s *stamps) abandon() { s.replies = s.pairs }

func clock(t nic.Timestamp) int {
	if t.Hardware {
		return 1
	}
	return 0
}
