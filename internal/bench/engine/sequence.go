package engine

// Sequence is what the order of the measured replies, and the gaps in it, tell.
type Sequence struct {
	// Losses in a row (loss periods of RFC 3357 §3). A run's end ends one.
	LossPeriods, LongestLoss int64
	LossLengths              [lossLengths]int64 // periods by their length; the last counts longer ones, too

	// The greatest reordering extent (RFC 4737 §4.2.1): how many replies came between the first one sent after a probe and
	// that probe's own. Beyond maxExtent it is no longer told how far.
	Extent int64
}

const (
	lossLengths = 33
	maxExtent   = 255
)

// judge takes the probes before to, all of which are answered or never will be, into the loss periods.
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

// end judges what a run sent.
func (w *window) end() {
	w.judge(w.next)
	w.endLoss()
}

// arrive notes the first good reply to a probe. overtaken says that a later probe's reply came before.
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

// variation records the differences in round trip between the probe seq, which was just answered, and the probes next to
// it that are answered already: the packet pairs of RFC 3393 §3.1, taken of round trips.
func (s *Stream) variation(seq uint32, at uint64) {
	this, _, _ := s.window.find(seq)
	for _, next := range [...]uint32{seq - 1, seq + 1} {
		if o, _, ok := s.window.find(next); ok && o.rtt != 0 && o.measured {
			s.ipdv.Record(at, s.clock.Nanoseconds(max(this.rtt, o.rtt)-min(this.rtt, o.rtt)))
		}
	}
}

// Sequence returns what was learnt of loss periods and reordering.
func (s *Stream) Sequence() Sequence { return s.window.seq }
