package latency

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// sampled is a report of a given number of runs whose intervals hold log-normal samples; shift moves each interval's
// median, by its index and its run's, in the logarithm.
func sampled(rnd *rand.Rand, median float64, runs, intervals, perInterval int, shift func(run, i int) float64) *Report {
	rep := &Report{Schema: Schema, Tool: "bench", Metric: RoundTrip, Clock: ClockInfo{Steady: true}, Traffic: Traffic{Protocol: "icmp", FrameSize: 64, Mode: "closed"}}
	s := &Series{Name: MainSeries}
	values := make([]int64, perInterval)
	at := int64(0)
	for run := range runs {
		start := at
		for i := range intervals {
			moved := shift(run, i)
			for k := range values {
				values[k] = int64(median * math.Exp(0.1*rnd.NormFloat64()+moved))
			}
			s.Intervals = append(s.Intervals, Interval{at, at + 1e9, FromValues(values)})
			at += 1e9
		}
		rep.Runs = append(rep.Runs, Run{start, at})
	}
	s.total()
	rep.Series = []*Series{s}
	rep.Start, rep.End = time.Unix(0, 0), time.Unix(0, at)
	return rep
}

func still(int, int) float64 { return 0 }

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
		report func(rnd *rand.Rand) *Report
		bound  float64 // share of false alarms
	}{
		{"independent intervals", func(rnd *rand.Rand) *Report { return sampled(rnd, 4000, 1, 20, 1200, still) }, 0.045},
		{"drifting intervals", func(rnd *rand.Rand) *Report { return sampled(rnd, 4000, 1, 60, 200, ar1(rnd, 0.7, 0.03)) }, 0.08},
		{"runs", func(rnd *rand.Rand) *Report {
			return sampled(rnd, 4000, 6, 2, 600, func(run, i int) float64 { return 0.05 * math.Sin(float64(rnd.IntN(100))) })
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
		a := sampled(rnd, 4000, 1, 20, 2000, still)
		b := sampled(rnd, 4060, 1, 20, 2000, still)
		c := Compare(a, b)
		row := c.Pairs[0].Rows[1]
		if row.Verdict != Slower || row.Lo > 60 || row.Hi < 60 || row.Lo <= 0 {
			t.Errorf("seed %d: p50 %s, [%v, %v], p=%v; want slower by about 60 ns", seed, row.Verdict, row.Lo, row.Hi, row.P)
		}
		if back := Compare(b, a).Pairs[0].Rows[1]; back.Verdict != Faster || back.Lo != -row.Hi {
			t.Errorf("seed %d: backwards %s, [%v, %v]", seed, back.Verdict, back.Lo, back.Hi)
		}
	}
}

// A drift that both sides share hides a difference from unpaired runs and not from pairs.
func TestPairsCancelDrift(t *testing.T) {
	drift := func(run, _ int) float64 { return 0.5 * math.Sin(float64(run)) }
	rnd := rand.New(rand.NewPCG(1, 5))
	a := sampled(rnd, 4000, 10, 2, 1000, drift)
	b := sampled(rnd, 4100, 10, 2, 1000, drift)
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
	a, b = sampled(rnd, 4000, 20, 1, 1000, drift), sampled(rnd, 4000, 20, 1, 1000, drift)
	a.Session, b.Session = "x", "x"
	if s := judge(p50, a, b); s.Verdict != Noise || s.P > 1 {
		t.Errorf("20 pairs of the same: %+v", s)
	}
}

// A percentile with too few samples above it has no verdict, and says what it needs.
func TestTooFewSamples(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 6))
	a, b := sampled(rnd, 4000, 1, 20, 100, still), sampled(rnd, 8000, 1, 20, 100, still)
	a.Label, b.Label = "slow", "fast"
	for _, r := range Compare(a, b).Pairs[0].Rows {
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

// What cannot be compared is said to be so before any number, and has no verdict.
func TestObstacles(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 7))
	base := sampled(rnd, 4000, 1, 10, 1000, still)
	base.Label = "base"
	for _, c := range []struct {
		change func(*Report)
		says   string
	}{
		{func(r *Report) { r.Metric = HalfTrip }, "metric: base has round trip, other has half round trip"},
		{func(r *Report) { r.Metric = Turnaround }, "turnaround"},
		{func(r *Report) { r.Traffic.FrameSize = 128 }, "frame size: base has 64, other has 128"},
		{func(r *Report) { r.Traffic.Protocol = "udp" }, "protocol"},
		{func(r *Report) { r.Traffic.Mode = "open" }, "mode"},
		{func(r *Report) { r.Traffic.Rate = 1000 }, "rate: base has none, other has 1000"},
		{func(r *Report) { r.Traffic.IPVersion = 6 }, "IP version"},
		{func(r *Report) { r.Device.Backend = "sim" }, "backend: base has none, other has sim"},
		{func(r *Report) { r.Series = nil }, "other has no samples"},
	} {
		other := sampled(rnd, 8000, 1, 10, 1000, still)
		other.Label = "other"
		c.change(other)
		cmp := Compare(base, other, sampled(rnd, 8000, 1, 10, 1000, still))
		var out bytes.Buffer
		if err := cmp.Print(&out); err != nil {
			t.Fatal(err)
		}
		text := out.String()
		at, number := strings.Index(text, c.says), strings.Index(text, "µs")
		if at < 0 || number < at || !strings.HasPrefix(text, "NOT COMPARABLE:") {
			t.Errorf("%q at %d, the first number at %d:\n%s", c.says, at, number, text)
		}
		for _, r := range cmp.Pairs[0].Rows {
			if r.Verdict != Unknown {
				t.Errorf("%s: %s has a verdict: %s", c.says, r.Stat, r.Verdict)
			}
		}
		if v := cmp.Pairs[1].Rows[1].Verdict; v != Slower {
			t.Errorf("%s: the pair that is comparable is %s", c.says, v)
		}
		if _, err := cmp.Exceeded(nil); !errors.Is(err, ErrNotComparable) {
			t.Errorf("%s: Exceeded returns %v", c.says, err)
		}
	}
}

// Reports of models: their bus transactions are compared, and their time is called the model's.
func TestSimReports(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 8))
	a, b := sampled(rnd, 4000, 1, 10, 1000, still), sampled(rnd, 4000, 1, 10, 1000, still)
	for i, r := range []*Report{a, b} {
		r.Label = string(rune('a' + i))
		r.Device.Backend = "sim"
		r.Counts.Received = 1000
		r.Transfers = map[string]int64{"mmio write": int64(1000 * (i + 1)), "dma read": 2000}
	}
	c := Compare(a, b)
	var out, page, single bytes.Buffer
	if err := errors.Join(c.Print(&out), c.WriteHTML(&page), WriteHTML(&single, a)); err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{"mmio write 1.000 2.000", "dma read 2.000 2.000", "not a card's", "round trip in the model"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	for name, p := range map[string]string{"compare": page.String(), "report": single.String()} {
		if !strings.Contains(p, "not a card") && !strings.Contains(p, "not of a card") || !strings.Contains(p, "mmio write") {
			t.Errorf("%s page does not call the time a model's, or has no bus transactions", name)
		}
	}
}

// A tail that the bench's own core could have made is named.
func TestOwnTail(t *testing.T) {
	rep := link{seed: 11, median: 4000, spread: 0.1, seconds: 30, rate: 3000}.report(t)
	if own := rep.ownTail(); own != "" {
		t.Errorf("without a self-test: %q", own)
	}
	rep.Add(JitterSeries, FromValues([]int64{20, 20, 1_000_000}))
	if own := rep.ownTail(); !strings.Contains(own, "up to 1.000 ms: that alone puts") {
		t.Errorf("with a gap of 1 ms: %q", own)
	}
	// One such gap in a minute is too rare to show at p99.99.
	quiet := make([]int64, 1001)
	for i := range quiet {
		quiet[i] = 20
	}
	quiet[0] = 1_000_000
	rep.Series = rep.Series[:1]
	rare := FromValues(quiet)
	rare.Sum = 60e9
	rep.Add(JitterSeries, rare)
	if own := rep.ownTail(); own != "" {
		t.Errorf("with a gap of 1 ms a minute: %q", own)
	}
	rep.Series = rep.Series[:1]
	rep.Add(JitterSeries, FromValues([]int64{20, 20, 900}))
	if own := rep.ownTail(); own != "" {
		t.Errorf("with a gap of 900 ns: %q", own)
	}
}

// What is said of the tail does not exceed what is in it: in a closed loop a gap, however long, meets one round trip.
func TestOwnTailShare(t *testing.T) {
	rtt := make([]int64, 0, 100_000)
	for i := range cap(rtt) {
		rtt = append(rtt, 10_000)
		if i%5000 == 0 {
			rtt[i] = 200_000
		}
	}
	gaps := make([]int64, 20)
	for i := range gaps {
		gaps[i] = 195_000
	}
	for _, c := range []struct {
		mode, series, says string
		length             int64 // of the runs, ns
	}{
		{"closed", GapSeries, "while it measured the measuring core was away 20 times for 190.", 1e9},
		{"closed", JitterSeries, "with no traffic at all", 1e9},
		{"open", GapSeries, "puts 0.03 %", 1e9},
		{"closed", GapSeries, "", 100e9}, // 20 gaps in a hundred seconds are no p99.99 of round trips of 10 us
	} {
		rep := NewReport("bench", RoundTrip)
		rep.Traffic.Mode = c.mode
		rep.Runs = []Run{{0, c.length}}
		rep.Add(MainSeries, FromValues(rtt))
		h := FromValues(gaps)
		if c.series == JitterSeries {
			h.Sum = float64(c.length)
		}
		rep.Add(c.series, h)
		own := rep.ownTail()
		if !strings.Contains(own, c.says) || c.says == "" && own != "" {
			t.Errorf("%s, %s: %q, want %q", c.mode, c.series, own, c.says)
		}
		if c.says != "" && c.mode == "closed" && !strings.Contains(own, "puts 0.02 %") {
			t.Errorf("%q: 20 of 100000 are 0.02 %%", own)
		}
		var out bytes.Buffer
		if err := rep.Print(&out); err != nil || !strings.Contains(out.String(), own) {
			t.Errorf("%v; not printed: %q", err, own)
		}
	}
}

// Two reports of one target, before a change and after it, are told apart by their folders.
func TestSameNames(t *testing.T) {
	a := link{seed: 1, median: 4000, spread: 0.1, seconds: 3, rate: 3000}.report(t)
	b := link{seed: 2, median: 4000, spread: 0.1, seconds: 3, rate: 3000}.report(t)
	a.Label, a.Dir, b.Label, b.Dir = "10.0.0.2", "out/before", "10.0.0.2", "out/after/"
	b.Traffic.Protocol = "udp"
	var out bytes.Buffer
	if err := Compare(a, b).Print(&out); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); !strings.Contains(text, "10.0.0.2 (out/before) has") || !strings.Contains(text, "10.0.0.2 (out/after) has udp") {
		t.Error(text)
	}
	if a.Label != "10.0.0.2" {
		t.Error("the report itself was renamed")
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
	a, b := sampled(rnd, 4000, 1, 20, 2000, still), sampled(rnd, 4400, 1, 20, 2000, still) // +10 %, +400 ns
	b.Label = "new"
	c := Compare(a, b)
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
	if got, err := Compare(a, sampled(rnd, 4000, 1, 20, 2000, still)).Exceeded(ls); err != nil || len(got) != 0 {
		t.Errorf("noise exceeds a limit: %q, %v", got, err)
	}
}

func TestFormatNS(t *testing.T) {
	for ns, want := range map[float64]string{0: "0 ns", 7: "7 ns", 12.34: "12.34 ns", 999: "999 ns", 1000: "1.000 µs", 3412: "3.412 µs", 34_120: "34.12 µs",
		341_200: "341.2 µs", 5e6: "5.000 ms", 61e9: "61.00 s", -3412: "-3.412 µs", 2.5: "2.5 ns"} {
		if got := FormatNS(ns); got != want {
			t.Errorf("%v: %q, want %q", ns, got, want)
		}
	}
}
