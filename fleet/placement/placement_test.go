package placement

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/golden"
	"github.com/rebound-nic/rebound/proof/needs"
)

// layouts are the sizes of zones of fleets of n members.
var layouts = []struct {
	name  string
	zones func(n int) []int
}{
	{"one zone", func(n int) []int { return []int{n} }},
	{"3 even zones", func(n int) []int { return []int{n / 3, n / 3, n - 2*(n/3)} }},
	{"3 skewed zones", func(n int) []int { return []int{n * 9 / 10, n - n*9/10 - 7, 7} }},
	{"30 even zones", func(n int) []int { return even(n, 30) }},
	{"zones of 1, 2 and 3", func(n int) []int { return append([]int{1, 1, 2, 3}, even(n-7, 4)...) }},
	{"30 zones, 15 of them tiny", func(n int) []int {
		return append([]int{1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3}, even(n-30, 15)...)
	}},
}

func even(n, zones int) (out []int) {
	for i := range zones {
		out = append(out, n*(i+1)/zones-n*i/zones)
	}
	return out
}

func fleet(sizes []int) (all []Member) {
	for z, size := range sizes {
		for i := range size {
			all = append(all, Member{Name: fmt.Sprintf("z%d-h%d", z, i), Zone: fmt.Sprint("zone-", z),
				Rack: fmt.Sprint("rack-", i/20)})
		}
	}
	return all
}

// choices are all members' peers.
func choices(t *testing.T, all []Member, k, m int) (of map[string][]string, short int) {
	t.Helper()
	f := New(all, k, m)
	of = make(map[string][]string, len(all))
	for _, x := range all {
		of[x.Name] = f.Peers(x.Name)
		short += f.Short
	}
	return of, short
}

// A fleet's members are all probed by m, its pairs of zones by m members of one, and none probes more than its share,
// however large the fleet is.
func TestGuarantee(t *testing.T) {
	for _, n := range []int{2, 5, 40, 1000, 10000} {
		for _, l := range layouts {
			for _, km := range [][2]int{{1, 1}, {6, 3}, {20, 3}, {20, 5}} {
				k, m := km[0], km[1]
				sizes := l.zones(n)
				if slices.Min(sizes) < 1 || n >= 1000 && (k == 1 || testing.Short()) || n == 10000 &&
					(k != 20 || m != 3) {
					continue
				}
				checkGuarantee(t, fmt.Sprintf("%s, n=%d k=%d m=%d", l.name, n, k, m), sizes, k, m)
			}
		}
	}
}

func checkGuarantee(t *testing.T, name string, sizes []int, k, m int) {
	all := fleet(sizes)
	of, short := choices(t, all, k, m)
	byName := map[string]Member{}
	for _, x := range all {
		byName[x.Name] = x
	}
	type pair struct{ from, to string }
	probedBy := map[string]int{}
	probers, probed := map[pair]map[string]bool{}, map[pair]map[string]bool{}
	most, exact, racks := 0, 0, 0
	for from, peers := range of {
		most = max(most, len(peers))
		if len(peers) == min(k, len(all)-1) {
			exact++
		}
		seen, rack := map[string]bool{from: true}, false
		for _, to := range peers {
			if seen[to] {
				t.Fatalf("%s: %s probes %s twice, or itself", name, from, to)
			}
			seen[to] = true
			probedBy[to]++
			a, b := byName[from], byName[to]
			p := pair{a.Zone, b.Zone}
			if probers[p] == nil {
				probers[p], probed[p] = map[string]bool{}, map[string]bool{}
			}
			probers[p][from], probed[p][to] = true, true
			rack = rack || a.Zone == b.Zone && a.Rack == b.Rack
		}
		if rack {
			racks++
		}
	}
	least, heaviest := len(all), 0
	for _, x := range all {
		least, heaviest = min(least, probedBy[x.Name]), max(heaviest, probedBy[x.Name])
	}
	if least < min(m, len(all)-1) {
		t.Errorf("%s: a member is probed by only %d", name, least)
	}
	z := len(sizes)
	if most > max(2*k, m) || heaviest > 3*k+m*(z-1) {
		t.Errorf("%s: a member has up to %d peers, and is probed by up to %d", name, most, heaviest)
	}
	thin := 0
	for a, sa := range sizes {
		for b, sb := range sizes {
			p := pair{fmt.Sprint("zone-", a), fmt.Sprint("zone-", b)}
			if a != b && (len(probers[p]) < min(m, sa) || len(probed[p]) < min(m, sa, sb)) {
				thin++
			}
		}
	}
	if thin > short || short > 0 && z <= k {
		t.Errorf("%s: %d pairs of zones have too few probers; %d duties are reported as left out", name, thin, short)
	}
	if len(all) == 1000 {
		t.Logf("%-42s peers: up to %d, %.0f %% have exactly k, %.0f %% one of their rack; probed by %d to %d; duties left out: %d", name, most,
			100*float64(exact)/float64(len(all)), 100*float64(racks)/float64(len(all)), least, heaviest, short)
	}
}

// If the zone label holds the host's name, there are more pairs of zones than the members can probe: the number of
// peers stays bounded, each member is still probed, and the omission is reported.
func TestZonePerHost(t *testing.T) {
	needs.Long(t)
	checkGuarantee(t, "a zone for each host", even(1000, 1000), 10, 3)
	if _, short := choices(t, fleet(even(1000, 1000)), 10, 3); short < 900_000 {
		t.Errorf("%d duties are reported as left out", short)
	}
}

// changes counts the pairs of prober and peer that differ, without those of the member that came or went.
func changes(before, after map[string][]string, except string) (n, most int) {
	for from := range before {
		if _, ok := after[from]; !ok || from == except {
			continue
		}
		one := 0
		for _, to := range before[from] {
			if to != except && !slices.Contains(after[from], to) {
				one++
			}
		}
		for _, to := range after[from] {
			if to != except && !slices.Contains(before[from], to) {
				one++
			}
		}
		n, most = n+one, max(most, one)
	}
	return n, most
}

// When a member leaves and joins again, the other members change few peers: each of its probers replaces it, and few
// other pairs change. The number does not grow with the fleet.
func TestMovesFew(t *testing.T) {
	needs.Long(t)
	const k, m = 20, 3
	for _, n := range []int{300, 3000} {
		for _, l := range layouts {
			all := fleet(l.zones(n))
			before, _ := choices(t, all, k, m)
			sum, worst, most, tries := 0, 0, 0, 0
			for i := 0; i < n; i += n / 12 {
				rest := slices.Delete(slices.Clone(all), i, i+1)
				after, _ := choices(t, rest, k, m)
				moved, one := changes(before, after, all[i].Name)
				sum, worst, most, tries = sum+moved, max(worst, moved), max(most, one), tries+1
			}
			mean := float64(sum) / float64(tries)
			if mean > 3*k || worst > 6*k+2*m*len(l.zones(n)) || most > max(2*m+2, len(l.zones(n))) {
				t.Errorf("%s, n=%d: a leaving member changes %.0f pairs in the mean, %d at most, %d of one member",
					l.name, n, mean, worst, most)
			}
			t.Logf("%s, n=%d: %.0f pairs change in the mean, %d at most, %d of one member", l.name, n, mean, worst,
				most)
		}
	}
}

// The order of the list and duplicates do not matter, and a name that is not a member has no peers.
func TestOrderDoesNotMatter(t *testing.T) {
	all := fleet([]int{10, 20, 3})
	want, _ := choices(t, all, 6, 3)
	other := slices.Clone(all)
	slices.Reverse(other)
	got, _ := choices(t, append(other, all[3]), 6, 3)
	if !maps.EqualFunc(got, want, slices.Equal) {
		t.Error("another order of members gives other peers")
	}
	if p := New(all, 6, 3).Peers("none"); p != nil {
		t.Errorf("a name that is no member has peers: %v", p)
	}
}

// What a member probes is the same in each release, or watches of two releases would leave pairs out.
func TestChoicesStay(t *testing.T) {
	var b strings.Builder
	for _, sizes := range [][]int{{45}, {24, 3, 1}} {
		for _, km := range [][2]int{{6, 3}, {3, 1}} {
			f := New(fleet(sizes), km[0], km[1])
			for _, m := range fleet(sizes)[:min(28, sizes[0]+4)] {
				fmt.Fprintln(&b, sizes, km, m.Name, f.Peers(m.Name), f.Short)
			}
		}
	}
	golden.Equal(t, "testdata/choices.txt", b.String())
}
