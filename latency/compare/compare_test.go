package compare

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"rebound/latency/host"
	"rebound/latency/report"
	"rebound/latency/synthetic"
)

// ar1 returns a shift that drifts: each interval keeps most of the one before.
func ar1(rnd *rand.Rand, keep, step float64) func(int, int) float64 {
	x := 0.0
	return func(int, int) float64 {
		x = keep*x + step*rnd.NormFloat64()
		return x
	}
}

// Of comparisons of a thing with itself, hardly any finds a difference. The bounds are far enough out that chance reaches
// them less than once in a million, and the seed is fixed besides.
func TestNoFalseAlarms(t *testing.T) {
	p50, _ := ParseStat("p50")
	p99, _ := ParseStat("p99")
	for _, c := range []struct {
		name   string
		report func(rnd *rand.Rand) *report.Report
		bound  float64 // share of false alarms
	}{
		{"independent intervals", func(rnd *rand.Rand) *report.Report { return synthetic.Sampled(rnd, 4000, 1, 20, 1200, synthetic.Still) }, 0.045},
		{"drifting intervals", func(rnd *rand.Rand) *report.Report {
			return synthetic.Sampled(rnd, 4000, 1, 60, 200, ar1(rnd, 0.7, 0.03))
		}, 0.08},
		{"runs", func(rnd *rand.Rand) *report.Report {
			return synthetic.Sampled(rnd, 4000, 6, 2, 600, func(run, i int) float64 { return 0.05 * math.Sin(float64(rnd.IntN(100))) })
		}, 0.045},
	} {
		alarms, tests := 0, 0
		for seed := range uint64(100) {
			rnd := rand.New(rand.NewPCG(seed, 3))
			a, b := c.report(rnd), c.report(rnd)
			for _, st := range []Stat{p50, p99} {
				s := judge(st, a, b)
				tests++
				if s.Verdict == Slower || s.Verdict == Faster {
					alarms++
				}
			}
		}
		share := float64(alarms) / float64(tests)
		t.Logf("%s: %d of %d, %.3f", c.name, alarms, tests, share)
		if share > c.bound {
			t.Errorf("%s: %.3f of comparisons with itself find a difference, bound %.3f", c.name, share, c.bound)
		}
	}
}

// A real difference is found, with its sign, and its confidence interval holds it.
func TestDifferencesAreFound(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 4))
		a := synthetic.Sampled(rnd, 4000, 1, 20, 2000, synthetic.Still)
		b := synthetic.Sampled(rnd, 4060, 1, 20, 2000, synthetic.Still)
		c := Reports(a, b)
		row := c.Pairs[0].Rows[1]
		if row.Verdict != Slower || row.Lo > 60 || row.Hi < 60 || row.Lo <= 0 {
			t.Errorf("seed %d: p50 %s, [%v, %v], p=%v; want slower by about 60 ns", seed, row.Verdict, row.Lo, row.Hi, row.P)
		}
		if back := Reports(b, a).Pairs[0].Rows[1]; back.Verdict != Faster || back.Lo != -row.Hi {
			t.Errorf("seed %d: backwards %s, [%v, %v]", seed, back.Verdict, back.Lo, back.Hi)
		}
	}
}

// A drift that both sides share hides a difference from unpaired runs and not from pairs.
func TestPairsCancelDrift(t *testing.T) {
	drift := func(run, _ int) float64 { return 0.5 * math.Sin(float64(run)) }
	rnd := rand.New(rand.NewPCG(1, 5))
	a := synthetic.Sampled(rnd, 4000, 10, 2, 1000, drift)
	b := synthetic.Sampled(rnd, 4100, 10, 2, 1000, drift)
	p50, _ := ParseStat("p50")
	if s := judge(p50, a, b); s.Verdict != Noise {
		t.Errorf("unpaired: %s, p=%v: the drift is too small for this test", s.Verdict, s.P)
	}
	a.Session, b.Session = "x", "x"
	s := judge(p50, a, b)
	if s.Verdict != Slower || s.How != "10 pairs of runs" || s.P != 2/1024.0 || s.Lo < 0 {
		t.Errorf("paired: %+v", s)
	}
	// More pairs than can be tried all: the flips are drawn.
	a, b = synthetic.Sampled(rnd, 4000, 20, 1, 1000, drift), synthetic.Sampled(rnd, 4000, 20, 1, 1000, drift)
	a.Session, b.Session = "x", "x"
	if s := judge(p50, a, b); s.Verdict != Noise || s.P > 1 {
		t.Errorf("20 pairs of the same: %+v", s)
	}
}

// A percentile with too few samples above it has no verdict, and says what it needs.
func TestTooFewSamples(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 6))
	a, b := synthetic.Sampled(rnd, 4000, 1, 20, 100, synthetic.Still), synthetic.Sampled(rnd, 8000, 1, 20, 100, synthetic.Still)
	a.Label, b.Label = "slow", "fast"
	for _, r := range Reports(a, b).Pairs[0].Rows {
		switch r.Stat.String() {
		case "p99.9":
			if r.Verdict != Unknown || r.Why != "p99.9 needs 10000 samples, slow has 2000" {
				t.Errorf("p99.9: %s, %q", r.Verdict, r.Why)
			}
		case "p99.99":
			if r.Verdict != Unknown || !strings.Contains(r.Why, "100000") {
				t.Errorf("p99.99: %s, %q", r.Verdict, r.Why)
			}
		case "p99": // two blocks: enough samples, too few blocks
			if r.Verdict != Unknown || !strings.Contains(r.Why, "p99 has 2 and 2 independent intervals long enough for it, and needs 5") {
				t.Errorf("p99: %s, %q", r.Verdict, r.Why)
			}
		case "p50":
			if r.Verdict != Slower {
				t.Errorf("p50: %s", r.Verdict)
			}
		}
	}
}

func TestParseLimits(t *testing.T) {
	for in, want := range map[string]string{
		"p99>+5%+200ns":              "p99>+5%+200ns",
		"p99>+200ns+5%":              "p99>+5%+200ns",
		" p50 > +1.5us ":             "p50>+1500ns",
		"p99.9>+10%,max>+1ms":        "p99.9>+10% max>+1e+06ns",
		"mean>+2s, p99.999 > +0.5 %": "mean>+2e+09ns p99.999>+0.5%",
		"min>+3µs":                   "min>+3000ns",
	} {
		ls, err := ParseLimits(in)
		var got []string
		for _, l := range ls {
			got = append(got, l.String())
		}
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%q: %q, %v; want %q", in, got, err, want)
		}
	}
	for in, says := range map[string]string{
		"":                                "no '>'",
		"p99":                             "no '>'",
		"p99<+5%":                         "no '>'",
		"p99>5%":                          "sign",
		"p99>+":                           "no unit",
		"p99>+5":                          "no unit",
		"p99>+5 furlongs":                 "amount above zero",
		"p99>+x%":                         "amount above zero",
		"p99>+0ns":                        "amount above zero",
		"p99>+NaN%":                       "amount above zero",
		"p99>+1e3ns":                      "amount above zero",
		"p99>+5%+6%":                      "already",
		"p100>+5%":                        "none of min, max",
		"p0>+5%":                          "none of min, max",
		"p9x>+5%":                         "none of min, max",
		"median>+5%":                      "none of min, max",
		"p99>+5%,":                        "no '>'",
		"p99>+5%-200ns":                   "amount above zero",
		"p99>+5%+200ns+3us":               "already",
		"p1e1>+5%":                        "none of min, max",
		"p99>>+5%":                        "sign",
		"p99>+5%;p50>+1%":                 "no unit",
		"p99>+infs":                       "amount above zero",
		"p50.5.5>+5%":                     "none of min, max",
		strings.Repeat("9", 400) + ">+5%": "none of min, max",
	} {
		if _, err := ParseLimits(in); !errors.Is(err, ErrLimit) || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "p99>+5%+200ns") {
			t.Errorf("%q: %v, want an error that says %q and shows an example", in, err, says)
		}
	}
}

// Both parts of a limit must be exceeded, noise exceeds nothing, and what cannot be judged is an error and no pass.
func TestExceeded(t *testing.T) {
	rnd := rand.New(rand.NewPCG(2, 9))
	a, b := synthetic.Sampled(rnd, 4000, 1, 20, 2000, synthetic.Still), synthetic.Sampled(rnd, 4400, 1, 20, 2000, synthetic.Still) // +10 %, +400 ns
	b.Label = "new"
	c := Reports(a, b)
	for limit, want := range map[string]int{
		"p50>+5%+200ns":           1,
		"p50>+15%+200ns":          0,
		"p50>+5%+800ns":           0,
		"p50>+300ns":              1,
		"p50>+5%,p90>+5%,max>+2s": 2,
	} {
		ls, err := ParseLimits(limit)
		if err != nil {
			t.Fatal(err)
		}
		got, err := c.Exceeded(ls)
		if err != nil || len(got) != want {
			t.Errorf("%s: %q, %v; want %d", limit, got, err, want)
		}
		if want == 1 && !strings.Contains(got[0], "in new, +") {
			t.Errorf("%s: %q", limit, got[0])
		}
	}
	ls, _ := ParseLimits("p99.999>+5%")
	if _, err := c.Exceeded(ls); !errors.Is(err, ErrUndecided) || !strings.Contains(err.Error(), "1000000 samples") {
		t.Errorf("p99.999 of 40000 samples: %v", err)
	}
	// The same thing twice, with a limit of next to nothing.
	ls, _ = ParseLimits("p50>+0.0001%")
	if got, err := Reports(a, synthetic.Sampled(rnd, 4000, 1, 20, 2000, synthetic.Still)).Exceeded(ls); err != nil || len(got) != 0 {
		t.Errorf("noise exceeds a limit: %q, %v", got, err)
	}
}

// TestCompareAnonymous: what is left out is unknown, not different.
func TestCompareAnonymous(t *testing.T) {
	facts := func(name, kernel, cmdline string) host.Facts {
		return host.Facts{Hostname: name, Kernel: kernel, Cmdline: cmdline}
	}
	for _, c := range []struct {
		name string
		a, b host.Facts
		hide int // how many of the two are anonymous
		want string
		not  string
	}{
		{"the same", facts("x", "6.1.0-a", "quiet"), facts("x", "6.1.0-a", "quiet"), 0, "", "kernel"},
		{"two machines", facts("x", "6.1.0-a", ""), facts("y", "6.1.0-a", ""), 0, "measured on x (6.1.0-a), b on y (6.1.0-a)", ""},
		{"another suffix", facts("x", "6.1.0-a", ""), facts("x", "6.1.0-b", ""), 0, "measured on x (6.1.0-a), b on x (6.1.0-b)", ""},
		{"other settings", facts("x", "6.1.0", "quiet isolcpus=3"), facts("x", "6.1.0", "quiet nosmt"), 0, "only a has isolcpus=3, only b has nosmt", ""},
		{"the order of settings", facts("x", "6.1.0", "quiet nosmt"), facts("x", "6.1.0", "nosmt quiet"), 0, "", "kernel"},
		{"an unknown command line", facts("x", "6.1.0", "quiet"), facts("x", "6.1.0", ""), 0, "", "kernel"},
		{"one anonymous", facts("x", "6.1.0-a", "quiet"), facts("x", "6.1.0-a", "quiet"), 1, "leaves its machine unnamed", "was measured on"},
		{"both anonymous", facts("x", "6.1.0-a", "quiet"), facts("y", "6.1.0-b", "nosmt"), 2, "leaves its machine unnamed", "kernel command line"},
		{"anonymous, other kernels", facts("x", "6.1.0-a", ""), facts("x", "6.12.1-a", ""), 2, "on a machine left unnamed (6.1.0), b on a machine left unnamed (6.12.1)", "both may come"},
	} {
		a, b := synthetic.Link{Median: 10_000, Rate: 1000, Seconds: 1}.Report(), synthetic.Link{Median: 10_000, Rate: 1000, Seconds: 1}.Report()
		a.Label, b.Label, a.Host, b.Host = "a", "b", c.a, c.b
		for _, r := range []*report.Report{b, a}[:c.hide] {
			r.Anonymize()
		}
		notes := strings.Join(Reports(a, b).Notes, "\n")
		if !strings.Contains(notes, c.want) || c.not != "" && strings.Contains(notes, c.not) {
			t.Errorf("%s: want %q and not %q:\n%s", c.name, c.want, c.not, notes)
		}
	}
}
