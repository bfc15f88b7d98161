package compare

import (
	"math"
	"math/rand/v2"
	"slices"
)

const (
	// Least is the number of values required on each side of a change.
	FewestValues = 4
	// Most is the greatest number of values that Changes accepts. Its running time grows with their square.
	MostValues = 1000
)

// Change is a place at which the level of a series changed.
type Change struct {
	At int     // index of the first value of the new level
	P  float64 // the share of random orders that show a change as large
}

// changes finds the changes of level in a series of at most Most values, in order, by the method E-divisive (Matteson
// and James, "A Nonparametric Approach for Multiple Change Point Analysis of Multivariate Data", JASA 109 (2014), with
// exponent 1). Each round takes the split with the largest energy distance between the values on both sides. It is a
// change if, among random permutations of the values within each part, at most the share level has a split as large. If
// nothing changed and the order of the values is random, the share of series with any change is at most level. Values
// that drift or depend on their neighbours are not in random order.
func changes(values []float64, level float64, seed uint64) []Change {
	const resolution = 25 // of p, as a part of the level
	permutations := int(math.Ceil(resolution/level)) - 1
	random := rand.New(rand.NewPCG(seed, 0))
	var found []Change
	t := newTable(len(values))
	for {
		ends := []int{0}
		for _, c := range found {
			ends = append(ends, c.At)
		}
		ends = append(ends, len(values))
		at, size := t.best(values, ends)
		if size <= 0 {
			break
		}
		// Stop when more permutations have a split as large than the level allows.
		as := 0
		shuffled := slices.Clone(values)
		for range permutations {
			for i, end := range ends[1:] {
				part := shuffled[ends[i]:end]
				random.Shuffle(len(part), func(a, b int) { part[a], part[b] = part[b], part[a] })
			}
			// the same split with its values in another order has the same size, but for rounding
			if _, s := t.best(shuffled, ends); s >= size*(1-1e-9) {
				if as++; as >= resolution {
					break
				}
			}
		}
		if as >= resolution {
			break
		}
		found = append(found, Change{at, float64(as+1) / float64(permutations+1)})
		slices.SortFunc(found, func(a, b Change) int { return a.At - b.At })
	}
	return found
}

// table has sums of distances between the values of a part: sum[i*(n+1)+j] is over all pairs of the first i and the
// first j.
type table struct {
	n   int
	sum []float64
}

func newTable(n int) *table { return &table{n, make([]float64, (n+1)*(n+1))} }

// best returns the split with the largest statistic of all parts, which is 0 if none is above that.
func (t *table) best(values []float64, ends []int) (at int, size float64) {
	for i, end := range ends[1:] {
		if k, s := t.split(values[ends[i]:end]); s > size {
			at, size = ends[i]+k, s
		}
	}
	return at, size
}

// split returns the first value after the best split of x. The part after the split need not extend to the end: a
// temporary level is compared with what is before it. Its statistic is 0 if none is above that.
func (t *table) split(x []float64) (at int, size float64) {
	n, w := len(x), t.n+1
	for i := range n {
		row, above, sum := t.sum[(i+1)*w:], t.sum[i*w:], 0.0
		for j := range n {
			sum += math.Abs(x[i] - x[j])
			row[j+1] = above[j+1] + sum
		}
	}
	for k := FewestValues; k <= n-FewestValues; k++ {
		before := float64(k)
		within := t.sum[k*w+k] / (before * (before - 1))
		for end := k + FewestValues; end <= n; end++ {
			after := float64(end - k)
			between := t.sum[k*w+end] - t.sum[k*w+k]
			behind := t.sum[end*w+end] - 2*t.sum[k*w+end] + t.sum[k*w+k]
			s := before * after / (before + after) * (2*between/(before*after) - within - behind/(after*(after-1)))
			if s > size {
				at, size = k, s
			}
		}
	}
	return at, size
}
