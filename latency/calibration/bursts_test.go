package calibration

import (
	"fmt"
	"testing"

	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/synthetic"
)

// bursts are machines that are twenty times as slow during a share of the slices, and machines that drift, with 40
// slices of each variant. Tails are Pareto's.
func bursts() (out []scenario) {
	const mode = "40 pairs, alternating, bursts"
	of := func(name string, slow, tail float64, samples int, l level) {
		out = append(out, scenario{mode, name, alternating, 40,
			with(func(m *synthetic.Machine) { m.Outlier, m.Tail, m.Samples = slow, tail, samples }), l, true})
	}
	for _, slow := range []float64{0, 0.1, 0.2, 0.3, 0.4, 0.5} {
		of(fmt.Sprintf("%.0f %% of slices are slow", 100*slow), slow, 0.02, 20_000, quiet)
	}
	of("30 % slow, tails differ by 5 %", 0.3, 0.05, 20_000, quiet)
	of("50 % slow, tails differ by 5 %", 0.5, 0.05, 20_000, quiet)
	of("20 % slow, 5,000 samples", 0.2, 0.02, 5000, quiet)
	of("20 % slow, random walk, 0.5 % a second", 0.2, 0.02, 20_000, walk(0.005))
	of("20 % slow, AR(1) noise of 3 %, 5 s", 0.2, 0.02, 20_000, ar1(0.03, 5))
	of("20 % slow, linear, 1 % a second", 0.2, 0.02, 20_000, line(0.01))
	return out
}

// Bursts do not hide a change: at least 80 % of changes by 10 % are found at p99 if 30 % of the slices are slow,
// and an unchanged machine has a mark in at most 5 % of tables.
func TestBursts(t *testing.T) {
	needs.Long(t)
	const demanding = "30 % of slices are slow"
	for _, s := range bursts() {
		n := 20
		if *long {
			n = *many
		} else if s.name != demanding {
			continue
		}
		same, ten, half := s.simulate(n, 0), s.simulate(n, 0.1), s.simulate(n, 0.5)
		t.Logf("| %s | %d | %d | %d | %d |", s.name, n, same.wrong[whole], ten.right["p99"], half.right["p99"])
		if same.wrong[whole] > bound(whole, n) {
			t.Errorf("%s: %d of %d tables of an unchanged machine have a mark, allowed %d", s.name, same.wrong[whole],
				n, bound(whole, n))
		}
		if s.name == demanding && ten.right["p99"] < n*8/10 {
			t.Errorf("%s: %d of %d changes by 10 %% found at p99", s.name, ten.right["p99"], n)
		}
	}
}
