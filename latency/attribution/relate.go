package attribution

import (
	"cmp"
	"math"
	"slices"
)

// relate finds the one-way delays of probes from the probes themselves: neither direction of any of them took less than
// nothing, and the clocks drift apart by at most mostDrift. It sets There, Back and ClockError where that is more exact
// than what is stated, and returns the median bound; 0 if it set nothing. No difference of the clocks fits if one of
// them was set meanwhile.
func relate(all []*Probe) (bound int64) {
	all = slices.DeleteFunc(slices.Clone(all), func(p *Probe) bool {
		return p.FarSeen == 0 || p.Residence < 0 || abs(p.There+p.Back-p.rest()) > clockGrain
	})
	if len(all) == 0 {
		return 0
	}
	slices.SortFunc(all, func(a, b *Probe) int { return cmp.Compare(a.Residence, b.Residence) })
	usual := all[len(all)/2].Residence
	slices.SortFunc(all, func(a, b *Probe) int { return cmp.Compare(a.Sent, b.Sent) })
	// The responder's clock is ahead by at most what the way there seems to take, and by at least what the way back
	// does, negated. A loop that is interrupted between reading its clock and its queue has its T2 too early.
	least, most := make([]float64, len(all)), make([]float64, len(all))
	for i, p := range all {
		if least[i], most[i] = float64(-p.Back), float64(p.There); p.Residence > 2*usual+clockGrain {
			least[i], most[i] = math.Inf(-1), math.Inf(1)
		}
	}
	near := func(i, from int) {
		drift := mostDrift * math.Abs(float64(all[i].Sent-all[from].Sent))
		least[i], most[i] = max(least[i], least[from]-drift), min(most[i], most[from]+drift)
	}
	for i := range all[1:] {
		near(i+1, i)
	}
	for i := len(all) - 2; i >= 0; i-- {
		near(i, i+1)
	}
	bounds := make([]int64, len(all))
	for i := range all {
		if bounds[i] = int64(most[i]-least[i]+1)/2 + clockGrain; most[i]+2*clockGrain < least[i] {
			return 0
		}
	}
	var set []int64
	for i, p := range all {
		if p.ClockError >= 0 && p.ClockError <= bounds[i] {
			continue
		}
		set = append(set, bounds[i])
		ahead := int64(most[i]+least[i]) / 2
		p.There, p.Back, p.ClockError = p.There-ahead, p.Back+ahead, bounds[i]
	}
	if len(set) == 0 {
		return 0
	}
	slices.Sort(set)
	return set[len(set)/2]
}

// clockGrain is how far timestamps of a clock may be off beside its error: rounding, and that of the cycle counter.
const clockGrain = 1000

func abs(v int64) int64 { return max(v, -v) }
