package page

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/synthetic"
)

func point(rate float64, size int, median float64) *report.Report {
	r := synthetic.Link{Seed: uint64(rate) + uint64(size), Median: median, Spread: 0.1, Runs: 2, Seconds: 3, Rate: 2000,
		Open: rate > 0}.Report()
	r.Label, r.Traffic.Rate, r.Traffic.FrameSize = fmt.Sprintf("%g/s, %d", rate, size), rate, size
	return r
}

func rateSweep() []*report.Report {
	all := []*report.Report{point(100, 60, 4000), point(1000, 60, 4100), point(100_000, 60, 90_000),
		point(10_000, 60, 4200)}
	all[2].Counts.Received, all[2].Counts.Lost = all[2].Counts.Sent-5, 5
	return all
}

func sizeSweep() []*report.Report {
	return []*report.Report{point(0, 60, 4000), point(0, 512, 4452), point(0, 1514, 5454)}
}

func links(all []*report.Report) (out []Link) {
	for i, r := range all {
		out = append(out, Link{r.Name(), fmt.Sprintf("%02d/report.html", i+1)})
	}
	return out
}

// A sweep over rates names the highest rate without loss and the knee, one over sizes the growth per byte; both draw a
// curve and link each point.
func TestSweepPage(t *testing.T) {
	both := append(rateSweep(), point(100, 1514, 5000), point(1000, 1514, 5100))
	unoffered := rateSweep()
	unoffered[1].Warnings = []string{"this host could not keep to the rate"}
	for _, c := range []struct {
		name   string
		all    []*report.Report
		says   []string
		curves int
	}{
		{"rates", rateSweep(), []string{"; 1 of 4 points lost probes; no loss up to 10,000/s; p99 more than doubles above 10,000/s", "Latency by rate"}, 6},
		{"not offered", unoffered, []string{"; no loss up to 100/s;", "could not keep to the rate"}, 6},
		{"sizes", sizeSweep(), []string{"; 0 of 3 points lost probes; p50 grows by ", "Latency by frame size"}, 6},
		{"both", both, []string{"Latency by rate, p99.9", "1,514 bytes", "; 1 of 6 points lost probes – "}, 12},
	} {
		var out bytes.Buffer
		must.OK(t, Sweep(&out, c.all, links(c.all)))
		for i, r := range c.all {
			c.says = append(c.says, fmt.Sprintf(`<a href="%02d/report.html">%s</a>`, i+1, r.Name()))
		}
		check.Contains(t, out.String(), c.says...)
		if n := strings.Count(out.String(), `<path class="curve`); n != c.curves {
			t.Errorf("%s: %d curves, want %d", c.name, n, c.curves)
		}
	}
	one := point(100, 60, 4000)
	one.Label = "100/s"
	want := "p50 " + Quantile(one, 0.5)
	check.Equal(t, SweepAnswer([]*report.Report{one}), want+" (100/s); 0 of 1 point lost probes", "%q")
	check.Equal(t, SweepAnswer([]*report.Report{one, one}), want+" at both points; 0 of 2 points lost probes", "%q")
	var slope float64
	if _, err := fmt.Sscanf(perByte(sizeSweep()), "%g ns per byte", &slope); err != nil || math.Abs(slope-1) > 0.2 {
		t.Errorf("%v: %s, want about 1", err, perByte(sizeSweep()))
	}
}
