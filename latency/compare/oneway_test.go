package compare

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/check"
)

// oneWay adds a report's main series a second time, as a one-way series with the given clock error.
func oneWay(r *report.Report, ns int64) {
	there := *r.Main()
	there.Name = latency.ThereSeries
	r.Series = append(r.Series, &there)
	r.STAMP = &report.STAMP{OneWay: report.OneWay{ErrorNS: ns}}
}

// A shift of 1 µs, which has a verdict between round trips, has one between one-way delays only if it exceeds the sum
// of both reports' clock errors.
func TestNoVerdictBelowTheClocks(t *testing.T) {
	for _, c := range []struct {
		errA, errB int64
		want       Verdict
	}{{1, 1, Slower}, {300, 500, Slower}, {700, 700, Unknown}, {1, 100_000, Unknown}} {
		a, b := machines(1, 10, true, steady, 0.25)
		oneWay(a, c.errA)
		oneWay(b, c.errB)
		p := Reports(a, b).Pairs[0]
		if len(p.OneWay) != 1 || p.OneWay[0].Series != latency.ThereSeries || len(p.OneWay[0].Rows) != 2 {
			t.Fatalf("%+v", p.OneWay)
		}
		check.Equal(t, near9(p.Rows[0].Level, tableLevel/10), true, "eight rows and two of a way share the level: %t")
		round, way := find(&Comparison{Pairs: []Pair{p}}, "p50"), p.OneWay[0].Rows[0]
		if round.Verdict != Slower || way.Verdict != c.want || way.Shift != round.Shift {
			t.Errorf("± %d and %d: round trips %v, one way %v (%v to %v), shifted by %v", c.errA, c.errB, round.Verdict,
				way.Verdict, way.Lo, way.Hi, way.Shift)
		}
		if unknown := strings.Contains(way.Why, "clock error may account for"); unknown != (c.want == Unknown) {
			t.Errorf("± %d and %d: %q", c.errA, c.errB, way.Why)
		}
	}
}

func TestNoClocksNoWays(t *testing.T) {
	a, b := machines(1, 10, true, steady, 0)
	oneWay(a, 100)
	if p := Reports(a, b).Pairs[0]; p.OneWay != nil {
		t.Error(p.OneWay)
	}
	oneWay(b, 100)
	p := Reports(a, b).Pairs[0].OneWay[0]
	check.Equal(t, fmt.Sprint(p.ErrorA, p.ErrorB), "100 100", "errors %s")
	for n, want := range []bool{false, true} {
		b.Series[1].Total = latency.FromValues(make([]int64, n))
		got := alone(b, latency.ThereSeries)
		check.Equal(t, got != nil && got.Main().Total.Count == int64(n), want, "its main series is that of the way: %t")
	}
	b.STAMP.OneWay.Why = "nobody knows"
	if p := Reports(a, b).Pairs[0]; p.OneWay != nil {
		t.Error(p.OneWay)
	}
}
