package tables

import (
	"fmt"
	"strings"

	"github.com/rebound-nic/rebound/latency"
)

// gapGoal is the greatest permitted ratio of the responder's gap to the C loop's, up to p99.99.
const gapGoal = 1.2

var gapQuantiles = []struct {
	name string
	q    float64
}{{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"p99.9", 0.999}, {"p99.99", 0.9999}, {"p99.999", 0.99999}, {"max", 1}}

// GapTable compares the gaps of the responder and the C loop, measured in alternating slices, and returns the
// percentiles that miss the goal. step is the result of Resolution, in ns: a difference of one step is within the
// uncertainty of a value and does not count.
func GapTable(ours, c []*latency.Histogram, step float64) (text string, missed []string) {
	a, b := latency.Merge(ours...), latency.Merge(c...)
	var out strings.Builder
	fmt.Fprintf(&out, "| gap | responder, ns | loop in C, ns | ratio | ratio by slices (least to greatest) |\n|---|--:|--:|--:|---|\n")
	for _, q := range gapQuantiles {
		var x, y []float64
		for i := range ours {
			x = append(x, float64(ours[i].Quantile(q.q)))
			y = append(y, float64(c[i].Quantile(q.q)))
		}
		first, second := float64(a.Quantile(q.q)), float64(b.Quantile(q.q))
		ratio := first / second
		fmt.Fprintf(&out, "| %s | %.0f | %.0f | %.2f | %s |\n", q.name, first, second, ratio, Ratio(x, y).ratio())
		if q.q <= 0.9999 && ratio > gapGoal && first-second > 1.5*step {
			missed = append(missed, fmt.Sprintf(
				"%s of the responder's gap is %.2f times the C loop's, the goal is %.1f", q.name, ratio, gapGoal))
		}
	}
	fmt.Fprintf(&out, "| passes | %d | %d | | |\n| mean | %.2f | %.2f | %.2f | |\n", a.Count, b.Count, a.Mean(),
		b.Mean(), a.Mean()/b.Mean())
	fmt.Fprintf(&out, "\nTwo reads of the counter usually differ by %.0f ns, or not at all: percentiles that differ by one such step do not differ.\n", step)
	return out.String(), missed
}
