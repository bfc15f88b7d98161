// Package placement chooses which members of a fleet a member probes, so that few probes cover all members and all
// pairs of zones. Every member computes its own choice from the list of members; nothing coordinates them.
package placement

import (
	"cmp"
	"hash/fnv"
	"slices"
)

// Member is a host of the fleet. Names are unique; the last of several members with one name counts.
type Member struct {
	Name string
	Zone string // empty for none, which is a zone like any other
	Rack string // within the zone; empty for none
}

// Fleet is a list of members, prepared for choosing. Several goroutines must not use it at the same time.
//
// The choice of k peers is made of rings: members in the order of a hash of their names. A member probes those that
// follow it on a ring, so that each of them is probed by as many as it probes. Every member takes, without duplicates:
//
//  1. the next m on the ring of all members;
//  2. its duties for pairs of zones: for each other zone, m members of the same zone, chosen by rendezvous hashing,
//     each probe another one of m members there;
//  3. the next on the ring of its rack, and the next on the ring of its zone, until half of the k are chosen from them;
//  4. more from the ring of all members, until there are k.
//
// If all members have the same list, this guarantees, for n members and z zones:
//
//   - Every member is probed by at least min(m, n-1) others.
//   - Every ordered pair of zones A, B is probed by min(m, |A|) members of A, which probe min(m, |A|, |B|) members of
//     B.
//   - A member probes exactly min(k, n-1) others, unless its duties need more: the s members of a zone share m(z-1) of
//     them, and where s is at most m, each has all z-1. It never probes more than 2k. Short counts the duties that do
//     not fit, for which the second guarantee does not hold: this happens only if there are more zones than about k,
//     and with few members, for example if the label of the zone holds the host's name.
//   - A member is probed by about k others, and by up to m(z-1) more that have it as a duty: no count depends on n.
//   - A member that joins or leaves changes what its predecessors on the rings probe, and the duties that it takes over
//     or gives up: fewer than 3k pairs of prober and peer among the others in the mean, whatever n is.
//
// While members have different lists, because they read a change at different times, only the pairs that the change
// concerns may be missing.
type Fleet struct {
	k, m    int
	members []node
	byName  map[string]int
	all     []int
	zones   map[string]*zone

	Short int // duties that the last choice left out
}

type node struct {
	Member
	hash uint64
	zone *zone
	rank int // on the ring of all members
	near int // on the ring of its zone
}

type zone struct {
	hash   uint64
	ring   []int
	duties map[int][]int // by member, most important first
}

// New prepares the choice of k peers of each member, with a guarantee of m. m is at most k.
func New(members []Member, k, m int) *Fleet {
	f := &Fleet{k: k, m: min(k, m), byName: map[string]int{}, zones: map[string]*zone{}}
	for _, x := range members {
		i, ok := f.byName[x.Name]
		if !ok {
			i = len(f.members)
			f.byName[x.Name] = i
			f.members = append(f.members, node{})
		}
		f.members[i] = node{Member: x, hash: hash(x.Name)}
	}
	for i := range f.members {
		x := &f.members[i]
		z := f.zones[x.Zone]
		if z == nil {
			z = &zone{hash: hash(x.Zone)}
			f.zones[x.Zone] = z
		}
		x.zone = z
		f.all = append(f.all, i)
		z.ring = append(z.ring, i)
	}
	f.sort(f.all, 0)
	for rank, i := range f.all {
		f.members[i].rank = rank
	}
	for _, z := range f.zones {
		f.sort(z.ring, z.hash)
		for rank, i := range z.ring {
			f.members[i].near = rank
		}
	}
	return f
}

// sort puts members in the order of a ring. Rings with different salts have different orders.
func (f *Fleet) sort(ring []int, salt uint64) {
	slices.SortFunc(ring, func(a, b int) int {
		x, y := &f.members[a], &f.members[b]
		return cmp.Or(cmp.Compare(mix(x.hash^salt), mix(y.hash^salt)), cmp.Compare(x.Name, y.Name))
	})
}

// Peers returns the names of the members that self probes, the most important first. Self is a member; if it is not,
// there is nothing to probe.
func (f *Fleet) Peers(self string) []string {
	me, ok := f.byName[self]
	f.Short = 0
	if !ok {
		return nil
	}
	x := &f.members[me]
	out := make([]int, 0, 2*f.k)
	add := func(i int) bool {
		if i == me || slices.Contains(out, i) {
			return false
		}
		out = append(out, i)
		return true
	}
	next := 1 // on the ring of all members
	follow := func(bound int) {
		for ; len(out) < bound && next < len(f.all); next++ {
			add(f.all[(x.rank+next)%len(f.all)])
		}
	}
	follow(f.m)
	for _, i := range f.duties(x.zone)[me] {
		switch {
		case len(out) < 2*f.k:
			add(i)
		case !slices.Contains(out, i):
			f.Short++
		}
	}
	near := 0
	ring := x.zone.ring
	take := func(i int) {
		if len(out) < f.k && near < f.k/2 && add(i) {
			near++
		}
	}
	if x.Rack != "" {
		for step := 1; step < len(ring); step++ {
			if i := ring[(x.near+step)%len(ring)]; f.members[i].Rack == x.Rack {
				take(i)
				break
			}
		}
	}
	for step := 1; step < len(ring) && near < f.k/2 && len(out) < f.k; step++ {
		take(ring[(x.near+step)%len(ring)])
	}
	follow(f.k)
	names := make([]string, len(out))
	for i, p := range out {
		names[i] = f.members[p].Name
	}
	return names
}

// duties returns, by member of a zone, which members of other zones it probes for the pairs of zones.
func (f *Fleet) duties(from *zone) map[int][]int {
	if from.duties != nil {
		return from.duties
	}
	type duty struct {
		slot, from, to int
		weight         uint64
	}
	var all []duty
	for _, to := range f.zones {
		if to == from {
			continue
		}
		pair := mix(from.hash) + to.hash
		probers, probed := f.highest(from.ring, pair), f.highest(to.ring, pair)
		for slot, i := range probers {
			all = append(all, duty{slot, i, probed[slot%len(probed)], pair})
		}
	}
	slices.SortFunc(all, func(a, b duty) int {
		return cmp.Or(cmp.Compare(a.slot, b.slot),
			cmp.Compare(a.weight, b.weight))
	})
	from.duties = map[int][]int{}
	for _, d := range all {
		from.duties[d.from] = append(from.duties[d.from], d.to)
	}
	return from.duties
}

// highest returns m different members, for each of m slots the one with the highest weight (rendezvous hashing). Slots
// have different weights, so that a member that leaves changes its slot only.
func (f *Fleet) highest(of []int, salt uint64) (out []int) {
	for slot := range min(f.m, len(of)) {
		best, weight := -1, uint64(0)
		for _, i := range of {
			if w := mix(f.members[i].hash ^ (salt + uint64(slot))); (best < 0 || w > weight) &&
				!slices.Contains(out, i) {
				best, weight = i, w
			}
		}
		out = append(out, best)
	}
	return out
}

func hash(s string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(s))
	return mix(h.Sum64())
}

// mix spreads a value's bits: the finalizer of MurmurHash3.
func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
