package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
	good     []way           // in which they pass without a mutation: where they fail anyway, they notice nothing
	limits   []time.Duration // of a run with a mutation, for each good way
	reached  []block         // nil if the tests start processes, which reach more
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

// baseline runs the tests of a package without a mutation.
func baseline(dir, pkg string, ways []way, limit time.Duration) (*tests, error) {
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
	t := &tests{pkg: pkg, dir: p.Dir}
	starts := slices.Contains(append(p.TestImports, p.XTestImports...), "os/exec") ||
		strings.Contains(string(deps), "/proof/programs\n")
	if !starts {
		t.reached = []block{}
	}
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), []byte("{}"), 0o644); err != nil {
		return nil, err
	}
	for _, w := range ways {
		r, took, err := t.passes(dir, w, limit)
		if err != nil {
			return nil, err
		}
		if r != survived {
			fmt.Printf("left out %s %v: they fail without a mutation\n", pkg, w)
			continue
		}
		t.good, t.limits = append(t.good, w), append(t.limits, slowest(took, limit))
	}
	return t, nil
}

// passes runs the tests in one way without a mutation, and adds what they reach. Some fail with the counters of
// statements, such as those of a hot loop's instructions: all then run again without.
func (t *tests) passes(dir string, w way, limit time.Duration) (result, time.Duration, error) {
	start := time.Now()
	if t.reached != nil {
		r, err := t.compile(dir, "-cover")
		if err == nil && r == survived {
			r, err = t.run(dir, w, limit, "-test.coverprofile=/dev/stderr")
		}
		if err != nil || r == survived {
			return r, time.Since(start), err
		}
	}
	start = time.Now()
	r, err := t.compile(dir)
	if err == nil && r == survived {
		start = time.Now()
		r, err = t.run(dir, w, limit)
	}
	return r, time.Since(start), err
}

// try runs the tests with one mutation, in each way until they fail.
func (t *tests) try(dir string, m mutation) (result, error) {
	if t.misses(m) {
		return unreached, nil
	}
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
	r, err := t.compile(dir)
	for i := 0; err == nil && r == survived && i < len(t.good); i++ {
		r, err = t.run(dir, t.good[i], t.limits[i])
	}
	return r, err
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

// compile makes the test program, outside of the sandbox: this machine's build cache keeps what is not mutated.
func (t *tests) compile(dir string, flags ...string) (result, error) {
	args := slices.Concat([]string{"test", "-c", "-vet=off", "-o", filepath.Join(dir, "test")}, flags, []string{t.pkg})
	build := exec.Command("go", args...)
	build.Env = append(os.Environ(), goFlags(dir))
	out, err := build.CombinedOutput()
	switch {
	case err == nil:
		return survived, nil
	case errors.As(err, new(*exec.ExitError)) && bytes.HasPrefix(out, []byte("# ")): // what the compiler says
		return invalid, nil
	}
	return "", fmt.Errorf("compile the tests of %s: %w: %s", t.pkg, err, bytes.TrimSpace(out))
}

func goFlags(dir string) string {
	return "GOFLAGS=" + strings.TrimSpace(os.Getenv("GOFLAGS")+" -overlay="+filepath.Join(dir, "overlay.json"))
}

var dies = regexp.MustCompile("FAIL|panic|fatal error|unexpected fault")

var profile = regexp.MustCompile(`(?m)^\S+/([^/\s]+\.go):(\d+)\.(\d+),(\d+)\.(\d+) \d+ (\d+)$`)

// run runs the test program.
func (t *tests) run(dir string, w way, limit time.Duration, flags ...string) (result, error) {
	args := slices.Concat([]string{filepath.Join(dir, "test"), "-test.paniconexit0", "-test.failfast",
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
		return survived, nil
	case ctx.Err() != nil, dies.Match(said.Bytes()):
		return killed, nil
	case errors.As(err, new(*exec.ExitError)):
		return "", fmt.Errorf("the tests of %s did not run: %w: %s", t.pkg, err, bytes.TrimSpace(said.Bytes()))
	}
	return "", err
}
