package suspects

import (
	"cmp"
	"slices"
)

// now is the effect of the assumed faults on a path.
func (f *fleet) now(path int32) effect {
	return max(f.effect[f.cell[path]], f.answers[f.to[path]], f.probes[f.from[path]])
}

// each yields what another fault of a suspect would change in the cost, for each effect and reach.
func (f *fleet) each(kind Kind, a, b int, yield func(suspicion, float64)) {
	offer := func(reach Reach, change *[effects]float64, silent float64) {
		for e := firstLoss; e <= down; e++ {
			s := suspicion{kind, reach, a, b, e}
			d := change[e] + f.prior(s)
			if e == down && (kind == Zone || kind == Host && reach == All) {
				d -= silent
			}
			yield(s, d)
		}
	}
	switch kind {
	case Host:
		var answers, probes, both [effects]float64
		for _, i := range f.ofHost[a] {
			sum := &probes
			if int(f.to[i]) == a {
				sum = &answers
			}
			old, cost := f.now(i), &f.cost[i]
			for e := old + 1; e < effects; e++ {
				sum[e] += cost[e] - cost[old]
			}
		}
		for e := range both {
			both[e] = answers[e] + probes[e]
		}
		silent := 0.0
		if f.silent[a] && !f.spoken[a] && !f.gone[f.zoneOf[a]] {
			silent = unexplained
		}
		offer(All, &both, silent)
		offer(Answers, &answers, 0)
		offer(Probes, &probes, 0)
	case Link:
		change := f.cellChange(f.between(a, b))
		offer(All, &change, 0)
	case Zone:
		var across [effects]float64
		for z := range f.zones {
			if z != a {
				add(&across, f.cellChange(f.between(a, z)))
			}
		}
		silent := 0.0
		if !f.gone[a] {
			silent = unexplained * float64(f.mutes[a])
			for _, s := range f.assumed {
				if s.kind == Host && f.spoken[s.a] && f.zoneOf[s.a] == a {
					silent -= unexplained
				}
			}
		}
		offer(Across, &across, silent)
		if own := f.between(a, a); f.cells[own].bad {
			add(&across, f.cellChange(own))
			offer(All, &across, silent)
		}
	}
}

func add(to *[effects]float64, x [effects]float64) {
	for e := range to {
		to[e] += x[e]
	}
}

// cellChange is what an effect on a whole cell would change, beside the assumed faults.
func (f *fleet) cellChange(at int) (change [effects]float64) {
	c, old := &f.cells[at], f.effect[at]
	for e := old + 1; e < effects; e++ {
		change[e] = c.sum[e] - c.sum[old]
	}
	for n, s := range f.assumed { // paths of suspected hosts have an effect already
		if s.kind != Host || f.zoneOf[s.a] != c.a && f.zoneOf[s.a] != c.b {
			continue
		}
		for _, i := range f.ofHost[s.a] {
			has := f.now(i)
			if int(f.cell[i]) != at || has <= old || slices.ContainsFunc(f.assumed[:n], func(o suspicion) bool {
				return o.kind == Host && (int(f.from[i]) == o.a || int(f.to[i]) == o.a)
			}) {
				continue
			}
			for e := old + 1; e < effects; e++ {
				change[e] += f.cost[i][max(e, has)] - f.cost[i][has] - f.cost[i][e] + f.cost[i][old]
			}
		}
	}
	return change
}

// change is what another fault would change in the cost of the measurements, without its own cost.
func (f *fleet) change(s suspicion) (change float64) {
	f.each(s.kind, s.a, s.b, func(o suspicion, d float64) {
		if o == s {
			change = d - f.prior(s)
		}
	})
	return change
}

// assume adds a fault.
func (f *fleet) assume(s suspicion) {
	f.assumed = append(f.assumed, s)
	if s.kind == Host {
		if s.reach != Probes {
			f.answers[s.a] = max(f.answers[s.a], s.effect)
		}
		if s.reach != Answers {
			f.probes[s.a] = max(f.probes[s.a], s.effect)
		}
		f.spoken[s.a] = f.silent[s.a] && f.speaksFor(s, s.a)
		return
	}
	for c := range f.cellsOf(s) {
		f.effect[c] = max(f.effect[c], s.effect)
	}
	f.gone[s.a] = f.gone[s.a] || s.kind == Zone && s.effect == down
}

// restart assumes these faults and no others.
func (f *fleet) restart(set []suspicion) {
	for _, s := range f.assumed {
		if s.kind == Host {
			f.answers[s.a], f.probes[s.a], f.spoken[s.a] = works, works, false
			continue
		}
		for c := range f.cellsOf(s) {
			f.effect[c] = works
		}
		f.gone[s.a] = false
	}
	f.assumed = f.assumed[:0]
	for _, s := range set {
		f.assume(s)
	}
}

// explanation is a set of suspicions with its costs.
type explanation struct {
	set         []suspicion
	data, prior float64
}

func (x *explanation) total() float64 { return x.data + x.prior }

func (x *explanation) has(s suspicion) bool { return slices.ContainsFunc(x.set, s.same) }

// sameAs reports whether two explanations name the same suspects.
func (x *explanation) sameAs(y *explanation) bool {
	return len(x.set) == len(y.set) && !slices.ContainsFunc(x.set, func(s suspicion) bool { return !y.has(s) })
}

// explain returns the costs of a set.
func (f *fleet) explain(set []suspicion) explanation {
	x := explanation{set: slices.Clone(set), data: f.plain}
	f.restart(nil)
	for _, s := range set {
		x.data += f.change(s)
		x.prior += f.prior(s)
		f.assume(s)
	}
	return x
}

type offered struct {
	suspicion
	change float64 // of the total cost
}

// bestOffer returns the fault of a suspect that lowers the cost most beside the assumed ones; its change is 0 if none
// does.
func (f *fleet) bestOffer(kind Kind, a, b int) (best offered) {
	f.each(kind, a, b, func(s suspicion, change float64) {
		if change < best.change-1e-9 {
			best = offered{s, change}
		}
	})
	return best
}

// suspicions returns the suspicions that lower the cost beside the assumed ones, for each suspect that which lowers it
// most; the best ones first.
func (f *fleet) suspicions() (all []offered) {
	try := func(kind Kind, a, b int) {
		if best := f.bestOffer(kind, a, b); best.change < 0 && !slices.ContainsFunc(f.assumed, best.same) {
			all = append(all, best)
		}
	}
	for h := range f.hosts {
		if f.silent[h] || slices.ContainsFunc(f.ofHost[h], func(i int32) bool { return f.cost[i][works] > 1 }) {
			try(Host, h, 0)
		}
	}
	for a := range f.zones {
		bad := f.mutes[a] > 0
		for b := range f.zones {
			if !f.cells[f.between(a, b)].bad {
				continue
			}
			if bad = true; a < b {
				try(Link, a, b)
			}
		}
		if bad {
			try(Zone, a, 0)
		}
	}
	slices.SortStableFunc(all, func(a, b offered) int { return cmp.Compare(a.change, b.change) })
	return all
}

// polish changes reach and effect of each suspicion to the best beside the others, and drops those that do not lower
// the cost.
func (f *fleet) polish(set []suspicion) []suspicion {
	set = slices.Clone(set)
	for range 4 {
		changed := false
		for i := 0; i < len(set); i++ {
			f.restart(slices.Concat(set[:i], set[i+1:]))
			switch best := f.bestOffer(set[i].kind, set[i].a, set[i].b); {
			case best.change == 0:
				set, changed = slices.Delete(set, i, i+1), true
				i--
			case best.suspicion != set[i]:
				set[i], changed = best.suspicion, true
			}
		}
		if !changed {
			break
		}
	}
	return set
}

const (
	pool         = 12  // suspicions that are tried in all sets of up to three
	mostParts    = 4   // only explanations with at most this many suspects have all of their subsets replaced
	likeness     = 2.0 // explanations of the measurements whose costs differ by less than this cannot be distinguished
	alternatives = 6
)

// search returns the cheapest explanation that it finds, and those that the measurements do not distinguish from it. It
// adds suspects greedily. Then it replaces each part of what it has by up to three others.
func (f *fleet) search() (best []suspicion, others [][]suspicion) {
	f.restart(nil)
	for {
		all := f.suspicions()
		if len(all) == 0 {
			break
		}
		f.assume(all[0].suspicion)
	}
	found := f.explain(f.polish(f.assumed))
	var all []explanation
	for range 3 {
		all = all[:0]
		for _, kept := range parts(found.set) {
			f.replace(kept, len(found.set)+1, &all)
		}
		better := found
		for _, x := range all {
			if x.total() < better.total()-1e-9 {
				better = x
			}
		}
		if better.total() == found.total() {
			break
		}
		found = f.explain(f.polish(better.set))
	}
	slices.SortStableFunc(all, func(a, b explanation) int { return cmp.Compare(a.total(), b.total()) })
	kept := []explanation{found}
	for _, x := range all {
		if x.data > found.data+likeness || len(kept) > alternatives ||
			slices.ContainsFunc(kept, func(y explanation) bool { return y.sameAs(&x) }) || !f.minimal(&x) {
			continue
		}
		kept = append(kept, x)
		others = append(others, x.set)
	}
	return found.set, others
}

// parts returns the subsets of a set without the set itself, or if it is large those that lack one, and the empty one.
func parts(set []suspicion) (all [][]suspicion) {
	if len(set) > mostParts {
		all = append(all, nil)
		for i := range set[:min(len(set), 2*pool)] {
			all = append(all, slices.Concat(set[:i], set[i+1:]))
		}
		return all
	}
	for bits := range 1<<len(set) - 1 {
		var part []suspicion
		for i, s := range set {
			if bits>>i&1 != 0 {
				part = append(part, s)
			}
		}
		all = append(all, part)
	}
	return all
}

// replace appends the explanations that have the kept suspicions and up to three of the best others, and at most a
// number of all.
func (f *fleet) replace(kept []suspicion, most int, all *[]explanation) {
	base := f.explain(kept)
	offers := f.suspicions()
	offers = offers[:min(len(offers), pool)]
	var add func(from int, x explanation)
	add = func(from int, x explanation) {
		if len(x.set) >= most || len(x.set) >= len(kept)+3 {
			return
		}
		for i := from; i < len(offers); i++ {
			s := offers[i].suspicion
			f.restart(x.set)
			change := f.change(s)
			if change+f.prior(s) >= 0 {
				continue
			}
			y := explanation{append(slices.Clone(x.set), s), x.data + change, x.prior + f.prior(s)}
			*all = append(*all, y)
			add(i+1, y)
		}
	}
	add(0, base)
}

// minimal reports whether no suspect can be left out without raising the cost.
func (f *fleet) minimal(x *explanation) bool {
	for i := range x.set {
		if y := f.explain(slices.Concat(x.set[:i], x.set[i+1:])); y.total() <= x.total() {
			return false
		}
	}
	return true
}
