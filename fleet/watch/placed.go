package watch

import (
	"sync"
	"time"

	"github.com/rebound-nic/rebound/internal/bench/observe"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/polling"
)

// samples are readings of the number of frames that this host has dropped on a wire without a send error. The counters
// are read once a second; the keeper checks whether they changed while a probe was outstanding.
type samples struct {
	mu    sync.Mutex
	last  observe.Reading
	list  []sample // ascending
	ended bool     // the wire is closed
	blind bool     // no counter includes the device's drops
}

type sample struct {
	tick    uint64
	dropped int64 // frames in either direction, since the first reading
}

// kept is the number of readings kept: one per second, for more than twice the longest timeout.
const kept = 150

// read reads the counters, and returns how many received frames were dropped since the last reading.
func (s *samples) read(from observe.Source) int64 {
	now, _ := from.Read() // the error is a responder's, which a watch does not query
	return s.add(now, from, polling.TSC())
}

// add appends a reading of the drop counters at a tick. It returns by how many frames this host's own drops grew
// since the reading before.
func (s *samples) add(now observe.Reading, from observe.Source, tick uint64) (grew int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := sample{tick: tick}
	if n := len(s.list); n > 0 {
		next.dropped = s.list[n-1].dropped
		if now.Here.Restarted(s.last.Here) {
			next.dropped++ // frames on the rings: their number is unknown
		}
		for _, d := range from.Grown(s.last, now) {
			if d.Place == report.DroppedHere {
				grew += d.Frames
			}
			// a send error is counted where it occurs
			if d.Place == report.DroppedHere || d.Place == report.NotSent && !d.Ours {
				next.dropped += d.Frames
			}
		}
	}
	if len(s.list) == kept {
		s.list = append(s.list[:0], s.list[1:]...)
	}
	s.list, s.last, s.blind = append(s.list, next), now, from.Uncounted()
	return grew
}

func (s *samples) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
}

// moved reports whether this host may have dropped a frame between two ticks. known is false while it is too early to
// decide.
func (s *samples) moved(from, to uint64) (moved, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	base := -1
	for i, at := range s.list {
		if int64(at.tick-from) <= 0 {
			base = i
		}
		if int64(at.tick-to) >= 0 {
			return s.blind || base < 0 || at.dropped != s.list[base].dropped, true
		}
	}
	return true, s.ended
}

// countDrops reads a wire's counters now, before its first probe, and then periodically until the wire is closed.
func (w *wire) countDrops(k *archive) {
	from := w.counters()
	w.drops.read(from)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for tick := time.Tick(sampleEvery); ; {
			select {
			case <-stop:
				w.drops.end()
				return
			case <-tick:
				k.drop(w.key, w.drops.read(from))
			}
		}
	}()
	w.stopCounting = func() {
		close(stop)
		<-stopped
	}
}

// overdueProbe is a probe without a timely reply. At the tick until, it is decided where it was dropped: a reply before
// that is late.
type overdueProbe struct {
	key         probeKey
	sent, until uint64
	wire        *wire
	path        uint8
	closed      bool // the target had reported that nothing listens at the port
	corrupt     bool // a corrupt reply came
}

type probeKey struct {
	flow int32
	seq  uint64
}

// miss records an overdue probe.
func (k *archive) miss(e *event) {
	p := overdueProbe{key: probeKey{e.flow, e.probe}, path: e.path, sent: e.sent, until: e.until, wire: e.wire,
		closed: k.byID[e.flow].closed, corrupt: e.corrupt}
	k.missing = append(k.missing, p)
	k.undecided[p.key] = true
}

// tooLate reports whether a late reply comes after its probe was counted as lost.
func (k *archive) tooLate(e *event) bool {
	key := probeKey{e.flow, e.probe}
	was := k.undecided[key]
	delete(k.undecided, key)
	return !was
}

// decide counts overdue probes as lost if their replies would be too late now. The loss is uncertain if this host
// dropped frames meanwhile, because the reply may be among them, or if the target reports that nothing listens at the
// port: a host limits the rate of such ICMP errors, so it may have refused a probe without one.
func (k *archive) decide(all bool) {
	n := 0
	for _, p := range k.missing {
		if k.undecided[p.key] {
			moved, known := p.wire.drops.moved(p.sent, p.until)
			moved = moved || p.wire.failure.Load() != nil // nothing was received after that
			if !known && !all {
				break
			}
			delete(k.undecided, p.key)
			if s := k.byID[p.key.flow]; s != nil {
				for _, t := range []*tally{&s.all, &s.part} {
					t.unanswered(p.corrupt, moved, p.closed || s.closed)
				}
				if s.paths != nil && !p.corrupt && !moved && !p.closed && !s.closed {
					s.paths.path(p.path).lost++
				}
			}
		}
		n++
	}
	k.missing = append(k.missing[:0], k.missing[n:]...)
}

// unanswered counts a probe without a good reply. here and there mean that this host may have dropped it and that the
// target may have refused it.
func (t *tally) unanswered(corrupt, here, there bool) {
	if corrupt {
		t.CorruptOnly++
		return
	}
	t.Lost++
	if here {
		t.DroppedHere++
		t.DroppedHereUncertain++
	}
	if there {
		t.RefusedThere++
		t.RefusedThereUncertain++
	}
	if here || there {
		t.LostUncertain++
	}
}

// drop records frames that this host dropped on a wire.
func (k *archive) drop(wire string, frames int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.dropped[wire] += frames
}
