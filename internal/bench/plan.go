package bench

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/rebound-nic/rebound/internal/host/exit"
	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/report"
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
	o.Duration /= time.Duration(n)
	o.Count = (o.Count + n - 1) / n
	if o.Duration > 0 {
		o.Warmup = min(o.Warmup, o.Duration/10)
	}
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
	if _, ok := st.Quantile(); err != nil || !ok || !slices.Contains(compare.Stats, st) {
		return exit.Usagef("-auto %q: want one of p50, p90, p99, p99.9, p99.99", percentile)
	}
	p := o.planned(within)
	looks := p.LooksAt(st, o.planned(o.Duration).Slices)
	if len(looks) == 0 {
		need := max(time.Duration(p.Needs(st))*o.Slice, o.Duration)
		return exit.Usagef("-auto %s needs %v of each variant, and -auto-within is %v: raise it, or use a higher -rate", st, need, within)
	}
	o.Duration, o.Looks = within, looks
	o.Enough = func(all []*report.Report) bool {
		for _, p := range compare.Reports(all[0], all[1:]...).Pairs {
			i := slices.IndexFunc(p.Rows, func(r compare.Row) bool { return r.Stat == st })
			if i < 0 || p.Rows[i].Verdict <= compare.Noise {
				o.Log.Info("no verdict yet", "at", st, "measured", time.Duration(len(all[0].Runs))*o.Slice, "of", within)
				return false
			}
		}
		return true
	}
	return nil
}

// plan checks which verdicts the slices of -ab permit.
func (o *runOptions) plan() error {
	if !o.Paired || o.Count > 0 {
		return nil
	}
	p := o.planned(o.Duration)
	length := func(st compare.Stat) time.Duration { return time.Duration((p.Needs(st)+o.Runs-1)/o.Runs) * o.Slice }
	var parts []string
	for _, name := range []string{"p50", "p99", "p99.9"} {
		st, err := compare.ParseStat(name)
		if err != nil {
			return err
		}
		if p.Allows(st) {
			continue
		}
		use := fmt.Sprintf("use -duration %v", length(st))
		if p.Samples > 0 && p.Slices >= (compare.Plan{}).Needs(st) {
			joined := p.Slices / (compare.Plan{}).Needs(st)
			use += fmt.Sprintf(" or -rate %.0f", math.Floor(float64(st.Needs())/(1-schedule.Jitter)/float64(joined)/o.Slice.Seconds())+1)
		}
		switch {
		case name == "p50":
			o.advice = fmt.Sprintf("no verdict is possible: it needs %d slices of each variant, and there are %d (%s)", p.Needs(st), p.Slices, use)
			return nil
		case len(parts) == 0:
			parts = append(parts, fmt.Sprintf("%s needs %d slices of each variant, and there are %d (%s)", st, p.Needs(st), p.Slices, use))
		default:
			parts = append(parts, fmt.Sprintf("%s needs %d (%s)", st, p.Needs(st), use))
		}
	}
	o.advice = strings.Join(parts, "; ")
	return nil
}
