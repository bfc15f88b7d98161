// Command suite runs the project's tests: what make check, test, lab and flaky run.
//
// It runs packages in parallel, the longest first, prints one line for each as it ends and the output of failed tests
// immediately, and ends with the reasons of skipped tests and the line "N passed, N failed, N skipped". It counts tests
// without subtests, subtests, and steps such as a build. Exit status 1 means that something failed.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"syscall"
	"time"
)

const usage = `usage: suite COMMAND

  check            the tests that need neither root nor a network
  test             every package, and a sample of what lab runs
  lab              virtual machines, and the rest of the race detector, arm64 emulation and packaging
  flaky [PACKAGE]  every package, or those named, 20 times; with -run the tests of that name
  times COMMAND    what took longest in the last run of test, check, lab or flaky
  total COMMAND... the results of the last runs of these commands together
`

func main() {
	flags := flag.NewFlagSet("suite", flag.ExitOnError)
	flags.Usage = func() { fmt.Fprint(os.Stderr, usage) }
	nic := flags.String("nic", "", "")
	count := flags.Int("count", 20, "")
	tests := flags.String("run", "", "")
	if len(os.Args) < 2 {
		flags.Usage()
		os.Exit(2)
	}
	command := os.Args[1]
	flags.Parse(os.Args[2:])
	ok, err := do(command, *nic, *tests, *count, flags.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "suite:", err)
		os.Exit(2)
	}
	if !ok {
		os.Exit(1)
	}
}

// do reports whether everything passed.
func do(command, nic, tests string, count int, args []string) (bool, error) {
	switch command {
	case "times", "total":
		return last(command, args)
	}
	pkgs, err := packages()
	if err != nil {
		return false, err
	}
	var p plan
	switch command {
	case "check":
		p = checkPlan(pkgs)
	case "test":
		p = testPlan(pkgs)
	case "lab":
		if nic != "" && !slices.Contains(pkgs, "nic/drivers/"+nic) {
			return false, fmt.Errorf("NIC=%s: no such driver; nic/drivers has a folder for each", nic)
		}
		p = labPlan(nic)
	case "flaky":
		p = flakyPlan(pkgs, count, tests, args)
	default:
		return false, fmt.Errorf("no such command: %s\n%s", command, usage)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	r := &runner{out: os.Stdout, stacks: results, cores: 1.2 * float64(runtime.NumCPU())} // most jobs wait at times
	m, err := speed()
	if err != nil {
		return false, fmt.Errorf("measure this machine: %w", err)
	}
	start := time.Now()
	for _, stage := range p {
		r.run(ctx, stage)
	}
	if command == "test" || command == "lab" {
		r.repeat(ctx)
	}
	if ctx.Err() != nil {
		r.total.fail("interrupted", "")
	}
	fmt.Printf("\nmake %s took %v, on a machine that %v\n", command, time.Since(start).Round(time.Second), m)
	r.total.report(os.Stdout)
	return r.total.failures() == 0, r.total.save(command)
}

// last prints the results saved by earlier runs.
func last(command string, of []string) (bool, error) {
	var sum tally
	for _, c := range of {
		t, err := load(c)
		if err != nil {
			return false, err
		}
		sum.add(t)
	}
	if command == "times" {
		sum.times(os.Stdout, 20, 20)
	} else {
		sum.report(os.Stdout)
	}
	return sum.failures() == 0, nil
}
