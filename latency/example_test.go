package latency_test

import (
	"fmt"
	"time"

	"github.com/rebound-nic/rebound/latency"
)

// A clock of one tick per nanosecond, so that this example gives the same numbers everywhere. A real program calls
// NewClock, and reads the counter with polling.TSC.
func clock() *latency.Clock {
	return latency.FixedClock(latency.ClockInfo{Source: "tsc", Frequency: 1e9}, 0, time.Unix(0, 0))
}

// A probe is sent every millisecond, and each reply takes 50 µs, but for 30 ms the sender is descheduled. The main
// series counts from the intended time of each probe, so it includes the wait of all the probes that were due meanwhile
// (coordinated omission).
func ExampleRecorder() {
	const probes, stall = 1000, 30 * time.Millisecond
	rec, err := latency.NewRecorder(clock(), latency.RecorderOptions{OpenLoop: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	now, rtt := time.Duration(0), 50*time.Microsecond
	rec.Begin(0)
	for i := range probes {
		intended := time.Duration(i) * time.Millisecond
		now = max(now, intended)
		if i == 500 {
			now += stall
		}
		rec.Record(uint64(intended), uint64(now), uint64(now+rtt))
		now += rtt
	}
	rec.End(uint64(now))

	for _, s := range rec.Recording().Series {
		h := s.Total
		fmt.Printf("%-15s p50 %-8s p99 %-8s max %s\n", s.Name, latency.FormatNS(float64(h.Quantile(0.5))),
			latency.FormatNS(float64(h.Quantile(0.99))),
			latency.FormatNS(float64(h.Max)))
	}

	// Output:
	// rtt             p50 50.02 µs p99 20.56 ms max 30.05 ms
	// uncorrected     p50 50.00 µs p99 50.00 µs max 50.00 µs
}

func ExampleFromValues() {
	h := latency.FromValues([]int64{2900, 2950, 3000, 3100, 41000})
	fmt.Println(h.Count, "round trips, p50", h.Quantile(0.5), "ns, max", h.Max, "ns,", h.CountAbove(10_000),
		"above 10 µs")

	// Output: 5 round trips, p50 3001 ns, max 41000 ns, 1 above 10 µs
}

// How long a frame waits for a loop that polls every 100 ns, but pauses once for a millisecond: nearly every iteration
// is short, yet half of the frames that arrive at a random moment arrive during the pause, most of them early in it.
func ExampleHistogram_Wait() {
	gaps := latency.FromCounts([]int64{100, 1_000_000}, []int64{10_000, 1})
	fmt.Println("per iteration: p50", gaps.Quantile(0.5), "ns")
	fmt.Printf("frames that wait longer than 100 µs: %.0f %%\n", 100*gaps.WaitAbove(100_000))

	// Output:
	// per iteration: p50 100 ns
	// frames that wait longer than 100 µs: 45 %
}
