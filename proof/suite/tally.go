package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A tally counts the results of tests, and of steps such as a build.
type tally struct {
	Passed  int
	Failed  map[string]int      // failures by test
	Skipped map[string][]string // tests by reason
	// Unsteady are tests that failed beside others and passed alone.
	Unsteady []string
	Slow     []timing
	Jobs     []jobTime
}

// A timing is how long one test took.
type timing struct {
	Package, Test string
	Seconds       float64
}

// A jobTime is the wall time of a job, and the CPU time of all its processes, including compilation.
type jobTime struct {
	Name         string
	Seconds, CPU float64
}

func testName(pkg, test string) string { return strings.TrimSpace(pkg + " " + test) }

func (t *tally) fail(pkg, test string) {
	if t.Failed == nil {
		t.Failed = map[string]int{}
	}
	t.Failed[testName(pkg, test)]++
}

func (t *tally) skip(pkg, test, why string) {
	if t.Skipped == nil {
		t.Skipped = map[string][]string{}
	}
	t.Skipped[why] = append(t.Skipped[why], testName(pkg, test))
}

func (t *tally) add(o tally) {
	t.Passed += o.Passed
	for name, n := range o.Failed {
		for range n {
			t.fail(name, "")
		}
	}
	for why, tests := range o.Skipped {
		for _, name := range tests {
			t.skip(name, "", why)
		}
	}
	t.Unsteady = append(t.Unsteady, o.Unsteady...)
	t.Slow = append(t.Slow, o.Slow...)
	t.Jobs = append(t.Jobs, o.Jobs...)
}

func (t tally) failures() (n int) {
	for _, k := range t.Failed {
		n += k
	}
	return n
}

func (t tally) skips() (n int) {
	for _, tests := range t.Skipped {
		n += len(tests)
	}
	return n
}

// String is the summary at the end of a run.
func (t tally) String() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", t.Passed, t.failures(), t.skips())
}

// report writes the reason of each skip, each failed test, and the summary as the last line.
func (t tally) report(w io.Writer) {
	for _, why := range slices.Sorted(maps.Keys(t.Skipped)) {
		tests := t.Skipped[why]
		names := strings.Join(tests[:min(3, len(tests))], ", ")
		if more := len(tests) - 3; more > 0 {
			names += fmt.Sprintf(" and %d more", more)
		}
		fmt.Fprintf(w, "skipped %d: %s (%s)\n", len(tests), why, names)
	}
	for _, name := range t.Unsteady {
		fmt.Fprintf(w, "unsteady: %s failed beside other tests and passed alone\n", name)
	}
	for _, name := range slices.Sorted(maps.Keys(t.Failed)) {
		n := t.Failed[name]
		if n == 0 {
			continue
		}
		fmt.Fprintf(w, "failed")
		if n > 1 {
			fmt.Fprintf(w, " %d times", n)
		}
		fmt.Fprintf(w, ": %s\n", name)
	}
	fmt.Fprintln(w, t)
}

// times writes the table of CONTRIBUTING.md: the slowest jobs, and the slowest tests.
func (t tally) times(w io.Writer, jobs, tests int) {
	slices.SortFunc(t.Jobs, func(a, b jobTime) int { return cmp.Compare(b.Seconds, a.Seconds) })
	fmt.Fprintf(w, "| package or step | seconds | CPU seconds |\n|---|---|---|\n")
	for _, j := range t.Jobs[:min(jobs, len(t.Jobs))] {
		fmt.Fprintf(w, "| %s | %.0f | %.0f |\n", j.Name, j.Seconds, j.CPU)
	}
	slices.SortFunc(t.Slow, func(a, b timing) int { return cmp.Compare(b.Seconds, a.Seconds) })
	fmt.Fprintf(w, "\n| test | seconds |\n|---|---|\n")
	for _, s := range t.Slow[:min(tests, len(t.Slow))] {
		fmt.Fprintf(w, "| %s %s | %.1f |\n", s.Package, s.Test, s.Seconds)
	}
}

// results is the folder of the last run's tallies, by command.
const results = "out/suite"

func (t tally) save(command string) error {
	b, err := json.Marshal(t)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(results, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(results, command+".json"), b, 0o644)
}

func load(command string) (t tally, err error) {
	b, err := os.ReadFile(filepath.Join(results, command+".json"))
	if err != nil {
		return t, fmt.Errorf("read the results of make %s: %w (run it first)", command, err)
	}
	return t, json.Unmarshal(b, &t)
}
