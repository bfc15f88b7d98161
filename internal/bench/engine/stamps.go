package engine

import (
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/nic"
)

// Stamper counts what is sent through a port whose frames are stamped: stamps of sent frames come back by that count.
// Streams that share the port share it.
type Stamper struct {
	from  nic.Timestamper
	sends uint32
	both  [2]bool // whether the kernel, or the card, stamps replies and sent frames
}

// NewStamper is called right after from was enabled, before anything is sent. active is what EnableTimestamps returned.
func NewStamper(from nic.Timestamper, active nic.Timestamping) *Stamper {
	return &Stamper{from: from, both: [2]bool{active.RxSoftware && active.TxSoftware, active.RxHardware && active.TxHardware}}
}

// stamps pairs the kernel's and the card's stamps of a probe and of its reply.
type stamps struct {
	*Stamper
	kernel, hardware *latency.Track
	ring             []stamped // by sequence number; the length is the window
	sent             []sent    // by the count of sends; the length is the window
	mask             uint32
	replies, pairs   [2]int64 // by the kernel, by the card: stamped replies, and those whose probe's stamp came
}

type stamped struct {
	seq    uint32
	at     uint64   // tick of the reply, 0 before it came
	tx, rx [2]int64 // by the kernel, by the card; ns, 0 if not known
}

type sent struct {
	id, seq uint32
	probe   bool
}

func newStamps(s *Stamper, rec *latency.Recorder, size int) *stamps {
	return &stamps{Stamper: s, kernel: rec.Track(latency.KernelSeries), hardware: rec.Track(latency.HardwareSeries),
		ring: make([]stamped, size), sent: make([]sent, size), mask: uint32(size - 1)}
}

// send notes that the next frame sent is the measured probe seq.
func (s *stamps) send(seq uint32, measured bool) {
	if measured {
		s.ring[seq&s.mask] = stamped{seq: seq}
	}
	s.sent[s.sends&s.mask] = sent{s.sends, seq, measured}
	s.sends++
}

// other notes that the next frame sent is not a probe.
func (s *stamps) other() {
	s.sent[s.sends&s.mask] = sent{id: s.sends}
	s.sends++
}

// receive notes the reply to the measured probe seq, which the last Recv returned.
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

// collect takes the stamps of sent frames that are waiting. A port that cannot give them has said so when it was enabled;
// an error later means that single stamps are missing, which the histograms' counts show.
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
			s.pair(e)
		}
	}
}

func (s *stamps) pair(e *stamped) {
	if e.at == 0 {
		return
	}
	for i, track := range [...]*latency.Track{s.kernel, s.hardware} {
		if e.tx[i] != 0 && e.rx[i] != 0 {
			track.Record(e.at, e.rx[i]-e.tx[i])
			s.pairs[i]++
			e.tx[i], e.rx[i] = 0, 0
		}
	}
}

// behind reports whether stamps of sent frames are still to come.
func (s *stamps) behind() bool {
	for i, n := range s.pairs {
		if s.both[i] && n < s.replies[i] {
			return true
		}
	}
	return false
}

// settle gives up on the stamps that are still to come, so that the next run does not wait for them.
func (s *stamps) settle() { s.replies = s.pairs }

func clock(t nic.Timestamp) int {
	if t.Hardware {
		return 1
	}
	return 0
}
