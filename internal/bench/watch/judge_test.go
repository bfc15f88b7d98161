package watch

import (
	"flag"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/synthetic"
)

var hoursOf = flag.Int("hours", 25, "hours that each scenario of TestChangeCalibration simulates")

// An hour of twelve intervals against the same hour of seven days before, the level moving from day to day and,
// correlated, within the hour. The verdict is requested again with each interval from the eighth on, as the keeper
// does: a false alarm in any of the five looks counts for the hour. README.md says what came of it.
func TestChangeCalibration(t *testing.T) {
	const (
		daysBefore, intervals, length, samples = 7, 12, 300.0, 300 // of 5 minutes; a probe a second
		day                                    = 24 * 3600.0
	)
	for _, c := range []struct {
		name        string
		byDay       float64 // standard deviation of a day's level, of its logarithm
		within      float64 // the same within the hour
		correlation float64 // seconds
		change      float64 // of the last day, as a share
		least, most float64 // share of hours with a verdict
	}{
		{"nothing moves", 0, 0, 1, 0, 0, 0.015},
		{"days 1 %, hours 2 % over 20 minutes", 0.01, 0.02, 1200, 0, 0, 0.015},
		{"days 3 %, hours 5 % over 20 minutes", 0.03, 0.05, 1200, 0, 0, 0.02},
		{"days 5 %, hours 5 % over 2 hours", 0.05, 0.05, 7200, 0, 0, 0.05},
		{"days 10 %, hours 5 % over 20 minutes", 0.1, 0.05, 1200, 0, 0, 0.3},
		{"days and hours 0.5 %, and half slower", 0.005, 0.005, 1200, 0.5, 0.9, 1},
		{"days 1 %, hours 2 %, and twice as slow", 0.01, 0.02, 1200, 1, 0.9, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(16, uint64(1000*c.byDay)))
			told := map[string]int{}
			for range *hoursOf {
				levels := make([]float64, (daysBefore+1)*intervals)
				keep := math.Exp(-length / c.correlation)
				var slots []synthetic.Slot
				for d := range daysBefore + 1 {
					byDay, within := c.byDay*rnd.NormFloat64(), c.within*rnd.NormFloat64()
					if d == daysBefore {
						byDay += math.Log1p(c.change)
					}
					for i := range intervals {
						levels[d*intervals+i] = byDay + within
						within = keep*within + c.within*math.Sqrt(1-keep*keep)*rnd.NormFloat64()
						at := float64(d)*day + float64(i)*length
						slots = append(slots, synthetic.Slot{Start: at, End: at + length})
					}
				}
				m := &synthetic.Machine{Rnd: rnd, Samples: samples, Level: func(at float64) float64 {
					d := int(at / day)
					return levels[d*intervals+int((at-float64(d)*day)/length)]
				}}
				before := m.Runs(50e3, slots[:daysBefore*intervals], 1)
				hour := map[string]bool{}
				for n := compare.MinRuns; n <= intervals; n++ {
					now := m.Runs(50e3, slots[daysBefore*intervals:][:n], 1)
					for _, row := range compare.Reports(before, now).Pairs[0].Rows {
						if row.Verdict == compare.Slower || row.Verdict == compare.Faster {
							hour[row.Stat.String()] = true
						}
					}
				}
				for stat := range hour {
					told[stat]++
				}
			}
			for _, stat := range []string{"p50", "p90"} { // an hour at one probe a second has samples for these
				share := float64(told[stat]) / float64(*hoursOf)
				t.Logf("%s: %d of %d hours have a verdict, %.1f %%", stat, told[stat], *hoursOf, 100*share)
				if share < c.least || share > c.most+1.5/float64(*hoursOf) {
					t.Errorf("%s: %.3f of the hours, want %v to %v", stat, share, c.least, c.most)
				}
			}
		})
	}
}
