package compare

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/latency/schedule"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/synthetic"
)

// If Needs says that a plan allows a verdict, it does, and one slice of each variant fewer does not.
func TestPlan(t *testing.T) {
	for _, c := range []struct {
		stat     string
		rate     float64
		duration time.Duration
		slices   int // needed
	}{
		{"p50", 0, 6 * time.Second, 9},
		{"p50", 100, 6 * time.Second, 9},
		{"p99", 500, 10 * time.Second, 27},
		{"p99.9", 1000, 10 * time.Second, 126},
	} {
		st := must.Get(ParseStat(c.stat))(t)
		p := Plan{Slices: int(c.duration / time.Second), Samples: c.rate}
		if n := p.Needs(st); n != c.slices || p.Allows(st) || !(Plan{Slices: n, Samples: c.rate}).Allows(st) ||
			(Plan{Slices: n - 1, Samples: c.rate}).Allows(st) {
			t.Errorf("%s at %v a second: %d slices needed, want %d", c.stat, c.rate, n, c.slices)
		}
	}
	for looks, want := range map[int]int{0: 9, 1: 9, 2: 10, 4: 11} { // that so many signs alike reach the level
		check.Equal(t, Plan{Looks: looks}.Needs(p50), want, fmt.Sprintf("%d looks: %%d slices", looks))
	}
	for samples, joined := range map[float64]int{1: 27, 20 / (1 - schedule.Jitter): 1, 20: 2, 1000: 1} {
		check.Equal(t, Plan{Samples: samples}.Needs(p50), 9*joined, fmt.Sprintf("%v samples: %%d slices", samples))
	}
	for n, want := range map[int]bool{8: false, 9: true} {
		rnd := rand.New(rand.NewPCG(1, 8))
		a, b := synthetic.Sampled(rnd, 4000, n, 1, 1000, synthetic.NoDrift),
			synthetic.Sampled(rnd, 4000, n, 1, 1000, synthetic.NoDrift)
		a.Session, b.Session = "s", "s"
		p := Reports(a, b).Pairs[0]
		if got := p.Rows[1].Tested(); got != want || (Plan{Slices: n}).Allows(p.Rows[1].Stat) != want {
			t.Errorf("%d pairs: tested %t, %s", n, got, p.Rows[1].Why)
		}
	}
}

// Measuring for the additional time that More returns makes a verdict possible, alternating or not. Half of it does
// not.
func TestMore(t *testing.T) {
	measure := func(alternating bool, runs int) *Pair {
		m := synthetic.Machine{Rnd: rand.New(rand.NewPCG(3, 3)), Samples: 230, Level: synthetic.Quiet}
		at := synthetic.Slices(7, runs, 1, 0.1)
		if !alternating {
			at = consecutive(runs, 1, 1.1)
		}
		a, b := m.Both(4000, 4000, at, 1)
		return &Reports(a, b).Pairs[0]
	}
	row := func(p *Pair) Row { return find(&Comparison{Pairs: []Pair{*p}}, "p99") }
	for _, alternating := range []bool{true, false} {
		p := measure(alternating, 10)
		more := p.More(row(p))
		if row(p).Tested() || more <= 0 {
			t.Fatalf("alternating %t: %v missing, tested %t", alternating, more, row(p).Tested())
		}
		runs := 10 + int(more.Seconds()/2.2)
		if then := measure(alternating, runs+2); !row(then).Tested() || then.More(row(then)) != 0 {
			t.Errorf("alternating %t: after %v, %d runs: %s, %v missing", alternating, more, runs, row(then).Why,
				then.More(row(then)))
		}
		if half := measure(alternating, 10+(runs-10)/2); row(half).Tested() || half.More(row(half)) <= 0 {
			t.Errorf("alternating %t: after half of %v: tested %t", alternating, more, row(half).Tested())
		}
	}
	if p := measure(false, 4); p.More(row(p)) != 0 {
		t.Error("four runs: longer runs are no remedy")
	}
}

// More is the time in which the missing runs would be measured as those before, if only time is missing.
func TestMoreOfParts(t *testing.T) {
	p99 := must.Get(ParseStat("p99"))(t)
	row := Row{Stat: p99, Level: 0.01}
	for what, c := range map[string]struct {
		edit func(*Pair, *Row)
		want time.Duration
	}{
		"three times as long": {func(*Pair, *Row) {}, 28 * time.Second}, // 1,000 samples, and 460 in each of 10 runs
		"eight runs":          {func(p *Pair, _ *Row) { p.runsA, p.runsB = p.runsA[:8], p.runsB[:8] }, 32 * time.Second},
		"seven runs":          {func(p *Pair, _ *Row) { p.runsA = p.runsA[:7] }, 0},
		"enough": {func(p *Pair, _ *Row) {
			p.runsA, p.runsB = parts(slices.Repeat([]int{2000}, 20)...), parts(slices.Repeat([]int{2000}, 20)...)
		}, 0},
		"a verdict":              {func(_ *Pair, r *Row) { r.Verdict = Slower }, 0},
		"tested":                 {func(_ *Pair, r *Row) { r.How = "8 runs" }, 0},
		"an obstacle":            {func(p *Pair, _ *Row) { p.Obstacles = []string{"mode"} }, 0},
		"another tool's base":    {func(p *Pair, _ *Row) { p.A.Foreign = &report.Foreign{} }, 0},
		"another tool's report":  {func(p *Pair, _ *Row) { p.B.Foreign = &report.Foreign{} }, 0},
		"pairs in a fixed order": {func(p *Pair, _ *Row) { p.A.Session, p.B.Session = "s", "s" }, 0},
		"pairs":                  {func(p *Pair, _ *Row) { p.A.Session, p.B.Session, p.random = "s", "s", true }, 14 * time.Second},
		"one pair":               {func(p *Pair, _ *Row) { p.A.Session, p.B.Session, p.random, p.runsA = "s", "s", true, p.runsA[:1] }, 23 * time.Second},
		"no pair":                {func(p *Pair, _ *Row) { p.A.Session, p.B.Session, p.random, p.runsA = "s", "s", true, nil }, 0},
	} {
		p, r := &Pair{A: of(1), B: of(1)}, row
		p.runsA, p.runsB = parts(slices.Repeat([]int{460}, 10)...), parts(slices.Repeat([]int{460}, 10)...)
		c.edit(p, &r)
		check.Equal(t, p.More(r), c.want, what+": %v")
	}
}
