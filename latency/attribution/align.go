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

// Interval is a polling gap of a responder's loop, or something else that had its core. Start and End are ns since 1970 by the
// responder's clock.
type Interval struct {
	Start, End int64
	Core       int    // CPU; negative for all
	Text, Name string // of what had the core; empty for a gap
	Weak       bool   // by a counter: it happened somewhere between Start and End
}

// Loop is what a responder recorded of its loops.
type Loop struct {
	From       int64 // shorter gaps are not recorded, ns
	Missed     int64 // longer gaps that are missing
	Start, End int64 // the recorded time
	Intervals  []Interval
	How        string // how causes are known; empty if they were not watched
}

// Errors of AddResponder.
var (
	ErrNoOverlap = errors.New("the reports do not overlap in time")
	ErrNoRows    = errors.New("no round trips are attributed")
	ErrNoGaps    = errors.New("the responder recorded no gaps")
)

// Offsets are searched up to mostOffset, in places of one place of ns, for drifts up to mostDrift.
const (
	mostOffset = int64(1e9)
	place      = int64(100e3)
	mostDrift  = 100e-6
	searched   = 400 // round trips
)

// alignment is the relation of the two hosts' clocks: the responder's is ahead by offset + drift * (t - at), within bound.
type alignment struct {
	at     int64
	offset float64
	drift  float64
	bound  int64
	by     int // round trips that show it
}

func (a *alignment) far(t int64) int64 { return t + int64(a.offset+a.drift*float64(t-a.at)) }

// slow is a row as it is compared with the responder's gaps: ns since 1970 by this host's clock.
type slow struct {
	sent, seen int64
	away       int64 // what this host's loop does not account for
}

// AddResponder divides the part "elsewhere" of the rows by the polling gaps that the responder recorded, and names its causes. The clocks
// are aligned by the round trips themselves: those that waited for a gap came back right after its end. If clockError is not negative, the
// clocks differ by at most that, in ns.
func (r *Result) AddResponder(l *Loop, total, clockError int64) error {
	if r == nil || len(r.Rows) == 0 || r.Rows[0].At == 0 {
		return ErrNoRows
	}
	var all []slow
	for i := range r.Rows {
		all = append(all, r.Rows[i].slow())
	}
	first, last := all[0].sent, all[0].seen
	for _, s := range all {
		first, last = min(first, s.sent), max(last, s.seen)
	}
	if slack := max(clockError, 0); last < l.Start-max(slack, mostOffset) || first > l.End+max(slack, mostOffset) {
		return ErrNoOverlap
	}
	gaps := map[int][]Interval{}
	for _, g := range l.Intervals {
		if g.Text == "" {
			gaps[g.Core] = append(gaps[g.Core], g)
		}
	}
	if len(gaps) == 0 {
		return ErrNoGaps
	}
	var best alignment
	var core int
	for _, c := range sortedKeys(gaps) {
		slices.SortFunc(gaps[c], func(a, b Interval) int { return cmp.Compare(a.End, b.End) })
		if a := align(all, gaps[c], first, last, r.Usual.Path, clockError); a.by > best.by {
			best, core = a, c
		}
	}
	switch {
	case best.by > 0:
		r.Aligned = fmt.Sprintf("aligned by %s of the slowest, within %s", latency.FormatCount(best.by), latency.FormatNS(float64(best.bound)))
	case clockError >= 0:
		best.bound, core = clockError, sortedKeys(gaps)[0]
		r.Aligned = fmt.Sprintf("stated to differ by at most %s", latency.FormatNS(float64(clockError)))
		for _, c := range sortedKeys(gaps)[1:] { // any of them may have had the probes
			gaps[core] = append(gaps[core], gaps[c]...)
		}
		slices.SortFunc(gaps[core], func(a, b Interval) int { return cmp.Compare(a.End, b.End) })
	default:
		return fmt.Errorf("the clocks cannot be aligned: at no difference of up to %s do enough of the slowest round trips end with a gap of the responder, "+
			"so it caused few of them or none (-clock-error says how far the clocks differ at most)", latency.FormatNS(float64(mostOffset)))
	}
	if r.FarLoop != "" { // otherwise the responder reported its part itself
		r.addGaps(all, &best, gaps[core], l)
	}
	r.addCauses(all, &best, core, gaps[core], l)
	r.FarCauses = l.How
	r.sum()
	r.rebuildBands(total)
	return nil
}

func sortedKeys(m map[int][]Interval) (all []int) {
	for k := range m {
		all = append(all, k)
	}
	slices.Sort(all)
	return all
}

func (r *Row) slow() slow {
	at := r.At * 1000
	s := slow{sent: at + max(r.Times[1], 0), seen: at + r.RTT}
	s.away = r.rest() - min(r.here(), r.rest())
	return s
}

// rest is what the row took beyond the usual after it was sent.
func (r *Row) rest() int64 {
	p := &r.Parts
	return p.HereSend - r.late() + p.There + p.FarWait + p.Back + p.Network + p.Elsewhere + p.HereSeen + p.Unknown
}

func (r *Row) late() int64 { return min(max(r.Times[1], 0), r.Parts.HereSend) }

// here is the most that this host can have caused of it. Older reports have only what was assigned to it.
func (r *Row) here() int64 { return r.send() + max(r.Wait, r.Parts.HereSeen) }

func (r *Row) send() int64 { return max(r.Send, r.Parts.HereSend-r.late()) }

// align finds the offset at which most of the round trips ended with a gap that is long enough to have caused them. by is 0 if none stands
// out.
func align(all []slow, gaps []Interval, first, last, path, clockError int64) (out alignment) {
	width := mostOffset
	if clockError >= 0 {
		width = min(width, max(clockError, place))
	}
	// The pairs of a round trip and a gap that it could have waited for: when, and by how much the gap ended earlier.
	type pair struct {
		probe     int
		at, delta int64
	}
	var pairs []pair
	used := all[:min(len(all), searched)]
	for i, s := range used {
		if s.away < 2*(s.seen-s.sent)/5 {
			continue
		}
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
	out.at = first + (last-first)/2
	half := float64(last-first) / 2
	// A drift moves the ends of the measurement by less than a place from one step to the next.
	steps := int(math.Ceil(mostDrift * half / float64(place)))
	places := 2*int(width/place) + 3
	count, seenBy := make([]int32, places), make([]int32, places)
	most, drift, offset := int32(0), 0.0, int64(0)
	for _, k := range fromZero(steps) {
		slope := 0.0
		if half > 0 {
			slope = float64(k) * float64(place) / half
		}
		clear(count)
		for i := range seenBy {
			seenBy[i] = -1
		}
		for _, p := range pairs {
			d := p.delta - int64(slope*float64(p.at-out.at))
			i := int(d/place) + places/2
			for _, i := range [...]int{i - 1, i, i + 1} { // a cluster may be at the border of two places
				if i >= 0 && i < places && seenBy[i] != int32(p.probe) {
					seenBy[i] = int32(p.probe)
					count[i]++
				}
			}
		}
		for _, j := range fromZero(places / 2) {
			// Gaps may be periodic: of nearly equal places that nearest to zero is taken.
			if n := count[j+places/2]; n > most+most/10 {
				most, drift, offset = n, slope, int64(j)*place
			}
		}
	}
	// By chance, a place has its share of all pairs.
	if chance := 3 * float64(len(pairs)) / float64(places); float64(most) < 6+2*chance+4*math.Sqrt(chance) {
		return alignment{}
	}
	out.drift, out.offset = drift, float64(offset)
	// Halve the places until they are as wide as the replies' times after a gap vary. At each width the best line is near the last one.
	var near []pair
	tolerance := float64(place)
	for ; ; tolerance /= 2 {
		near = near[:0]
		for _, p := range pairs {
			if math.Abs(float64(p.delta)-out.offset-out.drift*float64(p.at-out.at)) <= 4*tolerance {
				near = append(near, p)
			}
		}
		best, line := 0, out
		for _, k := range fromZero(6) {
			drift := out.drift
			if half > 0 {
				drift += float64(k) / 2 * tolerance / half
			}
			rest := make([]float64, len(near))
			for i, p := range near {
				rest[i] = float64(p.delta) - drift*float64(p.at-out.at)
			}
			slices.Sort(rest)
			for from, to := 0, 0; to < len(rest); to++ { // the most within the tolerance of their middle
				for rest[to]-rest[from] > 2*tolerance {
					from++
				}
				if n := to - from + 1; n > best+best/20 { // of nearly equal lines the nearest to the last one
					best, line.offset, line.drift = n, (rest[from]+rest[to])/2, drift
				}
			}
		}
		if best < 6 || best < int(most)/2 && tolerance < float64(place)/2 {
			break // narrower ones lose most of them
		}
		out.offset, out.drift, out.by = line.offset, line.drift, min(best, int(most))
		if tolerance < float64(max(path/2, 1000)) {
			break
		}
	}
	if out.by == 0 {
		return alignment{}
	}
	// The reply came back after the gap's end, by less than the usual path: the responder's clock is ahead by that less the difference.
	out.offset, out.drift = float64(path)/2-out.offset, -out.drift
	out.bound = path/2 + int64(2*tolerance) + 1000 // Row.At is in µs
	return out
}

// fromZero returns 0, 1, -1, 2, -2 up to n.
func fromZero(n int) []int {
	out := []int{0}
	for i := 1; i <= n; i++ {
		out = append(out, i, -i)
	}
	return out
}

// waited returns the gap that a round trip can have waited for longest, and for how long.
func (a *alignment) waited(s *slow, gaps []Interval, longest int64) (in *Interval, most int64) {
	from, to := a.far(s.sent)-a.bound, a.far(s.seen)+a.bound
	k := sort.Search(len(gaps), func(k int) bool { return gaps[k].End > from })
	for ; k < len(gaps) && gaps[k].End-longest < to; k++ {
		g := &gaps[k]
		if d := min(g.End, to) - max(g.Start, from); d > most {
			in, most = g, d
		}
	}
	return in, most
}

func longestOf(gaps []Interval) (most int64) {
	for _, g := range gaps {
		most = max(most, g.End-g.Start)
	}
	return most
}

// addGaps divides what is not this host's.
func (r *Result) addGaps(all []slow, a *alignment, gaps []Interval, l *Loop) {
	longest := longestOf(gaps)
	for i := range r.Rows {
		row := &r.Rows[i]
		if a.far(all[i].sent) < l.Start || a.far(all[i].seen) > l.End {
			continue // it was not recording
		}
		rest, send := row.rest(), row.send()
		if a.bound > rest/4 {
			continue // as for the network's directions, the clocks' relation is not known well enough
		}
		here := min(row.here(), rest)
		in, far := a.waited(&all[i], gaps, longest)
		p := &row.Parts
		late := row.late()
		row.Send, row.Wait = send, max(row.Wait, p.HereSeen) // AddResponder may be called again
		d := split(rest, here, min(far, rest))
		ofSend := min(send, d.a)
		p.HereSend, p.HereSeen = late+ofSend, d.a-ofSend
		p.FarWait, p.Unknown, p.There, p.Back = d.b, d.either, 0, 0
		p.Network, p.Elsewhere = d.neither, 0
		if d.neither <= l.From || l.Missed > 0 {
			p.Network, p.Elsewhere = 0, d.neither
		}
		if row.Times[5] != NotKnown {
			continue
		}
		row.Times[4], row.Errors[4] = NotKnown, NotKnown
		if in != nil && 2*p.FarWait > rest { // its loop ran again at the end of the gap
			row.Times[4], row.Errors[4] = min(max(in.End-a.far(row.At*1000), row.Times[1]), row.RTT), a.bound
			r.Points[4].Clock = "the responder's, " + r.Aligned
		}
	}
}

// addCauses counts what had the responder's core while round trips waited for it.
func (r *Result) addCauses(all []slow, a *alignment, core int, gaps []Interval, l *Loop) {
	for i := range r.Causes {
		if r.Causes[i].Side == Responder.String() {
			r.Causes[i].Probes = 0 // sortCauses leaves it out
		}
	}
	longest := longestOf(gaps)
	type kind struct {
		text, name string
		weak       bool
	}
	weak := map[kind]int64{}
	var causes []Interval
	for _, c := range l.Intervals {
		if c.Text != "" && (c.Core == core || c.Core < 0) {
			if causes = append(causes, c); c.Weak {
				weak[kind{c.Text, c.Name, true}] += c.End - c.Start
			}
		}
	}
	slices.SortFunc(causes, func(a, b Interval) int { return cmp.Compare(a.End, b.End) })
	longestCause := longestOf(causes)
	places := map[kind]int{} // in r.Causes
	for i := range r.Rows {
		beyond := r.Rows[i].Parts.Beyond(&r.Usual)
		excess := beyond.Sum()
		if 10*beyond.Of(Responder) < excess {
			continue
		}
		from, to := a.far(all[i].sent)-a.bound, a.far(all[i].seen)+a.bound
		if in, _ := a.waited(&all[i], gaps, longest); in != nil {
			from, to = max(from, in.Start), min(to, in.End)
		}
		met := map[kind]bool{}
		for k := sort.Search(len(causes), func(k int) bool { return causes[k].End > from }); k < len(causes) && causes[k].End-longestCause < to; k++ {
			c := &causes[k]
			what := kind{c.Text, c.Name, c.Weak}
			if c.Weak && weak[what] > (l.End-l.Start)/10 {
				continue // it counts most of the time, and says nothing of a single round trip
			}
			if 10*(min(c.End, to)-max(c.Start, from)) >= excess {
				met[what] = true
			}
		}
		for what := range met {
			k, ok := places[what]
			if !ok {
				k, places[what] = len(r.Causes), len(r.Causes)
				r.Causes = append(r.Causes, Count{Side: Responder.String(), Text: what.text, Name: what.name, Weak: what.weak})
			}
			r.Causes[k].Probes++
			r.Rows[i].Causes = append(r.Rows[i].Causes, k)
		}
	}
	r.sortCauses()
}
