package page

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/compare"
)

// Versus is the comparison of two targets, in parts that may differ, such as protocols.
type Versus struct {
	A, B string
	// why only ICMP was compared, such as "10.0.0.2 does not echo UDP, its port 7 is closed"; empty if UDP was, too
	OnlyICMP string
	Parts    []VersusPart
}

// VersusPart is one of them: C compares B's report with A's.
type VersusPart struct {
	Name  string
	C     *compare.Comparison
	Links []Link
}

// rows returns the rows that decide, which are none if the reports cannot be compared or nothing was measured.
func (p *VersusPart) rows() (all []compare.Row) {
	for _, pair := range p.C.Pairs {
		for _, r := range pair.Rows {
			if len(pair.Obstacles) == 0 && slices.Contains(compare.Stats(latency.NarrowTable), r.Stat) {
				all = append(all, r)
			}
		}
	}
	return all
}

// Answer is the answer in one sentence, without a full stop: which target is better, by how much, whether that is sure,
// and whether it matters.
func (v *Versus) Answer() string {
	faster, slower := 0, 0
	unseen, unknown := 0, 0
	least, most := math.Inf(1), 0.0 // of the differences, as multiples of the spread
	var parts []string
	narrow := false
	for i := range v.Parts {
		p := &v.Parts[i]
		rows := p.rows()
		if len(rows) == 0 {
			parts = append(parts, p.Name+" cannot be compared")
			continue
		}
		for _, r := range rows {
			switch r.Verdict {
			case compare.Faster:
				faster++
			case compare.Slower:
				slower++
			case compare.Noise:
				unseen++
				continue
			default:
				unknown++
				continue
			}
			if s := p.C.Pairs[0].Spread(r.Stat); s > 0 {
				least, most = min(least, math.Abs(r.Shift)/s), max(most, math.Abs(r.Shift)/s)
			}
		}
		parts = append(parts, Answer(p.C))
		if len(limited(p.C.Reports)) > 0 {
			narrow = true
		}
	}
	winner, loser := v.B, v.A
	if slower > 0 {
		winner, loser = v.A, v.B
	}
	said, sure := "", ""
	switch {
	case !narrow && faster > 0 && slower > 0:
		said = "it depends, each is better in one way"
	case !narrow && faster+slower > 0:
		said = fmt.Sprintf("%s is better than %s", winner, loser)
		sure = "; this is sure (equal targets show a difference in at most 5 % of tables)" + matters(least, most)
	case !narrow && unseen > 0 && unknown == 0:
		said = fmt.Sprintf("no difference seen between %s and %s", v.A, v.B)
	default:
		said = fmt.Sprintf("cannot tell which of %s and %s is better", v.A, v.B)
	}
	if v.OnlyICMP != "" {
		said += " (by ICMP only: " + v.OnlyICMP + ")"
	}
	return said + ": " + strings.Join(parts, "; ") + sure
}

// matters says whether a difference is more than the spread between runs, of which it is least to most times as large.
func matters(least, most float64) string {
	times := func(v float64) string { return strings.TrimPrefix(latency.FormatFactor(v), "×") }
	span := times(least)
	if times(most) != span {
		span += " to " + times(most)
	}
	switch {
	case most == 0:
		return ""
	case least >= 1:
		return fmt.Sprintf(", and matters: it is %s times the spread between runs", span)
	case most < 1:
		return fmt.Sprintf(", but less than the spread between runs (%s times)", span)
	}
	return fmt.Sprintf(", and in part more than the spread between runs (%s times)", span)
}

type versusPage struct {
	Title, Answer, A, B string
	Notes, More         []string
	Parts               []versusSection
}

type versusSection struct {
	Name  string
	Table pairTable
	Links []Link
	Plots []plot
}

// Write writes the page, whose first sentence is the answer.
func (v *Versus) Write(w io.Writer) error {
	p := versusPage{Title: v.A + " against " + v.B, Answer: v.Answer(), A: v.A, B: v.B}
	for i := range v.Parts {
		part := &v.Parts[i]
		s := versusSection{Name: part.Name, Links: part.Links}
		var names []legend
		var ds []drawn
		for k, r := range part.C.Reports {
			names = append(names, legend{k % palette, "", r.Name()})
			if r.Measured() {
				ds = append(ds, drawn{names[k].Colour, "", r.Name(), r.Main().Total})
			}
		}
		for k := range part.C.Pairs {
			s.Table = tableOf(&part.C.Pairs[k], names[0], names[k+1])
		}
		s.Plots = append(s.Table.Diff, curves(ds, names, string(part.C.Reports[0].Metric))...)
		for _, n := range remarks(part.C) {
			p.Notes = append(p.Notes, sentence(n, part.C.Reports)+".")
		}
		p.Parts = append(p.Parts, s)
	}
	p.Notes, p.More = above(p.Notes)
	return page.ExecuteTemplate(w, "versus", p)
}
