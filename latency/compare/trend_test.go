package compare

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/needs"
)

// noise is the scatter of the values of a level, relative to the level.
var noise = map[string]func(*rand.Rand) float64{
	"normal": func(r *rand.Rand) float64 { return 0.02 * r.NormFloat64() },
	"skewed": func(r *rand.Rand) float64 { return 0.02 * (r.ExpFloat64() - 1) },
	"outliers": func(r *rand.Rand) float64 {
		if r.IntN(20) == 0 {
			return 0.5 * r.Float64()
		}
		return 0.01 * r.NormFloat64()
	},
}

// series returns values around levels, each for a number of values.
func series(r *rand.Rand, scatter func(*rand.Rand) float64, levels ...float64) (all []float64) {
	for i := 0; i < len(levels); i += 2 {
		for range int(levels[i]) {
			all = append(all, math.Log(levels[i+1]*(1+scatter(r))))
		}
	}
	return all
}

// If a series did not change, at most 5 % show a change. Of steps by 5 % with ten values on each side, 90 % are found.
func TestChangesAtRandom(t *testing.T) {
	needs.Long(t)
	const n = 400
	for name, scatter := range noise {
		for _, length := range []float64{8, 20, 60} {
			r, wrong := rand.New(rand.NewPCG(1, uint64(length))), 0
			for i := range n {
				if len(changes(series(r, scatter, length, 4000), 0.05, uint64(i))) > 0 {
					wrong++
				}
			}
			t.Logf("%s, %v values: %d of %d unchanged series show a change", name, length, wrong, n)
			if wrong > 33 { // 20 are expected; more than 33 are in 2 of 1000 such tests
				t.Errorf("%s, %v values: %d of %d unchanged series show a change, want at most 5 %%", name, length,
					wrong, n)
			}
		}
		r, found, near, more := rand.New(rand.NewPCG(2, 0)), 0, 0, 0
		for i := range n {
			c := changes(series(r, scatter, 10, 4000, 10, 4200), 0.05, uint64(i))
			if len(c) > 0 {
				found++
				if c[0].At >= 9 && c[0].At <= 11 {
					near++
				}
			}
			more += max(len(c)-1, 0)
		}
		t.Logf("%s: %d of %d steps by 5 %% were found, %d within one value of their place, and %d others", name, found,
			n, near, more)
		if found < n*9/10 || near < n*8/10 {
			t.Errorf("%s: %d of %d steps by 5 %% were found, %d at their place; want 90 and 80 %%", name, found, n,
				near)
		}
	}
}

// Each of several levels is found, including a temporary one.
func TestSeveralChanges(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 0))
	good, all := 0, needs.Cases(50, 10)
	for i := range all {
		c := changes(series(r, noise["normal"], 20, 4000, 10, 4400, 20, 4000, 15, 3600), 0.05, uint64(i))
		if len(c) == 3 && math.Abs(float64(c[0].At-20)) <= 1 && math.Abs(float64(c[1].At-30)) <= 1 &&
			math.Abs(float64(c[2].At-50)) <= 1 {
			good++
		}
	}
	if 5*good < 4*all {
		t.Errorf("in %d of %d series all three changes were found, and no other", good, all)
	}
}

func TestTooFewOrEqualValues(t *testing.T) {
	for _, values := range [][]float64{nil, {1}, {1, 1, 1, 2, 2, 2, 2}, make([]float64, 40)} {
		if c := changes(values, 0.05, 1); c != nil {
			t.Errorf("%v: %v", values, c)
		}
	}
	if c := changes([]float64{1, 1, 1, 1, 1, 2, 2, 2, 2, 2}, 0.05, 1); len(c) != 1 || c[0].At != 5 {
		t.Errorf("a step without noise: %v", c)
	}
}

// A step tells the medians of the values before and after it, up to the next step.
func TestStepMedians(t *testing.T) {
	var l Line
	var about []*report.Report
	for _, v := range []float64{11, 10, 12, 13, 14, 15, 20, 21, 22, 24, 25, 23, 41, 40, 42, 43, 45, 44, 46} {
		l.Points, about = append(l.Points, Point{Value: v}), append(about, &report.Report{})
	}
	l.find(0.5, about)
	var got []float64
	for _, s := range l.Steps {
		got = append(got, float64(s.At), s.Before, s.After)
	}
	check.Same(t, got, []float64{6, 12.5, 22.5, 12, 22.5, 43}, "place and medians of each step: %v")
}

func BenchmarkChanges(b *testing.B) {
	values := series(rand.New(rand.NewPCG(4, 0)), noise["normal"], 500, 4000, 500, 4200)
	for b.Loop() {
		changes(values, 0.05, 1)
	}
}

// A report without a reply is a row with its loss, not a note.
func TestLostReports(t *testing.T) {
	h := NewHistory(p50)
	at := time.Date(2026, 11, 28, 8, 0, 0, 0, time.UTC)
	for i, sent := range []int64{7, 0, 1} {
		h.Add(fmt.Sprint("run ", i), &report.Report{Start: at.Add(-time.Duration(i) * time.Hour),
			Counts: report.Counts{Sent: sent, Lost: sent}})
	}
	lost := h.Lost()
	if len(lost) != 2 || lost[0].Name != "run 2" || lost[0].Sent != 1 || lost[1].Text != "7" {
		t.Errorf("%+v", lost)
	}
	if lines, notes := h.Lines(0.05); len(lines) > 0 || len(notes) != 1 || notes[0] != "run 1 has no samples" {
		t.Errorf("%v, %q", lines, notes)
	}
}
