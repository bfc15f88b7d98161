package compare

import (
	"errors"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

func TestParseLimits(t *testing.T) {
	for in, want := range map[string]string{
		"p99>+5%+200ns":              "p99>+5%+200ns",
		"p99>+200ns+5%":              "p99>+5%+200ns",
		" p50 > +1.5us ":             "p50>+1500ns",
		"p99.9>+10%,max>+1ms":        "p99.9>+10% max>+1e+06ns",
		"mean>+2s, p99.999 > +0.5 %": "mean>+2e+09ns p99.999>+0.5%",
		"min>+3µs":                   "min>+3000ns",
		"min>+1%,max>+1ns":           "min>+1% max>+1ns",
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
		"":                                       "no '>'",
		"p99":                                    "no '>'",
		"p99<+5%":                                "no '>'",
		"p99>5%":                                 "sign",
		"p99>+":                                  "no unit",
		"p99>+5":                                 "no unit",
		"p99>+5 furlongs":                        "amount above zero",
		"p99>+x%":                                "amount above zero",
		"p99>+0ns":                               "amount above zero",
		"p99>+NaN%":                              "amount above zero",
		"p99>+1e3ns":                             "amount above zero",
		"p99>+5%+6%":                             "already",
		"p100>+5%":                               "none of min, max",
		"p0>+5%":                                 "none of min, max",
		"p9x>+5%":                                "none of min, max",
		"median>+5%":                             "none of min, max",
		"p99>+5%,":                               "no '>'",
		"p99>+5%-200ns":                          "amount above zero",
		"p99>+5%+200ns+3us":                      "already",
		"p1e1>+5%":                               "none of min, max",
		"p99>>+5%":                               "sign",
		"p99>+5%;p50>+1%":                        "no unit",
		"p99>+infs":                              "amount above zero",
		"p99>+" + strings.Repeat("9", 305) + "s": "amount above zero",
		"p50.5.5>+5%":                            "none of min, max",
		strings.Repeat("9", 400) + ">+5%":        "none of min, max",
	} {
		check.Fails(t, in, check.Err(ParseLimits(in)), errLimit, says, "p99>+5%+200ns") // with an example
	}
}

// A limit is exceeded only if the proven shift exceeds both of its parts. A statistic without a verdict is an error: it
// neither passes nor counts as worse.
func TestExceeded(t *testing.T) {
	a, b := machines(2, 8, true, steady, 0.1) // +10 %, +400 ns
	limit := func(limit string, want int, undecided string) {
		t.Helper()
		ls := must.Get(ParseLimits(limit))(t)
		got, err := Against(ls, a, b).Exceeded()
		if len(got) != want {
			t.Errorf("%s: %q, want %d", limit, got, want)
		}
		if (undecided == "") != (err == nil) || err != nil &&
			(!errors.Is(err, errUndecided) || !strings.Contains(err.Error(), undecided)) {
			t.Errorf("%s: %v, want %q", limit, err, undecided)
		}
		if want == 1 && !strings.Contains(got[0], "in new, +") {
			t.Errorf("%s: %q", limit, got[0])
		}
	}
	limit("p50>+5%+200ns", 1, "")
	limit("p50>+15%+200ns", 0, "")
	limit("p50>+5%+800ns", 0, "")
	limit("p50>+300ns", 1, "")
	limit("p50>+5%,p90>+5%,max>+2s", 2, "")
	limit("p99.999>+5%", 0, "1,000,000 samples")
	a, b = machines(2, 8, true, steady, 0)
	limit("p50>+0.0001%", 0, "") // noise exceeds nothing
	a, b = machines(2, 8, false, steady, 0.08)
	limit("p50>+5%", 0, "measure alternately") // beyond the limit, perhaps by drift
	limit("p50>+20%", 0, "")                   // below the limit even if none of it is drift
	a, b = machines(2, 3, true, steady, 0.5)
	limit("p50>+5%", 0, "needs 8 pairs of runs, and has 3")
}

// A shift that is equal to a limit does not exceed it.
func TestExceededAtTheLimit(t *testing.T) {
	for _, c := range []struct {
		shift, relative, absolute float64
		want                      string
	}{
		{5, 0, 5, ""}, {5, 5, 0, ""}, {4.95, 4.96, 0, ""}, {5, 5, 4, ""}, {5, 4, 5, ""},
		{50, 4, 4, "p50>+4%+4ns: p50 went from 100 ns to 150 ns in r, +50 ns (+50.0 %; p=0.001, 8 runs)"},
	} {
		row := Row{Stat: p50, Base: 100, Shift: c.shift, Verdict: Slower, How: "8 runs", P: 0.001}
		got := must.Get((&Comparison{Pairs: []Pair{{B: of(1), Rows: []Row{row}}},
			limits: []Limit{{p50, c.relative, c.absolute}}}).Exceeded())(t)
		check.Equal(t, strings.Join(got, "; "), c.want, "%q")
	}
}
