package calibration

import (
	"math"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"testing"

	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/proof/needs"
)

// excluded returns the percentiles at which the band of a comparison's shift function excludes zero.
func excluded(t *testing.T, c *compare.Comparison) (points int, at []string) {
	t.Helper()
	rows := c.Pairs[0].ShiftFunction()
	for _, r := range rows {
		if !r.Tested() {
			continue
		}
		points++
		out := r.Lo > 0 || r.Hi < 0
		if out != (r.Verdict == compare.Slower || r.Verdict == compare.Faster) {
			t.Errorf("%s: the band is %v to %v, the verdict %v", r.Stat, r.Lo, r.Hi, r.Verdict)
		}
		if out {
			at = append(at, r.Stat.String())
		}
	}
	return points, at
}

// If nothing changed, the band of a shift function excludes zero anywhere in at most 5 % of comparisons: 100 of each
// scenario.
func TestShiftFunctionCalibration(t *testing.T) {
	needs.Long(t)
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	const n = 100
	all, wrong := 0, 0
	for _, s := range scenarios() {
		if !s.short {
			continue
		}
		mine, points := 0, 0
		for i := range uint64(n) {
			k, at := excluded(t, s.draw(s.seed(1000+i), 0))
			points = max(points, k)
			if len(at) > 0 {
				mine++
			}
		}
		t.Logf("%s, %s: %d of %d bands exclude zero somewhere, at most %d points", s.mode, s.name, mine, n, points)
		if mine > bound(whole, n) {
			t.Errorf("%s, %s: %d of %d bands exclude zero somewhere, allowed %d", s.mode, s.name, mine, n,
				bound(whole, n))
		}
		all, wrong = all+n, wrong+mine
	}
	t.Logf("%d of %d bands exclude zero somewhere", wrong, all)
	if wrong > bound(whole, all) {
		t.Errorf("%d of %d bands exclude zero somewhere, allowed %d", wrong, all, bound(whole, all))
	}
}

// A change in the body alone, or in the tail alone, shows up only there.
func TestShiftFunctionShowsWhere(t *testing.T) {
	for _, x := range []struct {
		name              string
		body, tail        float64 // how much greater B's values are, as a logarithm
		shifted, notAbove []string
	}{
		{"body", 0.1, 0, []string{"p1", "p10", "p50", "p90", "p95"}, nil},
		{"tail", 0, 0.7, []string{"p99.5", "p99.9"}, []string{"p1", "p10", "p50", "p90"}},
	} {
		rnd := rand.New(rand.NewPCG(3, 5))
		m := plain
		m.Rnd, m.Level = rnd, func(float64) float64 { return 0 }
		at := alternating(9, 20)
		a, b := m.Both(base, base*math.Exp(x.body), at, 1)
		if x.tail > 0 {
			m.TailShift = x.tail
			b = m.Runs(base, at.B, 1)
			b.Session, b.Schedule = a.Session, &at.Schedule[1]
		}
		points, got := excluded(t, compare.Reports(a, b))
		if points != 20 {
			t.Errorf("%s: %d points, want 20", x.name, points)
		}
		for _, p := range x.shifted {
			if !slices.Contains(got, p) {
				t.Errorf("%s: no shift at %s; at %v", x.name, p, got)
			}
		}
		for _, p := range x.notAbove {
			if slices.Contains(got, p) {
				t.Errorf("%s: a shift at %s, which did not change", x.name, p)
			}
		}
	}
}

// Too few runs for all points give fewer points, and too few for any give none.
func TestShiftFunctionPoints(t *testing.T) {
	for runs, want := range map[int]int{7: 0, 8: 5, 9: 10, 10: 20} {
		s := scenario{when: alternating, runs: runs, machine: plain, level: quiet}
		if points, _ := excluded(t, s.draw(1, 0)); points != want {
			t.Errorf("%d pairs: %d points, want %d", runs, points, want)
		}
	}
	s := scenario{when: alone, runs: 1, machine: plain, level: quiet}
	if rows := s.draw(1, 0).Pairs[0].ShiftFunction(); rows != nil {
		t.Errorf("single runs have a shift function of %d points", len(rows))
	}
}
