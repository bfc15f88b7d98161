// Package suspects explains which fault a fleet has: from the paths that fail or lose probes and those that do not, it
// finds the most likely set of hosts, zone links and zones whose failure explains them, and the sets that explain them
// as well.
package suspects

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/rebound-nic/rebound/latency"
)

// Member is a host with its zone.
type Member struct{ Name, Zone string }

// Path is what a prober reports of a target.
type Path struct {
	From, To   Member
	Failing    bool    // it is down
	Sent, Lost float64 // probes lately; none sent if it is not known
}

// Kind is what a suspect is.
type Kind int

const (
	Host Kind = iota
	Link      // between two zones. Probes are round trips: they do not show which direction fails.
	Zone      // all hosts of a zone, or all links between it and other zones
)

func (k Kind) String() string { return [...]string{"host", "link", "zone"}[k] }

// Reach says which paths of a suspect its fault concerns.
type Reach int

const (
	All     Reach = iota
	Answers       // Host: the paths that others probe. Its own probes have replies.
	Probes        // Host: the paths that it probes. It answers others.
	Across        // Zone: the paths to and from other zones
)

// Suspect may explain failing paths.
type Suspect struct {
	Kind
	Reach
	Name  string // of the host, or of a zone
	Other string // Link: the other zone, which is greater than Name
	Zone  string // Host: its zone

	Loss float64 // share of the probes lost, less than 1 for a partial fault of each of its paths
	Down float64 // share of its paths that fail, less than 1 for a fault of only some of its paths

	Failing int // paths that it explains, and its silent members
	Working int // paths that work although it is suspected
}

func (s Suspect) String() string {
	switch s.Kind {
	case Link:
		return fmt.Sprintf("link between zones %s and %s", s.Name, s.Other)
	case Zone:
		return "zone " + s.Name
	}
	return "host " + s.Name
}

// Fault describes what the suspect does.
func (s Suspect) Fault() string {
	of := map[Reach]string{All: "all its paths", Answers: "the paths to it", Probes: "the paths from it",
		Across: "its paths to other zones"}[s.Reach]
	if s.Loss < 1 {
		return fmt.Sprintf("%s loss on %s", latency.FormatShare(s.Loss), of)
	}
	if s.Down < 1 {
		return fmt.Sprintf("%s of %s down", latency.FormatShare(s.Down), strings.TrimPrefix(of, "all "))
	}
	return of + " down"
}

// Verdict is an explanation. The first suspect explains the most.
type Verdict struct {
	Suspects []Suspect
	// sets that explain the same, so that the measurements do not distinguish them; likely ones first
	Alternatives [][]Suspect

	Paths       int // reported
	Failing     int // of them
	Lossy       int // of them: not down, but lose more probes than chance explains
	Silent      int // members
	Unexplained int // failing and lossy paths and silent members that no suspect explains
}

// Costs in nats: negative logarithms of probabilities. What a path does costs at most unexplained without a suspect,
// and at most contradicts with one, because a path may fail for another reason, or work in spite of a fault. A
// suspect's own cost is that of naming it among all of its kind, so that two failing paths to a host are enough to
// suspect it, and one is not.
const (
	unexplained = 6.0
	contradicts = 4.0
	linkExtra   = 1.0 // links and zones fail less often than hosts
	zoneExtra   = 2.0
	reachExtra  = 1.0 // a host fails in one role only
	lossExtra   = 2.0 // a partial fault, with its loss
	someExtra   = 3.0 // only some paths fail, with their share

	notable  = 3.0  // cost from which a path that is not down counts as lossy
	mostSent = 30.0 // losses come in bursts: more probes than this are no more evidence
)

// effect is what a fault does to a path. Of the faults on a path, the one with the greatest effect counts.
type effect uint8

const (
	works     effect = 0
	firstLoss effect = 1 // from here a path loses a share of its probes,
	firstSome effect = 6 // from here a share of the paths is down,
	down      effect = 9 // and here each path is
	effects          = 10
)

var (
	lossShares = [...]float64{0.1, 0.2, 0.35, 0.5, 0.7}
	downShares = [...]float64{0.25, 0.5, 0.75}
)

func (e effect) extra() float64 {
	switch {
	case e == down:
		return 0
	case e >= firstSome:
		return someExtra
	}
	return lossExtra
}

// costs returns the cost of what a path does under each effect. usual is the share of probes that paths lose without a
// fault.
func costs(p *Path, usual float64) (c [effects]float64) {
	share, n, best := 0.0, min(p.Sent, mostSent), 0.0
	likelihood := func(q float64) float64 { // log-likelihood of the probes
		switch {
		case n <= 0:
			return 0
		case share == 0:
			return n * math.Log1p(-q)
		case share == 1:
			return n * math.Log(q)
		}
		return n * (share*math.Log(q) + (1-share)*math.Log1p(-q))
	}
	if p.Sent > 0 {
		share = min(p.Lost/p.Sent, 1)
	}
	if share > 0 && share < 1 {
		best = likelihood(share)
	}
	switch {
	case p.Failing:
		c[works] = unexplained
	case share > usual:
		c[works] = min(unexplained, best-likelihood(usual))
	}
	for i, q := range lossShares {
		x := best - likelihood(q)
		if p.Failing {
			x -= 3 * math.Log(q) // three probes in a row
		}
		c[int(firstLoss)+i] = min(contradicts, x)
		if n <= 0 && !p.Failing {
			c[int(firstLoss)+i] = contradicts // a loss is never assumed where it was not measured
		}
	}
	for i, q := range downShares {
		c[int(firstSome)+i] = min(contradicts, -math.Log1p(-q)+c[works])
		if p.Failing {
			c[int(firstSome)+i] = -math.Log(q)
		}
	}
	if c[down] = contradicts; p.Failing {
		c[down] = 0
	}
	return c
}

// usualLoss returns the share of probes that the better half of the paths loses, 1 % or more.
func usualLoss(paths []Path) float64 {
	var shares []float64
	for i := range paths {
		if p := &paths[i]; p.Sent > 0 {
			shares = append(shares, p.Lost/p.Sent)
		}
	}
	slices.Sort(shares)
	sum, half := 0.0, len(shares)/2
	for _, s := range shares[:half] {
		sum += s
	}
	return max(0.01, min(sum/float64(max(half, 1)), 0.1))
}

// Find returns the most likely explanation of the failing and lossy paths and of the silent members, which are probers
// that are expected to report and do not, and what explains them as well.
func Find(paths []Path, silent []Member) Verdict {
	v := Verdict{Paths: len(paths), Silent: len(silent)}
	f := newFleet(paths, silent)
	for i := range paths {
		if paths[i].Failing {
			v.Failing++
		} else if f.bad(i) {
			v.Lossy++
		}
	}
	if v.Failing+v.Lossy+v.Silent == 0 {
		return v
	}
	best, alternatives := f.search()
	v.Suspects, v.Unexplained = f.describe(best)
	for _, a := range alternatives {
		s, _ := f.describe(a)
		v.Alternatives = append(v.Alternatives, s)
	}
	return v
}

// describe returns suspects in the order of what each explains, and how many failures none explains.
func (f *fleet) describe(set []suspicion) (out []Suspect, left int) {
	explained, mute := make([]bool, len(f.paths)), make([]bool, len(f.hosts))
	failures := func(s suspicion) (paths, hosts []int32) {
		for i := range f.covered(s) {
			if f.bad(int(i)) && !explained[i] {
				paths = append(paths, i)
			}
		}
		for h := range f.hosts {
			if f.silent[h] && !mute[h] && f.speaksFor(s, h) {
				hosts = append(hosts, int32(h))
			}
		}
		return paths, hosts
	}
	rest := slices.Clone(set)
	for len(rest) > 0 {
		slices.SortStableFunc(rest, func(a, b suspicion) int {
			x, xs := failures(a)
			y, ys := failures(b)
			return cmp.Compare(len(y)+len(ys), len(x)+len(xs))
		})
		s := rest[0]
		x := Suspect{Kind: s.kind, Reach: s.reach, Loss: 1, Down: 1}
		switch s.kind {
		case Host:
			x.Name, x.Zone = f.hosts[s.a].Name, f.hosts[s.a].Zone
		case Link:
			x.Name, x.Other = min(f.zones[s.a], f.zones[s.b]), max(f.zones[s.a], f.zones[s.b])
		case Zone:
			x.Name = f.zones[s.a]
		}
		own, hosts := failures(s)
		x.Failing = len(own) + len(hosts)
		all, failing, sent, lost := 0, 0, 0.0, 0.0
		for i := range f.covered(s) {
			all++
			sent, lost = sent+f.paths[i].Sent, lost+f.paths[i].Lost
			if f.paths[i].Failing {
				failing++
			}
			if !f.bad(int(i)) {
				x.Working++
			}
		}
		switch {
		case s.effect == down:
		case s.effect >= firstSome:
			x.Down = float64(failing) / float64(max(all, 1))
		default:
			x.Loss = lost / max(sent, 1)
		}
		out = append(out, x)
		for _, i := range own {
			explained[i] = true
		}
		for _, h := range hosts {
			mute[h] = true
		}
		rest = rest[1:]
	}
	for i := range f.paths {
		if f.bad(i) && !explained[i] {
			left++
		}
	}
	for h := range f.hosts {
		if f.silent[h] && !mute[h] {
			left++
		}
	}
	return out, left
}
