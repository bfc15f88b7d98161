// Package suspects explains which fault a fleet has: from the paths that fail and those that do not, it finds the smallest
// set of hosts, zone links and zones whose failure explains the failing paths.
package suspects

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"slices"
)

// Member is a host with its zone.
type Member struct{ Name, Zone string }

// Path is what a prober reports of a target.
type Path struct {
	From, To Member
	Failing  bool
}

// Kind is what a suspect is.
type Kind int

const (
	Host Kind = iota
	Link      // between two zones. Probes are round trips: they do not show which direction fails.
	Zone      // all hosts of a zone, or all links between it and other zones
)

func (k Kind) String() string { return [...]string{"host", "link", "zone"}[k] }

// Suspect may explain failing paths.
type Suspect struct {
	Kind
	Name  string // of the host, or of a zone
	Other string // Link: the other zone, which is greater than Name
	Zone  string // Host: its zone

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

// Verdict is an explanation. The first suspect explains the most.
type Verdict struct {
	Suspects    []Suspect
	Paths       int // reported
	Failing     int // of them
	Silent      int // members
	Unexplained int // failing paths and silent members that no suspect explains
}

// Costs in nats: the negative logarithms of the probabilities that a path fails without a fault, or works in spite of one.
// A suspect's own cost is that of naming it among all of its kind, so that two failing paths to a host are enough to suspect
// it, and one is not.
const (
	unexplained = 6.0
	contradicts = 4.0
	linkExtra   = 1.0 // links and zones fail less often than hosts
	zoneExtra   = 2.0
)

// candidate is a suspect with the failures that it covers.
type candidate struct {
	Suspect
	prior  float64
	covers []uint64 // a set of failures
}

// Find returns the cheapest explanation of the failing paths and of the silent members, which are probers that are expected to
// report and do not. It adds suspects greedily, and compares the result with all sets of up to three of the best candidates.
func Find(paths []Path, silent []Member) Verdict {
	v := Verdict{Paths: len(paths), Silent: len(silent)}
	hosts, zones := numbers{}, numbers{}
	type numbered struct{ from, to, fromZone, toZone int }
	all := make([]numbered, len(paths))
	for i, p := range paths {
		all[i] = numbered{hosts.of(p.From.Name), hosts.of(p.To.Name), zones.of(p.From.Zone), zones.of(p.To.Zone)}
		if p.Failing {
			v.Failing++
		}
	}
	for _, m := range silent {
		hosts.of(m.Name)
		zones.of(m.Zone)
	}
	failures := v.Failing + len(silent)
	if failures == 0 {
		return v
	}
	z := float64(len(zones))
	byHost, byZone, byLink := make([]*candidate, len(hosts)), make([]*candidate, len(zones)), make([]*candidate, len(zones)*len(zones))
	link := func(p numbered) **candidate {
		return &byLink[min(p.fromZone, p.toZone)*len(zones)+max(p.fromZone, p.toZone)]
	}
	var suspected []*candidate
	cover := func(at **candidate, failure int, prior float64, s Suspect) {
		if *at == nil {
			*at = &candidate{Suspect: s, prior: prior, covers: make([]uint64, (failures+63)/64)}
			suspected = append(suspected, *at)
		}
		(*at).covers[failure/64] |= 1 << (failure % 64)
	}
	host := func(i, failure int, m Member) {
		cover(&byHost[i], failure, math.Log(float64(len(hosts))), Suspect{Kind: Host, Name: m.Name, Zone: m.Zone})
	}
	zone := func(i, failure int, name string) {
		cover(&byZone[i], failure, math.Log(z)+zoneExtra, Suspect{Kind: Zone, Name: name})
	}
	next := 0
	for i, p := range all {
		if from, to := paths[i].From, paths[i].To; paths[i].Failing {
			host(p.to, next, to)
			host(p.from, next, from)
			zone(p.toZone, next, to.Zone)
			if p.fromZone != p.toZone {
				zone(p.fromZone, next, from.Zone)
				cover(link(p), next, math.Log(z*(z-1)/2)+linkExtra, Suspect{Kind: Link, Name: min(from.Zone, to.Zone), Other: max(from.Zone, to.Zone)})
			}
			next++
		}
	}
	for _, m := range silent {
		host(hosts.of(m.Name), next, m)
		zone(zones.of(m.Zone), next, m.Zone)
		next++
	}
	works := func(c *candidate) {
		if c != nil {
			c.Working++
		}
	}
	for i, p := range all {
		if paths[i].Failing {
			continue
		}
		works(byHost[p.from])
		works(byHost[p.to])
		if p.fromZone != p.toZone { // a zone may be cut off and work within
			works(byZone[p.fromZone])
			works(byZone[p.toZone])
			works(*link(p))
		}
	}
	chosen := search(suspected, failures)
	left := full(failures)
	for len(chosen) > 0 { // in the order of what each explains
		slices.SortStableFunc(chosen, func(a, b *candidate) int { return cmp.Compare(common(b.covers, left), common(a.covers, left)) })
		s := chosen[0].Suspect
		s.Failing = common(chosen[0].covers, left)
		v.Suspects = append(v.Suspects, s)
		left = without(left, chosen[0].covers)
		chosen = chosen[1:]
	}
	v.Unexplained = common(left, left)
	return v
}

// numbers gives names consecutive numbers.
type numbers map[string]int

func (n numbers) of(name string) int {
	i, ok := n[name]
	if !ok {
		i = len(n)
		n[name] = i
	}
	return i
}

// search returns the cheapest set of candidates that it finds.
func search(all []*candidate, failures int) []*candidate {
	gain := func(c *candidate, left []uint64) float64 {
		return unexplained*float64(common(c.covers, left)) - c.prior - contradicts*float64(c.Working)
	}
	best := func(left []uint64) (at *candidate, most float64) {
		for _, c := range all {
			if g := gain(c, left); g > most {
				at, most = c, g
			}
		}
		return at, most
	}
	var greedy []*candidate
	left, saved := full(failures), 0.0
	for {
		c, g := best(left)
		if c == nil {
			break
		}
		greedy, saved = append(greedy, c), saved+g
		left = without(left, c.covers)
	}
	everything := full(failures)
	slices.SortStableFunc(all, func(a, b *candidate) int { return cmp.Compare(gain(b, everything), gain(a, everything)) })
	top := all[:min(len(all), exact)]
	var try func(from int, chosen []*candidate, left []uint64, total float64)
	try = func(from int, chosen []*candidate, left []uint64, total float64) {
		if total > saved+1e-9 {
			greedy, saved = slices.Clone(chosen), total
		}
		if len(chosen) == 3 {
			return
		}
		for i := from; i < len(top); i++ {
			try(i+1, append(chosen, top[i]), without(left, top[i].covers), total+gain(top[i], left))
		}
	}
	try(0, nil, everything, 0)
	return greedy
}

// exact is how many candidates are tried in all sets of up to three.
const exact = 16

func full(n int) []uint64 {
	out := make([]uint64, (n+63)/64)
	for i := range n {
		out[i/64] |= 1 << (i % 64)
	}
	return out
}

func common(a, b []uint64) (n int) {
	for i := range a {
		n += bits.OnesCount64(a[i] & b[i])
	}
	return n
}

func without(a, b []uint64) []uint64 {
	out := make([]uint64, len(a))
	for i := range a {
		out[i] = a[i] &^ b[i]
	}
	return out
}
