package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
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
	program  string         // has all mutations
	far      map[string]int // packages that the tests run, by how many imports they are away
	starts   bool           // the tests start programs of cmd
	learnt   int            // ways in which the tests have run without a mutation
	left     []string       // tests that these ways left out in whole or in part; nil before the first
	singles  []single       // that pass without a mutation, the quickest of each way first
	alone    []int          // by worker, the number of the mutation in its program that has no other
}

// single is a test that runs by itself, and the mutations that it reaches, by number.
type single struct {
	name    string
	way     int
	took    time.Duration
	reaches []byte
}

// trial runs tests with mutations.
type trial struct {
	dir     string // has the overlay of all mutations
	ways    []way
	limit   time.Duration // for a test
	others  time.Duration // for the tests of other packages that one mutation runs
	known   []*tests
	most    int  // number of a mutation
	workers int  // mutations that are tried at once, or tests that are learnt
	built   bool // the programs of cmd are there
	list    bool // the tests that are not needed, instead of trying mutations

	learning sync.RWMutex // nothing else runs while tests are learnt, so that their times are right
}

// attempt is a mutation and what the tests say so far.
type attempt struct {
	mutation
	result result
	by     string        // the other package whose tests noticed it
	left   time.Duration // for tests of other packages
	cut    string        // the flag whose time was over before all tests of other packages ran
	worker int           // that tries it
}

// alive reports whether no test has noticed the mutation.
func (a *attempt) alive() bool { return a.result == survived || a.result == unreached }

func (a *attempt) String() string {
	text := fmt.Sprintf("%s %s %v", a.result, a.pkg, a.mutation)
	switch {
	case a.by != "":
		return text + " (by " + a.by + ")"
	case a.cut != "":
		return text + " (not all tests of other packages ran: " + a.cut + ")"
	}
	return text
}

// graph has the packages that each package imports; those of a test program, which is a package, too, are compiled for
// it and have its name behind their own.
type graph map[string][]string

// far returns the packages that a package needs, by the number of imports that lead there.
func (g graph) far(from string) map[string]int {
	all := map[string]int{}
	for next, n := []string{from}, 0; len(next) > 0; n++ {
		var after []string
		for _, p := range next {
			name, _, _ := strings.Cut(p, " ")
			if _, ok := all[p]; !ok {
				all[p] = n
				if was, ok := all[name]; !ok || n < was {
					all[name] = n
				}
				after = append(after, g[p]...)
			}
		}
		next = after
	}
	return all
}

// testPrograms returns the tests of the module's packages but those in virtual machines. Tests that start programs of
// cmd run their packages, too.
func testPrograms() ([]*tests, error) {
	out, err := exec.Command("go", "list", "-test", "-deps", "-json=ImportPath,Dir,Imports,Standard", "./...").Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	g, dirs := graph{}, map[string]string{}
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var p struct {
			ImportPath, Dir string
			Imports         []string
			Standard        bool
		}
		if err := d.Decode(&p); err != nil {
			return nil, err
		}
		if !p.Standard {
			g[p.ImportPath], dirs[p.ImportPath] = p.Imports, p.Dir
		}
	}
	var all []*tests
	for _, program := range slices.Sorted(maps.Keys(g)) {
		pkg, ok := strings.CutSuffix(program, ".test")
		if !ok || strings.Contains(pkg+"/", "/proof/lab/") {
			continue
		}
		t := &tests{pkg: pkg, dir: dirs[pkg], far: g.far(program)}
		for p := range t.far {
			t.starts = t.starts || strings.HasSuffix(p, "/proof/programs")
		}
		for main := range g {
			if !t.starts || filepath.Base(filepath.Dir(main)) != "cmd" {
				continue
			}
			for p, n := range g.far(main) {
				if was, ok := t.far[p]; !ok || viaProcess+n < was {
					t.far[p] = viaProcess + n
				}
			}
		}
		all = append(all, t)
	}
	return all, nil
}

const (
	direct     = 2   // imports from a test program to what a package or its tests import: the package is between
	viaProcess = 100 // to the packages of a program that tests start
)

// slowest is how much longer than without a mutation tests may take before they count as hanging: other work on this
// machine can slow them by a factor, and the sandbox by seconds.
func slowest(took, limit time.Duration) time.Duration { return min(limit, 5*took+15*time.Second) }

// prepare compiles a sample of mutations and lists the tests.
func (r *trial) prepare(all []mutation) (err error) {
	r.most = len(all)
	if r.known, err = testPrograms(); err != nil {
		return err
	}
	return errors.Join(os.MkdirAll(reachedFolder(r.dir), 0o755), os.Chmod(r.dir, 0o755), switchAll(r.dir, all))
}

// own tries a mutation with the tests of its package.
func (r *trial) own(a *attempt) error {
	valid, err := r.byItself(a)
	if a.result = unreached; !valid {
		a.result = invalid
		return err
	}
	a.left = math.MaxInt64
	for k := range r.ways {
		for _, t := range r.known {
			if t.pkg != a.pkg {
				continue
			}
			if err := r.one(a, t, k); err != nil || a.result == killed {
				return err
			}
		}
	}
	a.left = r.others
	return nil
}

// byOthers tries a mutation with the tests of other packages in one way, the nearest and smallest packages first. If it
// has to be compiled by itself, only packages that import its own are tried, or the nearest if there is none.
func (r *trial) byOthers(a *attempt, k int) error {
	others := slices.DeleteFunc(slices.Clone(r.known), func(t *tests) bool {
		_, ok := t.far[a.pkg]
		return t.pkg == a.pkg || !ok
	})
	slices.SortStableFunc(others, func(x, y *tests) int {
		return cmp.Or(cmp.Compare(x.far[a.pkg], y.far[a.pkg]), cmp.Compare(len(x.far), len(y.far)))
	})
	if _, err := r.byItself(a); err != nil {
		return err
	}
	for _, t := range others {
		if !a.switched && t.far[a.pkg] > max(direct, others[0].far[a.pkg]) {
			break
		}
		if a.left <= 0 {
			a.cut = "-others"
			break
		}
		if err := r.one(a, t, k); err != nil {
			return err
		}
		if a.result == killed {
			a.result, a.by = elsewhere, t.pkg
			break
		}
	}
	return nil
}

// pack is how long tests take together that run in one process.
const pack = 500 * time.Millisecond

// one runs a package's tests, in one way, that reach a mutation, until one fails.
func (r *trial) one(a *attempt, t *tests, k int) error {
	r.learning.RLock()
	for t.learnt <= k {
		r.learning.RUnlock()
		if err := r.learn(t, k); err != nil {
			return err
		}
		r.learning.RLock()
	}
	defer r.learning.RUnlock()
	env, program := []string{goFlags(r.dir), fmt.Sprint(choose, "=", a.number)}, t.program
	for next := 0; next < len(t.singles) && a.left > 0; {
		var names []string
		var sum time.Duration
		for ; next < len(t.singles) && sum < min(pack, a.left); next++ {
			s := t.singles[next]
			if s.way == k && (!a.probed || s.reaches[a.number] != 0) {
				names = append(names, s.name)
				sum += s.took
			}
		}
		if len(names) == 0 {
			break
		}
		if a.left -= sum; !a.switched {
			env, program = []string{goFlags(r.alone(a.worker))}, fmt.Sprint(t.program, "-alone", a.worker)
			if t.alone[a.worker] != a.number {
				said, err := compileTests(r.alone(a.worker), program, t.pkg)
				if err != nil {
					return err
				}
				if said != "" {
					a.result = killed
					return nil
				}
				t.alone[a.worker] = a.number
			}
		}
		var err error
		a.result, _, err = t.run(program, r.ways[k], slowest(sum, r.limit), env, only(names), "-test.failfast")
		if err != nil || a.result == killed {
			return err
		}
	}
	return nil
}

// alone is the folder of the overlay that has only the mutation that a worker tries.
func (r *trial) alone(worker int) string { return filepath.Join(r.dir, fmt.Sprint("alone", worker)) }

// byItself makes the overlay that has only a mutation, and reports whether its package compiles with it.
func (r *trial) byItself(a *attempt) (bool, error) {
	source, err := os.ReadFile(a.file)
	if err == nil {
		_, err = overlay(r.alone(a.worker), map[string]string{a.file: string(a.apply(source))})
	}
	if err != nil {
		return false, err
	}
	said, err := compile(r.alone(a.worker), "build", "-o", os.DevNull, a.pkg)
	return said == "", err
}

var (
	verdict = regexp.MustCompile(`(?m)^ *--- (PASS|SKIP): \S+ \(([\d.]+)s\)$`)
	listed  = regexp.MustCompile(`(?m)^(Test|Fuzz|Example)\w*$`)
)

// learn runs each test in a way without a mutation, unless it has, to know what it reaches and how long it takes. After
// the first way, only those that it left out run.
func (r *trial) learn(t *tests, k int) error {
	r.learning.Lock()
	defer r.learning.Unlock()
	if t.learnt > k {
		return nil
	}
	k, names, start := t.learnt, t.left, time.Now()
	t.learnt++
	env := []string{goFlags(r.dir), choose + "=0"}
	if k == 0 {
		t.alone = make([]int, r.workers)
		t.program = filepath.Join(r.dir, strings.ReplaceAll(t.pkg, "/", "-")+".test")
		said, err := compileTests(r.dir, t.program, t.pkg)
		if t.starts && !r.built && r.ways[k].in != nil {
			r.built = true
			_, berr := compile(r.dir, "build", "-o", builtFolder(r.dir)+"/", "./cmd/...")
			err = errors.Join(err, berr)
		}
		if err != nil {
			return err
		}
		if said != "" {
			fmt.Printf("left out %s: with mutations the compiler says %s\n", t.pkg, said)
			t.learnt = len(r.ways)
			return nil
		}
		_, list, err := t.run(t.program, r.ways[k], r.limit, env, "-test.list=.")
		if err != nil {
			return err
		}
		names = strings.Fields(string(bytes.Join(listed.FindAll(list, -1), []byte(" "))))
	}
	t.left = []string{}
	var all sync.WaitGroup
	var one sync.Mutex
	var failed error
	next := make(chan string)
	for n := range r.workers {
		all.Go(func() {
			for name := range next {
				s, ok, partly, err := r.learnOne(t, name, k, n, env)
				one.Lock()
				failed = errors.Join(failed, err)
				if ok {
					t.singles = append(t.singles, s)
				}
				if partly {
					t.left = append(t.left, name)
				}
				one.Unlock()
			}
		})
	}
	for _, name := range names {
		next <- name
	}
	close(next)
	all.Wait()
	slices.SortFunc(t.singles, func(a, b single) int {
		return cmp.Or(cmp.Compare(a.way, b.way), cmp.Compare(a.took, b.took), cmp.Compare(a.name, b.name))
	})
	slices.Sort(t.left)
	if len(names) > 0 {
		fmt.Printf("ran %d tests of %s without a mutation in %.0f s\n", len(names), t.pkg, time.Since(start).Seconds())
	}
	return failed
}

// learnOne runs a test, which may be three times as slow with a mutation. ok is whether it passes, and partly whether
// it left something out.
func (r *trial) learnOne(t *tests, name string, k, worker int, env []string) (s single, ok, partly bool,
	err error) {
	file := filepath.Join(reachedFolder(r.dir), fmt.Sprint(worker))
	err = errors.Join(os.WriteFile(file, make([]byte, r.most+1), 0o666), os.Chmod(file, 0o666)) // for every user
	if err != nil {
		return s, false, false, err
	}
	env = append(slices.Clone(env), reaches+"="+file)
	got, said, err := t.run(t.program, r.ways[k], r.limit/3, env, only([]string{name}), "-test.v")
	if err != nil {
		return s, false, false, err
	}
	if got != survived {
		fmt.Printf("left out %s %s: it fails without a mutation in %v\n", t.pkg, name, r.ways[k])
		return s, false, false, nil
	}
	s = single{name: name, way: k}
	for _, v := range verdict.FindAllSubmatch(said, -1) {
		partly = partly || string(v[1]) == "SKIP"
		if v[0][0] == '-' {
			s.took, _ = time.ParseDuration(string(v[2]) + "s") // as go test writes it
		}
	}
	s.reaches, err = os.ReadFile(file)
	return s, err == nil, partly, err
}

// only selects tests.
func only(names []string) string { return "-test.run=^(" + strings.Join(names, "|") + ")$" }

var dies = regexp.MustCompile("FAIL|panic|fatal error|unexpected fault")

// run runs a test program. A failure counts if it repeats: other work on this machine can make a test fail once.
func (t *tests) run(program string, w way, limit time.Duration, env []string, flags ...string) (result, []byte, error) {
	for again := false; ; again = true {
		got, said, err := t.runOnce(program, w, limit, env, flags)
		if got != killed || again {
			return got, said, err
		}
	}
}

func (t *tests) runOnce(program string, w way, limit time.Duration, env, flags []string) (result, []byte, error) {
	args := append([]string{program, "-test.paniconexit0", "-test.timeout=" + limit.String()}, flags...)
	if w.short {
		args = append(args, "-test.short")
	}
	args = w.in.wrap(t.dir, args)
	ctx, cancel := context.WithTimeout(context.Background(), limit+time.Minute)
	defer cancel()
	test := exec.CommandContext(ctx, args[0], args[1:]...)
	test.Dir = t.dir
	test.Env = slices.Concat(os.Environ(), []string{"PWD=" + t.dir}, env)
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
		return survived, said.Bytes(), nil
	case ctx.Err() != nil, dies.Match(said.Bytes()):
		return killed, said.Bytes(), nil
	case errors.As(err, new(*exec.ExitError)):
		return "", nil, fmt.Errorf("the tests of %s did not run: %w: %s", t.pkg, err, bytes.TrimSpace(said.Bytes()))
	}
	return "", nil, err
}
