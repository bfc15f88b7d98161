// Package cycles measures the cost per reply of the drivers' polling loops, with rings in memory, and compares it with
// loops in C that do the same work.
package cycles

import (
	"bufio"
	"cmp"
	_ "embed" // the loops in C
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/catalogue"
	"github.com/rebound-nic/rebound/proof/peers/baseline"
)

//go:embed testdata/loops.c
var loops []byte

// drivers returns the drivers whose BenchmarkPoll, BenchmarkKinds and BenchmarkQueues are measured. For mlx4,
// BenchmarkDatagramPoll, the loop of its InfiniBand ports, is measured as well.
func drivers() (all []string) {
	for i := range catalogue.All {
		if c := &catalogue.All[i]; c.Benchmark {
			all = append(all, c.Driver)
		}
	}
	return all
}

// folder is where a driver's package is in the module.
func folder(driver string) string { return "nic/drivers/" + driver }

// The reference loops in C: guarded is the one that the goal refers to, port does what nic/drivers/ixgbe does, step by
// step.
const (
	guarded = "C, guarded"
	port    = "C, ported"
)

// Explanation is the text above the table.
const Explanation = "Ticks of the time stamp counter for each reply, in the first table to an ICMP echo request of 64 bytes, rings in huge pages of " +
	"memory, without a device: lower quartiles of groups of 64 passes, fences around each pass, the cost of measuring taken " +
	"off. *To the doorbell* leaves out the longest four passes of each group, in which a loop reclaims. The loops in C are in " +
	"proof/peers/cycles/testdata/loops.c: *least* checks nothing, *guarded* has all guards of strict mode and verifies checksums of every length, *ported* " +
	"also the book-keeping of nic/drivers/ixgbe. All three drive the 82599's rings; the other cards' rings ask for more. *efa* answers messages, of the " +
	"bytes that its cases begin with, which have no headers to match and rewrite. *mlx4, InfiniBand* answers the packet alone, over IPoIB: the sizes are " +
	"of the frame that it would be on Ethernet."

// Options say what to measure.
type Options struct {
	Module  string // folder of this module's sources
	Before  string // a folder of test binaries NAME.test of another commit, "" for none
	Core    int    // core to measure on
	Rounds  int    // rounds of all loops, alternating
	Scratch string // folder for built programs
}

// Row is one loop with one batch size: ticks of the cycle counter per reply, one value per round.
type Row struct {
	Loop     string // "ixgbe", "C, guarded"
	Case     string // "batch=1"
	All      []float64
	Doorbell []float64 // up to the doorbell, without the cleanup after it
}

// Run builds all loops and measures them alternately.
func Run(o Options) ([]Row, error) {
	program := filepath.Join(o.Scratch, "loops")
	if err := baseline.Compile(loops, program); err != nil {
		return nil, err
	}
	type loop struct{ name, binary, dir string }
	var ours []loop
	for _, d := range drivers() {
		dir := filepath.Join(o.Module, folder(d))
		binary := filepath.Join(o.Scratch, d+".test")
		c := exec.Command("go", "test", "-c", "-o", binary, "./"+folder(d))
		c.Dir = o.Module
		if out, err := c.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%s: %w\n%s", c, err, out)
		}
		ours = append(ours, loop{d, binary, dir})
		if old := filepath.Join(o.Before, d+".test"); o.Before != "" && exists(old) {
			ours = append(ours, loop{d + ", before", old, dir})
		}
	}
	// Child processes inherit the core.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var was, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &was); err != nil {
		return nil, fmt.Errorf("sched_getaffinity: %w", err)
	}
	one.Set(o.Core)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return nil, fmt.Errorf("core %d: sched_setaffinity: %w", o.Core, err)
	}
	defer unix.SchedSetaffinity(0, &was)

	rows := map[[2]string]*Row{}
	var order [][2]string
	add := func(name, c string, all, doorbell float64) {
		k := [2]string{name, c}
		if rows[k] == nil {
			rows[k] = &Row{Loop: name, Case: c}
			order = append(order, k)
		}
		rows[k].All = append(rows[k].All, all)
		rows[k].Doorbell = append(rows[k].Doorbell, doorbell)
	}
	for range o.Rounds {
		if err := runC(program, o.Core, add); err != nil {
			return nil, err
		}
		for _, l := range ours {
			if err := runGo(l.name, l.binary, l.dir, add); err != nil {
				return nil, err
			}
		}
	}
	result := make([]Row, 0, len(order))
	for _, k := range order {
		result = append(result, *rows[k])
	}
	return result, nil
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

func runC(program string, core int, add func(name, c string, all, doorbell float64)) error {
	out, err := exec.Command(program, strconv.Itoa(core), "1000").Output()
	if err != nil {
		return fmt.Errorf("loops in C: %w", err)
	}
	for s := bufio.NewScanner(strings.NewReader(string(out))); s.Scan(); {
		var name, what string
		var all, doorbell, harness float64
		if _, err := fmt.Sscan(s.Text(), &name, &what, &all, &doorbell, &harness); err != nil {
			return fmt.Errorf("loops in C say %q: %w", s.Text(), err)
		}
		add("C, "+name, what, all, doorbell)
	}
	return nil
}

// runGo runs a driver's benchmarks. The second table's, of which there are seventy, take less time each: a sample is a
// group of 64 passes, so that the quartiles are of hundreds of samples.
func runGo(name, binary, dir string, add func(name, c string, all, doorbell float64)) error {
	if err := runBenchmarks(name, binary, dir, "(Datagram)?Poll", "100ms", add); err != nil {
		return err
	}
	return runBenchmarks(name, binary, dir, "(Kinds|Queues)", "10ms", add)
}

func runBenchmarks(name, binary, dir, which, each string, add func(name, c string, all, doorbell float64)) error {
	c := exec.Command(binary, "-test.run", "^$", "-test.bench", "^Benchmark"+which+"$", "-test.benchtime", each)
	c.Dir = dir
	out, err := c.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", c, err, out)
	}
	for s := bufio.NewScanner(strings.NewReader(string(out))); s.Scan(); {
		loop, bench, values, ok := benchmark(s.Text())
		if !ok {
			continue
		}
		all, ok := values["cycles/reply"]
		doorbell, split := values["doorbell-cycles/reply"]
		if !ok || !split {
			return fmt.Errorf("%s: %q says no cycles/reply and doorbell-cycles/reply", name, s.Text())
		}
		add(name+loop, bench, all, doorbell)
	}
	return nil
}

// benchmark parses a line in testing's benchmark format: the driver's loop, the case, and the values by unit.
func benchmark(line string) (loop, name string, values map[string]float64, ok bool) {
	f := strings.Fields(line)
	if len(f) < 2 {
		return "", "", nil, false
	}
	bench, name, ok := strings.Cut(f[0], "/")
	switch {
	case bench == "BenchmarkDatagramPoll":
		loop = ", InfiniBand"
	case !ok || bench != "BenchmarkPoll" && bench != "BenchmarkKinds" && bench != "BenchmarkQueues":
		return "", "", nil, false
	}
	if i := strings.LastIndexByte(name, '-'); i > 0 {
		if _, err := strconv.Atoi(name[i+1:]); err == nil {
			name = name[:i] // GOMAXPROCS
		}
	}
	values = map[string]float64{}
	for i := 2; i+1 < len(f); i += 2 {
		v, err := strconv.ParseFloat(f[i], 64)
		if err != nil {
			return "", "", nil, false
		}
		values[f[i+1]] = v
	}
	return loop, name, values, true
}

// Markdown formats the two tables. Ratios are relative to the guarded loop in C, if it has that batch size: the median
// of the rounds' ratios, with the minimum and the maximum.
func Markdown(rows []Row) string {
	references := map[[2]string]Row{}
	for _, r := range rows {
		references[[2]string{r.Loop, r.Case}] = r
	}
	var b strings.Builder
	fmt.Fprintf(&b, "| Loop | case | cycles a reply | to the doorbell | that to %s | to %s | to the doorbell |\n|---|---|---|---|---|---|---|\n", guarded, port)
	for _, r := range rows {
		if strings.Contains(r.Case, "/tag=") {
			continue
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |", r.Loop, r.Case, spread(r.All, 1), spread(r.Doorbell, 1))
		for _, c := range []struct {
			to  string
			get func(Row) []float64
		}{
			{guarded, func(r Row) []float64 { return r.Doorbell }},
			{port, func(r Row) []float64 { return r.All }},
			{port, func(r Row) []float64 { return r.Doorbell }},
		} {
			ratio := ""
			if to, ok := references[[2]string{c.to, r.Case}]; ok && r.Loop != c.to {
				ratio = spread(ratios(c.get(r), c.get(to)), 2)
			}
			fmt.Fprintf(&b, " %s |", ratio)
		}
		b.WriteString("\n")
	}
	return b.String() + kinds(rows, references)
}

// kinds formats the table of BenchmarkKinds: a row for each loop and kind, a column for each size and batch.
func kinds(rows []Row, all map[[2]string]Row) string {
	var b strings.Builder
	var columns, done []string
	for _, r := range rows {
		if _, column, ok := strings.Cut(r.Case, "/size="); ok && !slices.Contains(columns, column) {
			columns = append(columns, column)
		}
	}
	slices.SortFunc(columns, func(a, b string) int {
		var x, y [2]int
		fmt.Sscanf(a, "%d/batch=%d", &x[0], &x[1])
		fmt.Sscanf(b, "%d/batch=%d", &y[0], &y[1])
		return cmp.Or(x[1]-y[1], x[0]-y[0])
	})
	for _, r := range rows {
		kind, _, ok := strings.Cut(r.Case, "/size=")
		if !ok || slices.Contains(done, r.Loop+kind) {
			continue
		}
		if len(done) == 0 {
			fmt.Fprintf(&b, "\n## Every kind of request\n\nCycles a reply, and in bold how many times those of %s. A size is that of the frame without its tag.\n\n| Loop | request |", guarded)
			for _, c := range columns {
				b.WriteString(" " + strings.Replace(c, "/batch=", " bytes, batch ", 1) + " |")
			}
			b.WriteString("\n|---|---|" + strings.Repeat("---|", len(columns)) + "\n")
		}
		done = append(done, r.Loop+kind)
		fmt.Fprintf(&b, "| %s | %s |", r.Loop, strings.NewReplacer("/tag=yes", ", tagged", "/tag=no", "").Replace(kind))
		for _, c := range columns {
			key := kind + "/size=" + c
			cell := spread(all[[2]string{r.Loop, key}].All, 1)
			if to, ok := all[[2]string{guarded, key}]; ok && r.Loop != guarded && cell != "" {
				cell += " **" + spread(ratios(all[[2]string{r.Loop, key}].All, to.All), 2) + "**"
			}
			b.WriteString(" " + cell + " |")
		}
		b.WriteString("\n")
	}
	return b.String()
}

func ratios(a, b []float64) []float64 {
	r := make([]float64, min(len(a), len(b)))
	for i := range r {
		r[i] = a[i] / b[i]
	}
	return r
}

func spread(v []float64, digits int) string {
	s := slices.Sorted(slices.Values(v))
	if len(s) == 0 {
		return ""
	}
	return fmt.Sprintf("%.*f (%.*f to %.*f)", digits, s[len(s)/2], digits, s[0], digits, s[len(s)-1])
}
