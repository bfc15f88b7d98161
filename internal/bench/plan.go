package bench

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/latency/sanitize"
	"github.com/rebound-nic/rebound/latency/schedule"
)

// cutRuns divides one -duration or -count into several runs, which a verdict of rebound-bench compare needs.
// Alternating variants are divided into slices, which are their runs. Results are saved at the end of each run, so no
// run is longer than a few seconds.
func (o *runOptions) cutRuns() {
	const runs, shortest, longest, fewest = 10, 100 * time.Millisecond, 2500 * time.Millisecond, 1000
	n := int64(runs)
	if o.Duration > 0 {
		n = min(max(n, int64((o.Duration+longest-1)/longest)), int64(o.Duration/shortest))
	}
	if o.Count > 0 {
		n = min(n, o.Count/fewest)
	}
	if n = max(n, 1); o.Paired || o.lossless > 0 {
		n = 1
	}
	if o.Runs = int(n); n == 1 {
		return
	}
	o.divide()
	if o.Duration > 0 {
		o.Warmup = min(o.Warmup, o.Duration/10)
	}
}

// divide gives each of o.Runs its part of -duration and -count.
func (o *runOptions) divide() {
	n := int64(o.Runs)
	o.Duration /= time.Duration(n)
	o.Count = (o.Count + n - 1) / n
}

// divideGiven is divide for -runs.
func (o *runOptions) divideGiven() error {
	all := o.Duration
	if o.divide(); all > 0 && o.Duration < time.Millisecond {
		return process.Usagef("-runs %d -duration %v: each run would last %v: want 1ms or more (-duration is the time of all runs together)", o.Runs, all, o.Duration)
	}
	return nil
}

// planned is the plan of -ab for a duration.
func (o *runOptions) planned(d time.Duration) compare.Plan {
	rate := math.Inf(1)
	for _, v := range o.Variants {
		rate = min(rate, v.Rates[0])
	}
	return compare.Plan{Slices: o.Runs * int((d+o.Slice-1)/o.Slice), Samples: rate * o.Slice.Seconds()}
}

// planAuto makes the measurement end at a verdict on a percentile, or after within.
func (o *runOptions) planAuto(percentile string, within time.Duration) error {
	st, err := compare.ParseStat(percentile)
	if _, ok := st.Quantile(); err != nil || !ok || !slices.Contains(compare.Stats(latency.FullTable), st) {
		return process.Usagef("-auto %q: want one of p50, p90, p99, p99.9, p99.99", percentile)
	}
	p := o.planned(within)
	looks := p.LooksAt(st, o.planned(o.Duration).Slices)
	if len(looks) == 0 {
		need := max(time.Duration(p.Needs(st))*o.Slice, o.Duration)
		return process.Usagef("-auto %s needs %v of each variant, and -auto-within is %v: raise it, or use a higher -rate", st, need, within)
	}
	o.Duration, o.Looks = within, looks
	at := func(slices int) time.Duration { return time.Duration(slices*len(o.Variants)) * o.Slice }
	o.advice = fmt.Sprintf("a verdict at %s takes %s at the earliest (%s of each variant) and %s at most", st,
		latency.FormatDuration(at(looks[0])), sanitize.Count(looks[0], "slice"),
		latency.FormatDuration(at(looks[len(looks)-1])))
	o.Enough = func(all []*report.Report) bool {
		for _, p := range compare.Reports(all[0], all[1:]...).Pairs {
			i := slices.IndexFunc(p.Rows, func(r compare.Row) bool { return r.Stat == st })
			if i < 0 || p.Rows[i].Verdict <= compare.Noise {
				fmt.Fprintf(o.ProgressTo, "no verdict at %s yet, after %s of %s of each variant\n", st,
					latency.FormatDuration(time.Duration(len(all[0].Runs))*o.Slice), latency.FormatDuration(within))
				return false
			}
		}
		return true
	}
	return nil
}

// plan checks which verdicts the slices of -ab permit.
func (o *runOptions) plan(c *runLine) error {
	if !o.Paired && c.given["runs"] {
		return o.planRuns()
	}
	if !o.Paired || o.Count > 0 {
		return nil
	}
	p := o.planned(o.Duration)
	length := func(st compare.Stat) time.Duration { return time.Duration((p.Needs(st)+o.Runs-1)/o.Runs) * o.Slice }
	var parts []string
	for i, st := range compare.Stats(latency.AnswerText) {
		if p.Allows(st) {
			continue
		}
		use := fmt.Sprintf("use -duration %v", length(st))
		if p.Samples > 0 && p.Slices >= (compare.Plan{}).Needs(st) {
			joined := p.Slices / (compare.Plan{}).Needs(st)
			use += fmt.Sprintf(" or -rate %.0f", math.Floor(
				float64(st.Needs())/(1-schedule.Jitter)/float64(joined)/o.Slice.Seconds())+1)
		}
		switch {
		case i == 0:
			o.advice = fmt.Sprintf("no verdict is possible: it needs %d slices of each variant, and there are %d (%s)",
				p.Needs(st), p.Slices, use)
			return nil
		case len(parts) == 0:
			parts = append(parts, fmt.Sprintf("%s needs %d slices of each variant, and there are %d (%s)", st,
				p.Needs(st), p.Slices, use))
		default:
			parts = append(parts, fmt.Sprintf("%s needs %d (%s)", st, p.Needs(st), use))
		}
	}
	o.advice = strings.Join(parts, "; ")
	return nil
}

// planRuns checks which verdicts the runs permit in a comparison with another report like this one.
func (o *runOptions) planRuns() error {
	each := float64(o.Count)
	if each == 0 {
		each = o.planned(0).Samples / o.Slice.Seconds() * o.Duration.Seconds()
	}
	if each == 0 { // a closed loop
		return nil
	}
	var parts []string
	for i, st := range compare.Stats(latency.AnswerText) {
		// how many times as long a run must be to have enough samples alone
		longer := math.Ceil(float64(st.Needs())/each - 1e-9)
		need := compare.MinRuns * int(longer)
		if o.Runs >= need {
			continue
		}
		runs := max(o.Runs, compare.MinRuns)
		all := func(n int, longer float64) string { // of n runs, each so many times as long
			if o.Count > 0 {
				return fmt.Sprintf("-runs %d -count %.0f", n, float64(n)*math.Ceil(float64(o.Count)*longer-1e-9))
			}
			return fmt.Sprintf("-runs %d -duration %v", n, time.Duration(float64(n)*float64(o.Duration)*longer).Round(
				time.Millisecond))
		}
		use := all(need, 1)
		if longer > 1 {
			use += ", or " + all(runs, float64(st.Needs())/each)
		}
		parts = append(parts, fmt.Sprintf("%s needs %d runs like these (use %s)", st, need, use))
		if i == 0 {
			break
		}
	}
	if len(parts) > 0 {
		o.advice = fmt.Sprintf("%d runs: in a comparison with another report, a verdict at %s", o.Runs,
			strings.Join(parts, ", and at "))
	}
	return nil
}
