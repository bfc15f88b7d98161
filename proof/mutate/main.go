// Command mutate breaks the code in random places and reports how often the tests notice: those of the broken package,
// and those of the other packages whose tests run it.
//
// A mutation changes one operator, number, condition or statement of the code outside of proof/. Files are not
// modified: the compiler gets the change as an overlay, and GOFLAGS passes it to programs that tests build. A test that
// fails or hangs, twice, kills the mutation; a mutation that does not compile is replaced by the next one. The same
// seed on the same source gives the same mutations.
//
// One overlay has most mutations of a run, each behind its number: see switched.go. The tests of a package are compiled
// with it, and run once without a mutation, when they are first needed. After that only the tests that reach a mutation
// run with it: see tests.go. The other mutations, such as those of constants, are compiled one by one.
//
// The tests of make check run first. Root then runs all tests, because a broken program must not be root on the machine
// itself, inside of bubblewrap: see sandbox.go. A survivor that is listed in equivalent.txt, with the reason why no
// test can notice it, counts as equivalent. A mutation of a statement that no test reaches survives without a run.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

func main() {
	n := flag.Int("n", 200, "`number` of mutations")
	seed := flag.Uint64("seed", 1, "`seed` of their choice")
	skip := flag.Int("skip", 0, "`number` of candidates to leave out, to go on where an earlier run stopped")
	limit := flag.Duration("limit", 3*time.Minute,
		"`time` for a test with a mutation, after which it counts as failed; most get five times their own")
	others := flag.Duration("others", time.Minute,
		"`time` for the tests of other packages that one mutation runs, the nearest packages first; 0 runs none")
	spend := flag.Duration("for", 24*time.Hour, "`time` after which no further mutation is tried")
	only := flag.String("packages", "./...", "`patterns` of packages, separated by spaces")
	match := flag.String("files", "", "mutate only files whose path matches this regular `expression`")
	twice := flag.Bool("twice", false, "list the tests that notice nothing that other tests of their package do not")
	least := flag.Float64("least", 0,
		"exit with 1 if less than this `share` of the mutations that are not equivalent is killed, such as 0.85")
	flag.Parse()
	path, err := regexp.Compile(*match)
	if err == nil {
		var share float64
		r := &trial{limit: *limit, others: *others, workers: 2, list: *twice}
		share, err = run(r, *n, *skip, *seed, *spend, strings.Fields(*only), path)
		if err == nil && share < *least {
			err = fmt.Errorf("%.1f %% are killed, fewer than %.1f %%", 100*share, 100**least)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

// run tries mutations, and returns the share that is killed of those that are not equivalent.
func run(r *trial, n, skip int, seed uint64, spend time.Duration, only []string, path *regexp.Regexp) (float64, error) {
	files, err := sources(only)
	if err != nil {
		return 0, err
	}
	maps.DeleteFunc(files, func(file string, _ string) bool { return !path.MatchString(file) })
	all, err := pick(files, seed)
	if err != nil {
		return 0, err
	}
	all = all[min(skip, len(all)):min(skip+n+n/5+10, len(all))] // more than n, because some do not compile
	same, err := readEquivalent()
	if err != nil {
		return 0, err
	}
	r.dir, err = os.MkdirTemp("", "mutate-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(r.dir)
	r.ways = []way{{short: true}}
	if os.Geteuid() == 0 {
		box, err := newSandbox(r.dir)
		if err != nil {
			return 0, err
		}
		r.ways = []way{{short: true, in: box}, {in: box}}
	}
	if err := r.prepare(all); err != nil {
		return 0, err
	}
	if r.list {
		return 1, r.twice(all)
	}
	done, err := r.try(all, n, same, time.Now().Add(spend)) // an error ends it, but what is known is printed
	for _, a := range done {
		if a.alive() {
			fmt.Println(a)
		}
	}
	total, byPackage, cut := tally{}, map[string]tally{}, map[string]int{}
	for _, a := range done {
		for _, name := range []string{part(a.pkg), a.pkg} {
			if byPackage[name] == nil {
				byPackage[name] = tally{}
			}
			byPackage[name][a.result]++
		}
		total[a.result]++
		if a.alive() {
			cut[a.cut]++
		}
	}
	for _, pkg := range slices.Sorted(maps.Keys(byPackage)) {
		fmt.Printf("%-60s %v\n", pkg, byPackage[pkg])
	}
	fmt.Printf("%v; %d did not compile; not all tests of other packages ran for %d (-others) and %d (-for); "+
		"continue with -skip %d\n", total, total[invalid], cut["-others"], cut["-for"], skip+len(done))
	return total.share(), err
}

// try tries the first n mutations that compile with the tests of their own packages, and then the survivors with those
// of others: all of them with the tests of make check before any with all tests, which are slow. It prints what is
// decided, in the order in which it is.
func (r *trial) try(all []mutation, n int, same map[string]string, end time.Time) (done []*attempt, err error) {
	var mu sync.Mutex // over n, done and the output
	say := func(a *attempt) {
		if !a.alive() {
			fmt.Println(a)
		}
	}
	err = r.each(func(worker int) (more bool, err error) {
		mu.Lock()
		defer mu.Unlock()
		if n == 0 || len(done) == len(all) || time.Now().After(end) {
			return false, nil
		}
		a := &attempt{mutation: all[len(done)], worker: worker}
		n, done = n-1, append(done, a)
		mu.Unlock()
		err = r.own(a)
		mu.Lock()
		if a.alive() && same[a.key()] != "" {
			a.result = equivalent
		}
		if a.result == invalid {
			n++
		}
		say(a)
		return true, err
	})
	for k := range r.ways {
		next := 0
		err = errors.Join(err, r.each(func(worker int) (bool, error) {
			mu.Lock()
			defer mu.Unlock()
			for next < len(done) && !done[next].alive() {
				next++
			}
			if next == len(done) || err != nil {
				return false, nil
			}
			a := done[next]
			next++
			if time.Now().After(end) {
				a.cut = "-for"
				return true, nil
			}
			mu.Unlock()
			a.worker = worker
			err := r.byOthers(a, k)
			mu.Lock()
			say(a)
			return true, err
		}))
	}
	return done, err
}

// each has all workers call a function until it returns false or fails.
func (r *trial) each(f func(worker int) (more bool, err error)) error {
	all, failed := sync.WaitGroup{}, make([]error, r.workers)
	for worker := range r.workers {
		all.Go(func() {
			for more := true; more && failed[worker] == nil; {
				more, failed[worker] = f(worker)
			}
		})
	}
	all.Wait()
	return errors.Join(failed...)
}

// part is what a package belongs to, by its path without the module's.
func part(pkg string) string {
	if strings.Contains(pkg+"/", "/sim/") {
		return "all models"
	}
	return "all of the product"
}

// tally counts mutations.
type tally map[result]int

// counted is the number of mutations that compile.
func (t tally) counted() int {
	return t[killed] + t[elsewhere] + t[survived] + t[unreached] + t[equivalent]
}

// share is what is killed of those that are not equivalent, 1 if there are none.
func (t tally) share() float64 {
	all := t.counted() - t[equivalent]
	if all == 0 {
		return 1
	}
	return float64(t[killed]+t[elsewhere]) / float64(all)
}

func (t tally) String() string {
	of := float64(max(1, t.counted()-t[equivalent])) / 100
	var b strings.Builder
	for _, r := range []result{killed, elsewhere, survived, unreached} {
		fmt.Fprintf(&b, "%d %s (%.1f %%), ", t[r], strings.ToLower(string(r)), float64(t[r])/of)
	}
	fmt.Fprintf(&b, "%d equivalent: %.1f %% killed", t[equivalent], 100*t.share())
	return b.String()
}

// sources maps files to their packages.
func sources(patterns []string) (map[string]string, error) {
	out, err := exec.Command("go", append([]string{"list", "-json=ImportPath,Dir,GoFiles"}, patterns...)...).Output()
	if err != nil {
		return nil, fmt.Errorf("go list %s: %w", strings.Join(patterns, " "), err)
	}
	files := map[string]string{}
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var p struct {
			ImportPath, Dir string
			GoFiles         []string
		}
		if err := d.Decode(&p); err != nil {
			return nil, err
		}
		if strings.Contains(p.ImportPath+"/", "/proof/") {
			continue
		}
		for _, f := range p.GoFiles {
			files[filepath.Join(p.Dir, f)] = p.ImportPath
		}
	}
	return files, nil
}

type result string

const (
	killed     result = "killed"           // by the package's own tests
	elsewhere  result = "killed-by-others" // by those of other packages
	survived   result = "SURVIVED"
	unreached  result = "UNREACHED" // survived, because no test runs the statement
	equivalent result = "equivalent"
	invalid    result = "invalid"
)
