// Package calibration simulates comparisons whose truth is known, and counts what compare says of them.
package calibration

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"rebound/latency/compare"
	"rebound/latency/synthetic"
)

var (
	only  = flag.String("only", "", "scenarios whose mode has this")
	many  = flag.Int("comparisons", 600, "comparisons of each scenario, with -long")
	long  = flag.Bool("long", false, "simulate all scenarios instead of 40 comparisons of some")
	write = flag.String("write", "", "write the table to this file, of a run with -long")
)

// A run is 2 s long, and half a second lies between two; a single run is 10 s long.
const (
	runLength, pause, single = 2.0, 0.5, 10.0
	base                     = 4000.0 // ns
)

// consecutive returns the slots of n runs one after the other, then those of n further runs.
func consecutive(n int) (a, b []synthetic.Slot) {
	all := slots(2*n, runLength)
	return all[:n], all[n:]
}

// alternating returns the slots of n pairs of runs, A B, B A, A B, ...
func alternating(n int) (a, b []synthetic.Slot) {
	all := slots(2*n, runLength)
	for i := range n {
		x, y := all[2*i], all[2*i+1]
		if i%2 == 1 {
			x, y = y, x
		}
		a, b = append(a, x), append(b, y)
	}
	return a, b
}

// together returns the slots of n runs of each, at the same time.
func together(n int) (a, b []synthetic.Slot) { return slots(n, runLength), slots(n, runLength) }

func alone(int) (a, b []synthetic.Slot) {
	all := slots(2, single)
	return all[:1], all[1:]
}

func slots(n int, length float64) []synthetic.Slot {
	out := make([]synthetic.Slot, n)
	for i := range out {
		at := 1 + float64(i)*(length+pause)
		out[i] = synthetic.Slot{Start: at, End: at + length}
	}
	return out
}

type level = func(rnd *rand.Rand, end float64) func(float64) float64

func ar1(deviation, correlation float64) level {
	return func(rnd *rand.Rand, end float64) func(float64) float64 {
		return synthetic.AR1(rnd, deviation, correlation, end)
	}
}

func walk(step float64) level {
	return func(rnd *rand.Rand, end float64) func(float64) float64 { return synthetic.Walk(rnd, step, end) }
}

func line(rate float64) level {
	return func(*rand.Rand, float64) func(float64) float64 { return synthetic.Line(rate) }
}

func steps(height, apart float64) level {
	return func(rnd *rand.Rand, end float64) func(float64) float64 {
		return synthetic.Steps(rnd, height, apart, end)
	}
}

func oneStep(height float64) level {
	return func(rnd *rand.Rand, end float64) func(float64) float64 { return synthetic.OneStep(rnd, height, end) }
}

func quiet(*rand.Rand, float64) func(float64) float64 { return synthetic.Quiet }

type scenario struct {
	mode, name string
	when       func(n int) (a, b []synthetic.Slot)
	runs       int
	machine    synthetic.Machine
	level      level
	short      bool // part of the ordinary tests
}

var plain = synthetic.Machine{Samples: 200_000, Noise: 0.005, Tail: 0.05}

func with(change func(m *synthetic.Machine)) synthetic.Machine {
	m := plain
	change(&m)
	return m
}

func scenarios() []scenario {
	still := with(func(m *synthetic.Machine) { m.Noise, m.Tail, m.Samples = 0, 0, 50_000 })
	outliers := with(func(m *synthetic.Machine) { m.Outlier = 1.0 / 7 })
	out := []scenario{}
	for _, tau := range []float64{0.5, 1, 2, 5} {
		out = append(out, scenario{"single run of 10 s", fmt.Sprintf("AR(1) noise of 2 %%, %g s", tau), alone, 1, still, ar1(0.02, tau), tau == 2})
	}
	out = append(out,
		scenario{"single run of 10 s", "AR(1) noise of 10 %, 5 s", alone, 1, still, ar1(0.1, 5), false},
		scenario{"single run of 10 s", "runs differ by 3 %", alone, 1, with(func(m *synthetic.Machine) { m.Noise = 0.03 }), quiet, false})
	for _, n := range []int{8, 20} {
		mode := fmt.Sprintf("%d runs, then %d", n, n)
		out = append(out,
			scenario{mode, "independent", consecutive, n, plain, quiet, n == 8},
			scenario{mode, "random walk, 0.5 % a second", consecutive, n, plain, walk(0.005), n == 8},
			scenario{mode, "random walk, 5 % a second", consecutive, n, plain, walk(0.05), n == 8},
			scenario{mode, "linear, 0.1 % a second", consecutive, n, plain, line(0.001), false},
			scenario{mode, "linear, 1 % a second", consecutive, n, plain, line(0.01), n == 8},
			scenario{mode, "steps of 3 %, 10 s apart", consecutive, n, plain, steps(0.03, 10), false},
			scenario{mode, "steps of 30 %, 10 s apart", consecutive, n, plain, steps(0.3, 10), n == 8},
			scenario{mode, "one step of 5 %, anywhere", consecutive, n, plain, oneStep(0.05), false},
			scenario{mode, "AR(1) noise of 3 %, 20 s", consecutive, n, plain, ar1(0.03, 20), false},
			scenario{mode, "AR(1) noise of 20 %, 20 s", consecutive, n, plain, ar1(0.2, 20), n == 8},
			scenario{mode, "one run of seven is slow", consecutive, n, outliers, quiet, false})
	}
	for _, n := range []int{8, 20} {
		mode := fmt.Sprintf("%d+%d runs at the same time", n, n)
		out = append(out,
			scenario{mode, "independent", together, n, plain, quiet, n == 8},
			scenario{mode, "random walk, 0.5 % a second", together, n, plain, walk(0.005), n == 8},
			scenario{mode, "one run of seven is slow", together, n, outliers, quiet, false})
	}
	for _, n := range []int{8, 20} {
		mode := fmt.Sprintf("%d pairs, alternating", n)
		out = append(out,
			scenario{mode, "independent", alternating, n, plain, quiet, n == 8},
			scenario{mode, "random walk, 0.5 % a second", alternating, n, plain, walk(0.005), n == 8},
			scenario{mode, "random walk, 5 % a second", alternating, n, plain, walk(0.05), false},
			scenario{mode, "linear, 1 % a second", alternating, n, plain, line(0.01), n == 8},
			scenario{mode, "steps of 30 %, 10 s apart", alternating, n, plain, steps(0.3, 10), false},
			scenario{mode, "AR(1) noise of 3 %, 5 s", alternating, n, plain, ar1(0.03, 5), false},
			scenario{mode, "one run of seven is slow", alternating, n, outliers, quiet, true},
			scenario{mode, "heavy tails: they differ by 50 %", alternating, n, with(func(m *synthetic.Machine) { m.Tail = 0.5 }), quiet, false},
			scenario{mode, "clock of 40 ns steps", alternating, n, with(func(m *synthetic.Machine) { m.Granule = 40 }), quiet, n == 8},
			scenario{mode, "few samples: 20,000 a run", alternating, n, with(func(m *synthetic.Machine) { m.Samples = 20_000 }), quiet, n == 8})
	}
	return out
}

// draw returns a comparison of a machine with itself, or with one that is slower by shift.
func (s scenario) draw(seed uint64, shift float64) *compare.Comparison {
	rnd := rand.New(rand.NewPCG(seed, 11))
	when := func() ([]synthetic.Slot, []synthetic.Slot) { return s.when(s.runs) }
	a, b := when()
	end := max(a[len(a)-1].End, b[len(b)-1].End) + 1
	m := s.machine
	m.Rnd, m.Level = rnd, s.level(rnd, end)
	intervals := 1
	if s.runs == 1 {
		intervals = 20
	}
	m.Samples /= intervals
	x, y := m.Runs(base, a, intervals), m.Runs(base*(1+shift), b, intervals)
	x.Label, y.Label = "a", "b"
	if a[len(a)-1].End > b[0].Start && a[0] != b[0] {
		x.Session, y.Session = "s", "s"
	}
	return compare.Reports(x, y)
}

var rows = []string{"p50", "p90", "p99", "p99.9", "p99.99", "max", "mean"}

// tally counts verdicts by row.
type tally struct {
	n                       int
	wrong, right, undecided map[string]int
}

func (s scenario) simulate(n int, shift float64) tally {
	t := tally{n, map[string]int{}, map[string]int{}, map[string]int{}}
	var mu sync.Mutex
	var wg sync.WaitGroup
	work := make(chan uint64)
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for seed := range work {
				c := s.draw(seed, shift)
				mu.Lock()
				for _, r := range c.Pairs[0].Rows {
					name := r.Stat.String()
					switch {
					case r.Verdict == compare.Unknown:
						t.undecided[name]++
					case r.Verdict == compare.Slower && shift > 0:
						t.right[name]++
					case r.Verdict != compare.Noise:
						t.wrong[name]++
					}
				}
				mu.Unlock()
			}
		})
	}
	for seed := range uint64(n) {
		work <- seed
	}
	close(work)
	wg.Wait()
	return t
}

// limit is the share of false verdicts that is allowed, in per cent.
const limit = 1.5

// bound is the greatest number of n verdicts that a true share of no more than limit makes, but for one case of a thousand.
func bound(n int) int {
	mean := limit / 100 * float64(n)
	return int(mean + 3*math.Sqrt(mean) + 0.5)
}

// TestCalibration holds compare to its confidence: at most 1.5 % of the comparisons of a machine with itself find a
// difference, in each row of every mode, and no scenario is significantly above that. With -long it does so on many
// comparisons of each, which takes a quarter of an hour, and -write makes docs/calibration.md of them.
func TestCalibration(t *testing.T) {
	n := 40
	if *long {
		n = *many
	}
	var out strings.Builder
	fmt.Fprintf(&out, preamble, n, n/4)
	table := func(title string, n int, shift float64, cell func(tl tally, row string) string) {
		fmt.Fprintf(&out, "\n## %s\n\n| measured | scenario | %s |\n|---|---|%s\n", title, strings.Join(rows, " | "), strings.Repeat("---|", len(rows)))
		wrong, all := map[string]int{}, map[string]int{}
		for _, s := range scenarios() {
			if !*long && (!s.short || shift != 0) || !strings.Contains(s.mode, *only) {
				continue
			}
			tl := s.simulate(n, shift)
			fmt.Fprintf(&out, "| %s | %s |", s.mode, s.name)
			for _, r := range rows {
				fmt.Fprintf(&out, " %s |", cell(tl, r))
				wrong[s.mode+", "+r] += tl.wrong[r]
				all[s.mode+", "+r] += n
				if tl.wrong[r] > bound(n) {
					t.Errorf("%s, %s, shifted by %g: %s: %d of %d verdicts are wrong, allowed %d", s.mode, s.name, shift, r, tl.wrong[r], n, bound(n))
				}
			}
			fmt.Fprintln(&out)
		}
		for row, k := range wrong {
			if share := 100 * float64(k) / float64(all[row]); *long && share > limit {
				t.Errorf("%s, shifted by %g: %.2f %% of %d verdicts are wrong, allowed %g %%", row, shift, share, all[row], limit)
			}
		}
	}
	percent := func(k, n int) string { return strconv.FormatFloat(100*float64(k)/float64(n), 'f', 1, 64) }
	table("The same against itself: false verdicts (and `?`), per cent", n, 0, func(tl tally, r string) string {
		return percent(tl.wrong[r], tl.n) + " (" + percent(tl.undecided[r], tl.n) + ")"
	})
	table("Slower by 2 %: found (and `?`), per cent", n/4, 0.02, func(tl tally, r string) string {
		return percent(tl.right[r], tl.n) + " (" + percent(tl.undecided[r], tl.n) + ")"
	})
	table("Slower by 30 %: found (and `?`), per cent", n/4, 0.3, func(tl tally, r string) string {
		return percent(tl.right[r], tl.n) + " (" + percent(tl.undecided[r], tl.n) + ")"
	})
	t.Log(out.String())
	if *write != "" {
		if !*long || *only != "" {
			t.Fatal("-write is for the whole table: give -long, and no -only")
		}
		if err := os.WriteFile(*write, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

const preamble = `# Calibration of bench compare

Made by ` + "`go test ./latency/calibration -run Calibration -long -timeout 2h -write ../../docs/calibration.md`" + `: %d simulated
comparisons of a machine with itself in each line and %d with a slower one, on fixed seeds. The test fails where more than
1.5 %% of a column's verdicts are false in a way of measuring, or where one line is above that by more than chance. A short
form of it is among the ordinary tests.

Simulated is a machine of 4 us round trips whose runs differ by 0.5 %% and whose tails differ by 5 %% from run to run, if a
line says nothing else; one round trip of fifty is in a Pareto tail. Runs are 2 s long with half a second between them.

What the lines show, and what to make of it:

- Measured by turns (` + "`bench run -ab`" + `), or at the same time, a shift of 2 %% is found with eight runs of each. Drift costs
  power and makes no false verdicts; from run to run it has to be less than what is looked for. This is the way to find
  small differences.
- Measured one after the other, every drift of the machine looks like a difference. What counts as slower or faster must
  lie beyond 10 %% of the value and beyond twice what the runs of one side differ by (carried on in proportion where
  the two lie farther apart than a series is long, up to three times). Between that and chance the
  mark is ` + "`?`" + `. The 10 %% are an assumption: a step of the machine in the pause between two series does not show in either,
  so no test can bound it. A machine that makes larger steps, rarely, makes false verdicts of them; only turns do not.
- A single run shows nothing of what changes from start to start, and its parts are correlated: there is no verdict on
  fewer than eight runs of each.

A real machine, on 22 November 2026: a veth pair and the kernel's own echo on two virtual cores, busy with other work (load
10 and more), each time measured twice without a change. Of 45 comparisons of eight runs of 0.4 s with the next eight, the
test before this one (Mann-Whitney on runs as if they were exchangeable) called 14 different at p50, of 45 single runs of
2 s 16. Now none of either is, in any row.
By turns (16 slices of 0.15 s of each), 45 comparisons of one target with itself gave 5 verdicts at p50 before, and 3 now, of
20 to 30 ns. Once more on the machine with nothing else to do: 5 of 45 at p50, 3 at p90, 2 of the mean, none at min, p99 and
p99.9, those at p50 all slower. So some of that is no chance: the two series of one bench, each with probes and memory of its
own, differ by some 25 ns, and it is not known yet of what. Since then a shift by turns of 50 ns or less is ` + "`?`" + `. The tables
below were made before that; they can only have fewer verdicts since, and the 2 %% whose power they show are 80 ns.
`
