package compare

import (
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/report"
)

// Way is one direction of two STAMP measurements.
type Way struct {
	Series string // latency.ThereSeries, latency.BackSeries
	ErrorA float64
	ErrorB float64 // ns; error bound of each side's delays, the same for all of them
	Rows   []Row
}

// way is a Way with the pair of reports that its rows are tested on.
type way struct {
	Way
	pair Pair
}

// compareOneWay compares the one-way delays that both reports have. A shift within the sum of the clock errors may be
// clock error, and no number of samples can decide it: such a shift has no verdict. This applies to alternating runs,
// too, because the clocks of the two hosts drift against each other during the session.
func (p *Pair) compareOneWay() (all []way) {
	for _, name := range []string{latency.ThereSeries, latency.BackSeries} {
		a, b := alone(p.A, name), alone(p.B, name)
		if a == nil || b == nil {
			continue
		}
		w := Way{Series: name, ErrorA: float64(p.A.STAMP.OneWay.ErrorNS), ErrorB: float64(p.B.STAMP.OneWay.ErrorNS)}
		all = append(all, way{w, Pair{A: a, B: b, Obstacles: p.Obstacles, clocks: w.ErrorA + w.ErrorB}})
	}
	return all
}

func (w *way) judge(level float64) {
	w.pair.see()
	for _, st := range Stats(latency.NarrowTable) {
		w.Rows = append(w.Rows, w.pair.row(st, level))
	}
}

// alone returns r with the named series as its main series, nil if r does not have it.
func alone(r *report.Report, name string) *report.Report {
	s := r.Find(name)
	if s == nil || s.Total == nil || s.Total.Count == 0 || r.STAMP == nil || !r.STAMP.OneWay.Known() {
		return nil
	}
	main, one := *s, *r
	main.Name = latency.MainSeries
	one.Series = []*latency.Series{&main}
	return &one
}
