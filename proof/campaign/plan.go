package campaign

import (
	"math/rand/v2"
	"regexp"
	"slices"
)

// kind is a device or interface that the responder runs on.
type kind struct {
	name string
	tags []string // select the faults that apply
	open func(c *campaign, r *rand.Rand) (target, error)
}

// fault is one way to break something. It is undone when do returns.
type fault struct {
	name string
	on   []string // tags of the kinds that it applies to, any of them
	not  []string // tags of kinds that it does not apply to
	// the responder may exit with an error because of it, and is then started again, as its systemd unit would do
	ends bool
	do   func(s *session) error
}

// part is one start of the responder with its faults.
type part struct {
	kind   *kind
	seed   uint64 // determines the strengths
	faults []*fault
}

// partLength is the number of faults per start of a target.
const partLength = 4

func faultsOf(k *kind) (all []*fault) {
	has := func(tags []string) bool {
		return slices.ContainsFunc(tags, func(t string) bool { return slices.Contains(k.tags, t) })
	}
	for i := range faults {
		if f := &faults[i]; has(f.on) && !has(f.not) {
			all = append(all, f)
		}
	}
	return all
}

// plan generates rounds endlessly: in each, every fault of every kind occurs once, in an order determined by the seed.
type plan struct {
	rng  *rand.Rand
	only *regexp.Regexp
	rest []part
}

func newPlan(seed uint64, only *regexp.Regexp) *plan {
	return &plan{rng: rand.New(rand.NewPCG(seed, 16)), only: only}
}

// next returns a part without faults if none matches.
func (p *plan) next() (out part) {
	if len(p.rest) == 0 {
		for i := range kinds {
			k := &kinds[i]
			all := slices.DeleteFunc(faultsOf(k), func(f *fault) bool {
				return !p.only.MatchString(k.name + ": " + f.name)
			})
			p.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
			for faults := range slices.Chunk(all, partLength) {
				p.rest = append(p.rest, part{k, p.rng.Uint64(), faults})
			}
		}
		p.rng.Shuffle(len(p.rest), func(i, j int) { p.rest[i], p.rest[j] = p.rest[j], p.rest[i] })
	}
	if len(p.rest) > 0 {
		out, p.rest = p.rest[0], p.rest[1:]
	}
	return out
}
