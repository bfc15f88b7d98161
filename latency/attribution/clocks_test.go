package attribution

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// A relation of the clocks gives times in both directions, and its bound grows only where no round trip shows it.
func TestAlignment(t *testing.T) {
	a := alignment{at: 10e6, offset: 500, drift: 1e-4, bound: 10, from: 8e6, to: 12e6, slack: 1e-2}
	for at, want := range map[int64][2]int64{10e6: {500, 10}, 11e6: {600, 10}, 8e6: {300, 10}, 12e6: {700, 10},
		7_999_000: {299, 20}, 12_001_000: {700, 20}, 6e6: {100, 20_010}, 15e6: {1000, 30_010}} {
		check.Equal(t, [2]int64{a.far(at) - at, a.within(at)}, want, fmt.Sprint(at, ": ahead, and its bound: %d"))
		if back := a.near(a.far(at)); abs(back-at) > 1 {
			t.Errorf("%d becomes %d there and back", at, back)
		}
	}
	s := slow{sent: 7_999_000, seen: 12_001_000}
	from, to := a.around(&s)
	check.Equal(t, [2]int64{from, to}, [2]int64{7_999_279, 12_001_720}, "under way from and to %d")
	for _, c := range []struct {
		later, earlier int64 // it began to record, and stopped
		want           bool
	}{{0, 0, true}, {1, 0, false}, {0, 1, false}} {
		l := Loop{Start: 7_999_299 + c.later, End: 12_001_700 - c.earlier}
		check.Equal(t, l.covers(&a, &s), c.want, fmt.Sprintf("%+v: %%t", c))
	}
	for what, c := range map[string]struct {
		b    alignment
		want bool
	}{
		"the same":            {a, true},
		"at the bounds":       {alignment{at: 10e6, offset: 515, drift: 1e-4, bound: 5, from: 8e6, to: 12e6}, true},
		"beyond them":         {alignment{at: 10e6, offset: 516, drift: 1e-4, bound: 5, from: 8e6, to: 12e6}, false},
		"behind":              {alignment{at: 10e6, offset: 484, drift: 1e-4, bound: 5, from: 8e6, to: 12e6}, false},
		"apart at the end":    {alignment{at: 8e6, offset: 300, bound: 5, from: 8e6, to: 12e6}, false},
		"apart at the start":  {alignment{at: 12e6, offset: 700, bound: 5, from: 8e6, to: 12e6}, false},
		"where nothing shows": {alignment{at: 10e6, offset: 10_525, drift: 1e-4, bound: 5, from: 7e6, to: 13e6}, false},
		"within what grows":   {alignment{at: 10e6, offset: 10_515, drift: 1e-4, bound: 5, from: 7e6, to: 13e6}, true},
	} {
		check.Equal(t, a.agrees(&c.b), c.want, what+": %t")
	}
}

// A round trip is compared with the gaps that are long enough and within the width, at its limits too, unless most of
// it was this host's, or a slower one was under way at the same time.
func TestPairsOf(t *testing.T) {
	const width = 50_000
	one := []slow{{sent: 100_000, seen: 110_000, away: 9000}}
	gap := func(end, took int64) Interval { return Interval{Start: end - took, End: end} }
	for what, c := range map[string]struct {
		all  []slow
		gaps []Interval
		want string
		n    int
	}{
		"none":        {one, nil, "[]", 1},
		"length":      {one, []Interval{gap(100_000, 8099), gap(101_000, 8100), gap(102_000, 50_000)}, "[{0 110000 9000} {0 110000 8000}]", 1},
		"width":       {one, []Interval{gap(59_999, 9000), gap(60_000, 9000), gap(160_000, 9000), gap(160_001, 9000)}, "[{0 110000 50000} {0 110000 -50000}]", 1},
		"mostly here": {[]slow{{0, 10_000, 3999}, {20_000, 30_000, 4000}}, []Interval{gap(25_000, 4000)}, "[{0 30000 5000}]", 1},
		"at the same time": {append(slices.Clone(one), slow{110_000, 119_000, 8900}, slow{91_000, 100_000, 8800},
			slow{101_000, 109_000, 7000}, slow{90_000, 120_000, 15_000}),
			[]Interval{gap(100_000, 50_000)}, "[{0 110000 10000}]", 1},
		"just before and after": {append(slices.Clone(one), slow{110_001, 118_000, 7900}, slow{92_001, 99_999, 7800}),
			[]Interval{gap(99_999, 50_000)}, "[{0 99999 0} {1 110000 10001} {2 118000 18001}]", 3},
	} {
		pairs, n := pairsOf(c.all, c.gaps, width)
		check.Equal(t, fmt.Sprint(pairs, n), fmt.Sprint(c.want, " ", c.n), what+": %s")
	}
	var many []slow
	for i := range int64(searched + 5) {
		many = append(many, slow{i * 100, i*100 + 50, 50})
	}
	pairs, n := pairsOf(many, []Interval{gap(50, 50)}, 1e9)
	check.Equal(t, [2]int{len(pairs), n}, [2]int{searched, searched}, "%d of the slowest")
}

// on returns pairs on a line, each of another probe: drift * t + offset.
func on(first int, offset int64, drift float64, times ...int64) (all []pair) {
	for i, at := range times {
		all = append(all, pair{first + i, at, offset + int64(math.Round(drift*float64(at)))})
	}
	return all
}

// every returns n times, step apart, about zero.
func every(n int, step int64) (all []int64) {
	for i := range int64(n) {
		all = append(all, (2*i-int64(n-1))*step/2)
	}
	return all
}

// The line is found that most are on, as exactly as the path allows.
func TestSearch(t *testing.T) {
	scattered := func(n int) (all []pair) { // none of them near another or near zero
		for i := range n {
			if at := int64(i-n/2) * (2e9 / int64(n)); abs(at) > 5e6 {
				all = append(all, pair{1000 + i, 0, at})
			}
		}
		return all
	}
	wide := on(0, 0, 0, every(40, 1e9)...)
	for i := range wide {
		wide[i].delta += int64(i*7%40-20) * 1000
	}
	twice := append(on(0, 5e6, 0, every(6, 1e9)...), on(0, 5e6+200, 0, every(6, 1e9)...)...)
	slices.SortFunc(twice, func(a, b pair) int { return a.probe - b.probe })
	const half = int64(30e9)
	for what, c := range map[string]struct {
		pairs         []pair
		path          int64
		offset, drift float64 // of the line at zero
		tolerance     float64
		by            int
		clear         bool
	}{
		"none":                 {nil, 1000, 0, 0, 781.25, 0, false},
		"six":                  {on(0, 5e6, 0, every(6, 1e9)...), 1000, 5e6, 0, 781.25, 6, false},
		"seven":                {on(0, 5e6, 0, every(7, 1e9)...), 1000, 5e6, 0, 781.25, 7, true},
		"at the same time":     {on(0, -5e6, 0, 0, 0, 0, 0, 0, 0, 0, 0), 1000, -5e6, 0, 781.25, 8, true},
		"of one probe":         {twice, 1000, 5e6, 0, 781.25, 6, false},
		"a drift":              {on(0, 5e6, 50e-6, every(20, 3e9)...), 1000, 5e6, 50e-6, 781.25, 20, true},
		"the other way":        {on(0, -700e6, -93e-6, every(20, 3e9)...), 1000, -700e6, -93e-6, 781.25, 20, true},
		"too much drift":       {on(0, 0, 300e-6, every(20, 3e9)...), 1000, 0, 0, 0, -10, false},
		"at the limit":         {on(0, 1e9, 0, every(10, 1e9)...), 1000, 1e9, 0, 781.25, 10, true},
		"a longer path":        {on(0, 5e6, 0, every(10, 1e9)...), 12_500, 5e6, 0, 3125, 10, true},
		"more than half of it": {on(0, 5e6, 0, every(10, 1e9)...), 12_502, 5e6, 0, 6250, 10, true},
		"replies vary":         {wide, 1000, 0, 0, 25_000, 40, true},
		"nearest to zero":      {append(on(0, -5e6, 0, every(11, 1e9)...), on(20, 3e6, 0, every(10, 1e9)...)...), 1000, 3e6, 0, 781.25, 10, true},
		"most":                 {append(on(0, -5e6, 0, every(12, 1e9)...), on(20, 3e6, 0, every(10, 1e9)...)...), 1000, -5e6, 0, 781.25, 12, true},
		"nine among 3333":      {append(on(0, 0, 0, every(9, 1e9)...), scattered(3341)...), 1000, 0, 0, 781.25, 9, false},
		"ten among 3333":       {append(on(0, 0, 0, every(10, 1e9)...), scattered(3341)...), 1000, 0, 0, 781.25, 10, true},
		"nearly all":           {on(0, 0, 0, every(45, 1e9)...), 1000, 0, 0, 781.25, 43, true}, // 5 % more count
	} {
		l, clear := search(c.pairs, -half, half, mostOffset, c.path)
		if c.by < 0 {
			check.Equal(t, clear || l.by >= -c.by, false, what+": %t")
			continue
		}
		check.Equal(t, fmt.Sprint(l.at, l.tolerance, l.by, clear), fmt.Sprint(0, c.tolerance, c.by, clear), what+": %s")
		check.Equal(t, clear, c.clear, what+": more than by chance: %t")
		if off := math.Abs(l.offset - c.offset); off > l.tolerance {
			t.Errorf("%s: %f", what, l.offset)
		}
		if off := math.Abs(l.drift-c.drift) * float64(half); off > 2*l.tolerance {
			t.Errorf("%s: a drift of %g", what, l.drift)
		}
	}
	l, clear := search(on(0, 7000, 0, 5, 5, 5, 5, 5, 5, 5), 5, 5, mostOffset, 1000)
	check.Equal(t, l, line{at: 5, offset: 7000, tolerance: 781.25, by: 7}, "at a single time: %+v")
	check.Equal(t, clear, true, "%t")
}

// A line gives the clocks' difference: half of the path before the reply. Beyond the round trips on it, which are
// within the tolerance, the bound grows with what the tolerance allows, and with the drift of clocks at most.
func TestLineAsAlignment(t *testing.T) {
	all := []pair{{3, 9e9, -400}, {4, 5e9, -600}, {5, 5e9, -500}, {6, 1e9, -601}, {7, 20e9, -399}, {6, 7e9, -500}}
	for what, c := range map[string]struct {
		line  line
		pairs []pair
		want  alignment
		times string
	}{
		"nothing": {line{at: 1e9, tolerance: 100, by: 3}, nil, alignment{}, "[]"},
		"none on": {line{at: 1e9, tolerance: 100, by: 3, offset: 5000}, all, alignment{}, "[]"},
		"several": {line{at: 1e9, tolerance: 100, by: 4, offset: -500}, all, alignment{at: 1e9, offset: 5500, bound: 6200,
			by: 4, from: 5e9, to: 9e9, slack: 200 / 4e9}, "[5000000000 7000000000 9000000000]"},
		"one": {line{at: 1e9, tolerance: 100, by: 1, offset: -300}, all, alignment{at: 1e9, offset: 5300, bound: 6200,
			by: 1, from: 9e9, to: 20e9, slack: 200 / 11e9}, "[9000000000 20000000000]"},
		"a drift": {line{at: 5e9, tolerance: 100, by: 1, offset: -500, drift: 1e-6}, all[:4], alignment{at: 5e9, offset: 5500,
			drift: -1e-6, bound: 6200, by: 1, from: 5e9, to: 5e9, slack: 2 * mostDrift}, "[5000000000]"},
	} {
		a, times := c.line.alignment(c.pairs, 10_001)
		if c.want.by > 0 {
			c.want.offset += 0.5
		}
		check.Equal(t, a, c.want, what+": %+v")
		check.Equal(t, fmt.Sprint(times), c.times, what+": %s")
	}
	l := line{tolerance: 100, offset: -500}
	for _, c := range []struct {
		from, to int64
		want     int
	}{{0, 30e9, 4}, {5e9, 9e9, 3}, {5e9, 9e9 + 1, 4}, {5e9 + 1, 9e9, 1}, {10e9, 30e9, 0}} {
		check.Equal(t, l.between(all, c.from, c.to), c.want, fmt.Sprintf("%+v: %%d", c))
	}
}

// Rivals are clusters that are far enough from the line and from each other, with more than three quarters of its
// round trips.
func TestRivals(t *testing.T) {
	cluster := func(offset int64, n int) []pair { return on(0, offset, 0, make([]int64, n)...) }
	l := line{offset: 1e6, tolerance: 1000, by: 20}
	for what, c := range map[string]struct {
		others [][2]int64 // offset, round trips
		want   string
		apart  float64
	}{
		"none":          {nil, "[]", 0},
		"too few":       {[][2]int64{{5e6, 15}}, "[]", 0},
		"enough":        {[][2]int64{{5e6, 16}}, "[5e+06 16]", 4e6},
		"too near":      {[][2]int64{{1.4e6, 30}, {0.6e6, 30}}, "[]", 0},
		"near":          {[][2]int64{{1.4e6 + 1, 30}}, "[1.400001e+06 30]", 4e5 + 1},
		"most first":    {[][2]int64{{5e6, 17}, {-7e6, 18}, {9e6, 16}}, "[-7e+06 18 5e+06 17 9e+06 16]", 4e6},
		"each other's":  {[][2]int64{{5e6, 17}, {5.4e6, 18}, {5.8e6, 16}}, "[5.4e+06 18]", 4.4e6},
		"apart by less": {[][2]int64{{5e6, 18}, {5.5e6, 17}, {7e6, 16}}, "[5e+06 18 5.5e+06 17 7e+06 16]", 5e5},
	} {
		pairs := cluster(1e6, 20)
		for _, o := range c.others {
			pairs = append(pairs, cluster(o[0], int(o[1]))...)
		}
		all, apart, better := l.rivals(pairs, mostOffset)
		got := []string{}
		for _, r := range all {
			got = append(got, fmt.Sprint(r.offset, " ", r.by))
			check.Equal(t, line{offset: r.offset, tolerance: 1000, by: r.by}, r, what+": %+v")
		}
		check.Equal(t, fmt.Sprint(got), c.want, what+": %s")
		check.Equal(t, apart, c.apart, what+": %f apart")
		if len(all) > 0 {
			check.Equal(t, better, all[0], what+": the best is %+v")
		} else {
			check.Equal(t, better, line{}, what+": the best is %+v")
		}
	}
	l.tolerance = 200_000
	all, _, _ := l.rivals(append(cluster(1e6, 20), cluster(1.8e6, 30)...), mostOffset)
	check.Equal(t, len(all), 0, "%d within four times the tolerance")
	for tolerance, want := range map[float64]int{100_000: 1, 120_000: 0} { // 3.6 and 4.3 by chance
		l = line{tolerance: tolerance, by: 20}
		all, _, _ = l.rivals(append(cluster(0, 20), cluster(900_000, 16)...), 1e6)
		check.Equal(t, len(all), want, "%d beyond chance")
	}
}

// Windows have as many round trips as counting finds.
func TestWindows(t *testing.T) {
	dice := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		l := line{at: 50, drift: float64(dice.IntN(3)-1) / 4}
		var pairs []pair
		for range dice.IntN(30) {
			pairs = append(pairs, pair{dice.IntN(8), dice.Int64N(100), dice.Int64N(60)})
		}
		tolerance := float64(dice.IntN(12))
		var got, want []string
		windows(&l, pairs, tolerance, func(n int, offset float64) { got = append(got, fmt.Sprint(n, offset)) })
		of := func(p *pair) float64 { return float64(p.delta) - l.drift*float64(p.at-50) }
		slices.SortFunc(pairs, func(a, b pair) int { return cmp.Compare(of(&a), of(&b)) })
		for to := range pairs {
			in, least := map[int]bool{}, of(&pairs[to])
			for _, p := range pairs[:to+1] {
				if of(&p) >= of(&pairs[to])-2*tolerance {
					in[p.probe], least = true, min(least, of(&p))
				}
			}
			want = append(want, fmt.Sprint(len(in), (least+of(&pairs[to]))/2))
		}
		// The order of equal ones is any, so only the last of them has a certain number.
		must.Equal(t, len(got), len(want), "%d windows")
		for i := range want {
			if i+1 == len(want) || of(&pairs[i]) != of(&pairs[i+1]) {
				must.Equal(t, got[i], want[i], fmt.Sprint(pairs, " within ", tolerance, ": %s"))
			}
		}
	}
}

// A report that began or ended during the measurement says nothing of what it cannot have caused, nor does one that
// lacks gaps; at the limits it does.
func TestPossibleOnlyIfRecorded(t *testing.T) {
	all := []slow{{0, 100_000, 90_000}, {200_000, 300_000, 90_000}}
	for _, c := range []struct {
		start, end, missed int64
		of                 int
	}{{-1, 300_001, 0, 2}, {0, 300_000, 0, 2}, {1, 300_000, 0, 0}, {0, 299_999, 0, 0}, {7, 300_007, 0, 2}, {-1, 300_001, 1, 0},
		{-1, 300_001, 2, 0}, {mostOffset, mostOffset + 300_000, 0, 2}, {mostOffset + 1, mostOffset + 300_001, 0, 0},
		{-mostOffset, 300_000 - mostOffset, 0, 2}, {-mostOffset - 1, 299_999 - mostOffset, 0, 0}} {
		l := Loop{Start: c.start, End: c.end, Missed: c.missed, From: 1000}
		possible, of := l.possible(all, nil)
		check.Equal(t, of, c.of, fmt.Sprintf("%+v: %%d can be told", c))
		check.Equal(t, len(possible), c.of, fmt.Sprintf("%+v: %%d", c))
	}
}

// Gaps of two cores may show two relations of the clocks. Both are followed if the second shows half as many round
// trips as the first or more, and a report that is in doubt is refused. The stated error of the clocks excludes one.
func TestTwoCores(t *testing.T) {
	const shift = 50e6
	for what, c := range map[string]struct {
		shift, clockError, of int64 // core 2 has one in so many of the gaps
		doubt, aligned        string
		err                   error
	}{
		"both":               {shift: shift, clockError: -1, of: 1, aligned: "2 differences fit equally well"},
		"the same":           {clockError: -1, of: 1},
		"few of the second":  {shift: shift, clockError: -1, of: 3},
		"the error excludes": {shift: shift, clockError: 10e6, of: 1},
		"in doubt":           {shift: shift, clockError: -1, of: 1, doubt: "another address", err: errAmbiguous},
		"in doubt, stated":   {shift: shift, clockError: 100e6, of: 1, doubt: "another address", err: ErrDoubtful},
		"in doubt, excluded": {shift: shift, clockError: 10e6, of: 1, doubt: "another address"},
	} {
		t.Run(what, func(t *testing.T) {
			r, l, sides := planted(0, 0, 300, 0, 100)
			for i, g := range l.Intervals {
				if int64(i/2)%c.of == 0 {
					g.Core, g.Start, g.End = 2, g.Start+c.shift, g.End+c.shift
					l.Intervals = append(l.Intervals, g)
				}
			}
			l.Doubt = c.doubt
			err := r.AddResponder(l, trips, c.clockError)
			if c.err != nil {
				check.Fails(t, what, err, c.err)
				check.Equal(t, r.Aligned, "", "aligned: %q")
				return
			}
			must.OK(t, err)
			check.Contains(t, r.Aligned, "aligned by", c.aligned)
			check.Equal(t, strings.Contains(r.Aligned, ";"), c.aligned != "", r.Aligned+": several: %t")
			addUp(t, r)
			if right, wrong, none := judge(r, sides); c.aligned == "" && right < 380 || wrong > 4 {
				t.Errorf("%d right, %d wrong, %d to none", right, wrong, none)
			}
		})
	}
}

// Of cores whose gaps show as many round trips, the first is the best; one whose gaps show more is better.
func TestBestCore(t *testing.T) {
	r, l, _ := planted(0, 0, 60, 0, 0)
	var all []slow
	for i := range r.Rows {
		all = append(all, r.slow(&r.Rows[i]))
	}
	gaps := map[int][]Interval{}
	for _, g := range l.Intervals {
		if g.Text == "" {
			gaps[3] = append(gaps[3], g)
		}
	}
	slices.SortFunc(gaps[3], func(a, b Interval) int { return cmp.Compare(a.End, b.End) })
	for _, g := range gaps[3] {
		g.Start, g.End = g.Start+50e6, g.End+50e6
		gaps[7] = append(gaps[7], g)
	}
	for _, c := range []struct{ without, fits, core int }{{0, 2, 3}, {3, 2, 7}, {7, 2, 3}} {
		some := map[int][]Interval{}
		for core, of := range gaps {
			if core == c.without {
				of = slices.DeleteFunc(slices.Clone(of), func(g Interval) bool { return g.End/1000%4 == 0 })
			}
			some[core] = of
		}
		fits := must.Get(alignCores(all, some, r.path(), -1))(t)
		check.Equal(t, [2]int{len(fits), fits[0].core}, [2]int{c.fits, c.core}, fmt.Sprintf("%+v: %%d", c))
		for clockError, want := range map[int64]int{0: 0, 10e6: 1, 60e6: 2} { // too few round trips show none at all
			fits, err := alignCores(all, some, r.path(), clockError)
			check.Equal(t, err == nil, want > 0, fmt.Sprint(clockError, ": shown %t"))
			check.Equal(t, len(fits), want, fmt.Sprint(clockError, ": %d"))
		}
	}
}

// One round trip or two align no clocks, and are attributed by clocks whose error is stated.
func TestFewRoundTrips(t *testing.T) {
	for n := range 2 {
		r, l, sides := planted(0, 0, n+1, 0, 0)
		check.Fails(t, "no clock error", r.AddResponder(l, trips, -1), errNotShown)
		must.OK(t, r.AddResponder(l, trips, 500))
		right, wrong, _ := judge(r, sides)
		check.Equal(t, [2]int{right, wrong}, [2]int{n + 1, 0}, "%d")
	}
}

// What is attributed depends neither on the order of the gaps, nor on gaps that are listed twice, nor on the time of
// day of both hosts.
func TestSameWhateverTheOrder(t *testing.T) {
	const later = int64(86_400e9)
	p := plan{seed: 8, offset: 123_456_789, drift: 12e-6, far: 150, here: 40, network: 60, short: 500}
	all, recorded, _ := p.build()
	of := func(change func(*Result, *Loop)) string {
		r, l := all.clone(), *recorded
		l.Intervals = slices.Clone(l.Intervals)
		change(r, &l)
		must.OK(t, r.AddResponder(&l, trips, -1))
		for i := range r.Rows {
			r.Rows[i].At = 0
		}
		return fmt.Sprintf("%+v", r.Rows)
	}
	want := of(func(*Result, *Loop) {})
	for what, change := range map[string]func(*Result, *Loop){
		"reversed": func(_ *Result, l *Loop) { slices.Reverse(l.Intervals) },
		"twice":    func(_ *Result, l *Loop) { l.Intervals = append(l.Intervals, l.Intervals...) },
		"another day": func(r *Result, l *Loop) {
			for i := range r.Rows {
				r.Rows[i].At += later / 1000
			}
			for i := range l.Intervals {
				l.Intervals[i].Start, l.Intervals[i].End = l.Intervals[i].Start+later, l.Intervals[i].End+later
			}
			l.Start, l.End = l.Start+later, l.End+later
		},
	} {
		if of(change) != want {
			t.Errorf("%s: other rows", what)
		}
	}
}
