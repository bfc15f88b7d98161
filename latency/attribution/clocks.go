package attribution

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"

	"github.com/rebound-nic/rebound/latency"
)

// Offsets are searched up to mostOffset, in places of one place of ns, for drifts up to mostDrift.
const (
	mostOffset = int64(1e9)
	place      = int64(100e3)
	mostDrift  = 100e-6
	searched   = 400 // round trips
	leastBy    = 6   // round trips that show the clocks' difference
)

// alignment is the relation of the two hosts' clocks: the responder's is ahead by offset + drift * (t - at), within
// bound. Before from and after to no round trip shows it, so the bound grows by slack.
type alignment struct {
	at       int64
	offset   float64
	drift    float64
	bound    int64
	by       int // round trips that show it
	from, to int64
	slack    float64
}

// near is far's inverse; the drift is so small that it does not matter at which of both times it counts.
func (a *alignment) near(t int64) int64 {
	t -= int64(a.offset)
	return t - int64(a.drift*float64(t-a.at))
}

func (a *alignment) far(t int64) int64 { return t + int64(a.offset+a.drift*float64(t-a.at)) }

// within is the bound at a time of this host.
func (a *alignment) within(t int64) int64 {
	return a.bound + int64(a.slack*float64(max(a.from-t, t-a.to, 0)))
}

// around is when a round trip was under way by the responder's clock, at most.
func (a *alignment) around(s *slow) (from, to int64) {
	bound := a.within(s.seen)
	return a.far(s.sent) - bound, a.far(s.seen) + bound
}

// agrees reports whether two alignments are the same from b.from to b.to.
func (a *alignment) agrees(b *alignment) bool {
	for _, t := range []int64{b.from, b.to} {
		if abs(a.far(t)-b.far(t)) > a.within(t)+b.bound {
			return false
		}
	}
	return true
}

// Why clocks cannot be aligned.
var (
	errNotShown = errors.New("the clocks cannot be aligned: at no difference of up to " +
		latency.FormatNS(float64(mostOffset)) + " do enough of the slowest round " +
		"trips end with a gap of the responder: it caused few of them or none, or its report is of another host (-clock-error says how far the clocks differ at most)")
	errChanged = errors.New(
		"the clocks cannot be aligned: parts of the measurement show different differences, so a clock was set meanwhile, or the responder's " +
			"report is of another host")
	errAmbiguous = errors.New("the clocks cannot be aligned")
)

// fit is a relation of the clocks, and the responder's core whose gaps show it.
type fit struct {
	alignment
	core int
}

// mostFits is how many relations of the clocks are followed if each of them fits: more agree on nothing.
const mostFits = 64

// alignCores aligns the clocks by the gaps of the core that explain most. gaps are by core, in the order of their ends.
// If several relations fit equally well, it returns all of them, the best first.
func alignCores(all []slow, gaps map[int][]Interval, path, clockError int64) (best []fit, err error) {
	width := mostOffset
	if clockError >= 0 {
		width = min(width, max(clockError, place)+path)
	}
	var found [][]fit
	err = errNotShown
	for _, c := range sortedKeys(gaps) {
		fits, problem := align(all, gaps[c], width, path)
		if len(fits) == 0 {
			continue
		}
		var of []fit
		for _, a := range fits {
			of = append(of, fit{a, c})
		}
		if found = append(found, of); best == nil || of[0].by > best[0].by {
			best, err = of, problem
		}
	}
	if err != nil {
		return best, err
	}
	first, others := best[0], 0
	for _, of := range found {
		if a := &of[0]; a.core != first.core && 2*a.by > first.by && !first.agrees(&a.alignment) {
			best = append(best, of...)
			others++
		}
	}
	if len(best) > mostFits {
		err = fmt.Errorf("%w: %d differences fit equally well, by %d cores of the responder (-clock-error excludes some of them)",
			errAmbiguous, len(best), others+1)
	}
	return best, err
}

// align finds the differences of the clocks at which most round trips ended with a gap that is long enough to have
// caused them, the best first. It is refused if too many fit, or if parts of the measurement show different ones. None
// is returned if none stands out.
func align(all []slow, gaps []Interval, width, path int64) (out []alignment, err error) {
	first, last := spanOf(all)
	pairs, used := pairsOf(all, gaps, width)
	l, shown := search(pairs, first, last, width, path)
	if !shown {
		return nil, errNotShown
	}
	var rivals []line
	apart := 0.0
	for range 3 {
		var better line
		if rivals, apart, better = l.rivals(pairs, width); better.by <= l.by+l.by/10 {
			break
		}
		// More of them are elsewhere, by a finer measure than that of the search.
		l = better.narrow(pairs, float64(last-first)/2, width, path,
			float64(better.by)-expected(pairs, width, 2*l.tolerance))
	}
	best, times := l.alignment(pairs, path)
	if best.by < leastBy {
		return nil, errNotShown
	}
	out = append(out, best)
	for _, r := range rivals {
		if a, _ := r.alignment(pairs, path); a.by > 0 {
			out = append(out, a)
		}
	}
	// Each part of the time that shows a difference by itself shows this one at least half as well, and so does each
	// half of the round trips. On a busy host a part has others, too.
	part := func(from, to int64) (a alignment, clear bool) {
		var in []pair
		for _, p := range pairs {
			if p.at >= from && p.at < to {
				in = append(in, p)
			}
		}
		l, clear := search(in, from, to, width, path)
		a, _ = l.alignment(in, path)
		return a, clear && a.by >= leastBy
	}
	changed := false
	for _, parts := range []int64{2, 4} {
		for k := range parts {
			from, to := first+(last+1-first)*k/parts, first+(last+1-first)*(k+1)/parts
			a, clear := part(from, to)
			changed = changed || clear && !best.agrees(&a) && 2*l.between(pairs, from, to) < a.by
		}
	}
	switch {
	case changed && len(out) <= 2: // periodic gaps fit at more
		return out, errChanged
	// Gaps of another period than that of what delayed the round trips meet at most half of them at any difference.
	case len(out) > mostFits, len(out) > 1 && 2*best.by <= used:
		return out, fmt.Errorf("%w: %d differences fit equally well, the nearest %s apart, because the responder's gaps are periodic (-clock-error excludes "+
			"the others if it is less than half of that)", errAmbiguous, len(out), latency.FormatNS(apart))
	}
	middle := times[len(times)/2]
	for _, span := range [][2]int64{{first, middle}, {middle, last + 1}} {
		a, _ := part(span[0], span[1])
		if a.by == 0 || !slices.ContainsFunc(out, func(o alignment) bool { return o.agrees(&a) }) {
			return nil, errNotShown
		}
	}
	return out, nil
}

// spanOf returns when the first round trip was sent, and when the last came back.
func spanOf(all []slow) (first, last int64) {
	first, last = all[0].sent, all[0].seen
	for _, s := range all {
		first, last = min(first, s.sent), max(last, s.seen)
	}
	return first, last
}

// inError is the part of the round trips, 1/inError, that is called the network's in error at most if nothing relates
// the clocks.
const inError = 20

// possible tells for each round trip whether it may have waited for the responder, if nothing relates the clocks: a gap
// makes up half of what this host does not account for, at a difference of the clocks of up to mostOffset at which that
// is so for more than 1/inError of them. Differences at which the responder was not recording all the while are left
// out, because it answered. of is how many took long enough to tell; 0 if no difference is left, or gaps are missing.
func (l *Loop) possible(all []slow, gaps map[int][]Interval) (possible []bool, of int) {
	first, last := spanOf(all)
	from, to := max(l.Start-first, -mostOffset), min(l.End-last, mostOffset)
	if from > to || l.Missed > 0 {
		return nil, 0
	}
	possible = make([]bool, len(all))
	for i, s := range all {
		if possible[i] = s.away <= 2*l.From; !possible[i] {
			of++
		}
	}
	type event struct {
		at, row int64
		step    int // 1: from this difference on; -1: up to it
	}
	for _, gaps := range gaps {
		var events []event
		longest, sum := longestOf(gaps), int64(0)
		for i, s := range all {
			half := (s.away + 1) / 2
			drift := int64(mostDrift * math.Abs(float64(s.seen-first-(last-first)/2)))
			k := sort.Search(len(gaps), func(k int) bool { return gaps[k].End >= s.sent+half+from-drift })
			for ; k < len(gaps) && gaps[k].End-longest <= s.seen-half+to+drift; k++ {
				g := &gaps[k]
				a, b := max(g.Start-s.seen+half-drift, from), min(g.End-s.sent-half+drift, to)
				if g.End-g.Start >= half && a <= b && s.away > 2*l.From {
					events = append(events, event{a, int64(i), 1}, event{b, int64(i), -1})
					sum += b - a
				}
			}
			if sum/int64(of/inError+1) > to-from { // more of them in the mean than may be
				return nil, 0
			}
		}
		slices.SortFunc(events, func(a, b event) int { return cmp.Or(cmp.Compare(a.at, b.at), b.step-a.step) })
		in := map[int64]int{} // how many gaps, by row
		for _, e := range events {
			if in[e.row] += e.step; in[e.row] == 0 {
				delete(in, e.row)
			}
			switch {
			case e.step < 0 || len(in) <= of/inError:
			case len(in) == of/inError+1:
				for row := range in {
					possible[row] = true
				}
			default:
				possible[e.row] = true
			}
		}
	}
	return possible, of
}

// pair is a round trip and a gap of the responder that it could have waited for: when it came back, and by how much the
// gap ended earlier.
type pair struct {
	probe     int
	at, delta int64
}

// pairsOf returns all pairs within width. Round trips that were under way together count as one, the slowest, because a
// single gap caused them; n is their number. all begins with the slowest.
func pairsOf(all []slow, gaps []Interval, width int64) (pairs []pair, n int) {
	var used []slow // disjoint, in the order of time
	for _, s := range all {
		if s.away < 2*(s.seen-s.sent)/5 {
			continue
		}
		k, _ := slices.BinarySearchFunc(used, s.sent, func(u slow, sent int64) int { return cmp.Compare(u.seen, sent) })
		if k < len(used) && used[k].sent <= s.seen {
			continue
		}
		if used = slices.Insert(used, k, s); len(used) == searched {
			break
		}
	}
	for i, s := range used {
		from := sort.Search(len(gaps), func(k int) bool { return gaps[k].End >= s.seen-width })
		for _, g := range gaps[from:] {
			if g.End > s.seen+width {
				break
			}
			if took := g.End - g.Start; took >= s.away*9/10 {
				pairs = append(pairs, pair{i, s.seen, s.seen - g.End})
			}
		}
	}
	return pairs, len(used)
}

// line is how much earlier gaps ended than the round trips that waited for them came back: offset + drift * (t - at),
// in ns.
type line struct {
	at            int64
	offset, drift float64
	tolerance     float64 // most are within it
	by            int     // round trips; 0 if none stands out
}

func (l *line) of(p *pair) float64 { return float64(p.delta) - l.drift*float64(p.at-l.at) }

// search finds the line on which most round trips are, which came back from first to last, and whether these are more
// than by chance.
func search(pairs []pair, first, last, width, path int64) (out line, clear bool) {
	out.at = first + (last-first)/2
	half := float64(last-first) / 2
	// A drift moves the ends of the measurement by less than a place from one step to the next.
	steps := int(math.Ceil(mostDrift * half / float64(place)))
	places := 2*int(width/place) + 3
	count, seenBy := make([]int32, places), make([]int32, places)
	order := fromZero(places / 2)
	most, drift, offset := int32(0), 0.0, int64(0)
	for _, k := range fromZero(steps) {
		slope := 0.0
		if half > 0 {
			slope = float64(k) * float64(place) / half
		}
		for i := range count {
			count[i], seenBy[i] = 0, -1
		}
		for _, p := range pairs {
			d := p.delta - int64(slope*float64(p.at-out.at))
			i := int(math.Floor(float64(d)/float64(place))) + places/2
			for _, i := range [...]int{i - 1, i, i + 1} { // a cluster may be at the border of two places
				if i >= 0 && i < places && seenBy[i] != int32(p.probe) {
					seenBy[i] = int32(p.probe)
					count[i]++
				}
			}
		}
		for _, j := range order {
			// Of nearly equal places that nearest to zero is taken.
			if n := count[j+places/2]; n > most+most/10 {
				most, drift, offset = n, slope, int64(j)*place+place/2
			}
		}
	}
	chance := expected(pairs, width, 3*float64(place))
	out.drift, out.offset = drift, float64(offset)
	out = out.narrow(pairs, half, width, path, float64(most)-chance)
	return out, float64(most) >= leastBy+2*chance+4*math.Sqrt(chance)
}

// alignment returns what a line says of the clocks, and when the round trips on it came back.
func (l *line) alignment(pairs []pair, path int64) (a alignment, times []int64) {
	for i := range pairs {
		if math.Abs(l.of(&pairs[i])-l.offset) <= l.tolerance {
			times = append(times, pairs[i].at)
		}
	}
	if len(times) == 0 {
		return alignment{}, nil
	}
	slices.Sort(times)
	times = slices.Compact(times)
	// The reply came back after the gap's end, by less than the usual path: the responder's clock is ahead by that less
	// the difference.
	a = alignment{at: l.at, offset: float64(path)/2 - l.offset, drift: -l.drift, by: l.by, from: times[0],
		to: times[len(times)-1]}
	a.bound = path/2 + int64(2*l.tolerance) + 1000 // Row.At is in µs
	a.slack = min(2*mostDrift, 2*l.tolerance/float64(max(a.to-a.from, 1)))
	return a, times
}

// between is how many round trips are on the line that came back in a part of the time.
func (l *line) between(pairs []pair, from, to int64) int {
	on := map[int]bool{}
	for i := range pairs {
		if p := &pairs[i]; p.at >= from && p.at < to && math.Abs(l.of(p)-l.offset) <= l.tolerance {
			on[p.probe] = true
		}
	}
	return len(on)
}

// rivals are the other differences at which more than three quarters as many round trips are as on the line, beyond
// chance, with most first. apart is the least distance between two of all, and better has the most.
func (l *line) rivals(pairs []pair, width int64) (all []line, apart float64, better line) {
	type other struct {
		n      int
		offset float64
	}
	var others []other
	chance := expected(pairs, width, 2*l.tolerance)
	windows(l, pairs, l.tolerance, func(n int, offset float64) {
		if 4*(float64(n)-chance) > 3*(float64(l.by)-chance) {
			others = append(others, other{n, offset})
		}
	})
	slices.SortStableFunc(others, func(a, b other) int { return cmp.Compare(b.n, a.n) })
	same := max(4*l.tolerance, 4*float64(place)) // replies after a gap may vary that much
	for _, o := range others {
		nearest := math.Abs(o.offset - l.offset)
		for _, t := range all {
			nearest = min(nearest, math.Abs(o.offset-t.offset))
		}
		if nearest <= same {
			continue
		}
		if apart == 0 || nearest < apart {
			apart = nearest
		}
		all = append(all, line{at: l.at, drift: l.drift, offset: o.offset, tolerance: l.tolerance, by: o.n})
	}
	if len(all) > 0 {
		better = all[0]
	}
	return all, apart, better
}

// expected is how many pairs a window of that size has by chance.
func expected(pairs []pair, width int64, size float64) float64 {
	return float64(len(pairs)) * size / float64(2*width)
}

// narrow halves the tolerance until it is as wide as the replies' times after a gap vary, or has no longer most of what
// was found beyond chance. At each width the best line is near the last one.
func (l line) narrow(pairs []pair, half float64, width, path int64, most float64) line {
	var near []pair
	for tolerance := float64(place); ; tolerance /= 2 {
		near = near[:0]
		for _, p := range pairs {
			if math.Abs(l.of(&p)-l.offset) <= 4*tolerance {
				near = append(near, p)
			}
		}
		best := line{at: l.at, tolerance: tolerance}
		for _, k := range fromZero(6) {
			try := line{at: l.at, drift: l.drift}
			if half > 0 {
				try.drift += float64(k) / 2 * tolerance / half
			}
			windows(&try, near, tolerance, func(n int, offset float64) {
				if n > best.by+best.by/20 { // of nearly equal lines the nearest to the last one
					best.by, best.offset, best.drift = n, offset, try.drift
				}
			})
		}
		if beyond := float64(best.by) - expected(pairs, width, 2*tolerance); l.by > 0 && beyond < 3*most/4 {
			return l
		}
		if l = best; tolerance < float64(max(path/2, 1000)) {
			return l
		}
	}
}

// windows calls each with the number of round trips in windows of twice the tolerance, and their middle.
func windows(l *line, pairs []pair, tolerance float64, each func(n int, offset float64)) {
	type at struct {
		probe int
		rest  float64
	}
	all, most := make([]at, len(pairs)), 0
	for i := range pairs {
		all[i], most = at{pairs[i].probe, l.of(&pairs[i])}, max(most, pairs[i].probe)
	}
	slices.SortFunc(all, func(a, b at) int { return cmp.Compare(a.rest, b.rest) })
	in, n := make([]int32, most+1), 0 // how often each is in the window
	for from, to := 0, 0; to < len(all); to++ {
		if in[all[to].probe]++; in[all[to].probe] == 1 {
			n++
		}
		for ; all[to].rest-all[from].rest > 2*tolerance; from++ {
			if in[all[from].probe]--; in[all[from].probe] == 0 {
				n--
			}
		}
		each(n, (all[from].rest+all[to].rest)/2)
	}
}

// fromZero returns 0, 1, -1, 2, -2 up to n.
func fromZero(n int) []int {
	out := make([]int, 1, 2*n+1)
	for i := 1; i <= n; i++ {
		out = append(out, i, -i)
	}
	return out
}
