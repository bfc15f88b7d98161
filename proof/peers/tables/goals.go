package tables

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/rebound-nic/rebound/latency/report"
)

// goal is a ratio to reach: the responder's figure is at most Most times the other's, at one quantile.
type goal struct {
	Ours, Other, Quantile string
	Most                  float64
}

var goals = []goal{
	{"responder-afxdp", "testpmd-afxdp", "p50", 0.8}, {"responder-afxdp", "testpmd-afxdp", "p99", 1},
	{"responder-afxdp-generic", "testpmd-afxdp", "p50", 0.8}, {"responder-afxdp-generic", "testpmd-afxdp", "p99", 1},
	{"responder-afpacket", "testpmd-afpacket", "p50", 0.7}, {"responder-afpacket", "testpmd-afpacket", "p99", 0.5},
	{"responder-afpacket-mac", "testpmd-afpacket", "p50", 0.7}, {"responder-afpacket-mac", "testpmd-afpacket", "p99", 0.5},
	{"responder-xdp", "testpmd-afxdp", "p50", 0.6}, {"responder-xdp", "testpmd-afxdp", "p99", 0.6},
	{"responder-xdp", "testpmd-afxdp", "p99.9", 0.45},
	{"responder-xdp", "kernel", "p50", 0.75}, {"responder-xdp", "floor-xdp", "p50", 1.1},
	{"responder-xdp-generic", "testpmd-afxdp", "p50", 0.6}, {"responder-xdp-generic", "testpmd-afxdp", "p99", 0.6},
	{"responder-xdp-generic", "kernel", "p50", 0.75}, {"responder-xdp-generic", "floor-xdp-generic", "p50", 1.1},
}

// Compared reports whether a table of ratios includes ours / other: a responder is compared with all others, but only
// with the floor on its own socket, and a floor with the testpmd on its kind of socket. "-light" is a responder without
// its system call filter (trust.confine). In-kernel responders have no socket: their floor is compared with AF_XDP's
// testpmd.
func Compared(ours, other string) bool {
	role, socket, _ := strings.Cut(ours, "-")
	what, on, _ := strings.Cut(other, "-")
	switch {
	case role == "responder" && what == "floor":
		return strings.TrimSuffix(socket, "-light") == on
	case role == "responder":
		return what != "responder"
	}
	return role == "floor" && what == "testpmd" && (strings.HasPrefix(socket, on) || strings.HasPrefix(socket, "xdp") &&
		on == "afxdp")
}

// most formats Most with one decimal, or two if needed.
func (g goal) most() string {
	s := strconv.FormatFloat(g.Most, 'f', 2, 64)
	return strings.TrimSuffix(s, "0")
}

// floor returns the name of the floor on the socket of Ours.
func (g goal) floor() string { return strings.Replace(g.Ours, "responder", "floor", 1) }

// ratio returns a / b by round, at the goal's quantile; false if one of them was not measured.
func (t *Table) ratio(g goal, a, b string) (Spread, bool) {
	x, y := find(t.Closed, a), find(t.Closed, b)
	i := slices.IndexFunc(quantiles, func(q quantile) bool { return q.Name == g.Quantile })
	if x == nil || y == nil {
		return Spread{}, false
	}
	return Ratio(rounds(x, quantiles[i].Q), rounds(y, quantiles[i].Q)), true
}

// verdict says whether a goal is reached and, if not, whether the floor reaches it.
func (t *Table) verdict(g goal) string {
	ours, _ := t.ratio(g, g.Ours, g.Other)
	floor, ok := t.ratio(g, g.floor(), g.Other)
	switch {
	case ours.Median <= g.Most:
		return "reached"
	case !ok:
		return "missed"
	case floor.Median > g.Most:
		return "missed, by the floor too"
	}
	return "missed, though the floor reaches it"
}

// goals writes a line for each goal that was measured.
func (t *Table) goals(b *strings.Builder) {
	var lines strings.Builder
	for _, g := range goals {
		ours, ok := t.ratio(g, g.Ours, g.Other)
		if !ok {
			continue
		}
		floor, above := "–", "–"
		if r, ok := t.ratio(g, g.floor(), g.Other); ok {
			floor = r.ratio()
		}
		if r, ok := t.ratio(g, g.Ours, g.floor()); ok {
			above = r.ratio()
		}
		fmt.Fprintf(&lines, "| %s of %s at most %s of %s's | %s | %s | %s | %s |\n", g.Quantile, g.Ours, g.most(),
			g.Other, ours.ratio(), floor, above, t.verdict(g))
	}
	if lines.Len() == 0 {
		return
	}
	fmt.Fprint(b, "\nThe goals. The floor is the least program in C that answers over the same socket, or in the kernel: it swaps the\n"+
		"addresses, fixes the checksum and sends, and checks nothing. What it misses takes another kernel, not another program.\n\n")
	fmt.Fprintf(b, "| Goal | responder / other | floor / other | responder / floor | |\n|---|---|---|---|---|\n%s",
		lines.String())
}

// Missed returns the missed goals, and lost or corrupt frames, one sentence each.
func (t *Table) Missed() []string {
	var out []string
	for _, g := range goals {
		if r, ok := t.ratio(g, g.Ours, g.Other); ok && r.Median > g.Most {
			out = append(out, fmt.Sprintf("%s of %s is %.2f of %s's, the goal is %s: %s", g.Quantile, g.Ours, r.Median,
				g.Other, g.most(), t.verdict(g)))
		}
	}
	for _, r := range slices.Concat(t.Closed, t.Open) {
		if n := r.Counts; strings.HasPrefix(r.Label, "responder") && n.Lost+n.Corrupt+n.Duplicates > 0 {
			out = append(out, fmt.Sprintf("%s: of %d probes %d lost, %d answered twice; %d replies corrupt", r.Label,
				n.Sent, n.Lost, n.Duplicates, n.Corrupt))
		}
	}
	return out
}

// Fractions are the rates of the open loop, in percent of the highest without loss.
var Fractions = []int{25, 50, 75, 90}

// Ceiling returns the lowest rate at which the search for the highest lossless rate failed, and the reason, from the
// notes of the search's report; 0 if none failed.
func Ceiling(rep *report.Report) (rate float64, why string) {
	for _, n := range rep.Notes {
		var r float64
		head, text, ok := strings.Cut(n, "/s: ")
		if _, err := fmt.Sscanf(strings.ReplaceAll(head, ",", ""), "%g", &r); !ok || err != nil ||
			strings.HasPrefix(text, "no loss") {
			continue
		}
		if rate == 0 || r < rate {
			rate, why = r, text
		}
	}
	return rate, why
}
