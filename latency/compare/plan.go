package compare

import (
	"math"

	"github.com/rebound-nic/rebound/latency/schedule"
)

// Plan is a measurement that alternates between variants, before it is made.
type Plan struct {
	Slices  int     // of each variant
	Samples float64 // in a slice of average length; 0 if unknown, as in a closed loop
}

// Needs returns how many slices of each variant a verdict on st needs, in a table of all Stats. Slices with too few samples for st are
// joined; the shortest ones decide.
func (p Plan) Needs(st Stat) int {
	_, level := levels(0, len(Stats))
	joined := 1
	if p.Samples > 0 {
		joined = int(math.Ceil(float64(st.Needs())/(p.Samples*(1-schedule.Jitter)) - 1e-9))
	}
	return max(MinRuns, fewestPairs(level)) * max(joined, 1)
}

// Allows reports whether a verdict on st is possible.
func (p Plan) Allows(st Stat) bool { return p.Slices >= p.Needs(st) }
