package calibration

import (
	"math/rand/v2"
	"runtime/debug"
	"testing"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/synthetic"
)

// until returns a copy of a report truncated to n slices, for a session that is tested the given number of times.
func until(r *report.Report, n, looks int) *report.Report {
	out, s := *r, *r.Main()
	s.Intervals = s.Intervals[:n]
	s.Sum()
	out.Series, out.Runs = []*latency.Series{&s}, r.Runs[:n]
	out.Schedule = &report.Schedule{Seed: r.Schedule.Seed, Places: r.Schedule.Places[:n], Looks: looks}
	return &out
}

// A session that ends at its first verdict (-auto) has a false verdict, in any row at any look, in at most 5 % of
// sessions. It finds a real difference at one of the first looks. docs/internals/calibration.md has the results.
func TestSequential(t *testing.T) {
	needs.Long(t)
	n, plan := 20, compare.Plan{Slices: 96}
	if *long {
		n, plan.Slices = 100, 400
	}
	p50 := must.Get(compare.ParseStat("p50"))(t)
	at := plan.LooksAt(p50, 0)
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	for _, c := range []struct {
		name  string
		level level
		shift float64
		least float64 // share of sessions with a verdict
		most  float64
	}{
		{"independent", func(*rand.Rand, float64) func(float64) float64 { return synthetic.Quiet }, 0, 0, 0.05},
		{"random walk, 0.5 % a second", walk(0.005), 0, 0, 0.05},
		{"slower by 5 %", walk(0.005), 0.05, 1, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			found, peeking, measured := 0, 0, 0
			for i := range n {
				rnd := rand.New(rand.NewPCG(uint64(i), 28))
				session := synthetic.Slices(uint64(i), plan.Slices, 0.25, 0.01)
				m := plain
				m.Samples, m.Rnd, m.Level = 5000, rnd, c.level(rnd, session.B[plan.Slices-1].End+2)
				a, b := m.Both(base, base*(1+c.shift), session, 1)
				verdict := func(k, looks int, any bool) bool {
					for _, r := range compare.Reports(until(a, k, looks), until(b, k, looks)).Pairs[0].Rows {
						if (any || r.Stat == p50) && r.Verdict > compare.Noise {
							return true
						}
					}
					return false
				}
				one, without := false, false
				for _, k := range at {
					one = one || verdict(k, len(at), c.shift == 0)
					if *long && c.shift == 0 {
						without = without || verdict(k, 1, true)
					} else if one {
						measured += k
						break
					}
				}
				if one {
					found++
				}
				if without {
					peeking++
				}
			}
			t.Logf("looks after %d slices: %d of %d sessions have a verdict; %d slices on average", at, found, n,
				measured/n)
			if *long && c.shift == 0 {
				t.Logf("%d if each look were tested alone", peeking)
			}
			if share := float64(found) / float64(n); share < c.least || share > c.most {
				t.Errorf("%.1f %% of sessions have a verdict, want %.0f to %.0f %%", 100*share, 100*c.least, 100*c.most)
			}
		})
	}
}
