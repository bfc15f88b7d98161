package compare

import (
	"cmp"
	"math"
	"slices"
	"sort"
)

// ranked is a rank test. Its estimate, interval and p value all come from one statistic, the number of elementary
// differences on one side of a hypothesised shift, and from that number's exact distribution, so they cannot contradict
// each other. No distribution of the samples is assumed.
//
// A difference equal to the hypothesised shift, a tie, counts against the verdict: the result would be the same however
// ties were broken, so the level holds with ties and zeros, too.
type ranked struct {
	diffs []difference // ascending
	// tail[k] is the probability that at most k of diffs are below the true shift; up to half of them
	tail []float64
}

// difference is an elementary difference between two sides, with its base: base + diff is b's value, never below 0.
type difference struct{ diff, base float64 }

// unpaired is the Mann-Whitney test of two independent samples: the differences are those between each b and each a,
// and their median is the Hodges-Lehmann estimate.
func unpaired(a, b []float64) test {
	var r ranked
	for _, x := range a {
		for _, y := range b {
			r.diffs = append(r.diffs, difference{y - x, x})
		}
	}
	r.sort()
	r.tail = mannWhitney(len(a), len(b))
	return r
}

// mannWhitney returns the cumulative distribution, up to the middle, of the number of the m times n pairs in which the
// first value is greater than the second. The greatest of all values is one of the m with probability m/(m+n), and is
// then greater than all n.
func mannWhitney(m, n int) []float64 {
	most := m * n / 2
	row := make([][]float64, n+1) // indexed by the number of the second kind, for the current number of the first
	for j := range row {
		row[j] = make([]float64, most+1)
		row[j][0] = 1
	}
	for i := 1; i <= m; i++ {
		for j := 1; j <= n; j++ {
			pi, pj := float64(i)/float64(i+j), float64(j)/float64(i+j)
			for u := min(most, i*j); u >= 0; u-- {
				p := pj * row[j-1][u]
				if u >= j {
					p += pi * row[j][u-j]
				}
				row[j][u] = p
			}
		}
	}
	return cumulate(row[n])
}

func cumulate(p []float64) []float64 {
	for i := 1; i < len(p); i++ {
		p[i] += p[i-1]
	}
	return p
}

func (r ranked) sort() {
	slices.SortFunc(r.diffs, func(x, y difference) int {
		return cmp.Or(cmp.Compare(x.diff, y.diff),
			cmp.Compare(x.base, y.base))
	})
}

// estimate returns the median of the elementary differences, and its base. The median of one side's values would be the
// wrong base: if values scatter widely, the shift can be greater than that median.
func (r ranked) estimate() (shift, base float64) {
	n := len(r.diffs)
	x, y := r.diffs[(n-1)/2], r.diffs[n/2]
	return x.diff/2 + y.diff/2, x.base/2 + y.base/2
}

// interval returns the range of shifts that the test does not reject at a level. It is infinite if there are too few
// samples to reject any.
func (r ranked) interval(level, _ float64) (lo, hi float64) {
	k := sort.Search(len(r.tail), func(k int) bool { return 2*r.tail[k] > level })
	if k == 0 {
		return math.Inf(-1), math.Inf(1)
	}
	return r.diffs[k-1].diff, r.diffs[len(r.diffs)-k].diff
}

// p returns the probability of such an estimate, or a more extreme one, if the true shift is at most allowed in its
// direction. It is at most a level exactly if the interval of that level, widened by allowed on both sides, excludes 0.
func (r ranked) p(allowed float64) float64 {
	// at most allowed
	below := sort.Search(len(r.diffs), func(i int) bool { return r.diffs[i].diff > allowed })
	// at least -allowed
	above := len(r.diffs) - sort.Search(len(r.diffs), func(i int) bool { return r.diffs[i].diff >= -allowed })
	k := min(below, above)
	if k >= len(r.tail) {
		return 1
	}
	return min(1, 2*r.tail[k])
}

func (r ranked) differences() []float64 {
	out := make([]float64, len(r.diffs))
	for i, d := range r.diffs {
		out[i] = d.diff
	}
	return out
}
