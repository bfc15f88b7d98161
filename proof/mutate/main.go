// Command mutate breaks the code in random places and reports how often the tests of the broken package notice.
//
// A mutation changes one operator, number, condition or statement of the code outside of proof/. Files are not
// modified: the compiler gets the change as an overlay, and GOFLAGS passes it to programs that tests build. A test that
// fails or hangs kills the mutation; a mutation that does not compile is replaced by the next one. The same seed on the
// same source gives the same mutations.
//
// Most mutations of a package are in one program, each behind its number, and only the tests that reach one run with
// it: see switched.go. The others, such as those of constants, are compiled one by one.
//
// The tests of make check run first. Root then runs all of the package's tests, because a broken program must not be
// root on the machine itself, inside of bubblewrap: see sandbox.go. A survivor that is listed in equivalent.txt, with
// the reason why no test can notice it, counts as equivalent. A mutation of a statement that no test of the package
// reaches survives without a run, unless the tests start processes, whose statements nothing counts: see baseline.go.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

func main() {
	n := flag.Int("n", 200, "`number` of mutations")
	seed := flag.Uint64("seed", 1, "`seed` of their choice")
	skip := flag.Int("skip", 0, "`number` of candidates to leave out, to go on where an earlier run stopped")
	limit := flag.Duration("limit", 3*time.Minute,
		"`time` for the tests of a package, after which they count as failed; a mutated package gets five times its own")
	spend := flag.Duration("for", 24*time.Hour, "`time` after which no further mutation is tried")
	only := flag.String("packages", "./...", "`patterns` of packages, separated by spaces")
	match := flag.String("files", "", "mutate only files whose path matches this regular `expression`")
	least := flag.Float64("least", 0,
		"exit with 1 if less than this `share` of the mutations that are not equivalent is killed, such as 0.85")
	flag.Parse()
	path, err := regexp.Compile(*match)
	if err == nil {
		var share float64
		share, err = run(*n, *skip, *seed, *limit, *spend, strings.Fields(*only), path)
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
func run(n, skip int, seed uint64, limit, spend time.Duration, only []string, path *regexp.Regexp) (float64, error) {
	files, err := sources(only)
	if err != nil {
		return 0, err
	}
	maps.DeleteFunc(files, func(file string, _ string) bool { return !path.MatchString(file) })
	all, err := pick(files, seed)
	if err != nil {
		return 0, err
	}
	same, err := readEquivalent()
	if err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp("", "mutate-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	if err := os.Mkdir(filepath.Dir(reachedFile(dir)), 0o755); err != nil {
		return 0, err
	}
	ways := []way{{short: true}}
	if os.Geteuid() == 0 {
		box, err := newSandbox(dir)
		if err != nil {
			return 0, err
		}
		ways = []way{{short: true, in: box}, {in: box}}
	}
	total, byPackage, known := tally{}, map[string]tally{}, map[string]*tests{}
	next, start := skip, time.Now()
	some := map[string][]mutation{} // those that are tried, by package; more are if many do not compile
	for _, m := range all[min(skip, len(all)):min(skip+n+n/5, len(all))] {
		some[m.pkg] = append(some[m.pkg], m)
	}
	for ; next < len(all) && total.counted() < n && time.Since(start) < spend; next++ {
		m := all[next]
		if known[m.pkg] == nil {
			if known[m.pkg], err = baseline(m.pkg, ways, limit); err != nil {
				return 0, err
			}
			own := filepath.Join(dir, fmt.Sprint(len(known)))
			known[m.pkg].switched, err = newSwitched(own, reachedFile(dir), m.pkg, some[m.pkg], ways)
			if err != nil {
				fmt.Println("each mutation is compiled by itself:", err)
			}
		}
		r, err := known[m.pkg].try(dir, m)
		if err != nil {
			return 0, err
		}
		if (r == survived || r == unreached) && same[m.key()] != "" {
			r = equivalent
		}
		if byPackage[m.pkg] == nil {
			byPackage[m.pkg] = tally{}
		}
		total[r]++
		byPackage[m.pkg][r]++
		fmt.Printf("%s %s %v\n", r, m.pkg, m)
	}
	for _, pkg := range slices.Sorted(maps.Keys(byPackage)) {
		fmt.Printf("%-60s %v\n", pkg, byPackage[pkg])
	}
	fmt.Printf("%v; %d did not compile; continue with -skip %d\n", total, total[invalid], next)
	return total.share(), nil
}

// tally counts mutations.
type tally map[result]int

// counted is the number of mutations that compile.
func (t tally) counted() int { return t[killed] + t[survived] + t[unreached] + t[equivalent] }

// share is what is killed of those that are not equivalent, 1 if there are none.
func (t tally) share() float64 {
	all := t.counted() - t[equivalent]
	if all == 0 {
		return 1
	}
	return float64(t[killed]) / float64(all)
}

func (t tally) String() string {
	return fmt.Sprintf("%d killed, %d survived, %d unreached, %d equivalent: %.1f %% killed", t[killed], t[survived],
		t[unreached], t[equivalent], 100*t.share())
}

// sources maps the files of packages that have tests to their packages.
func sources(patterns []string) (map[string]string, error) {
	out, err := exec.Command("go", append([]string{"list", "-json=ImportPath,Dir,GoFiles,TestGoFiles,XTestGoFiles"},
		patterns...)...).Output()
	if err != nil {
		return nil, fmt.Errorf("go list %s: %w", strings.Join(patterns, " "), err)
	}
	files := map[string]string{}
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var p struct {
			ImportPath, Dir                    string
			GoFiles, TestGoFiles, XTestGoFiles []string
		}
		if err := d.Decode(&p); err != nil {
			return nil, err
		}
		if len(p.TestGoFiles)+len(p.XTestGoFiles) == 0 || strings.Contains(p.ImportPath+"/", "/proof/") {
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
	killed     result = "killed"
	survived   result = "SURVIVED"
	unreached  result = "UNREACHED" // survived, because no test runs the statement
	equivalent result = "equivalent"
	invalid    result = "invalid"
)
