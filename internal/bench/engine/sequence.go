package engine

// Sequence describes the order of the measured replies, and the gaps in it.
type Sequence struct {
	// Consecutive losses (loss periods of RFC 3357 §3). The end of a run ends one.
	LossPeriods, LongestLoss int64
	LossLengths              [lossLengths]int64 // periods by length; the last entry includes longer ones

	// The greatest reordering extent (RFC 4737 §4.2.1): how many replies came between the first one sent after a probe
	// and that probe's own. It is limited to maxExtent.
	Extent int64
}

const (
	lossLengths = 33
	maxExtent   = 255
)

// judge adds the probes before to, all of which are answered or never will be, to the loss periods.
func (w *window) judge(to uint64) {
	for ; w.judged < to; w.judged++ {
		s := &w.slots[w.judged&w.mask]
		switch {
		case !s.measured:
		case s.state == waiting:
			w.losing++
		case s.state == answered || s.state == spoiled:
			w.endLoss()
		}
	}
}

func (w *window) endLoss() {
	if w.losing == 0 {
		return
	}
	w.seq.LossPeriods++
	w.seq.LongestLoss = max(w.seq.LongestLoss, w.losing)
	w.seq.LossLengths[min(w.losing, lossLengths-1)]++
	w.losing = 0
}

// end evaluates the remaining probes of a run.
func (w *window) end() {
	w.judge(w.next)
	w.endLoss()
}

// arrive records the first good reply to a probe. overtaken means that a later probe's reply came before it.
func (w *window) arrive(full uint64, overtaken bool) {
	if overtaken {
		extent := int64(0)
		for k := uint64(1); k <= min(w.arrived, maxExtent); k++ {
			if w.arrivals[(w.arrived-k)%(maxExtent+1)] > full {
				extent = int64(k)
			}
		}
		w.seq.Extent = max(w.seq.Extent, extent)
	}
	w.arrivals[w.arrived%(maxExtent+1)] = full
	w.arrived++
}

// variation records the differences in round trip between the probe seq, which was just answered, and its neighbours
// that are already answered: the packet pairs of RFC 3393 §3.1, applied to round trips.
func (s *Stream) variation(seq uint32, at uint64) {
	this, _, _ := s.window.find(seq)
	for _, next := range [...]uint32{seq - 1, seq + 1} {
		if o, _, ok := s.window.find(next); ok && o.rtt != 0 && o.measured {
			s.ipdv.Record(at, s.clock.Nanoseconds(max(this.rtt, o.rtt)-min(this.rtt, o.rtt)))
		}
	}
}

// Sequence returns the loss periods and the reordering.
func (s *Stream) Sequence() Sequence { return s.window.seq }
