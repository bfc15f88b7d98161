package compare

import (
	"math"
	"slices"
	"time"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/schedule"
)

// Plan describes a measurement that will alternate between variants.
type Plan struct {
	Slices  int     // of each variant
	Samples float64 // in a slice of average length; 0 if unknown, as in a closed loop
	Looks   int     // tests that share the chance of a false verdict, as in a report's Schedule; 0 means 1
}

// Needs returns how many slices of each variant a verdict on st needs, in a full table. Slices with too few
// samples for st are joined; the shortest slices determine the number.
func (p Plan) Needs(st Stat) int {
	_, level := levels(0, len(Stats(latency.FullTable)))
	return p.needs(st, level/float64(max(p.Looks, 1)))
}

func (p Plan) needs(st Stat, level float64) int {
	joined := 1
	if p.Samples > 0 {
		joined = int(math.Ceil(float64(st.Needs())/(p.Samples*(1-schedule.Jitter)) - 1e-9))
	}
	return max(MinRuns, fewestPairs(level)) * max(joined, 1)
}

// LooksAt returns the numbers of slices after which a measurement that ends at a verdict on st is tested: p.Slices
// last, half of them before that, and so on, but none below first. It is empty if p.Slices is too small. Each look
// reduces the confidence, so there are few: a measurement continues for at most its own length after it could have
// ended.
func (p Plan) LooksAt(st Stat, first int) (at []int) {
	for looks := 1; ; looks++ {
		p.Looks = looks
		from := max(p.Needs(st), first)
		at = nil
		for n := p.Slices; n >= from; n /= 2 {
			at = append(at, n)
		}
		if len(at) <= looks {
			slices.Reverse(at)
			return at
		}
	}
}

// Allows reports whether a verdict on st is possible.
func (p Plan) Allows(st Stat) bool { return p.Slices >= p.Needs(st) }

// More returns about how much longer both reports would have to be measured, in the same way, before the statistic of a
// row can have a verdict. It is 0 if the row has a verdict, if a verdict needs something other than time, or if the
// time is unknown.
func (p *Pair) More(r Row) time.Duration {
	if r.Verdict != Unknown || r.Tested() || len(p.Obstacles) > 0 || p.A.Foreign != nil || p.B.Foreign != nil {
		return 0
	}
	if inOneSession(p.A, p.B) {
		if a, b := pairs(p.runsA, p.runsB); len(a) > 0 && p.random {
			return longer(append(a, b...), len(a), Plan{Samples: min(average(a), average(b))}.needs(r.Stat, r.Level))
		}
		return 0
	}
	more := time.Duration(0)
	for _, runs := range [][]part{measured(p.runsA), measured(p.runsB)} {
		if len(runs) < MinRuns { // a longer run still counts as one
			return 0
		}
		more += longer(runs, len(runs), MinRuns*int(math.Ceil(float64(r.Stat.Needs())/average(runs))))
	}
	return more
}

// longer returns the additional time needed, given that parts took their own duration to provide n of the needed runs.
func longer(parts []part, n, needed int) time.Duration {
	first, last := parts[0].start, parts[0].end
	for _, x := range parts {
		first, last = min(first, x.start), max(last, x.end)
	}
	return time.Duration(float64(last-first) * max(float64(needed)/float64(n)-1, 0))
}

// average returns the mean number of samples of a part.
func average(parts []part) float64 {
	total := 0.0
	for _, x := range parts {
		total += float64(x.Count)
	}
	return total / float64(len(parts))
}
