// Command mutate breaks the code in random places and reports how often the tests of the broken package notice.
//
// A mutation changes one operator, number, condition or statement of the code outside of proof/. Files are not
// modified: go test gets the change as an overlay, and GOFLAGS passes it to programs that tests build. A test that
// fails or hangs kills the mutation; a mutation that does not compile is replaced by the next one. The same seed on the
// same source gives the same mutations.
//
// The tests of make check run first. Root then runs all of the package's tests, because a broken program must not be
// root on the machine itself, inside of bubblewrap: see sandbox.go. A survivor that is listed in equivalent.txt, with
// the reason why no test can notice it, counts as equivalent.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	n := flag.Int("n", 200, "`number` of mutations")
	seed := flag.Uint64("seed", 1, "`seed` of their choice")
	skip := flag.Int("skip", 0, "`number` of candidates to leave out, to go on where an earlier run stopped")
	limit := flag.Duration("limit", 3*time.Minute,
		"`time` for the tests of a package, after which they count as failed")
	spend := flag.Duration("for", 24*time.Hour, "`time` after which no further mutation is tried")
	only := flag.String("packages", "./...", "`patterns` of packages, separated by spaces")
	least := flag.Float64("least", 0,
		"exit with 1 if less than this `share` of the mutations that are not equivalent is killed, such as 0.85")
	flag.Parse()
	share, err := run(*n, *skip, *seed, *limit, *spend, strings.Fields(*only))
	if err == nil && share < *least {
		err = fmt.Errorf("%.1f %% are killed, fewer than %.1f %%", 100*share, 100**least)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

// run tries mutations, and returns the share that is killed of those that are not equivalent.
func run(n, skip int, seed uint64, limit, spend time.Duration, only []string) (float64, error) {
	files, err := sources(only)
	if err != nil {
		return 0, err
	}
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
	ways := []way{{short: true}}
	if os.Geteuid() == 0 {
		box, err := newSandbox(dir)
		if err != nil {
			return 0, err
		}
		ways = []way{{short: true, in: box}, {in: box}}
	}
	total, byPackage, good := tally{}, map[string]tally{}, map[string][]way{}
	next, start := skip, time.Now()
	for ; next < len(all) && total[killed]+total[survived]+total[equivalent] < n && time.Since(start) < spend; next++ {
		m := all[next]
		if _, ok := good[m.pkg]; !ok {
			if good[m.pkg], err = passing(dir, m.pkg, ways, limit); err != nil {
				return 0, err
			}
		}
		r, err := try(dir, m, good[m.pkg], limit)
		if err != nil {
			return 0, err
		}
		if r == survived && same[m.key()] != "" {
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

// share is what is killed of those that are not equivalent, 1 if there are none.
func (t tally) share() float64 {
	if t[killed]+t[survived] == 0 {
		return 1
	}
	return float64(t[killed]) / float64(t[killed]+t[survived])
}

func (t tally) String() string {
	return fmt.Sprintf("%d killed, %d survived, %d equivalent: %.1f %% killed", t[killed], t[survived], t[equivalent],
		100*t.share())
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
	equivalent result = "equivalent"
	invalid    result = "invalid"
)

// way is how the tests of a package are run.
type way struct {
	short bool     // only those of make check
	in    *sandbox // nil: on this machine
}

// passing returns the ways in which the tests of a package pass without a mutation: where they fail anyway, they notice
// nothing.
func passing(dir, pkg string, ways []way, limit time.Duration) (good []way, err error) {
	overlay := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlay, []byte("{}"), 0o644); err != nil {
		return nil, err
	}
	for _, w := range ways {
		r, err := w.test(pkg, overlay, limit)
		if err != nil {
			return nil, err
		}
		if r == survived {
			good = append(good, w)
		} else {
			fmt.Printf("left out %s %v: they fail without a mutation\n", pkg, w)
		}
	}
	return good, nil
}

// try runs the tests of a package with one mutation, in each way until they fail.
func try(dir string, m mutation, ways []way, limit time.Duration) (r result, err error) {
	source, err := os.ReadFile(m.file)
	if err != nil {
		return "", err
	}
	changed, overlay := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay.json")
	b, err := json.Marshal(map[string]map[string]string{"Replace": {m.file: changed}})
	if err := errors.Join(err, os.WriteFile(changed, m.apply(source), 0o644),
		os.WriteFile(overlay, b, 0o644)); err != nil {
		return "", err
	}
	r = survived
	for _, w := range ways {
		if r, err = w.test(m.pkg, overlay, limit); err != nil || r != survived {
			return r, err
		}
	}
	return r, nil
}

func (w way) String() string {
	if w.short {
		return "the tests of make check"
	}
	return "all tests"
}

// test runs the tests of a package with an overlay.
func (w way) test(pkg, overlay string, limit time.Duration) (result, error) {
	args := []string{"go", "test", "-count=1", "-failfast", "-vet=off", "-timeout", limit.String()}
	if w.short {
		args = append(args, "-short")
	}
	args = w.in.wrap(append(args, pkg))
	ctx, cancel := context.WithTimeout(context.Background(), limit+time.Minute)
	defer cancel()
	test := exec.CommandContext(ctx, args[0], args[1:]...)
	test.Env = append(os.Environ(), "GOFLAGS="+strings.TrimSpace(os.Getenv("GOFLAGS")+" -overlay="+overlay))
	test.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a mutated test may leave child processes
	test.Cancel = func() error { return syscall.Kill(-test.Process.Pid, syscall.SIGKILL) }
	test.WaitDelay = 10 * time.Second
	var said bytes.Buffer
	test.Stdout, test.Stderr = &said, &said
	err := test.Run()
	if test.Process != nil {
		syscall.Kill(-test.Process.Pid, syscall.SIGKILL)
	}
	switch {
	case err == nil:
		return survived, nil
	case bytes.Contains(said.Bytes(), []byte("[build failed]\n")),
		bytes.Contains(said.Bytes(), []byte("[setup failed]\n")):
		return invalid, nil
	case ctx.Err() != nil, bytes.Contains(said.Bytes(), []byte("FAIL")), bytes.Contains(said.Bytes(), []byte("panic")):
		return killed, nil
	case errors.As(err, new(*exec.ExitError)):
		return "", fmt.Errorf("the tests of %s did not run: %w: %s", pkg, err, bytes.TrimSpace(said.Bytes()))
	}
	return "", err
}
