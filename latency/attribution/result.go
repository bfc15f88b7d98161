package attribution

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/rebound-nic/rebound/latency"
)

// Cause is something observed on one of the hosts, such as another thread that had the polling core. Start and End are
// ns: of this host's cycle counter for Here, since 1970 by the responder's clock for Responder.
type Cause struct {
	Start, End int64
	Side       Side
	Text       string
	Name       string // of one of several of its kind, such as a thread; may be empty
	Weak       bool   // by a counter: it happened somewhere between Start and End
}

// Result is the attribution of the slowest round trips of a measurement.
type Result struct {
	Probes int   `json:"probes"`  // how many are attributed
	From   int64 `json:"from_ns"` // the fastest of them
	Usual  Usual `json:"usual"`   // with which they are compared
	// Shares of what they took beyond the usual, by side, 0 to 1. They add up to 1.
	Shares []Share `json:"shares"`
	// Bands are means over round trips around some percentiles.
	Bands []Band `json:"bands"`
	Rows  []Row  `json:"rows"` // from the slowest
	// Points describe the clock of each time of a row.
	Points []Point `json:"points"`
	Causes []Count `json:"causes,omitempty"`
	// How says how the causes on this host are known, or why they are not, and MissedCauses how many were not kept.
	How          string `json:"causes_known_by,omitempty"`
	MissedCauses int64  `json:"missed_causes,omitempty"`
	// CausesBy is what How describes: "tracepoints", "counters" or "nothing". Older reports do not have it; see Source.
	CausesBy Source `json:"causes_by,omitempty"`
	// Cost says what watching the core costs the round trips, or how to measure it; empty if nothing was watched.
	Cost string `json:"cost_of_watching,omitempty"`
	// Timeline is when which causes had the polling cores, also while no probe was slow.
	Timeline []Track `json:"timeline,omitempty"`
	// Direction is why the network's part has no direction, or empty.
	Direction string `json:"direction_unknown,omitempty"`
	// Related says how well the round trips themselves relate the clocks of the hosts, if that is better than what is
	// stated of them.
	Related string `json:"clocks_related,omitempty"`
	// FarLoop is why the responder's loop is not known, or empty.
	FarLoop string `json:"responder_unknown,omitempty"`
	// Aligned says how the clocks of the hosts are related if the responder's own report was added, and FarCauses how
	// the causes on its host are known.
	Aligned   string `json:"clocks_aligned,omitempty"`
	FarCauses string `json:"responder_causes_known_by,omitempty"`
}

// Source is where causes on a host are known from.
type Source string

// Sources.
const (
	Tracepoints Source = "tracepoints" // the kernel's: names and times
	Counters    Source = "counters"    // of /proc: a weak hint
	NotWatched  Source = "nothing"
)

// Source returns CausesBy, or for a report that was written before it existed what the text says.
func (r *Result) Source() Source {
	switch {
	case r.CausesBy != "":
		return r.CausesBy
	case strings.HasPrefix(r.How, "the kernel's tracepoints"):
		return Tracepoints
	case strings.HasPrefix(r.How, "counters only"):
		return Counters
	}
	return NotWatched
}

// Share is the part of one side.
type Share struct {
	Side   string  `json:"side"`
	Share  float64 `json:"share"`
	Probes int     `json:"probes"` // of which it caused more than half
}

// Band is the mean of round trips around a percentile.
type Band struct {
	Name   string `json:"name"`   // such as "p99.9"
	Probes int    `json:"probes"` // how many
	Parts  Parts  `json:"parts"`  // mean, in ns
}

// Count is a cause, and how many of the probes of its side it overlaps.
type Count struct {
	Side   string `json:"side"`
	Text   string `json:"text"`
	Name   string `json:"name,omitempty"` // of one of several of its kind, such as a thread
	Weak   bool   `json:"weak,omitempty"` // by a counter: it happened near the probe, not certainly while it waited
	Probes int    `json:"probes"`
}

// points are the times of a row.
var points = [...]string{"intended", "sent", "left the NIC", "reached the responder's NIC",
	"seen by the responder's thread", "answered",
	"left the responder's NIC", "reached the NIC", "seen"}

// Point is one of the times of a row, and which clock it is from.
type Point struct {
	Name  string `json:"name"`
	Clock string `json:"clock"` // empty if the time is unknown
}

// Times has a time in ns, or NotKnown, for each of Result.Points.
type Times []int64

// NotKnown is in place of a time that no clock gives.
const NotKnown = -1

// Row is one of the slowest round trips.
type Row struct {
	At  int64 `json:"at_us,omitempty"` // when it should have been sent, in µs since 1970
	RTT int64 `json:"rtt_ns"`
	// Times are ns since the first, and Errors by how much each may be wrong. Result.Points names them.
	Times  Times  `json:"times"`
	Errors Times  `json:"errors"`
	Parts  Parts  `json:"parts"`
	Side   string `json:"side"`             // that caused more than half of it
	Ahead  int    `json:"ahead,omitempty"`  // test packets ahead of it in the responder's queue
	Causes []int  `json:"causes,omitempty"` // that it overlaps, as indices into Result.Causes
	// The most that this host can have held it up while sending, that the reply can have been held up between its
	// timestamp and the loop, and that it can have waited for the loop, in ns. The parts have what it did, as far as
	// that is known.
	Send int64 `json:"send_most_ns,omitempty"`
	NIC  int64 `json:"nic_most_ns,omitempty"`
	Wait int64 `json:"wait_most_ns,omitempty"`
}

// About is what is known of all probes.
type About struct {
	Direction, FarLoop string // see Result
	Total              int64  // all measured round trips
	Epoch              int64  // what this host's cycle counter says, plus this, is ns since 1970; 0 if unknown
	Stamps             string // what stamps sent and received frames here: "kernel" or "card"; empty for nothing
	How                string // see Result
	CausesBy           Source
	Cost               string
	MissedCauses       int64
}

// Explain attributes the slowest probes. The sample is a random one of all.
func Explain(slowest, sample []Probe, about About, causes []Cause) *Result {
	if len(slowest) == 0 || len(sample) == 0 {
		return nil
	}
	slowest, sample = slices.Clone(slowest), slices.Clone(sample)
	var all []*Probe
	for _, some := range [][]Probe{slowest, sample} {
		for i := range some {
			all = append(all, &some[i])
		}
	}
	far, related := "between sent and seen", ""
	if about.Direction == "" {
		far = "synchronised"
	}
	if bound := relate(all); bound > 0 {
		far, about.Direction = "related by the round trips", ""
		related = "by the round trips themselves, within " + latency.FormatNS(float64(bound))
	}
	u := Typical(sample)
	for _, p := range all {
		p.leaveOut()
	}
	r := &Result{Usual: u, Related: related, Direction: about.Direction, FarLoop: about.FarLoop, How: about.How,
		CausesBy: about.CausesBy, Cost: about.Cost, MissedCauses: about.MissedCauses}
	slowest = sorted(slowest)
	counts := map[Cause]int{}
	var known [len(points)]bool
	var met []map[Cause]bool // by row
	for i := range slowest {
		p := &slowest[i]
		if p.RTT() <= u.RTT {
			continue // the run was so short that these are not slow
		}
		parts := Divide(p, &u)
		b := parts.Beyond(&u)
		row := Row{RTT: p.RTT(), Parts: parts, Ahead: p.Ahead}
		row.Send, row.NIC, row.Wait = p.own(&u)
		if about.Epoch != 0 {
			row.At = (about.Epoch + p.Intended) / 1000
		}
		row.Times, row.Errors = p.times()
		for k, t := range row.Times {
			known[k] = known[k] || t >= 0
		}
		r.Rows = append(r.Rows, row)
		met = append(met, overlapped(p, &parts, &b, causes))
		for c := range met[len(met)-1] {
			counts[c]++
		}
	}
	if r.Probes = len(r.Rows); r.Probes == 0 {
		return nil
	}
	r.From = r.Rows[r.Probes-1].RTT
	r.sum()
	for c, n := range counts {
		for i := range r.Rows {
			if met[i][c] {
				r.Rows[i].Causes = append(r.Rows[i].Causes, len(r.Causes))
			}
		}
		r.Causes = append(r.Causes, Count{c.Side.String(), c.Text, c.Name, c.Weak, n})
	}
	r.sortCauses()
	for k, name := range points {
		clock := ""
		if known[k] {
			clock = clockOf(k, about.Stamps, far)
		}
		r.Points = append(r.Points, Point{name, clock})
	}
	r.Bands = bands(slowest, sample, about.Total, &u)
	return r
}

// sum finds the side of each row, and the shares.
func (r *Result) sum() {
	var beyond Parts
	verdicts := [sides]int{}
	for i := range r.Rows {
		row := &r.Rows[i]
		b := row.Parts.Beyond(&r.Usual)
		beyond.add(&b)
		side := row.Parts.Verdict(&r.Usual)
		verdicts[side]++
		row.Side = side.String()
	}
	r.Shares = nil
	all := beyond.Sum()
	for _, s := range Sides {
		if n := beyond.Of(s); n > 0 || verdicts[s] > 0 {
			r.Shares = append(r.Shares, Share{s.String(), float64(n) / float64(max(all, 1)), verdicts[s]})
		}
	}
}

// sortCauses puts the most frequent causes first, and leaves out those that no row has.
func (r *Result) sortCauses() {
	type numbered struct {
		Count
		was int
	}
	var order []numbered
	for i, c := range r.Causes {
		if c.Probes > 0 {
			order = append(order, numbered{c, i})
		}
	}
	slices.SortFunc(order, func(a, b numbered) int {
		return cmp.Or(b.Probes-a.Probes, strings.Compare(a.Side+a.Text+a.Name, b.Side+b.Text+b.Name))
	})
	is := map[int]int{}
	r.Causes = r.Causes[:0]
	for i, c := range order {
		is[c.was] = i
		r.Causes = append(r.Causes, c.Count)
	}
	for i := range r.Rows {
		var causes []int
		for _, was := range r.Rows[i].Causes {
			if now, ok := is[was]; ok {
				causes = append(causes, now)
			}
		}
		slices.Sort(causes)
		r.Rows[i].Causes = causes
	}
}

func clockOf(point int, stamps, far string) string {
	switch point {
	case 2, 7:
		return "this host's " + stamps
	case 4, 5:
		return "the responder's, " + far
	}
	return "this host's cycle counter"
}

// times are the times of a row, relative to p.Intended.
func (p *Probe) times() (at, off Times) {
	at, off = make(Times, len(points)), make(Times, len(points))
	for i := range at {
		at[i], off[i] = NotKnown, NotKnown
	}
	set := func(i int, t, e int64) { at[i], off[i] = t-p.Intended, e }
	set(0, p.Intended, 0)
	set(1, p.Sent, 0)
	if p.LeftNIC > 0 {
		set(2, p.Sent+p.LeftNIC, p.LeftNICError)
	}
	if p.Reached > 0 {
		set(7, p.Sent+p.Reached, p.ReachedError)
	}
	if p.Residence >= 0 {
		// The far times are between the near ones, whatever the clocks.
		seen, e := p.Sent+p.rest()/2, (p.rest()+1)/2
		if p.ClockError >= 0 && p.ClockError < e {
			seen, e = min(max(p.Sent+p.There, p.Sent), p.Seen-p.Residence), p.ClockError
		}
		set(4, seen, e)
		set(5, seen+p.Residence, e)
	}
	set(8, p.Seen, 0)
	return at, off
}

// overlapped returns the causes that overlap a probe's waits for at least a tenth of what it took beyond the usual,
// without their times. A weak one need only overlap a wait of that length.
func overlapped(p *Probe, parts, beyond *Parts, causes []Cause) map[Cause]bool {
	met := map[Cause]bool{}
	all := beyond.Sum()
	for _, c := range causes {
		if 10*beyond.Of(c.Side) < all {
			continue
		}
		overlap := func(from, to int64) int64 { return max(min(c.End, to)-max(c.Start, from), 0) }
		during := int64(0)
		switch {
		case c.Side == Here:
			if parts.HereSend > 0 {
				during = overlap(p.Intended, p.Left)
			}
			during += overlap(p.Seen-parts.HereSeen-parts.HereNIC, p.Seen)
		case c.Side == Responder && p.FarSeen != 0:
			during = overlap(p.FarSeen-parts.FarWait, p.FarSeen+max(p.Residence, 0))
		}
		if 10*during >= all && during > 0 {
			met[Cause{Side: c.Side, Text: c.Text, Name: c.Name, Weak: c.Weak}] = true
		}
	}
	return met
}

// percentiles are those of Bands, with the share of round trips above each.
var percentiles = []struct {
	name  string
	above float64
}{{"p50", 0.5}, {"p90", 0.1}, {"p99", 0.01}, {"p99.9", 0.001}}

// amongSlowest returns the place of a percentile among the slowest, from the slowest; 0 if they do not go so far.
func amongSlowest(above float64, total int64, slowest int) int {
	if i := above * float64(total); i >= 10 && 1.2*i+2 <= float64(slowest) {
		return int(i)
	}
	return 0
}

// around is the range of places for the mean around a percentile.
func around(at, of int) (lo, hi int) {
	width := max(at/10, 2)
	return max(at-width, 0), min(at+width, of)
}

// rebuildBands computes the means again that are of rows.
func (r *Result) rebuildBands(total int64) {
	for _, b := range percentiles {
		k := slices.IndexFunc(r.Bands, func(x Band) bool { return x.Name == b.name })
		at := amongSlowest(b.above, total, len(r.Rows))
		if k < 0 || at == 0 {
			continue
		}
		lo, hi := around(at, len(r.Rows))
		band := Band{Name: b.name, Probes: hi - lo}
		for i := range r.Rows[lo:hi] {
			band.Parts.add(&r.Rows[lo+i].Parts)
		}
		for _, f := range band.Parts.fields() {
			*f /= int64(band.Probes)
		}
		r.Bands[k] = band
	}
}

// bands are the means of round trips around each percentile: of all, if the slowest go so far, otherwise of the sample.
func bands(slowest, sample []Probe, total int64, u *Usual) (out []Band) {
	all := sorted(sample)
	for _, b := range percentiles {
		from, at := all, int(b.above*float64(len(sample)))
		if i := amongSlowest(b.above, total, len(slowest)); i > 0 {
			from, at = slowest, i
		} else if at < 20 {
			break // too few in the sample
		}
		lo, hi := around(at, len(from))
		band := Band{Name: b.name, Probes: hi - lo}
		for i := range from[lo:hi] {
			p := Divide(&from[lo+i], u)
			band.Parts.add(&p)
		}
		for _, f := range band.Parts.fields() {
			*f /= int64(band.Probes)
		}
		out = append(out, band)
	}
	return out
}

// Lines are what is printed of it: the shares, and below them the causes.
func (r *Result) Lines() []string {
	if r == nil || r.Probes == 0 {
		return nil
	}
	var shares []string
	for _, s := range r.Shares {
		shares = append(shares, s.Side+" "+latency.FormatShare(s.Share))
	}
	out := []string{fmt.Sprintf("The %s slowest (%s and more): %s.", latency.FormatCount(r.Probes),
		latency.FormatNS(float64(r.From)), strings.Join(shares, ", "))}
	for _, side := range Sides {
		i := slices.IndexFunc(r.Shares, func(s Share) bool { return s.Side == side.String() })
		if i < 0 {
			continue
		}
		text := r.causes(side)
		switch {
		case text != "":
		case side == Network && r.Direction != "":
			text = "direction unknown: " + r.Direction
		case side == Elsewhere && r.Aligned != "":
			text = "responder's host or network: too short for the alignment of the clocks or for the gaps that the responder recorded, or outside their time"
		case side == Elsewhere:
			text = "responder's host or network: " + cmp.Or(r.FarLoop, "replies with impossible times")
		case side == Unknown:
			text = "both hosts' loops were interrupted"
		default:
			text = r.how(side)
		}
		if text != "" {
			out = append(out, fmt.Sprintf("  %-17s %s", side, text))
		}
	}
	return out
}

// printedCauses is how many causes of a side are printed.
const printedCauses = 6

// causes lists the most frequent causes of a side: those of one kind, such as threads that had the core, together.
func (r *Result) causes(side Side) string {
	var kinds, texts []string
	n, more := 0, 0
	for _, c := range r.Causes {
		if c.Side != side.String() {
			continue
		}
		if n == printedCauses {
			more++
			continue
		}
		n++
		kind := c.Text
		if c.Weak {
			kind += " (weak hint, by counters)"
		}
		text := latency.FormatCount(c.Probes)
		if c.Name != "" {
			text = c.Name + " " + text
		}
		if i := slices.Index(kinds, kind); i >= 0 {
			texts[i] += ", " + text
			continue
		}
		kinds, texts = append(kinds, kind), append(texts, text)
	}
	for i := range kinds {
		kinds[i] += ": " + texts[i]
	}
	if more > 0 {
		kinds = append(kinds, fmt.Sprintf("%d more", more))
	}
	return strings.Join(kinds, "; ")
}

// how says in which way a side caused it, if no cause is known.
func (r *Result) how(side Side) string {
	var sum Parts
	for i := range r.Rows {
		p := r.Rows[i].Parts.Beyond(&r.Usual)
		sum.add(&p)
	}
	type part struct {
		took int64
		what string
	}
	parts := []part{{sum.HereSend, "sent late or held up while sending"},
		{sum.HereNIC, "reply held up between the NIC and the polling thread"},
		{sum.HereSeen, "reply waited for the polling thread"}}
	switch side {
	case Responder:
		parts = []part{{sum.FarWait, "waited for the polling thread"}, {sum.FarAnswer, "answering took long"}}
	case Network:
		parts = []part{{sum.There, "on the way there"}, {sum.Back, "on the way back"}}
	}
	all := int64(0)
	for _, p := range parts {
		all += p.took
	}
	var texts []string
	for _, p := range parts {
		switch p.took {
		case 0:
		case all:
			return p.what
		default:
			texts = append(texts, p.what+" "+latency.FormatShare(float64(p.took)/float64(all)))
		}
	}
	return strings.Join(texts, ", ")
}
