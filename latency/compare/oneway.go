package compare

import (
	"rebound/latency"
	"rebound/latency/report"
)

// Way is one direction of two STAMP measurements.
type Way struct {
	Series string // latency.ThereSeries, latency.BackSeries
	ErrorA float64
	ErrorB float64 // ns by which the delays of each side may be wrong, all alike
	Rows   []Row
}

// ways compares one-way delays where both reports have them. What the clocks of both may be wrong by can be all that differs, and no
// number of samples tells: a shift within the sum has no verdict. That holds for runs made by turns, too: the clocks of the two ends
// move against each other meanwhile.
func (p *Pair) ways() (all []Way) {
	for _, name := range []string{latency.ThereSeries, latency.BackSeries} {
		a, b := alone(p.A, name), alone(p.B, name)
		if a == nil || b == nil {
			continue
		}
		w := Way{Series: name, ErrorA: float64(p.A.STAMP.OneWay.ErrorNS), ErrorB: float64(p.B.STAMP.OneWay.ErrorNS)}
		q := Pair{A: a, B: b, Obstacles: p.Obstacles, clocks: w.ErrorA + w.ErrorB}
		for _, st := range []Stat{{"p50", 0.5}, {"p99", 0.99}} {
			w.Rows = append(w.Rows, q.row(st))
		}
		all = append(all, w)
	}
	return all
}

// alone returns r with the series of that name in the place of the main one, nil where it has none.
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
