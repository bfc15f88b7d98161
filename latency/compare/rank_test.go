package compare

import (
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/needs"
)

// alpha is a level to test at.
const alpha = 0.01

func TestRankDistributions(t *testing.T) {
	for _, c := range []struct{ m, n int }{{1, 1}, {1, 4}, {3, 2}, {4, 4}, {5, 7}, {8, 8}} {
		count, all := make([]float64, c.m*c.n+1), 0.0
		for set := range uint32(1) << (c.m + c.n) {
			if bits.OnesCount32(set) != c.m {
				continue
			}
			u, seen := 0, 0 // for each of the m, how many of the n are below it
			for i := range c.m + c.n {
				if set>>i&1 == 1 {
					u += seen
				} else {
					seen++
				}
			}
			count[u]++
			all++
		}
		sameTail(t, "Mann-Whitney", mannWhitney(c.m, c.n), count, all)
	}
}

// The chance of a sum of scores is that of counting all signs.
func TestChance(t *testing.T) {
	rnd := rand.New(rand.NewPCG(4, 4))
	for range 200 {
		scores := make([]int, 1+rnd.IntN(9))
		sum := 0
		for i := range scores {
			scores[i] = rnd.IntN(21) - 10
			sum += scores[i]
		}
		count := 0
		for signs := range 1 << len(scores) {
			other := 0
			for i, s := range scores {
				other += max(s, -s) * (2*(signs>>i&1) - 1)
			}
			if other >= sum {
				count++
			}
		}
		want := math.Ldexp(float64(count), -len(scores))
		if sum <= 0 { // it is more than half, and not computed
			want = 1
		}
		if math.Abs(chance(scores)-want) > 1e-12 {
			t.Errorf("%v: %v, want %v", scores, chance(scores), want)
		}
	}
}

// Swapping the sides of some pairs changes the signs of their scores and nothing else: the test is one of the coins
// alone.
func TestScoresDependOnPairs(t *testing.T) {
	rnd := rand.New(rand.NewPCG(4, 5))
	for range 200 {
		n := 9 + rnd.IntN(20)
		a, b := make([]float64, n), make([]float64, n)
		for i := range n {
			a[i], b[i] = float64(1+rnd.IntN(50)), float64(1+rnd.IntN(50)*(1+9*rnd.IntN(2)))
		}
		before := paired(a, b).(*flips).scores(0)
		for i := range n {
			if rnd.IntN(2) == 0 {
				a[i], b[i] = b[i], a[i]
				before[i] = -before[i]
			}
		}
		if after := paired(a, b).(*flips).scores(0); !slices.Equal(before, after) {
			t.Fatalf("%v, want %v", after, before)
		}
	}
}

func sameTail(t *testing.T, name string, tail, count []float64, all float64) {
	t.Helper()
	sum := 0.0
	for k, p := range tail {
		if sum += count[k]; math.Abs(p-sum/all) > 1e-12 {
			t.Errorf("%s of %v: chance of at most %d is %v, want %v", name, len(count), k, p, sum/all)
		}
	}
	if 2*len(tail) < len(count)-1 {
		t.Errorf("%s: %d of %d values", name, len(tail), len(count))
	}
}

func TestKnownTests(t *testing.T) {
	a := []float64{1, 2, 3, 4, 5, 6, 7, 8}
	b := []float64{11, 12, 13, 14, 15, 16, 17, 18}
	if p := unpaired(a, b).p(0); math.Abs(p-2.0/12870) > 1e-12 {
		t.Errorf("8 below 8: p=%v, want 2 of C(16,8)", p)
	}
	if p := paired(a, b).p(0); math.Abs(p-2.0/256) > 1e-12 {
		t.Errorf("8 pairs of one sign: p=%v, want 2 of 2^8", p)
	}
	check.Equal(t, unpaired(a, a).p(0), 1, "no difference: p=%v")
	check.Equal(t, paired(a, a).p(0), 1, "no difference: p=%v")
	if e, base := unpaired(a, b).estimate(); e != 10 || base < 1 || base > 8 {
		t.Errorf("estimate %v, want 10", e)
	}
	// Four pairs can never be significant: their interval is unbounded.
	for _, test := range []test{paired(a[:4], b[:4]), unpaired(a[:4], b[:4])} {
		if lo, hi := test.interval(alpha, 0); !math.IsInf(lo, -1) || !math.IsInf(hi, 1) {
			t.Errorf("interval of four pairs: %v to %v", lo, hi)
		}
	}
}

// Verdict, interval and p agree in every sample, with ties, zeros and outliers, and with an allowed drift.
func TestOneInference(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1))
	refused, tied, rounds := 0, 0, needs.Cases(3_000, 600)
	for range rounds {
		n := 5 + rnd.IntN(8)
		a, b := make([]float64, n), make([]float64, n)
		shift, grain := float64(rnd.IntN(7)-3), []float64{1e-9, 0.5, 1}[rnd.IntN(3)]
		for i := range n {
			a[i] = 20 + math.Round(rnd.NormFloat64()/grain)*grain
			b[i] = 20 + math.Round((rnd.NormFloat64()+shift)/grain)*grain
			if rnd.IntN(7) == 0 {
				b[i] += 1000
			}
		}
		allowed := float64(rnd.IntN(3)) / 2
		for name, r := range map[string]test{"unpaired": unpaired(a, b), "paired": paired(a, b)} {
			lo, hi := r.interval(alpha, allowed)
			p := r.p(allowed)
			e, base := r.estimate()
			if excludes := lo-allowed > 0 || hi+allowed < 0; excludes != (p <= alpha) {
				t.Fatalf("%s: p=%v, interval %v to %v, allowed %v\n%v\n%v", name, p, lo, hi, allowed, a, b)
			}
			if p < 1 { // at exactly that level, and below
				lo, hi := r.interval(p, allowed)
				less, more := r.interval(p*(1-1e-9), allowed)
				if p < 0 || lo-allowed <= 0 && hi+allowed >= 0 || less-allowed > 0 || more+allowed < 0 {
					t.Fatalf("%s: p=%v, the interval is %v to %v, or %v to %v, allowed %v\n%v\n%v", name, p, lo, hi, less,
						more, allowed, a, b)
				}
			}
			d := r.differences()
			if m := len(d); p > 1 || m != n*n || d[(m-1)/2] > e+1e-9 || d[m/2] < e-1e-9 || !slices.IsSorted(d) {
				t.Fatalf("%s: p=%v, estimate %v, %d differences from %v to %v", name, p, e, m, d[0], d[m-1])
			}
			if base < slices.Min(a)-1e-9 || base > slices.Max(a)+1e-9 || base+e < slices.Min(b)-1e-9 ||
				base+e > slices.Max(b)+1e-9 {
				t.Fatalf("%s: estimate %v to %v is outside of\n%v\n%v", name, e, base, a, b)
			}
			if e < lo || e > hi {
				t.Fatalf("%s: estimate %v outside of %v to %v", name, e, lo, hi)
			}
			if p <= alpha {
				refused++
			}
			if len(slices.Compact(d)) < n*n {
				tied++
			}
		}
	}
	if refused < rounds/10 || tied < rounds/10 {
		t.Errorf("%d refusals, %d with ties: the test tests too little", refused, tied)
	}
}

// The level holds with tied values and for every distribution.
func TestLevelWithTies(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	rounds := needs.Cases(8_000, 400)
	for _, n := range []int{8, 11} {
		for _, values := range []int{2, 3, 10, 1 << 40} {
			wrong := map[string]int{}
			for range rounds {
				a, b := make([]float64, n), make([]float64, n)
				for i := range n {
					a[i], b[i] = 1+float64(rnd.IntN(values)), 1+float64(rnd.IntN(values))
				}
				if unpaired(a, b).p(0) <= alpha {
					wrong["unpaired"]++
				}
				if paired(a, b).p(0) <= alpha {
					wrong["paired"]++
				}
			}
			for name, k := range wrong {
				if share := float64(k) / float64(rounds); share > alpha+4*math.Sqrt(alpha/float64(rounds)) {
					t.Errorf("%s, %d of %d values: refused in %.4f", name, n, values, share)
				}
			}
		}
	}
}

// Seven slightly faster pairs and a very slow one do not prove a slow-down, and with outliers, too, more pairs find a
// difference more often.
func TestOutlierRuns(t *testing.T) {
	a := []float64{100, 101, 102, 100, 101, 103, 99, 100}
	b := []float64{99.5, 100.4, 101.3, 99.2, 100.1, 102, 98, 2000}
	r := paired(a, b)
	if e, _ := r.estimate(); e > 0 || r.p(0) <= alpha {
		t.Errorf("estimate %v, p=%v", e, r.p(0))
	}
	power := func(n int) int {
		rnd := rand.New(rand.NewPCG(uint64(n), 3))
		found := 0
		for range 300 {
			a, b := make([]float64, n), make([]float64, n)
			for i := range n {
				a[i], b[i] = 100+rnd.NormFloat64(), 102+rnd.NormFloat64()
				for _, x := range []*float64{&a[i], &b[i]} {
					if rnd.IntN(7) == 0 {
						*x *= 20
					}
				}
			}
			r := paired(a, b)
			if e, _ := r.estimate(); r.p(0) <= alpha && e > 0 {
				found++
			}
		}
		return found
	}
	if few, many := power(10), power(30); many < 150 || many < few+60 {
		t.Errorf("10 pairs find a shift in %d of 300, 30 in %d", few, many)
	}
}

// The estimate is the median of all differences, which for an even number of them is the mean of the two in the middle.
func TestEstimate(t *testing.T) {
	for _, c := range []struct {
		a, b        []float64
		shift, base float64
	}{
		{[]float64{10}, []float64{13}, 3, 10},
		{[]float64{10}, []float64{13, 17}, 5, 10},
		{[]float64{10, 20}, []float64{31}, 16, 15},
		{[]float64{1, 5}, []float64{11, 12}, 8.5, 3}, // 6, 7, 10 and 11: the middle two have the bases 5 and 1
		{[]float64{1, 2, 4}, []float64{11}, 9, 2},
	} {
		shift, base := unpaired(c.a, c.b).estimate()
		check.Equal(t, shift, c.shift, fmt.Sprintf("%v and %v: shift %%v", c.a, c.b))
		check.Equal(t, base, c.base, fmt.Sprintf("%v and %v: base %%v", c.a, c.b))
	}
}
