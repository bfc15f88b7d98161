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

// Interval is a polling gap of a responder's loop, or something else that had its core. Start and End are ns since 1970
// by the responder's clock.
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
	// Doubt is why this may be another responder's. It is refused then, unless the round trips themselves align its
	// clock.
	Doubt string
	// Same is whether it answers for the address that the probes went to. What it has no gap for is the network's then,
	// even if nothing relates the clocks.
	Same bool
}

// Errors of AddResponder.
var (
	ErrNoOverlap = errors.New("the reports do not overlap in time")
	ErrNoRows    = errors.New("no round trips are attributed")
	ErrNoGaps    = errors.New("the responder recorded no gaps")
	ErrDoubtful  = errors.New("the report is of another responder or another time, and the round trips do not align its clock")
)

// slow is a row as it is compared with the responder's gaps: ns since 1970 by this host's clock.
type slow struct {
	sent, seen int64 // by timestamps of the card or the kernel, if there are any
	away       int64 // what this host's loop does not account for
}

// AddResponder divides the part "elsewhere" of the rows by the polling gaps that the responder recorded, and names its
// causes. The clocks are aligned by the round trips themselves: those that waited for a gap came back right after its
// end. If clockError is not negative, the clocks differ by at most that, in ns. If several differences of the clocks
// fit, what the rows are by each of them is attributed.
func (r *Result) AddResponder(l *Loop, total, clockError int64) error {
	if r == nil || len(r.Rows) == 0 || r.Rows[0].At == 0 {
		return ErrNoRows
	}
	var all []slow
	for i := range r.Rows {
		all = append(all, r.slow(&r.Rows[i]))
	}
	first, last := spanOf(all)
	slack := clockError
	if clockError < 0 {
		slack = mostOffset
	}
	if last < l.Start-slack || first > l.End+slack {
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
	for _, c := range sortedKeys(gaps) {
		slices.SortFunc(gaps[c], func(a, b Interval) int { return cmp.Compare(a.End, b.End) })
	}
	r.Timeline = slices.DeleteFunc(r.Timeline, func(t Track) bool { return t.Side == Responder.String() })
	within := clockError
	if l.Doubt != "" { // at any difference, because by the stated one nearly any report has some gaps
		within = -1
	}
	fits, err := alignCores(all, gaps, r.path(), within)
	if err == nil && clockError >= 0 {
		fits = slices.DeleteFunc(fits, func(f fit) bool {
			return abs(f.far(first)-first) > clockError+f.bound
		})
		if len(fits) == 0 {
			err = errNotShown
		}
	}
	if err == nil && l.Doubt != "" && len(fits) > 1 {
		err = fmt.Errorf("%w: %d differences fit equally well", errAmbiguous, len(fits))
	}
	switch {
	case err == nil:
		r.Aligned = fmt.Sprintf("aligned by %s of the slowest, within %s", latency.FormatCount(fits[0].by),
			latency.FormatNS(float64(fits[0].bound)))
		if len(fits) > 1 {
			r.Aligned += fmt.Sprintf("; %d differences fit equally well, and only what is the same by all of them is attributed",
				len(fits))
		}
	case clockError >= 0 && !errors.Is(err, errChanged) && l.Doubt != "":
		return fmt.Errorf("%w: %s", ErrDoubtful, l.Doubt)
	case clockError >= 0 && !errors.Is(err, errChanged):
		core := sortedKeys(gaps)[0]
		fits = []fit{{alignment{bound: clockError}, core}}
		r.Aligned = fmt.Sprintf("stated to differ by at most %s", latency.FormatNS(float64(clockError)))
		for _, c := range sortedKeys(gaps)[1:] { // any of them may have had the probes
			gaps[core] = append(gaps[core], gaps[c]...)
		}
		slices.SortFunc(gaps[core], func(a, b Interval) int { return cmp.Compare(a.End, b.End) })
	case errors.Is(err, errNotShown) && l.Same && r.FarLoop != "":
		if !r.ruleOut(all, gaps, l) {
			return err
		}
		r.sum()
		r.rebuildBands(total)
		return nil
	default:
		return err
	}
	if !slices.ContainsFunc(fits, func(f fit) bool {
		return slices.ContainsFunc(all, func(s slow) bool { return l.covers(&f.alignment, &s) })
	}) {
		return ErrNoOverlap
	}
	var each []*Result
	for i := range fits {
		c := r.clone()
		c.addFit(all, &fits[i], gaps[fits[i].core], l)
		each = append(each, c)
	}
	if len(each) > 1 {
		r.agree(each)
	} else {
		r.Rows, r.Causes, r.Points = each[0].Rows, each[0].Causes, each[0].Points
		var far []Interval
		for _, c := range l.Intervals {
			if c.Core == fits[0].core {
				c.Start, c.End = fits[0].near(c.Start), fits[0].near(c.End)
				far = append(far, c)
			}
		}
		r.Timeline = append(r.Timeline, Timeline(Responder, far, first, last)...)
	}
	r.FarCauses = l.How
	r.sum()
	r.rebuildBands(total)
	return nil
}

// ruleOut attributes what no gap of the responder can have caused, if nothing relates the clocks. It returns false if
// that is not most of what this host did not cause.
func (r *Result) ruleOut(all []slow, gaps map[int][]Interval, l *Loop) bool {
	possible, of := l.possible(all, gaps)
	divided := 0
	for _, p := range possible {
		if !p {
			divided++
		}
	}
	if 2*divided <= of {
		return false
	}
	none := &Loop{From: l.From, Start: math.MinInt64, End: math.MaxInt64}
	r.addGaps(all, &alignment{}, nil, none)
	r.addCauses(all, &alignment{}, 0, nil, none) // and what an earlier call named
	for i := range r.Rows {
		if p := &r.Rows[i].Parts; possible[i] {
			p.Network, p.Elsewhere = 0, p.Elsewhere+p.Network
		}
	}
	r.Aligned = fmt.Sprintf("not aligned, but at no difference of up to %s did gaps of the responder cause more than %s of the %s slowest that it divides",
		latency.FormatNS(float64(mostOffset)), latency.FormatCount(of/inError), latency.FormatCount(divided))
	r.FarCauses = l.How
	return true
}

// clone copies what addFit changes.
func (r *Result) clone() *Result {
	c := *r
	c.Rows, c.Causes, c.Points = slices.Clone(r.Rows), slices.Clone(r.Causes), slices.Clone(r.Points)
	for i := range c.Rows {
		row := &c.Rows[i]
		row.Times, row.Errors, row.Causes = slices.Clone(row.Times), slices.Clone(row.Errors), slices.Clone(row.Causes)
	}
	return &c
}

// addFit adds what the responder recorded by one relation of the clocks.
func (r *Result) addFit(all []slow, f *fit, gaps []Interval, l *Loop) {
	if r.FarLoop != "" { // otherwise the responder reported its part itself
		r.addGaps(all, &f.alignment, gaps, l)
	}
	r.addCauses(all, &f.alignment, f.core, gaps, l)
}

// agree keeps what is the same by each of several relations of the clocks, one of which is the true one. What they
// disagree on stays elsewhere, or is unknown if this host may have caused it.
func (r *Result) agree(each []*Result) {
	counts := map[Count]int{} // by cause, whose Probes is 0; places in r.Causes
	r.Causes = nil
	for i := range r.Rows {
		first := each[0].Rows[i]
		least, sum, most := first.Parts, first.Parts.Sum(), int64(0)
		for _, c := range each {
			p := &c.Rows[i].Parts
			most = max(most, p.Of(Here)+p.Unknown)
			for k, f := range least.fields() {
				*f = min(*f, *p.fields()[k])
			}
		}
		apart := sum - least.Sum()
		unknown := min(apart, max(most-least.Of(Here)-least.Unknown, 0))
		least.Unknown += unknown
		least.Elsewhere += apart - unknown
		var causes []int
		for _, k := range first.Causes {
			cause := each[0].Causes[k]
			cause.Probes = 0
			if slices.ContainsFunc(each[1:], func(c *Result) bool { return !c.has(i, cause) }) {
				continue
			}
			at, ok := counts[cause]
			if !ok {
				at = len(r.Causes)
				counts[cause], r.Causes = at, append(r.Causes, cause)
			}
			r.Causes[at].Probes++
			causes = append(causes, at)
		}
		first.Parts, first.Causes = least, causes
		if first.Times[5] == NotKnown {
			first.Times[4], first.Errors[4] = NotKnown, NotKnown
		}
		r.Rows[i] = first
	}
	r.sortCauses()
}

// has reports whether a row has a cause, whose count is 0.
func (r *Result) has(row int, cause Count) bool {
	return slices.ContainsFunc(r.Rows[row].Causes, func(k int) bool {
		c := r.Causes[k]
		c.Probes = 0
		return c == cause
	})
}

// covers reports whether the responder was recording while a round trip was under way.
func (l *Loop) covers(a *alignment, s *slow) bool {
	return a.far(s.sent) >= l.Start && a.far(s.seen) <= l.End
}

func sortedKeys(m map[int][]Interval) (all []int) {
	for k := range m {
		all = append(all, k)
	}
	slices.Sort(all)
	return all
}

// slow uses the timestamps of this host's card or kernel if there are any.
func (r *Result) slow(row *Row) slow {
	at := row.At * 1000
	s := slow{sent: at + max(row.Times[1], row.Times[2], 0), seen: at + row.RTT - r.Usual.NIC}
	if row.Times[7] >= 0 {
		s.seen = at + row.Times[7]
	}
	s.seen = max(s.seen, s.sent)
	s.away = row.rest() - min(row.here(), row.rest())
	return s
}

// path is what a usual round trip takes between the times of slow.
func (r *Result) path() int64 {
	path := r.Usual.Path - r.Usual.NIC
	if slices.ContainsFunc(r.Rows, func(row Row) bool { return row.Times[2] >= 0 }) {
		path -= r.Usual.Send
	}
	return max(path, 1)
}

// rest is what the row took beyond the usual after it was sent.
func (r *Row) rest() int64 {
	p := &r.Parts
	return p.HereSend - r.late() + p.There + p.FarWait + p.Back + p.Network + p.Elsewhere + p.HereNIC + p.HereSeen +
		p.Unknown
}

func (r *Row) late() int64 { return min(max(r.Times[1], 0), r.Parts.HereSend) }

// here is the most that this host can have caused of it. Older reports have only what was assigned to it.
func (r *Row) here() int64 { return r.send() + max(r.NIC+r.Wait, r.Parts.HereNIC+r.Parts.HereSeen) }

func (r *Row) send() int64 { return max(r.Send, r.Parts.HereSend-r.late()) }

// waited returns the gap that a round trip can have waited for longest, and for how long. After it the loop is busy
// with the frames that came meanwhile, for the gap's length at most: the time between two of these gaps is shorter than
// half of the second.
func (a *alignment) waited(s *slow, gaps []Interval, longest int64) (in *Interval, most int64) {
	from, to := a.around(s)
	k, at := sort.Search(len(gaps), func(k int) bool { return gaps[k].End > from }), 0
	for ; k < len(gaps) && gaps[k].End-longest < to; k++ {
		g := &gaps[k]
		if d := min(g.End, to) - max(g.Start, from); d > most {
			in, at, most = g, k, d
		}
	}
	if in == nil {
		return nil, 0
	}
	busy := in.End
	for _, g := range gaps[at+1:] {
		if 2*(g.Start-busy) > g.End-g.Start || g.End-in.End > in.End-in.Start {
			break
		}
		busy = g.End
	}
	return in, min(busy, to) - max(in.Start, from)
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
		if !l.covers(a, &all[i]) {
			continue
		}
		rest, send := row.rest(), row.send()
		bound := a.within(all[i].seen)
		if bound > rest/4 {
			continue // as for the network's directions, the clocks' relation is not known well enough
		}
		here := min(row.here(), rest)
		in, far := a.waited(&all[i], gaps, longest)
		p := &row.Parts
		late := row.late()
		row.Send, row.Wait = send, max(row.Wait, p.HereSeen) // AddResponder may be called again
		row.NIC = max(row.NIC, p.HereNIC)
		d := split(rest, here, min(far, rest))
		ofSend := min(send, d.a)
		p.HereSend = late + ofSend
		p.ofSeen(d.a-ofSend, row.Wait)
		p.FarWait, p.Unknown, p.There, p.Back = d.b, d.either, 0, 0
		p.Network, p.Elsewhere = d.neither, 0
		if d.neither <= l.From || l.Missed > 0 {
			p.Network, p.Elsewhere = 0, d.neither
		} else if d.neither > rest/8 { // so the link delayed it for certain, and it may have come after the gap
			p.FarWait, p.Elsewhere = 0, p.FarWait
		}
		if row.Times[5] != NotKnown {
			continue
		}
		row.Times[4], row.Errors[4] = NotKnown, NotKnown
		if in != nil && 2*p.FarWait > rest { // its loop ran again at the end of the gap
			row.Times[4], row.Errors[4] = min(max(in.End-a.far(row.At*1000), row.Times[1]), row.RTT), bound
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
		from, to := a.around(&all[i])
		if in, _ := a.waited(&all[i], gaps, longest); in != nil {
			from, to = max(from, in.Start), min(to, in.End)
		}
		met := map[kind]bool{}
		for k := sort.Search(len(causes), func(k int) bool { return causes[k].End > from }); k < len(causes) &&
			causes[k].End-longestCause < to; k++ {
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
				r.Causes = append(r.Causes, Count{Side: Responder.String(), Text: what.text, Name: what.name,
					Weak: what.weak})
			}
			r.Causes[k].Probes++
			r.Rows[i].Causes = append(r.Rows[i].Causes, k)
		}
	}
	r.sortCauses()
}
