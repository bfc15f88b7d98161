package compare

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	seeded "github.com/rebound-nic/rebound/proof/random"
)

func near9(a, b float64) bool { return math.Abs(a-b) <= 1e-9*max(math.Abs(a), math.Abs(b), 1) }

func TestScale(t *testing.T) {
	x := []float64{3, -4}
	scale(x, 10)
	check.Same(t, x, []float64{6, -8}, "%v")
	x = []float64{0.375, -0.5}
	scale(x, 10)
	check.Same(t, x, []float64{6, -8}, "%v")
	x = []float64{0, 0}
	scale(x, 10)
	check.Same(t, x, []float64{0, 0}, "%v")
}

// The bound is exp(-sum²/2 Σs²), 1 for a sum that is not positive, and never below the probability itself.
func TestMost(t *testing.T) {
	for _, c := range []struct {
		scores []int
		want   float64
	}{{[]int{-1}, 1}, {[]int{0, 0}, 1}, {[]int{2, -2}, 1},
		{[]int{1}, math.Exp(-0.5)}, {[]int{3, -1}, math.Exp(-4.0 / 20)}} {
		if got := most(c.scores); !near9(got, c.want) {
			t.Errorf("%v: %v, want %v", c.scores, got, c.want)
		}
	}
	rnd := seeded.New(t)
	for range 200 {
		scores := make([]int, 1+rnd.IntN(10))
		for i := range scores {
			scores[i] = rnd.IntN(2*fullScore+1) - fullScore
		}
		if m, p := most(scores), chance(scores); m < p*(1-1e-9) {
			t.Errorf("%v: bound %v, probability %v", scores, m, p)
		}
	}
}

// Of the scales of reduce, the chosen one has the greatest slope per standard deviation.
func TestReduceChoosesTheSteepest(t *testing.T) {
	rnd := seeded.New(t)
	for range 100 {
		d := make([]float64, 2+rnd.IntN(20))
		for i := range d {
			d[i] = rnd.NormFloat64() * math.Pow(10, -float64(rnd.IntN(3)))
		}
		sizes := slices.Clone(d)
		for i, v := range sizes {
			sizes[i] = math.Abs(v)
		}
		slices.Sort(sizes)
		first, best, at := sizes[len(d)*2/5]+1e-9, 0.0, 0.0
		for k := range 10 {
			s := first * math.Ldexp(1, k)
			slope, variance := 0.0, 0.0
			for _, v := range d {
				w := math.Exp(-v * v / (2 * s * s))
				slope += w * (1 - v*v/(s*s))
				variance += v * v * w * w
			}
			if slope > 0 && slope*slope/variance > best {
				best, at = slope*slope/variance, s
			}
		}
		want := slices.Clone(d)
		for i, v := range d {
			if at > 0 {
				want[i] = v * math.Exp(-v*v/(2*at*at))
			}
		}
		if got := reduce(slices.Clone(d)); !slices.EqualFunc(got, want, near9) {
			t.Fatalf("%v\n%v, want\n%v", d, got, want)
		}
	}
}

// Scores: with ranks 1 2 | 3 4 the pairs are one apart in the same direction, so they get the full score; equal values
// get none.
func TestScoresOfSmallCases(t *testing.T) {
	for _, c := range []struct {
		a, b []float64
		want []int
	}{
		{[]float64{100, 200}, []float64{150, 300}, []int{fullScore, fullScore}},
		{[]float64{100, 100}, []float64{100, 100}, []int{0, 0}},
		{[]float64{150, 100}, []float64{100, 150}, []int{-fullScore, fullScore}},
	} {
		got := paired(c.a, c.b).(*flips).scores(0)
		for i, s := range got {
			if (s > 0) != (c.want[i] > 0) || (s < 0) != (c.want[i] < 0) || slices.Max(got) > fullScore ||
				!slices.ContainsFunc(got, func(s int) bool { return max(s, -s) == fullScore }) && c.want[i] != 0 {
				t.Errorf("%v and %v: %v, want the signs of %v", c.a, c.b, got, c.want)
			}
		}
	}
}

// A pair's score is the sum of its difference in rank and its reduced difference, each scaled, in steps of which the
// greatest amount has fullScore, and of at least one step unless it is 0.
func TestScoresByDefinition(t *testing.T) {
	rnd := seeded.New(t)
	for range 300 {
		n := 2 + rnd.IntN(14)
		a, b := make([]float64, n), make([]float64, n)
		for i := range n {
			a[i], b[i] = float64(1+rnd.IntN(30)), float64(1+rnd.IntN(30))
		}
		f, ratio := paired(a, b).(*flips), float64(rnd.IntN(3)-1)/4
		rank := func(v float64) (rank float64) { // among all values; equal ones share one
			for i := range n {
				for _, w := range []float64{f.a[i], f.b[i] - ratio} {
					if w < v {
						rank += 2
					} else if w == v {
						rank++
					}
				}
			}
			return rank
		}
		sums, diffs, greatest := make([]float64, n), make([]float64, n), 0.0
		for i := range n {
			sums[i], diffs[i] = rank(f.b[i]-ratio)-rank(f.a[i]), f.b[i]-ratio-f.a[i]
		}
		scale(sums, 1)
		scale(reduce(diffs), near)
		for i := range n {
			sums[i] += diffs[i]
			greatest = max(greatest, math.Abs(sums[i]))
		}
		for i, got := range f.scores(ratio) {
			want := 0.0
			if sums[i] != 0 {
				want = math.Copysign(max(math.Round(63*math.Abs(sums[i])/greatest), 1), sums[i])
			}
			must.Equal(t, float64(got), want, fmt.Sprintf("pair %d of %v and %v: %%v", i, a, b))
		}
	}
}

// The hypotheses are evenly spaced by rank up to the estimate, with 0, others, and one below all ratios.
func TestHypotheses(t *testing.T) {
	spaced := func(first, step float64) (all []float64) {
		for i := range 64 {
			all = append(all, first+step*float64(i))
		}
		return all
	}
	low := []float64{0, 2, 4, 5, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30}
	for _, c := range []struct{ ratios, others, want []float64 }{
		{spaced(0, 1), []float64{5, 31.5, 40, math.Inf(-1), math.Inf(1), 4}, append([]float64{-1}, low...)},
		{spaced(-40, 1), []float64{-9}, []float64{-41, -40, -38, -36, -34, -32, -30, -28, -26, -24, -22, -20, -18, -16,
			-14, -12, -10, -9}},
		{spaced(-3, 2), nil, []float64{-4, -3, 0, 1, 5, 9, 13, 17, 21, 25, 29, 33, 37, 41, 45, 49, 53, 57}},
	} {
		check.Same(t, (&flips{ratios: c.ratios}).hypotheses(c.others...), c.want, "%v")
	}
}

// At the least level that all signs alike can reach, the interval begins just below the least ratio.
func TestLowestEndOfAnInterval(t *testing.T) {
	f := paired([]float64{100, 100, 100, 100}, []float64{200, 225, 250, 280}).(*flips)
	if got := f.low(0.125, 0) - f.ratios[0]; got >= 0 || got < -accuracy {
		t.Errorf("the end is %v from the least ratio", got)
	}
}

// distanceOf is the energy statistic of a split, from its definition.
func distanceOf(x []float64, k, end int) float64 {
	mean := func(a, b []float64, pairs float64) (sum float64) {
		for _, v := range a {
			for _, w := range b {
				sum += math.Abs(v - w)
			}
		}
		return sum / pairs
	}
	a, b := x[:k], x[k:end]
	m, n := float64(len(a)), float64(len(b))
	return m * n / (m + n) * (2*mean(a, b, m*n) - mean(a, a, m*(m-1)) - mean(b, b, n*(n-1)))
}

func TestSplitIsTheGreatestEnergyDistance(t *testing.T) {
	rnd := seeded.New(t)
	for range 100 {
		x := make([]float64, rnd.IntN(20))
		for i := range x {
			x[i] = rnd.NormFloat64() + float64(i/6)
		}
		at, size := 0, 0.0
		for k := FewestValues; k <= len(x)-FewestValues; k++ {
			for end := k + FewestValues; end <= len(x); end++ {
				if s := distanceOf(x, k, end); s > size {
					at, size = k, s
				}
			}
		}
		table := newTable(len(x) + rnd.IntN(3))
		gotAt, got := table.split(x)
		if gotAt != at || !near9(got, size) {
			t.Fatalf("%v: %d, %v; want %d, %v", x, gotAt, got, at, size)
		}
	}
}

// A change is found exactly if at most the share level of orders has a split as large, the present one included.
func TestChangesAtTheLevel(t *testing.T) {
	rnd := seeded.New(t)
	const level, orders = 0.25, 99
	edge := 0
	for seed := range uint64(1000) {
		x := make([]float64, 2*FewestValues)
		for i := range x {
			x[i] = float64(rnd.IntN(20) + i)
		}
		size := distanceOf(x, FewestValues, len(x))
		if math.Abs(size) < 1e-6 { // 0, or what is left of it
			continue
		}
		shuffle, order, as := rand.New(rand.NewPCG(seed, 0)), slices.Clone(x), 0
		for range orders {
			shuffle.Shuffle(len(order), func(a, b int) { order[a], order[b] = order[b], order[a] })
			if s := distanceOf(order, FewestValues, len(x)); s > size || near9(s, size) {
				as++
			}
		}
		p := float64(as+1) / (orders + 1)
		if p == level || as == 25 {
			edge++
		}
		got := changes(x, level, seed)
		if found := size > 0 && p <= level; found != (len(got) > 0) || found && (got[0].At != FewestValues ||
			!near9(got[0].P, p)) {
			t.Fatalf("%v, p=%v: %+v", x, p, got)
		}
	}
	if edge == 0 {
		t.Error("no case at the level")
	}
}

// parts returns runs of a second each, with so many samples, that begin at multiples of a second.
func parts(counts ...int) (all []part) {
	for i, n := range counts {
		all = append(all, part{int64(i) * 1e9, int64(i+1) * 1e9, latency.FromCounts([]int64{100}, []int64{int64(n)})})
	}
	return all
}

func TestJoinAndThin(t *testing.T) {
	joined := join(parts(1, 2, 3, 4, 5), 2)
	must.Equal(t, len(joined), 2, "%d parts of five joined by two")
	check.Equal(t, joined[0].Count, 3, "the first has %d samples")
	check.Equal(t, joined[1].Count, 7, "the second has %d samples")
	check.Equal(t, joined[1].start, 2e9, "it begins at %d")
	check.Equal(t, joined[1].end, 4e9, "it ends at %d")
	check.Equal(t, len(join(parts(1, 2, 3), 1)), 3, "%d parts joined by one")
	check.Equal(t, len(join(parts(1, 2, 3, 4), 2)), 2, "%d parts of four joined by two")
	few := parts(make([]int, maxSamples)...)
	check.Equal(t, len(thin(few)), maxSamples, "%d parts are kept")
	thinned := thin(parts(make([]int, 2*maxSamples+1)...))
	check.Equal(t, len(thinned), maxSamples, "%d parts are kept")
	check.Equal(t, thinned[1].start, 2e9, "the second begins at %d")
	check.Equal(t, thinned[maxSamples-1].start, 126e9, "the last begins at %d")
}

// The distance of two series is that of their middles, in lengths of the shorter.
func TestDistance(t *testing.T) {
	later := func(p []part, by int64) []part {
		for i := range p {
			p[i].start, p[i].end = p[i].start+by, p[i].end+by
		}
		return p
	}
	for _, c := range []struct {
		a, b []part
		want float64
	}{
		{parts(1, 1), parts(1, 1), 0},
		{parts(1, 1), later(parts(1, 1), 3e9), 1.5},
		{later(parts(1, 1), 3e9), parts(1, 1), 1.5},
		{parts(1, 1, 1, 1), later(parts(1, 1), 4e9), 1.5},
		{[]part{{5, 5, nil}}, []part{{7, 7, nil}}, 2}, // of no length
		{later(parts(1, 1), 9e9), parts(1, 1, 1, 1), 4},
	} {
		check.Equal(t, distance(c.a, c.b), c.want, "%v lengths")
	}
	check.Equal(t, median([]float64{5, 1, 3, 9}), 4, "median %v")
	check.Equal(t, enough(parts(3, 2), 2), true, "enough samples: %t")
	check.Equal(t, enough(parts(3, 1), 2), false, "enough samples: %t")
}

func TestUneven(t *testing.T) {
	check.Equal(t, uneven(Max, parts(100, 100, 900), parts(110, 110, 1)), "", "%q")
	check.Equal(t, uneven(Mean, parts(100), parts(1000)), "", "%q")
	check.Equal(t, uneven(Max, parts(100), parts(111)),
		"max not compared: sample counts differ (100 and 111 per run), measure at a fixed rate (-rate)", "%q")
}

// RunsAmong is the least number of runs at which the rank test can reach the level of a row.
func TestRunsAmong(t *testing.T) {
	for _, tables := range []int{0, 1, 10, 1000, 1_000_000} {
		level := tableLevel / float64(max(tables, 1)*2)
		n := RunsAmong(tables, []Stat{p50, Max})
		if n < MinRuns || leastP(n, n) > level || n > MinRuns && leastP(n-1, n-1) <= level {
			t.Errorf("%d tables: %d runs", tables, n)
		}
	}
	check.Equal(t, RunsAmong(1, []Stat{p50}), MinRuns, "one table: %d runs")
	check.Equal(t, RunsAmong(1, slices.Repeat([]Stat{p50}, 200)), MinRuns, "200 rows: %d runs")
	check.Equal(t, RunsAmong(2, slices.Repeat([]Stat{p50}, 200)), MinRuns+1, "twice 200 rows: %d runs")
	check.Equal(t, fewestPairs(1), 1, "%d pairs reach 1")
	// with two runs of each side one of six orders is the least, in either direction
	if got := leastP(2, 2); !near9(got, 1.0/3) {
		t.Errorf("two runs against two: %v", got)
	}
	check.Equal(t, fewestPairs(0.25), 3, "%d pairs reach 0.25")
	check.Equal(t, fewestPairs(0.2), 4, "%d pairs reach 0.2")
}

// Looks halve the number of slices, while a verdict is possible with so many looks.
func TestLooksAt(t *testing.T) {
	for _, c := range []struct {
		slices, first int
		want          []int
	}{
		{8, 0, nil}, {9, 0, []int{9}}, {40, 0, []int{10, 20, 40}}, {40, 20, []int{20, 40}}, {40, 21, []int{40}},
		{40, 41, nil}, {100, 0, []int{12, 25, 50, 100}}, {36, 0, []int{18, 36}},
	} {
		check.Same(t, Plan{Slices: c.slices}.LooksAt(p50, c.first), c.want, "%v")
	}
}
