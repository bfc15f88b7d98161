package compare

import (
	"cmp"
	"math"
	"slices"
)

// test is a test of the shift between two sides. Its numbers do not contradict each other: the interval of a level
// excludes all shifts up to allowed in both directions exactly if p(allowed) is at most the level.
type test interface {
	estimate() (shift, base float64)
	interval(level, allowed float64) (lo, hi float64)
	p(allowed float64) float64
	differences() []float64
}

// flips is the randomisation test of pairs whose order was decided by a fair coin each (package schedule). If the two
// sides are the same, that coin alone decides the sign of each pair's score, whatever disturbs the machine, because a
// score's amount depends on the pairs only, not on which side is which. p is the exact share of all 2^n outcomes of the
// coins whose sum of scores is as extreme. This holds for joined pairs, too: swapping all of them is one of the orders
// that were equally likely.
//
// A shift is a ratio. A shift is tested by dividing B's values by it.
type flips struct {
	a, b   []float64 // logarithms of the values
	ratios []float64 // ascending: of each b to each a, as logarithms
	base   float64   // ns
}

const (
	// fullScore is the greatest score of a pair. Scores are integers, so that the distribution of their sum is exact.
	fullScore = 63
	// near is the weight of a pair's own difference relative to its difference in rank.
	near = 1.5
	// narrowest is the share of the pairs, in per cent, whose differences are smaller than the least s of reduce.
	narrowest = 40
	// steps is the number of hypotheses on each side of the estimate, evenly spaced by rank among the ratios.
	steps = 16
	// accuracy is that of the ends of an interval, as a ratio.
	accuracy = 1e-4
)

// paired returns the test of pairs. Values below 1 ns count as 1 ns.
func paired(a, b []float64) test {
	f := &flips{}
	for i := range a {
		f.a, f.b = append(f.a, math.Log(max(a[i], 1))), append(f.b, math.Log(max(b[i], 1)))
	}
	for _, x := range f.a {
		for _, y := range f.b {
			f.ratios = append(f.ratios, y-x)
		}
	}
	slices.Sort(f.ratios)
	f.base = math.Exp(median(f.a))
	return f
}

func (f *flips) middle() float64 { return median(f.ratios) }

// estimate returns the median of the ratios of all b to all a (Hodges and Lehmann), as a shift from base.
func (f *flips) estimate() (shift, base float64) { return f.ns(f.middle()), f.base }

func (f *flips) ns(ratio float64) float64 { return f.base * math.Expm1(ratio) }

func (f *flips) differences() []float64 {
	out := make([]float64, len(f.ratios))
	for i, r := range f.ratios {
		out[i] = f.ns(r)
	}
	return out
}

// scores returns a score for each pair, positive if B is slower by more than a ratio. It adds two scores, each scaled
// to the same variance:
//   - the difference in rank of the pair's two slices among all slices. If a machine is slow during some slices, slices
//     of different pairs that were measured in the same state are compared, too;
//   - the difference of the pair, which counts less the greater it is. Pairs whose slices were measured in different
//     states say nothing, and would hide the others.
func (f *flips) scores(ratio float64) []int {
	n := len(f.a)
	all := slices.Clone(f.a)
	diffs := make([]float64, n)
	for i, b := range f.b {
		all = append(all, b-ratio)
		diffs[i] = b - ratio - f.a[i]
	}
	order := make([]int, len(all))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return cmp.Compare(all[i], all[j]) })
	rank := make([]float64, len(all))
	for i := 0; i < len(all); {
		j := i
		for ; j < len(all) && all[order[j]] == all[order[i]]; j++ {
		}
		for _, k := range order[i:j] {
			rank[k] = float64(i + j) // twice the mean, which scale makes up for
		}
		i = j
	}
	sum := make([]float64, n)
	for i := range sum {
		sum[i] = rank[n+i] - rank[i]
	}
	scale(sum, 1)
	scale(reduce(diffs), near)
	greatest := 0.0
	for i, d := range diffs {
		sum[i] += d
		greatest = max(greatest, math.Abs(sum[i]))
	}
	out := make([]int, n)
	for i, s := range sum {
		if s != 0 {
			out[i] = int(math.Copysign(max(math.Round(fullScore*math.Abs(s)/greatest), 1), s))
		}
	}
	return out
}

// scale multiplies x so that the sum of its squares is that of to.
func scale(x []float64, to float64) {
	sum := 0.0
	for _, v := range x {
		sum += v * v
	}
	for i := range x {
		if sum > 0 {
			x[i] *= to / math.Sqrt(sum)
		}
	}
}

// reduce multiplies each d by exp(-d²/2s²) and returns d. Of several s, it takes the one for which a small shift would
// change the sum of d most, relative to its standard deviation. Only the amounts of d decide, not their signs. With too
// small an s, the sum would be that of any few pairs that have the same difference.
func reduce(d []float64) []float64 {
	amounts := make([]float64, len(d))
	for i, v := range d {
		amounts[i] = math.Abs(v)
	}
	slices.Sort(amounts)
	s, best, chosen := amounts[len(d)*narrowest/100]+1e-9, 0.0, math.Inf(1)
	for range 10 {
		slope, variance := 0.0, 0.0
		for _, v := range amounts {
			u := v * v / (s * s)
			w := math.Exp(-u / 2)
			slope += (1 - u) * w
			variance += v * v * w * w
		}
		if e := slope * slope / variance; slope > 0 && e > best {
			best, chosen = e, s
		}
		s *= 2
	}
	for i, v := range d {
		d[i] *= math.Exp(-v * v / (chosen * chosen) / 2)
	}
	return d
}

// chance returns the probability that fair coins for the signs give a sum of at least that of the scores.
func chance(scores []int) float64 {
	less := 0 // the amounts of the negative scores; half the difference from the greatest sum
	total := 0
	for _, s := range scores {
		if s < 0 {
			less -= s
		}
		total += max(s, -s)
	}
	if 2*less >= total {
		return 1
	}
	p := make([]float64, less+1) // p[k]: the negative amounts add up to k
	p[0] = 1
	reach := 0
	for _, s := range scores {
		if s = max(s, -s); s == 0 {
			continue
		}
		reach = min(reach+s, less)
		for k := reach; k >= 0; k-- {
			p[k] /= 2
			if k >= s {
				p[k] += p[k-s] / 2
			}
		}
	}
	sum := 0.0
	for _, v := range p {
		sum += v
	}
	return sum
}

// most is an upper bound of chance (Hoeffding's), which is faster.
func most(scores []int) float64 {
	sum, squares := 0, 0
	for _, s := range scores {
		sum += s
		squares += s * s
	}
	if sum <= 0 {
		return 1
	}
	return math.Exp(-float64(sum) * float64(sum) / float64(2*squares))
}

// hypotheses returns ratios below the estimate, in ascending order: the first is below all ratios, and others and 0 are
// among them.
func (f *flips) hypotheses(others ...float64) []float64 {
	out := []float64{f.ratios[0] - 1}
	for i := range steps {
		out = append(out, f.ratios[i*len(f.ratios)/(2*steps)])
	}
	out = append(append(out, others...), 0)
	middle := f.middle()
	out = slices.DeleteFunc(out, func(r float64) bool { return r >= middle || math.IsInf(r, 0) })
	slices.Sort(out)
	return slices.Compact(out)
}

// above returns the probability of such an outcome, or a more extreme one, if B is not slower by more than a ratio that
// is below the estimate: the greatest of all hypotheses up to it, since the scores of one can be more extreme than
// those of a smaller ratio.
func (f *flips) above(ratio float64) float64 {
	p := 0.0
	for _, r := range slices.Backward(f.hypotheses(ratio)) {
		if r > ratio {
			continue
		}
		if s := f.scores(r); most(s) > p {
			p = max(p, chance(s))
		}
	}
	return p
}

// low returns the lower end of the interval at a level: the least ratio that is not rejected, or less by accuracy.
func (f *flips) low(level, allowed float64) float64 {
	rejects := func(r float64) bool {
		s := f.scores(r)
		return 2*most(s) <= level || 2*chance(s) <= level
	}
	all := f.hypotheses(allowed)
	rejected, accepted := all[0], f.middle()
	for _, r := range all[1:] {
		if !rejects(r) {
			accepted = r
			break
		}
		rejected = r
	}
	for accepted-rejected > accuracy {
		if m := rejected/2 + accepted/2; rejects(m) {
			rejected = m
		} else {
			accepted = m
		}
	}
	if rejected == allowed { // p(allowed) is at most the level, so the interval excludes it
		return rejected/2 + accepted/2
	}
	return rejected
}

// swapped returns the test of the same pairs with A and B swapped.
func (f *flips) swapped() *flips {
	g := &flips{a: f.b, b: f.a}
	for _, r := range slices.Backward(f.ratios) {
		g.ratios = append(g.ratios, -r)
	}
	return g
}

// limits returns shifts of allowed ns in both directions as ratios.
func (f *flips) limits(allowed float64) (down, up float64) {
	if allowed >= f.base {
		return math.Inf(-1), math.Log1p(allowed / f.base)
	}
	return math.Log1p(-allowed / f.base), math.Log1p(allowed / f.base)
}

// p returns the probability of such an outcome, or a more extreme one, if the true shift is at most allowed in its
// direction.
func (f *flips) p(allowed float64) float64 {
	switch down, up := f.limits(allowed); {
	case f.middle() > up:
		return min(1, 2*f.above(up))
	case f.middle() < down:
		return min(1, 2*f.swapped().above(-down))
	}
	return 1
}

// interval returns the range from the least to the greatest shift that the test does not reject at a level, without
// allowed. It is infinite if there are too few pairs to reject any.
func (f *flips) interval(level, allowed float64) (lo, hi float64) {
	if math.Ldexp(1, 1-len(f.a)) > level {
		return math.Inf(-1), math.Inf(1)
	}
	down, up := f.limits(allowed)
	return f.ns(f.low(level, up)), f.ns(-f.swapped().low(level, -down))
}
