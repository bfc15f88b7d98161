// Package calibration simulates comparisons whose true outcome is known, and counts the verdicts that compare gives.
package calibration

import (
	"flag"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/synthetic"
)

var (
	only  = flag.String("only", "", "scenarios whose mode has this")
	many  = flag.Int("comparisons", 600, "comparisons of each scenario, with -long")
	long  = flag.Bool("long", false, "simulate all scenarios instead of 40 comparisons of some")
	write = flag.String("write", "", "write the table to this file, of a run with -long")
)

// A run is 2 s long, with a pause of half a second between runs; a single run is 10 s long.
const (
	runLength, pause, single = 2.0, 0.5, 10.0
	base                     = 4000.0 // ns
)

// when returns the slots of n runs of each side. If the sides alternate, the schedule is drawn from the seed.
type when = func(seed uint64, n int) synthetic.Session

func consecutive(_ uint64, n int) synthetic.Session {
	all := slots(2*n, runLength)
	return synthetic.Session{A: all[:n], B: all[n:]}
}

func alternating(seed uint64, n int) synthetic.Session {
	return synthetic.Slices(seed, n, runLength, pause)
}

func together(_ uint64, n int) synthetic.Session {
	return synthetic.Session{A: slots(n, runLength), B: slots(n, runLength)}
}

func alone(uint64, int) synthetic.Session {
	all := slots(2, single)
	return synthetic.Session{A: all[:1], B: all[1:]}
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
	when       when
	runs       int
	machine    synthetic.Machine
	level      level
	short      bool // part of the default test run
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
		out = append(out, scenario{"single run of 10 s", fmt.Sprintf("AR(1) noise of 2 %%, %g s", tau), alone, 1, still,
			ar1(0.02, tau), tau == 2})
	}
	out = append(out,
		scenario{"single run of 10 s", "AR(1) noise of 10 %, 5 s", alone, 1, still, ar1(0.1, 5), false},
		scenario{"single run of 10 s", "runs differ by 3 %", alone, 1,
			with(func(m *synthetic.Machine) { m.Noise = 0.03 }), quiet, false})
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
	for _, n := range []int{10, 20} {
		mode := fmt.Sprintf("%d pairs, alternating", n)
		out = append(out,
			scenario{mode, "independent", alternating, n, plain, quiet, n == 10},
			scenario{mode, "random walk, 0.5 % a second", alternating, n, plain, walk(0.005), n == 10},
			scenario{mode, "random walk, 5 % a second", alternating, n, plain, walk(0.05), false},
			scenario{mode, "linear, 1 % a second", alternating, n, plain, line(0.01), n == 10},
			scenario{mode, "steps of 30 %, 10 s apart", alternating, n, plain, steps(0.3, 10), false},
			scenario{mode, "AR(1) noise of 3 %, 5 s", alternating, n, plain, ar1(0.03, 5), false},
			scenario{mode, "one run of seven is slow", alternating, n, outliers, quiet, true},
			scenario{mode, "heavy tails: they differ by 50 %", alternating, n,
				with(func(m *synthetic.Machine) { m.Tail = 0.5 }), quiet, false},
			scenario{mode, "clock of 40 ns steps", alternating, n, with(func(m *synthetic.Machine) { m.Granule = 40 }),
				quiet, n == 10},
			scenario{mode, "few samples: 20,000 a run", alternating, n,
				with(func(m *synthetic.Machine) { m.Samples = 20_000 }), quiet, n == 10})
	}
	return out
}

func (s scenario) seed(i uint64) uint64 {
	h := fnv.New64a()
	fmt.Fprint(h, s.mode, s.name, i)
	return h.Sum64()
}

// draw returns a comparison of a machine with itself, or with one slower by shift.
func (s scenario) draw(seed uint64, shift float64) *compare.Comparison {
	rnd := rand.New(rand.NewPCG(seed, 11))
	at := s.when(seed, s.runs)
	end := max(at.A[len(at.A)-1].End, at.B[len(at.B)-1].End) + 1
	m := s.machine
	m.Rnd, m.Level = rnd, s.level(rnd, end)
	intervals := 1
	if s.runs == 1 {
		intervals = 20
	}
	m.Samples /= intervals
	x, y := m.Both(base, base*(1+shift), at, intervals)
	x.Label, y.Label = "a", "b"
	return compare.Reports(x, y)
}

var rows = []string{"min", "p50", "p90", "p99", "p99.9", "p99.99", "max", "mean"}

// tally counts verdicts by row, with p50 as "p50", and comparisons with any verdict as whole.
type tally struct {
	n                       int
	wrong, right, undecided map[string]int
}

// whole is the key of a tally that counts comparisons with a wrong verdict in any row.
const whole = "any row"

func (s scenario) simulate(n int, shift float64) tally {
	t := tally{n, map[string]int{}, map[string]int{}, map[string]int{}}
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	var mu sync.Mutex
	var wg sync.WaitGroup
	work := make(chan uint64)
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := range work {
				c := s.draw(s.seed(i), shift)
				mu.Lock()
				wrong := 0
				for _, r := range c.Pairs[0].Rows {
					name := r.Stat.String()
					switch {
					case r.Verdict == compare.Unknown:
						t.undecided[name]++
					case r.Verdict == compare.Slower && shift > 0:
						t.right[name]++
					case r.Verdict != compare.Noise:
						t.wrong[name]++
						wrong = 1
					}
				}
				t.wrong[whole] += wrong
				mu.Unlock()
			}
		})
	}
	for i := range uint64(n) {
		work <- i
	}
	close(work)
	wg.Wait()
	return t
}

// limit is the permitted share of false verdicts in per cent, for a row or for the whole table.
func limit(row string) float64 {
	if row == whole {
		return 5
	}
	return 1.5
}

// bound is the number of verdicts out of n that a true share of limit exceeds with a probability of only 0.1 %.
func bound(row string, n int) int {
	mean := limit(row) / 100 * float64(n)
	return int(mean + 3*math.Sqrt(mean) + 0.5)
}

// TestCalibration checks compare's confidence level: at most 1.5 % of the comparisons of a machine with itself find a
// difference, in each row of every mode, and no scenario is significantly above that. With -long it runs many
// comparisons of each scenario, which takes a quarter of an hour, and -write writes results/calibration.md from them.
func TestCalibration(t *testing.T) {
	n := 40
	switch {
	case *long:
		n = *many
	case testing.Short():
		n = 12
	}
	var out strings.Builder
	fmt.Fprintf(&out, preamble, n, n/4, 100/float64(n), 100/float64(n/4))
	table := func(title string, columns []string, n int, shift float64, count func(tl tally, row string) int) {
		fmt.Fprintf(&out, "\n## %s\n\n| measured | scenarios | %s |\n|---|--:|%s\n", title,
			strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
		wrong, all := map[string]int{}, map[string]int{}
		var modes []string
		shares := map[string][]float64{} // of each scenario, by mode and row
		for _, s := range scenarios() {
			if !*long && (!s.short || shift != 0) || !strings.Contains(s.mode, *only) {
				continue
			}
			if !slices.Contains(modes, s.mode) {
				modes = append(modes, s.mode)
			}
			tl := s.simulate(n, shift)
			for _, r := range columns {
				shares[s.mode+", "+r] = append(shares[s.mode+", "+r], 100*float64(count(tl, r))/float64(n))
				wrong[s.mode+", "+r] += tl.wrong[r]
				all[s.mode+", "+r] += n
				if tl.wrong[r] > bound(r, n) {
					t.Errorf("%s, %s, shifted by %g: %s: %d of %d verdicts are wrong, allowed %d", s.mode, s.name,
						shift, r, tl.wrong[r], n, bound(r, n))
				}
			}
		}
		for _, m := range modes {
			fmt.Fprintf(&out, "| %s | %d |", m, len(shares[m+", "+columns[0]]))
			for _, r := range columns {
				least, most := slices.Min(shares[m+", "+r]), slices.Max(shares[m+", "+r])
				if least == most {
					fmt.Fprintf(&out, " %.1f |", least)
				} else {
					fmt.Fprintf(&out, " %.1f to %.1f |", least, most)
				}
			}
			fmt.Fprintln(&out)
		}
		for row, k := range wrong {
			name := row[strings.LastIndex(row, ", ")+2:]
			if most := bound(name, all[row]); k > most || *long && 100*float64(k)/float64(all[row]) > limit(name) {
				t.Errorf("%s, shifted by %g: %d of %d verdicts are wrong, allowed %g %%", row, shift, k, all[row],
					limit(name))
			}
		}
	}
	found := func(tl tally, r string) int { return tl.right[r] }
	table("The same against itself: false verdicts, per cent", append([]string{whole}, rows...), n, 0,
		func(tl tally, r string) int { return tl.wrong[r] })
	table("Slower by 2 %: found, per cent", rows, n/4, 0.02, found)
	table("Slower by 30 %: found, per cent", rows, n/4, 0.3, found)
	t.Log(out.String())
	if *write != "" {
		if !*long || *only != "" {
			t.Fatal("-write is for the whole table: give -long, and no -only")
		}
		must.OK(t, os.WriteFile(*write, []byte(out.String()), 0o644))
	}
}

const preamble = `# Calibration of rebound-bench compare: tables

Made by ` + "`" + `go test ./latency/calibration -run Calibration -long -comparisons %[1]d -timeout 2h -write ../../results/calibration.md` + "`" + `:
%[1]d simulated comparisons of a machine with itself in each line and %[2]d with a slower one, on fixed seeds.
[calibration.md](../docs/internals/calibration.md) says what the machine is.

A row has the least and the most of its scenarios: independent runs, drift (random walk, linear, steps), correlated noise, periodic
disturbances. What is neither found nor false is ` + "`" + `~` + "`" + ` or ` + "`" + `?` + "`" + `. One table of a scenario is %.1[3]f %% of those without a change, and %.1[4]f %% of the others.
`
