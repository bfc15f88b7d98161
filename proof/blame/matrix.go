package blame

import (
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/rebound-nic/rebound/latency/attribution"
	"github.com/rebound-nic/rebound/latency/sanitize"
)

// matrix counts slow probes by what was planted and by what the report says.
type matrix struct {
	// by protocol and knowledge of the clocks, planted side, and side that the report names
	kinds  map[string]map[attribution.Side]map[string]int
	plants map[string]*tally
	apart  map[string]int                      // probes that overlap no pulse, by the side that the report names
	partly map[string]int                      // probes that pulses overlap for less than half of their round trip
	both   map[string]int                      // probes that pulses of two sides overlap
	other  map[attribution.Side]map[string]int // probes whose loop did not have its core for another cause than a plant
	direct [2]int                              // link: right direction, of all with a direction
	absent map[string]int                      // causes that only a plant has, in episodes without it

	failed  []error        // of episodes that could not be measured
	refused map[string]int // episodes that could not be explained by the responder's report, by the reason

	load string

	dropped, reported int // frames that the relay dropped, and probes that reports call lost

	episodes, probes int
}

// tally counts the probes of one plant.
type tally struct {
	by       map[string]int // by the side that the report names
	causes   [3]int         // on the right side: the right cause, only others, none
	episodes int
}

func newMatrix() *matrix {
	return &matrix{kinds: map[string]map[attribution.Side]map[string]int{}, plants: map[string]*tally{},
		apart: map[string]int{},
		both:  map[string]int{}, partly: map[string]int{}, absent: map[string]int{}, refused: map[string]int{},
		other: map[attribution.Side]map[string]int{}}
}

// add counts an episode's probes: as the bench's report has them, and as they are after it was explained by the
// responder's. The error of the clocks may be stated.
func (m *matrix) add(what []*plant, protocol string, stated bool, a, explained *attribution.Result, planted *records) {
	m.episodes++
	for _, p := range what {
		if m.plants[p.name] == nil {
			m.plants[p.name] = &tally{by: map[string]int{}}
		}
		m.plants[p.name].episodes++
	}
	clocks := ", clocks of unknown error"
	if stated {
		clocks = ", clocks of stated error"
	}
	if strings.HasPrefix(protocol, "stamp") { // the responder says its part in each reply
		m.addSides(protocol+clocks, a, planted)
	} else {
		m.addSides(protocol, a, planted)
		m.addSides(protocol+" explained by the responder's report"+clocks, explained, planted)
	}
	m.addPlants(what, explained, planted)
}

// addSides counts the probes that one side was planted for, by what the report says.
func (m *matrix) addSides(kind string, a *attribution.Result, planted *records) {
	if m.kinds[kind] == nil {
		m.kinds[kind] = map[attribution.Side]map[string]int{}
	}
	for i := range a.Rows {
		sides, names := planted.truth(&a.Rows[i])
		if len(sides) != 1 || names[sides[0]] == "" {
			continue
		}
		of := m.kinds[kind]
		if of[sides[0]] == nil {
			of[sides[0]] = map[string]int{}
		}
		of[sides[0]][a.Rows[i].Side]++
	}
}

// addPlants counts probes by plant, the causes that the report names, and the probes that are in no share.
func (m *matrix) addPlants(what []*plant, a *attribution.Result, planted *records) {
	for i := range a.Rows {
		row := &a.Rows[i]
		m.probes++
		m.invented(what, a, row)
		sides, names := planted.truth(row)
		said := row.Side
		switch len(sides) {
		case 0:
			if len(names) > 0 {
				m.partly[said]++
			} else {
				m.apart[said]++
			}
		case 1:
			side := sides[0]
			name := names[side]
			if name == "" {
				if m.other[side] == nil {
					m.other[side] = map[string]int{}
				}
				m.other[side][said]++
				continue
			}
			t := m.plants[name]
			t.by[said]++
			if said == side.String() {
				t.cause(what, name, a, row)
			}
			if p := &row.Parts; side == attribution.Network && said == side.String() && p.There != p.Back {
				m.direct[1]++
				if strings.Contains(name, "there") == (p.There > p.Back) {
					m.direct[0]++
				}
			}
		default:
			m.both[said]++
		}
	}
}

// cause counts whether a row has the right cause.
func (t *tally) cause(what []*plant, name string, a *attribution.Result, row *attribution.Row) {
	want := what[slices.IndexFunc(what, func(p *plant) bool { return p.name == name })].causes
	if want == nil || !slices.ContainsFunc(a.Causes, func(c attribution.Count) bool { return c.Side == row.Side }) {
		return // there are none, or the report knows none of this host
	}
	got := 2
	for _, k := range row.Causes {
		if c := &a.Causes[k]; c.Side == row.Side {
			got = min(got, 1)
			if causedBy(want, c) {
				got = 0
			}
		}
	}
	t.causes[got]++
}

func causedBy(want *regexp.Regexp, c *attribution.Count) bool {
	return want.MatchString(strings.TrimSpace(c.Text + " " + c.Name))
}

// invented counts the causes of a row that only a plant has which was not there.
func (m *matrix) invented(what []*plant, a *attribution.Result, row *attribution.Row) {
	for i := range plants {
		p := &plants[i]
		if !p.takes.unique || slices.ContainsFunc(what, func(q *plant) bool {
			return q.causes == p.causes &&
				q.side == p.side
		}) {
			continue
		}
		if slices.ContainsFunc(row.Causes, func(k int) bool {
			return a.Causes[k].Side == p.side.String() &&
				causedBy(p.causes, &a.Causes[k])
		}) {
			m.absent[p.name]++
		}
	}
}

var columns = []attribution.Side{attribution.Responder, attribution.Here, attribution.Network, attribution.Elsewhere,
	attribution.Unknown}

// score returns how many of the probes with one planted side were attributed to it, to another, and in all. Elsewhere
// is right for what is not this host's, if the report knows no more of any probe.
func score(of map[attribution.Side]map[string]int) (right, wrong, all int) {
	for side, by := range of {
		for said, n := range by {
			all += n
			switch said {
			case side.String():
				right += n
			case attribution.Unknown.String():
			case attribution.Elsewhere.String():
				if side == attribution.Here {
					wrong += n
				} else if reduced(of) {
					right += n
				}
			default:
				wrong += n
			}
		}
	}
	return right, wrong, all
}

// reduced reports whether no probe was attributed to the responder's host or the network.
func reduced(of map[attribution.Side]map[string]int) bool {
	for _, by := range of {
		if by[attribution.Responder.String()] > 0 || by[attribution.Network.String()] > 0 {
			return false
		}
	}
	return true
}

func (m *matrix) write(w io.Writer) {
	fmt.Fprintf(w, "%d episodes, %d slow probes, load at the end %s\n", m.episodes, m.probes, m.load)
	for _, k := range slices.Sorted(maps.Keys(m.kinds)) {
		of := m.kinds[k]
		right, wrong, all := score(of)
		if all == 0 {
			continue
		}
		fmt.Fprintf(w, "\n%s: %d probes, %s right, %s wrong, %s unknown (goal: 95 %% right, at most 1 %% wrong, the rest unknown)\n", k, all, share(right, all),
			share(wrong, all), share(all-right-wrong, all))
		t := newTable(w, "planted")
		for _, side := range columns[:3] {
			if by := of[side]; by != nil {
				t.row(side.String(), by, "")
			}
		}
		t.Flush()
	}
	fmt.Fprintln(w)
	t := newTable(w, "plant", "causes: right", "only others", "none")
	for _, name := range slices.Sorted(maps.Keys(m.plants)) {
		if name == nothing {
			continue
		}
		p := m.plants[name]
		all := p.causes[0] + p.causes[1] + p.causes[2]
		causes := "\t\t\t"
		if all > 0 {
			causes = fmt.Sprintf("%d (%s)\t%s\t%s\t", p.causes[0], share(p.causes[0], all), share(p.causes[1], all),
				share(p.causes[2], all))
		}
		t.row(name, p.by, causes)
	}
	for _, side := range columns[:2] {
		t.row("(other threads on the core of "+side.String()+")", m.other[side], "\t\t\t")
	}
	t.row("(two sides at once)", m.both, "\t\t\t")
	t.row("(planted for less than half)", m.partly, "\t\t\t")
	t.row("(not planted)", m.apart, "\t\t\t")
	t.Flush()
	if m.direct[1] > 0 {
		fmt.Fprintf(w, "\nDirection on the link: right for %s of %d.\n", share(m.direct[0], m.direct[1]), m.direct[1])
	}
	if m.dropped > 0 {
		fmt.Fprintf(w, "Loss: the relay dropped %d frames, warm-up included; reports call %d probes lost.\n", m.dropped,
			m.reported)
	}
	for _, err := range m.failed {
		fmt.Fprintf(w, "Not measured: 1 episode: %s\n", sanitize.Error(err))
	}
	for _, why := range slices.Sorted(maps.Keys(m.refused)) {
		fmt.Fprintf(w, "Not explained: %s: %s\n", sanitize.Count(m.refused[why], "episode"), why)
	}
	fmt.Fprintf(w, "Causes that only a plant has, named in episodes without it, of %d probes:", m.probes)
	for _, name := range slices.Sorted(maps.Keys(m.absent)) {
		fmt.Fprintf(w, " %s %d,", name, m.absent[name])
	}
	if len(m.absent) == 0 {
		fmt.Fprint(w, " none.")
	}
	fmt.Fprintln(w)
}

type table struct{ *tabwriter.Writer }

func newTable(w io.Writer, first string, more ...string) table {
	t := table{tabwriter.NewWriter(w, 0, 8, 2, ' ', tabwriter.AlignRight)}
	fmt.Fprintf(t, "%s\t", first)
	for _, c := range columns {
		fmt.Fprintf(t, "%v\t", c)
	}
	for _, s := range more {
		fmt.Fprintf(t, "%s\t", s)
	}
	fmt.Fprintln(t)
	return t
}

func (t table) row(name string, by map[string]int, more string) {
	all := 0
	for _, n := range by {
		all += n
	}
	fmt.Fprintf(t, "%s\t", name)
	for _, c := range columns {
		fmt.Fprintf(t, "%d (%s)\t", by[c.String()], share(by[c.String()], all))
	}
	fmt.Fprintln(t, more)
}

func share(n, of int) string {
	if of == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100*float64(n)/float64(of))
}
