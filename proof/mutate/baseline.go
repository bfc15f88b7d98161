package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// way is how the tests of a package are run.
type way struct {
	short bool     // only those of make check
	in    *sandbox // nil: on this machine
}

func (w way) String() string {
	if w.short {
		return "the tests of make check"
	}
	return "all tests"
}

// tests are those of one package.
type tests struct {
	pkg, dir string
	limit    time.Duration
	ways     []way    // in which they have not run without a mutation yet
	left     []string // tests that the ways so far left out in whole or in part; nil before the first
	stages   []stage  // none of a way in which they fail without a mutation: they would notice nothing
	reached  []block  // nil if the tests start processes, which reach more
	switched *switched
	env      []string // of the test program, beside this process's
}

// stage is some tests of a package that run in one process. The quickest tests are the first stage, because most
// mutations fail many tests.
type stage struct {
	way   way
	names []string
	limit time.Duration // of a run with a mutation
}

// block is a sequence of statements, as package testing/cover reports it, of a file without its folder. reached is
// whether a test runs it.
type block struct {
	file     string
	from, to [2]int // line and column
	reached  bool
}

// slowest is how much longer than without a mutation tests may take before they count as hanging: other work on this
// machine can slow them by a factor, and the sandbox by seconds.
func slowest(took, limit time.Duration) time.Duration { return min(limit, 5*took+15*time.Second) }

// baseline prepares the tests of a package.
func baseline(pkg string, ways []way, limit time.Duration) (*tests, error) {
	out, err := exec.Command("go", "list", "-json=Dir,TestImports,XTestImports", pkg).Output()
	if err != nil {
		return nil, fmt.Errorf("go list %s: %w", pkg, err)
	}
	var p struct {
		Dir                       string
		TestImports, XTestImports []string
	}
	if err := json.Unmarshal(out, &p); err != nil {
		return nil, err
	}
	deps, err := exec.Command("go", "list", "-deps", "-test", pkg).Output()
	if err != nil {
		return nil, fmt.Errorf("go list -deps %s: %w", pkg, err)
	}
	t := &tests{pkg: pkg, dir: p.Dir, ways: ways, limit: limit}
	starts := slices.Contains(append(p.TestImports, p.XTestImports...), "os/exec") ||
		strings.Contains(string(deps), "/proof/programs\n")
	if !starts {
		t.reached = []block{}
	}
	return t, nil
}

// learn runs the tests in the next way without a mutation, to know how long they take and what they reach. After the
// first way, only those that it left out run.
func (t *tests) learn(dir string) error {
	w := t.ways[0]
	t.ways = t.ways[1:]
	if t.left != nil && len(t.left) == 0 {
		return nil
	}
	if err := overlay(dir, nil); err != nil {
		return err
	}
	r, said, err := t.passes(dir, w)
	if err != nil {
		return err
	}
	if r != survived {
		fmt.Printf("left out %s %v: they fail without a mutation\n", t.pkg, w)
		return nil
	}
	more, left := stages(w, said, t.limit)
	t.stages, t.left = append(t.stages, more...), left
	return nil
}

var verdict = regexp.MustCompile(`(?m)^ *--- (PASS|SKIP): ([^/\s]+)\S* \(([\d.]+)s\)$`)

// stages returns the tests that ran, by what go test -v says: the quickest ones, which take a fifth of the time of all,
// and the others; and the names of those that were left out in whole or in part.
func stages(w way, said []byte, limit time.Duration) (all []stage, left []string) {
	took, skipped := map[string]time.Duration{}, map[string]bool{}
	var total time.Duration
	for _, v := range verdict.FindAllSubmatch(said, -1) {
		name := string(v[2])
		if string(v[1]) == "SKIP" {
			skipped[name] = true
		}
		if d, _ := time.ParseDuration(string(v[3]) + "s"); v[0][0] == '-' {
			took[name] = d
			total += d
		}
	}
	names := slices.SortedFunc(maps.Keys(took), func(a, b string) int {
		return cmp.Or(cmp.Compare(took[a], took[b]), cmp.Compare(a, b))
	})
	var sum time.Duration
	quick := 0
	for ; quick < len(names) && sum+took[names[quick]] <= total/5; quick++ {
		sum += took[names[quick]]
	}
	for _, s := range []stage{{w, names[:quick], slowest(sum, limit)}, {w, names[quick:], slowest(total-sum, limit)}} {
		if len(s.names) > 0 {
			all = append(all, s)
		}
	}
	return all, append([]string{}, slices.Sorted(maps.Keys(skipped))...)
}

// only selects tests; all if names is nil.
func only(names []string) []string {
	if names == nil {
		return nil
	}
	return []string{"-test.run=^(" + strings.Join(names, "|") + ")$"}
}

// passes runs the tests in one way without a mutation, adds what they reach, and returns what go test -v says. Some
// fail with the counters of statements, such as those of a hot loop's instructions: all then run again without.
func (t *tests) passes(dir string, w way) (r result, said []byte, err error) {
	flags := append(only(t.left), "-test.v")
	if t.reached != nil {
		if r, err = t.compile(dir, "-cover"); err == nil && r == survived {
			r, said, err = t.run(dir, w, t.limit, append(flags, "-test.coverprofile=/dev/stderr")...)
		}
		if err != nil || r == survived {
			return r, said, err
		}
	}
	if r, err = t.compile(dir); err == nil && r == survived {
		r, said, err = t.run(dir, w, t.limit, append(flags, "-test.failfast")...)
	}
	return r, said, err
}

// try runs the tests with one mutation, stage by stage until they fail. The tests that take root or long are learnt
// when the others do not notice a mutation.
func (t *tests) try(dir string, m mutation) (result, error) {
	if number := t.switched.number(m); number != 0 {
		r, err := t.switched.try(t, number)
		if err == nil && r != killed { // by itself it may leave something unused
			var by result
			if by, err = t.mutated(dir, m); by == invalid {
				r = invalid
			}
		}
		return r, err
	}
	for next := 0; ; {
		if len(t.stages) > next && !t.misses(m) {
			r, err := t.mutated(dir, m)
			for ; err == nil && r == survived && next < len(t.stages); next++ {
				s := &t.stages[next]
				r, _, err = t.run(dir, s.way, s.limit, append(only(s.names), "-test.failfast")...)
			}
			if err != nil || r != survived {
				return r, err
			}
		}
		if len(t.ways) == 0 {
			break
		}
		if err := t.learn(dir); err != nil {
			return "", err
		}
	}
	if t.misses(m) {
		return unreached, nil
	}
	return survived, nil
}

// mutated makes the test program with a mutation.
func (t *tests) mutated(dir string, m mutation) (result, error) {
	source, err := os.ReadFile(m.file)
	if err != nil {
		return "", err
	}
	if err := overlay(dir, map[string]string{m.file: string(m.apply(source))}); err != nil {
		return "", err
	}
	return t.compile(dir)
}

// misses reports whether a mutation is in a block that no test reaches. What is in no block, such as a table, is
// reached.
func (t *tests) misses(m mutation) bool {
	at := [2]int{m.line, m.column}
	in, hit := false, false
	for _, b := range t.reached {
		if b.file == filepath.Base(m.file) && slices.Compare(b.from[:], at[:]) <= 0 &&
			slices.Compare(at[:], b.to[:]) < 0 {
			in, hit = true, hit || b.reached
		}
	}
	return in && !hit
}

// compile makes the test program.
func (t *tests) compile(dir string, flags ...string) (result, error) {
	said, err := compile(dir, t.pkg, flags...)
	if said != "" {
		return invalid, nil
	}
	return survived, err
}

// overlay has the compiler read other texts instead of files.
func overlay(dir string, texts map[string]string) error {
	replace := map[string]string{}
	for file, text := range texts {
		replace[file] = filepath.Join(dir, filepath.Base(file))
		if err := os.WriteFile(replace[file], []byte(text), 0o644); err != nil {
			return err
		}
	}
	b, err := json.Marshal(map[string]any{"Replace": replace})
	return errors.Join(err, os.WriteFile(filepath.Join(dir, "overlay.json"), b, 0o644))
}

// compile makes the test program of a package with the overlay, outside of the sandbox: this machine's build cache
// keeps what is not mutated. It returns what the compiler says if it rejects the package.
func compile(dir, pkg string, flags ...string) (string, error) {
	args := slices.Concat([]string{"test", "-c", "-vet=off", "-o", filepath.Join(dir, "test")}, flags, []string{pkg})
	build := exec.Command("go", args...)
	build.Env = append(os.Environ(), goFlags(dir))
	out, err := build.CombinedOutput()
	switch {
	case err == nil:
		return "", nil
	case errors.As(err, new(*exec.ExitError)) && bytes.HasPrefix(out, []byte("# ")): // what the compiler says
		return string(out), nil
	}
	return "", fmt.Errorf("compile the tests of %s: %w: %s", pkg, err, bytes.TrimSpace(out))
}

func goFlags(dir string) string {
	return "GOFLAGS=" + strings.TrimSpace(os.Getenv("GOFLAGS")+" -overlay="+filepath.Join(dir, "overlay.json"))
}

var dies = regexp.MustCompile("FAIL|panic|fatal error|unexpected fault")

var profile = regexp.MustCompile(`(?m)^\S+/([^/\s]+\.go):(\d+)\.(\d+),(\d+)\.(\d+) \d+ (\d+)$`)

// run runs the test program.
func (t *tests) run(dir string, w way, limit time.Duration, flags ...string) (result, []byte, error) {
	args := slices.Concat([]string{filepath.Join(dir, "test"), "-test.paniconexit0",
		"-test.timeout=" + limit.String()}, flags)
	if w.short {
		args = append(args, "-test.short")
	}
	args = w.in.wrap(t.dir, args)
	ctx, cancel := context.WithTimeout(context.Background(), limit+time.Minute)
	defer cancel()
	test := exec.CommandContext(ctx, args[0], args[1:]...)
	test.Dir = t.dir
	test.Env = append(os.Environ(), goFlags(dir), "PWD="+t.dir)
	test.Env = append(test.Env, t.env...)
	test.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a mutated test may leave child processes
	test.Cancel = func() error { return syscall.Kill(-test.Process.Pid, syscall.SIGKILL) }
	test.WaitDelay = 10 * time.Second
	var said bytes.Buffer
	test.Stdout, test.Stderr = &said, &said
	err := test.Run()
	if test.Process != nil {
		syscall.Kill(-test.Process.Pid, syscall.SIGKILL)
	}
	for _, f := range profile.FindAllStringSubmatch(said.String(), -1) {
		var n [5]int
		for i := range n {
			n[i], _ = strconv.Atoi(f[i+2]) // digits; a larger count reaches, too
		}
		t.reached = append(t.reached, block{f[1], [2]int{n[0], n[1]}, [2]int{n[2], n[3]}, f[6] != "0"})
	}
	switch {
	case err == nil:
		return survived, said.Bytes(), nil
	case ctx.Err() != nil, dies.Match(said.Bytes()):
		return killed, said.Bytes(), nil
	case errors.As(err, new(*exec.ExitError)):
		return "", nil, fmt.Errorf("the tests of %s did not run: %w: %s", t.pkg, err, bytes.TrimSpace(said.Bytes()))
	}
	return "", nil, err
}
