package latency

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"rebound/latency/host"
)

// testClock ticks once a nanosecond, from an arbitrary moment.
func testClock() *Clock {
	return &Clock{scale: 1 << 32, tsc: 5_000_000, wall: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC),
		info: ClockInfo{Source: "tsc", Frequency: 1e9, Method: "by definition of the test", ErrorPPM: 0.3, ReadNS: 8, Steady: true, Kernel: "tsc"}}
}

// link is a made-up thing to measure: log-normal around median, with an outlier in ten thousand.
type link struct {
	seed    uint64
	median  float64 // ns
	spread  float64 // of the logarithm
	runs    int
	seconds int
	rate    int // a second
	open    bool
	drift   float64 // of the logarithm, from interval to interval
}

func (l link) report(t testing.TB) *Report {
	t.Helper()
	rnd := rand.New(rand.NewPCG(l.seed, 7))
	r, err := NewRecorder(testClock(), RecorderOptions{OpenLoop: l.open, Raw: 1000})
	if err != nil {
		t.Fatal(err)
	}
	now := uint64(10_000_000)
	step := uint64(1e9) / uint64(l.rate)
	shift := 0.0
	for range max(l.runs, 1) {
		r.Record(now, now, now+1) // outside of a run: dropped
		r.Begin(now)
		end := now + uint64(l.seconds)*1e9
		for k := 0; now < end-step; k++ {
			if k%l.rate == 0 && l.drift > 0 {
				shift = 0.8*shift + l.drift*rnd.NormFloat64()
			}
			rtt := uint64(l.median * math.Exp(l.spread*rnd.NormFloat64()+shift))
			if rnd.IntN(10_000) == 0 {
				rtt += uint64(20_000 + rnd.IntN(400_000))
			}
			late := uint64(0)
			if l.open && rnd.IntN(5_000) == 0 {
				late = uint64(rnd.IntN(300_000))
			}
			r.Record(now, now+late, now+late+rtt)
			now += step
		}
		r.End(end)
		now = end + 1e8
	}
	rep := NewReport("bench", RoundTrip)
	r.Fill(rep)
	n := rep.Main().Total.Count
	rep.Args = []string{"bench", "run", "-target", "10.9.0.2"}
	rep.Traffic = Traffic{Target: "10.9.0.2", Protocol: "icmp", IPVersion: 4, FrameSize: 98, Mode: "closed", Outstanding: 1, Transport: "raw"}
	if l.open {
		rep.Traffic.Mode, rep.Traffic.Rate, rep.Traffic.Outstanding = "open", float64(l.rate), 0
	}
	rep.Device = Device{Driver: "afxdp", Device: "veth0", Model: "veth", MAC: "02:00:00:00:00:01", MTU: 1500, Queues: 1, Backend: "socket", Push: "xdp-drv copy"}
	rep.Counts = Counts{Sent: n, Received: n}
	rep.Host = host.Facts{Hostname: "bench1", CPU: "Example CPU 9000", Cores: 8, Core: 3, Kernel: "6.12.1", Arch: "amd64", SMT: "on", Governor: "powersave", Clocksource: "tsc",
		Findings: []host.Finding{
			{ID: "governor", Severity: host.Warning, What: "frequency governor of CPU 3 is powersave: the clock rate follows the load", Mend: "echo performance > /sys/devices/system/cpu/cpu3/cpufreq/scaling_governor"},
			{ID: "mitigations", Severity: host.Note, What: "2 mitigations of CPU vulnerabilities are active", Mend: "compare only with hosts that have the same"},
		}}
	return rep
}
