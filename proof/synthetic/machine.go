package synthetic

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/latency/schedule"
)

// Machine is a synthetic machine whose latency level changes over time. Its fields define the distribution and how runs
// and intervals differ. Round trips are log-normal around 4 us with a spread of 10 %; one of fifty is in a Pareto tail
// (with index 1.5, so that it has no variance).
type Machine struct {
	Rnd       *rand.Rand
	Samples   int     // of each interval
	Noise     float64 // of each run's level, as the standard deviation of the logarithm
	Tail      float64 // the same for each run's tail, independent of the level
	TailShift float64 // of all runs' tails
	Outlier   float64 // probability that a run is twenty times as slow
	Granule   int64   // ns, steps of the clock; 0 for none
	// Level is the logarithm of the factor that the machine's state applies to all round trips, at a time in seconds.
	Level func(t float64) float64
}

// Shape of an interval's distribution: each bin's factor and share.
const bodyBins, tailBins, tailShare = 160, 60, 0.02

func (m *Machine) interval(median, level, tail, samples float64) *latency.Histogram {
	values, counts := make([]int64, 0, bodyBins+tailBins), make([]int64, 0, bodyBins+tailBins)
	add := func(factor, share float64) {
		v := int64(median * math.Exp(level) * factor)
		if m.Granule > 0 {
			v = v / m.Granule * m.Granule
		}
		values, counts = append(values, v), append(counts, poisson(m.Rnd, share*samples))
	}
	const width = 8.0 / bodyBins
	for i := range bodyBins {
		z := -4 + (float64(i)+0.5)*width
		add(math.Exp(0.1*z), (1-tailShare)*width*math.Exp(-z*z/2)/math.Sqrt(2*math.Pi))
	}
	const ratio = 0.8 // of the probabilities of exceeding the two ends of a bin
	above := 1.0
	for range tailBins {
		middle := above * (1 + ratio) / 2
		add(1.3*math.Exp(tail)*math.Pow(middle, -1/1.5), tailShare*above*(1-ratio))
		above *= ratio
	}
	return latency.FromCounts(values, counts)
}

// Slot is the time of a run, in seconds.
type Slot struct{ Start, End float64 }

// Runs returns a report with one run in each slot, each cut into the given number of intervals, with a median in
// nanoseconds. A slot longer than the others has more samples.
func (m *Machine) Runs(median float64, slots []Slot, intervals int) *report.Report {
	origin, total := slots[0].Start, 0.0
	for _, at := range slots {
		total += at.End - at.Start
	}
	mean := total / float64(len(slots)*intervals)
	ns := func(seconds float64) int64 { return int64((seconds - origin) * 1e9) }
	rep := &report.Report{Schema: report.Schema, Tool: "bench", Metric: report.RoundTrip,
		Clock:   latency.ClockInfo{Steady: true},
		Traffic: report.Traffic{Protocol: "icmp", FrameSize: 64, Mode: "closed"}}
	rep.Start = time.Unix(1_700_000_000, int64(origin*1e9))
	s := &latency.Series{Name: latency.MainSeries}
	for _, at := range slots {
		level, tail := m.Noise*m.Rnd.NormFloat64(), m.TailShift+m.Tail*m.Rnd.NormFloat64()
		if m.Rnd.Float64() < m.Outlier {
			level += math.Log(20)
		}
		length := (at.End - at.Start) / float64(intervals)
		for i := range intervals {
			from := at.Start + float64(i)*length
			h := m.interval(median, level+m.Level(from+length/2), tail, float64(m.Samples)*length/mean)
			s.Intervals = append(s.Intervals, latency.Interval{Start: ns(from), End: ns(from + length), Histogram: h})
		}
		rep.Runs = append(rep.Runs, latency.Run{Start: ns(at.Start), End: ns(at.End)})
	}
	s.Sum()
	rep.Series = []*latency.Series{s}
	rep.End = rep.Start.Add(time.Duration(ns(slots[len(slots)-1].End)))
	rep.Counts.Sent, rep.Counts.Received = s.Total.Count, s.Total.Count
	return rep
}

// Session has the times at which the slices of two variants are measured. Its schedules are empty if the variants do
// not alternate.
type Session struct {
	A, B     []Slot
	Schedule [2]report.Schedule
}

// Slices returns a session with the given number of blocks, as a bench draws it from a seed: slices with an average
// length in seconds, and a pause after each.
func Slices(seed uint64, blocks int, length, pause float64) (s Session) {
	at := 1.0
	for i := range s.Schedule {
		s.Schedule[i].Seed = schedule.Text(seed)
	}
	for _, b := range schedule.Draw(seed, 2, blocks) {
		for place, variant := range b.Order {
			slot := Slot{at, at + length*(1+b.Stretch)}
			at = slot.End + pause
			if variant == 0 {
				s.A = append(s.A, slot)
			} else {
				s.B = append(s.B, slot)
			}
			s.Schedule[variant].Places = append(s.Schedule[variant].Places, place)
		}
	}
	return s
}

// Both returns the reports of a session of two variants with these medians.
func (m *Machine) Both(medianA, medianB float64, s Session, intervals int) (a, b *report.Report) {
	a, b = m.Runs(medianA, s.A, intervals), m.Runs(medianB, s.B, intervals)
	if s.Schedule[0].Seed == "" {
		return a, b
	}
	a.Session, b.Session = "s", "s"
	a.Schedule, b.Schedule = &s.Schedule[0], &s.Schedule[1]
	return a, b
}

// poisson draws a count with the given mean; it uses the normal distribution for means above 50.
func poisson(rnd *rand.Rand, mean float64) int64 {
	if mean > 50 {
		return max(int64(math.Round(mean+math.Sqrt(mean)*rnd.NormFloat64())), 0)
	}
	n, p, stop := int64(-1), 1.0, math.Exp(-mean)
	for p > stop {
		p *= rnd.Float64()
		n++
	}
	return n
}

// Quiet is the level of a machine that does not drift.
func Quiet(float64) float64 { return 0 }

// AR1 is a level that follows an autoregressive process with a standard deviation and a correlation time in seconds,
// until end.
func AR1(rnd *rand.Rand, deviation, correlation, end float64) func(float64) float64 {
	const step = 0.25 // s
	keep := math.Exp(-step / correlation)
	path := []float64{deviation * rnd.NormFloat64()}
	for len(path) < int(end/step)+2 {
		path = append(path, keep*path[len(path)-1]+deviation*math.Sqrt(1-keep*keep)*rnd.NormFloat64())
	}
	return func(t float64) float64 { return path[int(t/step)] }
}

// Walk is a random walk with steps of the given standard deviation every second, until end.
func Walk(rnd *rand.Rand, step, end float64) func(float64) float64 {
	path := []float64{0}
	for len(path) < int(end)+2 {
		path = append(path, path[len(path)-1]+step*rnd.NormFloat64())
	}
	return func(t float64) float64 {
		i := int(t)
		return path[i] + (t-float64(i))*(path[i+1]-path[i])
	}
}

// Line is a level that rises at a constant rate per second.
func Line(rate float64) func(float64) float64 { return func(t float64) float64 { return rate * t } }

// Steps is a level that jumps by a fixed height, up or down, at random times that are length seconds apart on average.
func Steps(rnd *rand.Rand, height, length, end float64) func(float64) float64 {
	var at []float64
	var up []float64
	for t := rnd.ExpFloat64() * length; t < end; t += rnd.ExpFloat64() * length {
		at, up = append(at, t), append(up, height*float64(1-2*rnd.IntN(2)))
	}
	return func(t float64) float64 {
		level := 0.0
		for i := range at {
			if at[i] < t {
				level += up[i]
			}
		}
		return level
	}
}

// OneStep is a level that jumps once, at a time uniformly distributed before end.
func OneStep(rnd *rand.Rand, height, end float64) func(float64) float64 {
	at := rnd.Float64() * end
	return func(t float64) float64 {
		if t < at {
			return 0
		}
		return height
	}
}

// Wave is a level that oscillates by height around 0 with a period in seconds and a random phase. The true period
// differs from the given one by a relative standard deviation of drift.
func Wave(rnd *rand.Rand, height, period, drift float64) func(float64) float64 {
	at := phase(rnd, period, drift)
	return func(t float64) float64 { return height * math.Sin(2*math.Pi*at(t)) }
}

// Pulses is a level that is height for the fraction duty of each period, and 0 otherwise; phase and drift are as in
// Wave.
func Pulses(rnd *rand.Rand, height, duty, period, drift float64) func(float64) float64 {
	at := phase(rnd, period, drift)
	return func(t float64) float64 {
		if at(t) < duty {
			return height
		}
		return 0
	}
}

// phase returns the position within a period, from 0 to 1, at a given time.
func phase(rnd *rand.Rand, period, drift float64) func(float64) float64 {
	from, rate := rnd.Float64(), (1+drift*rnd.NormFloat64())/period
	return func(t float64) float64 {
		_, part := math.Modf(from + rate*t)
		return part
	}
}
