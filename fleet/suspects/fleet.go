package suspects

import (
	"iter"
	"math"
)

// suspicion is a possible fault: a suspect with its effect on paths.
type suspicion struct {
	kind   Kind
	reach  Reach
	a, b   int // numbers of the host, the zone, or the two zones of a link
	effect effect
}

// same reports whether two suspicions name the same suspect.
func (s suspicion) same(o suspicion) bool { return s.kind == o.kind && s.a == o.a && s.b == o.b }

// fleet is what is known of all paths, prepared for the search.
type fleet struct {
	paths  []Path
	hosts  []Member
	zones  []string
	silent []bool // by host
	mutes  []int  // silent hosts by zone
	zoneOf []int  // by host

	from, to, cell []int32 // by path: hosts, and pair of zones
	cost           [][effects]float64
	cells          []cell
	ofHost         [][]int32 // paths to and from each host

	// The faults that are assumed now, by what they do.
	assumed []suspicion
	effect  []effect // of links and zones, by cell
	answers []effect // of hosts, on paths to them
	probes  []effect // and from them
	spoken  []bool   // hosts whose silence is explained by themselves
	gone    []bool   // and zones

	plain float64 // cost without any suspect
}

// cell is all paths between two zones, in both directions, or within one.
type cell struct {
	a, b  int
	paths []int32
	sum   [effects]float64
	bad   bool
}

// newFleet numbers the hosts and zones of all paths and of silent members, so that the search works on indices.
func newFleet(paths []Path, silent []Member) *fleet {
	f := &fleet{paths: paths}
	hosts, zones := map[string]int{}, map[string]int{}
	zone := func(name string) int {
		z, ok := zones[name]
		if !ok {
			z = len(f.zones)
			zones[name], f.zones = z, append(f.zones, name)
		}
		return z
	}
	host := func(m Member) int {
		h, ok := hosts[m.Name]
		if !ok {
			h = len(f.hosts)
			hosts[m.Name], f.hosts = h, append(f.hosts, m)
			f.zoneOf = append(f.zoneOf, zone(m.Zone))
		}
		return h
	}
	f.from, f.to, f.cell = make([]int32, len(paths)), make([]int32, len(paths)), make([]int32, len(paths))
	for i := range paths {
		f.from[i], f.to[i] = int32(host(paths[i].From)), int32(host(paths[i].To))
	}
	numbers := make([]int, len(silent))
	for i, m := range silent {
		numbers[i] = host(m)
	}
	f.silent, f.mutes = make([]bool, len(f.hosts)), make([]int, len(f.zones))
	for _, h := range numbers {
		f.silent[h] = true
		f.mutes[f.zoneOf[h]]++
	}
	z := len(f.zones)
	f.cells, f.ofHost, f.cost = make([]cell, z*z), make([][]int32, len(f.hosts)), make([][effects]float64, len(paths))
	usual := usualLoss(paths)
	f.plain = unexplained * float64(len(numbers))
	for i := range paths {
		from, to := f.from[i], f.to[i]
		f.ofHost[from], f.ofHost[to] = append(f.ofHost[from], int32(i)), append(f.ofHost[to], int32(i))
		f.cell[i] = int32(f.between(f.zoneOf[from], f.zoneOf[to]))
		f.cost[i] = costs(&paths[i], usual)
		f.plain += f.cost[i][works]
		c := &f.cells[f.cell[i]]
		c.a, c.b = f.zoneOf[from], f.zoneOf[to]
		c.paths, c.bad = append(c.paths, int32(i)), c.bad || f.bad(i)
		for e, x := range f.cost[i] {
			c.sum[e] += x
		}
	}
	f.effect, f.answers, f.probes = make([]effect, z*z), make([]effect, len(f.hosts)), make([]effect, len(f.hosts))
	f.spoken, f.gone = make([]bool, len(f.hosts)), make([]bool, z)
	return f
}

// between returns the cell of two zones.
func (f *fleet) between(a, b int) int { return min(a, b)*len(f.zones) + max(a, b) }

// bad reports whether a path is down or loses more probes than chance explains.
func (f *fleet) bad(path int) bool { return f.cost[path][works] >= notable }

// cellsOf are the pairs of zones that a link or a zone covers.
func (f *fleet) cellsOf(s suspicion) iter.Seq[int] {
	return func(yield func(int) bool) {
		if s.kind == Link {
			yield(f.between(s.a, s.b))
			return
		}
		for z := range f.zones {
			if (z != s.a || s.reach == All) && !yield(f.between(s.a, z)) {
				return
			}
		}
	}
}

// covered are the paths that a suspicion covers.
func (f *fleet) covered(s suspicion) iter.Seq[int32] {
	return func(yield func(int32) bool) {
		if s.kind == Host {
			for _, i := range f.ofHost[s.a] {
				if to := int(f.to[i]) == s.a; (s.reach == All || to == (s.reach == Answers)) && !yield(i) {
					return
				}
			}
			return
		}
		for c := range f.cellsOf(s) {
			for _, i := range f.cells[c].paths {
				if !yield(i) {
					return
				}
			}
		}
	}
}

// speaksFor reports whether a suspicion explains that a host is silent.
func (f *fleet) speaksFor(s suspicion, host int) bool {
	return s.effect == down && (s.kind == Host && s.reach == All && s.a == host || s.kind == Zone &&
		f.zoneOf[host] == s.a)
}

// prior is the cost of a suspicion itself.
func (f *fleet) prior(s suspicion) float64 {
	z, extra := float64(len(f.zones)), s.effect.extra()
	switch s.kind {
	case Link:
		return math.Log(z*(z-1)/2) + linkExtra + extra
	case Zone:
		return math.Log(z) + zoneExtra + extra
	}
	if s.reach != All {
		extra += reachExtra
	}
	return math.Log(float64(len(f.hosts))) + extra
}
