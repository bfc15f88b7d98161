package watch

import (
	"flag"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/synthetic"
)

var hoursOf = flag.Int("hours", 25, "hours that each scenario of TestChangeCalibration simulates")

// An hour of twelve intervals is compared with the same hour of earlier days. The level changes from day to day and,
// correlated, within the hour. It is tested again with each interval from the eighth on, as the keeper does: a verdict
// in any of the five tables counts for the hour. docs/fleet/watch.md has the results.
func TestChangeCalibration(t *testing.T) {
	needs.Long(t)
	const (
		intervals, length = 12, 300 // of 5 minutes
		day               = 24 * 3600.0
	)
	for _, c := range []struct {
		name        string
		daysBefore  int
		samples     int     // in an interval
		byDay       float64 // standard deviation of a day's level, as a logarithm
		within      float64 // the same within the hour
		correlation float64 // seconds
		change      float64 // on the last day, as a share
		least, most float64 // share of hours with a verdict
	}{
		{"nothing moves", 7, 300, 0, 0, 1, 0, 0, 0.05},
		{"days 1 %, hours 2 % over 20 minutes", 7, 300, 0.01, 0.02, 1200, 0, 0, 0.05},
		{"days 5 %, hours 5 % over 2 hours", 7, 300, 0.05, 0.05, 7200, 0, 0, 0.05},
		{"days 10 %, hours 1 % over 20 minutes, ten probes a second", 7, 3000, 0.1, 0.01, 1200, 0, 0, 0.05},
		{"three days, nothing moves", FewestDays, 3000, 0, 0, 1, 0, 0, 0.05},
		{"three days that differ by 10 %", FewestDays, 3000, 0.1, 0.01, 1200, 0, 0, 0.05},
		{"three days that differ by 30 %", FewestDays, 300, 0.3, 0.02, 1200, 0, 0, 0.05},
		{"days and hours 0.5 %, and half slower", 7, 300, 0.005, 0.005, 1200, 0.5, 0.9, 1},
		{"days 1 %, hours 2 %, and twice as slow", 7, 300, 0.01, 0.02, 1200, 1, 0.9, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(16, uint64(1000*c.byDay)))
			told := 0
			for range *hoursOf {
				levels := make([]float64, (c.daysBefore+1)*intervals)
				keep := math.Exp(-float64(length) / c.correlation)
				var slots []synthetic.Slot
				for d := range c.daysBefore + 1 {
					byDay, within := c.byDay*rnd.NormFloat64(), c.within*rnd.NormFloat64()
					if d == c.daysBefore {
						byDay += math.Log1p(c.change)
					}
					for i := range intervals {
						levels[d*intervals+i] = byDay + within
						within = keep*within + c.within*math.Sqrt(1-keep*keep)*rnd.NormFloat64()
						at := float64(d)*day + float64(i*length)
						slots = append(slots, synthetic.Slot{Start: at, End: at + length})
					}
				}
				m := &synthetic.Machine{Rnd: rnd, Samples: c.samples, Level: func(at float64) float64 {
					d := int(at / day)
					return levels[d*intervals+int((at-float64(d)*day)/length)]
				}}
				before := m.Runs(50e3, slots[:c.daysBefore*intervals], 1)
				found := false
				for n := compare.MinRuns; n <= intervals; n++ {
					now := m.Runs(50e3, slots[c.daysBefore*intervals:][:n], 1)
					for _, row := range compareHour(before, now, length*time.Second).Rows {
						found = found || row.Verdict > compare.Noise
					}
				}
				if found {
					told++
				}
			}
			share := float64(told) / float64(*hoursOf)
			t.Logf("%d of %d hours have a verdict, %.1f %%", told, *hoursOf, 100*share)
			if share < c.least || share > c.most+2/float64(*hoursOf) {
				t.Errorf("%.3f of the hours have a verdict, want %v to %v", share, c.least, c.most)
			}
		})
	}
}
