// Package schedule draws the order and the length of the slices in which variants are compared.
//
// A fixed order can lock to a disturbance whose period is a multiple of the pattern, which then appears as a difference
// between the variants. Here every order of a block is equally likely, independent of all others. If two variants are
// the same, it is therefore a fair coin which of them got the slower of two slices, whatever disturbs the machine and
// however regularly.
package schedule

import (
	"math/rand/v2"
	"strconv"
)

// Block is one slice of each variant.
type Block struct {
	Order []int // the variants, in the order of measurement
	// change of the length of all slices of the block, relative to the nominal length: -Jitter to Jitter
	Stretch float64
}

// Jitter is the greatest relative deviation of the slices of a block from the nominal length.
const Jitter = 0.25

// Draw returns blocks for a number of variants. The same seed gives the same blocks. Their lengths add up to the
// nominal ones.
func Draw(seed uint64, variants, blocks int) []Block {
	rnd := rand.New(rand.NewPCG(seed, 0))
	all := make([]Block, blocks)
	for i := range all {
		all[i].Order = rnd.Perm(variants)
		switch {
		case i%2 == 1:
			all[i].Stretch = -all[i-1].Stretch
		case i+1 < blocks:
			all[i].Stretch = Jitter * (2*rnd.Float64() - 1)
		}
	}
	return all
}

// Text formats a seed for reports: a JSON number would lose digits in some readers.
func Text(seed uint64) string { return strconv.FormatUint(seed, 16) }
