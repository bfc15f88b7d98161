// Package synthetic makes synthetic reports with known properties, for tests and calibration.
package synthetic

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/host"
	"github.com/rebound-nic/rebound/latency/report"
)

// Link is a synthetic link: round trips are log-normal around Median, with an outlier in ten thousand.
type Link struct {
	Seed    uint64
	Median  float64 // ns
	Spread  float64 // of the logarithm
	Runs    int
	Seconds int
	Rate    int // per second
	Open    bool
	Drift   float64 // of the logarithm, from interval to interval
}

// Clock ticks once per nanosecond, from an arbitrary start.
func Clock() *latency.Clock {
	return latency.FixedClock(latency.ClockInfo{Source: "tsc", Frequency: 1e9, Method: "by definition of the test",
		ErrorPPM: 0.3, ReadNS: 8, Steady: true, Kernel: "tsc"},
		5_000_000, time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
}

// Report records round trips of the link, and returns the report that a bench would have written.
func (l Link) Report() *report.Report {
	rnd := rand.New(rand.NewPCG(l.Seed, 7))
	r, err := latency.NewRecorder(Clock(), latency.RecorderOptions{OpenLoop: l.Open, Raw: 1000})
	if err != nil {
		panic(err)
	}
	now := uint64(10_000_000)
	step := uint64(1e9) / uint64(l.Rate)
	shift := 0.0
	for range max(l.Runs, 1) {
		r.Record(now, now, now+1) // outside of a run: dropped
		r.Begin(now)
		end := now + uint64(l.Seconds)*1e9
		for k := 0; now < end-step; k++ {
			if k%l.Rate == 0 && l.Drift > 0 {
				shift = 0.8*shift + l.Drift*rnd.NormFloat64()
			}
			rtt := uint64(l.Median * math.Exp(l.Spread*rnd.NormFloat64()+shift))
			if rnd.IntN(10_000) == 0 {
				rtt += uint64(20_000 + rnd.IntN(400_000))
			}
			late := uint64(0)
			if l.Open && rnd.IntN(5_000) == 0 {
				late = uint64(rnd.IntN(300_000))
			}
			r.Record(now, now+late, now+late+rtt)
			now += step
		}
		r.End(end)
		now = end + 1e8
	}
	rep := report.New("bench", report.RoundTrip)
	rep.Fill(r.Recording())
	n := rep.Main().Total.Count
	rep.Args = []string{"bench", "run", "-target", "10.9.0.2"}
	rep.Traffic = report.Traffic{Target: "10.9.0.2", Protocol: "icmp", IPVersion: 4, FrameSize: 98, Mode: "closed",
		Outstanding: 1, Transport: "raw"}
	if l.Open {
		rep.Traffic.Mode, rep.Traffic.Rate, rep.Traffic.Outstanding = "open", float64(l.Rate), 0
	}
	rep.Device = report.Device{Driver: "afxdp", Device: "veth0", Model: "veth", MAC: "02:00:00:00:00:01", MTU: 1500,
		Queues: 1, Backend: "socket", Push: "xdp-drv copy"}
	rep.Counts = report.Counts{Sent: n, Received: n}
	rep.Host = host.Facts{Hostname: "bench1", CPU: "Example CPU 9000", Cores: 8, Core: 3, Kernel: "6.12.1",
		Arch: "amd64", SMT: "on", Governor: "powersave", Clocksource: "tsc",
		Findings: []host.Finding{
			{ID: "governor", Severity: host.Warning, What: "frequency governor of CPU 3 is powersave: the clock rate follows the load", Fix: "echo performance > /sys/devices/system/cpu/cpu3/cpufreq/scaling_governor"},
			{ID: "mitigations", Severity: host.Note, What: "2 mitigations of CPU vulnerabilities are active", Fix: "compare only with hosts that have the same"},
		}}
	return rep
}

// Sampled returns a report of a given number of runs whose intervals contain log-normal samples; shift moves each
// interval's median, by the index of the interval and of its run, in the logarithm.
func Sampled(rnd *rand.Rand, median float64, runs, intervals, perInterval int,
	shift func(run, i int) float64) *report.Report {
	rep := &report.Report{Schema: report.Schema, Tool: "bench", Metric: report.RoundTrip,
		Clock: latency.ClockInfo{Steady: true}, Traffic: report.Traffic{Protocol: "icmp", FrameSize: 64,
			Mode: "closed"}}
	s := &latency.Series{Name: latency.MainSeries}
	values := make([]int64, perInterval)
	at := int64(0)
	for run := range runs {
		start := at
		for i := range intervals {
			moved := shift(run, i)
			for k := range values {
				values[k] = int64(median * math.Exp(0.1*rnd.NormFloat64()+moved))
			}
			s.Intervals = append(s.Intervals, latency.Interval{Start: at, End: at + 1e9,
				Histogram: latency.FromValues(values)})
			at += 1e9
		}
		rep.Runs = append(rep.Runs, latency.Run{Start: start, End: at})
	}
	s.Sum()
	rep.Series = []*latency.Series{s}
	rep.Start, rep.End = time.Unix(0, 0), time.Unix(0, at)
	return rep
}

// NoDrift is a shift of zero.
func NoDrift(int, int) float64 { return 0 }
