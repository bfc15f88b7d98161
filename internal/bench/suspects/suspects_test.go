package suspects

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/rebound-nic/rebound/internal/bench/peers"
	"github.com/rebound-nic/rebound/proof/needs"
)

// fleet is a fleet with its paths, as rebound-bench watch chooses them.
type fleet struct {
	members []Member
	zones   []string
	paths   []Path

	reported []Path // what plant returned last
}

func newFleet(sizes []int, k int) *fleet {
	f := &fleet{}
	var list []peers.Member
	byName := map[string]Member{}
	for z, size := range sizes {
		f.zones = append(f.zones, fmt.Sprint("z", z))
		for i := range size {
			m := Member{fmt.Sprintf("z%d-h%d", z, i), fmt.Sprint("z", z)}
			f.members, byName[m.Name] = append(f.members, m), m
			list = append(list, peers.Member{Name: m.Name, Zone: m.Zone})
		}
	}
	chosen := peers.New(list, k, 3)
	for _, m := range f.members {
		for _, to := range chosen.Peers(m.Name) {
			f.paths = append(f.paths, Path{From: m, To: byName[to]})
		}
	}
	return f
}

// fault is a planted fault.
type fault struct {
	Suspect
	silent bool // hosts report nothing: they are dead. Otherwise they are cut off from other hosts, or zones.
}

func (f *fleet) random(r *rand.Rand) fault {
	m := f.members[r.IntN(len(f.members))]
	switch r.IntN(3) {
	case 0:
		return fault{Suspect{Kind: Host, Name: m.Name, Zone: m.Zone}, r.IntN(2) == 0}
	case 1:
		i := r.Perm(len(f.zones))
		return fault{Suspect{Kind: Link, Name: min(f.zones[i[0]], f.zones[i[1]]), Other: max(f.zones[i[0]], f.zones[i[1]])}, false}
	}
	return fault{Suspect{Kind: Zone, Name: m.Zone}, r.IntN(2) == 0}
}

// includes reports whether the fault concerns a member, or for the link a pair of zones.
func (x fault) includes(m Member) bool {
	return x.Kind == Host && m.Name == x.Name || x.Kind == Zone && m.Zone == x.Name
}

func (x fault) fails(p Path) bool {
	a, b := x.includes(p.From), x.includes(p.To)
	switch x.Kind {
	case Link:
		return p.From.Zone != p.To.Zone && min(p.From.Zone, p.To.Zone) == x.Name && max(p.From.Zone, p.To.Zone) == x.Other
	case Zone:
		return a != b || a && x.silent
	}
	return a || b
}

// within reports whether all that x breaks is broken by y as well.
func (x fault) within(y fault) bool {
	switch {
	case y.Kind != Zone:
		return x.Kind == y.Kind && x.Name == y.Name && x.Other == y.Other
	case x.Kind == Link:
		return x.Name == y.Name || x.Other == y.Name
	case x.Kind == Host:
		return x.Zone == y.Name
	}
	return x.Name == y.Name
}

// plant returns what is reported with the faults, and with noise: a share of the other paths fails without a fault. The
// next call overwrites the paths.
func (f *fleet) plant(r *rand.Rand, noise float64, faults ...fault) (paths []Path, silent []Member) {
	paths = f.reported[:0]
	for _, p := range f.paths {
		reported := true
		for _, x := range faults {
			p.Failing = p.Failing || x.fails(p)
			reported = reported && !(x.silent && x.includes(p.From))
		}
		p.Failing = p.Failing || r.Float64() < noise
		if reported {
			paths = append(paths, p)
		}
	}
	f.reported = paths
	for _, m := range f.members {
		if slices.ContainsFunc(faults, func(x fault) bool { return x.silent && x.includes(m) }) {
			silent = append(silent, m)
		}
	}
	return paths, silent
}

func (x fault) is(s Suspect) bool { return s.Kind == x.Kind && s.Name == x.Name && s.Other == x.Other }

// same reports whether suspects break exactly what is reported without noise.
func same(v Verdict, paths []Path, silent []Member) bool {
	for _, p := range paths {
		if p.Failing != slices.ContainsFunc(v.Suspects, func(s Suspect) bool { return fault{Suspect: s}.fails(p) }) {
			return false
		}
	}
	return !slices.ContainsFunc(silent, func(m Member) bool {
		return !slices.ContainsFunc(v.Suspects, func(s Suspect) bool { return fault{Suspect: s}.includes(m) })
	})
}

// A planted fault is the first suspect in 95 % of 500 fleets, and two are the first two in 80 %: dead and isolated hosts, dead zone
// links, dead and isolated zones, with one of a thousand other paths failing without a fault. Two faults of which one contains
// the other are not planted. Double faults that break exactly what another pair or a single fault breaks are counted
// apart: with three zones, two dead links are one isolated zone, and no report distinguishes them.
func TestPlantedFaults(t *testing.T) { plantFaults(t, 100) }

// It is so in a fleet of 1,000, too.
func TestPlantedFaultsOfThousand(t *testing.T) {
	needs.Long(t)
	plantFaults(t, 1000)
}

func plantFaults(t *testing.T, n int) {
	t.Helper()
	for i, c := range []struct {
		name  string
		sizes []int
	}{
		{"5 zones, one of them small", []int{n * 3 / 10, n * 3 / 10, n * 2 / 10, n*2/10 - 4, 4}}, {"3 zones", []int{n * 4 / 10, n * 3 / 10, n * 3 / 10}},
		{"10 zones", slices.Repeat([]int{n / 10}, 10)},
	} {
		trials := 500
		if i > 0 && n == 1000 {
			trials = 100
		}
		f := newFleet(c.sizes, 20)
		r := rand.New(rand.NewPCG(uint64(n), 7))
		first, exactly, both, alike := 0, 0, 0, 0
		for range trials {
			x := f.random(r)
			paths, silent := f.plant(r, 0.001, x)
			if v := Find(paths, silent); len(v.Suspects) > 0 && x.is(v.Suspects[0]) {
				first++
				if len(v.Suspects) == 1 {
					exactly++
				}
			}
			y := f.random(r)
			for x.within(y) || y.within(x) {
				y = f.random(r)
			}
			paths, silent = f.plant(r, 0.001, x, y)
			v := Find(paths, silent)
			if len(v.Suspects) >= 2 && (x.is(v.Suspects[0]) && y.is(v.Suspects[1]) || x.is(v.Suspects[1]) && y.is(v.Suspects[0])) {
				both++
			} else if paths, silent = f.plant(r, 0, x, y); len(v.Suspects) <= 2 && same(v, paths, silent) {
				alike++
			}
		}
		t.Logf("| %d | %s | %d of %d (no other suspect: %d) | %d of %d | %d |", n, c.name, first, trials, exactly, both, trials, alike)
		if first < trials*95/100 || both < (trials-alike)*80/100 || i != 1 && alike > trials/50 {
			t.Errorf("n=%d, %s: first in %d of %d single faults, both first in %d, %d cannot be distinguished", n, c.name, first, trials, both, alike)
		}
	}
}

// A fleet without a fault has no suspect, and one failing path suspects nothing.
func TestNoFault(t *testing.T) {
	f := newFleet([]int{40, 30, 30}, 10)
	if v := Find(f.paths, nil); len(v.Suspects) > 0 || v.Failing > 0 || v.Paths != len(f.paths) {
		t.Errorf("%+v", v)
	}
	f.paths[17].Failing = true
	if v := Find(f.paths, nil); len(v.Suspects) > 0 || v.Unexplained != 1 {
		t.Errorf("%+v", v)
	}
	if v := Find(nil, nil); len(v.Suspects) > 0 {
		t.Errorf("%+v", v)
	}
}
