package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

// The module that TestResults runs: each folder is a package with one kind of result.
var modules = map[string]string{
	"go.mod": "module example.com/m\ngo 1.24\n",
	"good/a_test.go": `package good
import "testing"
func TestFamily(t *testing.T) {
	t.Run("one", func(t *testing.T) { t.Log("not shown") })
	t.Run("two", func(t *testing.T) {})
}
func TestAlone(t *testing.T) {}
func TestRoot(t *testing.T) { t.Skip("needs root: for a namespace") }
func TestRootToo(t *testing.T) { t.Skip("needs root: for a namespace") }
`,
	"bad/a_test.go": `package bad
import "testing"
func TestParent(t *testing.T) {
	t.Run("fine", func(t *testing.T) {})
	t.Run("wrong", func(t *testing.T) { t.Error("got 1, want 2") })
}
func TestItself(t *testing.T) {
	t.Run("fine", func(t *testing.T) {})
	t.Error("cleanup went wrong")
}
`,
	"broken/a_test.go": "package broken\nfunc TestX(t *testing.T) {}\n",
	"panics/a_test.go": "package panics\nimport \"testing\"\nfunc TestBefore(t *testing.T) {}\nfunc TestPanic(t *testing.T) { panic(\"for no reason\") }\n",
	"exits/a_test.go":  "package exits\nimport (\"os\"; \"testing\")\nfunc TestMain(m *testing.M) { os.Exit(3) }\nfunc TestX(t *testing.T) {}\n",
	"hangs/a_test.go":  "package hangs\nimport \"testing\"\nfunc TestHang(t *testing.T) { select {} }\nfunc init() { go func() { select {} }() }\n",
	"none/a.go":        "package none\n",
}

func run(t *testing.T, cores float64, jobs ...job) (string, tally) {
	t.Helper()
	var out strings.Builder
	r := &runner{out: &out, cores: cores}
	r.run(t.Context(), jobs)
	return out.String(), r.total
}

func TestResults(t *testing.T) {
	needs.Long(t)
	dir := t.TempDir()
	for name, text := range modules {
		file := filepath.Join(dir, name)
		must.OK(t, os.MkdirAll(filepath.Dir(file), 0o755))
		must.OK(t, os.WriteFile(file, []byte(text), 0o644))
	}
	j := goTest("all", cost{1, 1}, nil, "good", "bad", "broken", "panics", "exits", "none")
	j.dir = dir
	j.each = true
	hangs := goTest("hangs", cost{0, 1}, []string{"-timeout", "1s"}, "hangs")
	hangs.dir, hangs.variant = dir, "race"
	out, total := run(t, 1, j, hangs)

	check.Equal(t, total.String(), "6 passed, 6 failed, 2 skipped", "%s")
	var report strings.Builder
	total.report(&report)
	check.Contains(t, report.String(),
		"skipped 2: needs root: for a namespace (example.com/m/good TestRoot, example.com/m/good TestRootToo)\n",
		"failed: example.com/m/bad TestParent/wrong\n",
		"failed: example.com/m/bad TestItself\n",
		"failed: example.com/m/broken\n",
		"failed: example.com/m/panics TestPanic\n",
		"failed: example.com/m/exits\n",
		"failed: example.com/m/hangs (race) TestHang\n")
	if !strings.HasSuffix(report.String(), "\n"+total.String()+"\n") {
		t.Errorf("the report does not end with the summary")
	}
	check.Contains(t, out, "got 1, want 2", "cleanup went wrong", "undefined: testing", "panic: for no reason",
		"exit status 3", "goroutine ",
		"ok    example.com/m/good ", "ok      TestFamily/two ")
	for _, no := range []string{"not shown", "example.com/m/none", "=== RUN"} {
		if strings.Contains(out, no) {
			t.Errorf("the output has %q", no)
		}
	}
}

// A test that fails beside others and passes alone is unsteady; one that fails again has failed, and so has one of
// many.
func TestFailedTestsRunAgain(t *testing.T) {
	needs.Long(t)
	dir := t.TempDir()
	must.OK(t, os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module example.com/m\ngo 1.24\n"), 0o644))
	must.OK(t, os.WriteFile(filepath.Join(dir, "a_test.go"), []byte(`package m
import ("os"; "testing")
func once(t *testing.T, name string) {
	if _, err := os.Stat(name); err != nil {
		os.WriteFile(name, nil, 0o644)
		t.Error("the first time")
	}
}
func TestFirst(t *testing.T) { t.Run("sub", func(t *testing.T) { once(t, "first") }) }
func TestSecond(t *testing.T) { once(t, "second") }
func TestGood(t *testing.T) {}
func TestBad(t *testing.T) { t.Error("each time") }
func TestMany(t *testing.T) { t.Error("one too many") }
`), 0o644))
	for _, c := range []struct{ tests, want string }{
		{"^Test(First|Second|Good|Bad)$",
			"unsteady: example.com/m TestFirst/sub failed beside other tests and passed alone\n" +
				"unsteady: example.com/m TestSecond failed beside other tests and passed alone\nfailed: example.com/m TestBad\n1 passed, 1 failed, 0 skipped\n"},
		{"", "failed: example.com/m TestBad\nfailed: example.com/m TestFirst/sub\nfailed: example.com/m TestMany\n" +
			"failed: example.com/m TestSecond\n1 passed, 4 failed, 0 skipped\n"},
	} {
		for _, name := range []string{"first", "second"} {
			os.Remove(filepath.Join(dir, name))
		}
		j := goTest("all", cost{1, 1}, []string{"-run", c.tests}, ".")
		j.dir = dir
		var out, report strings.Builder
		r := &runner{out: &out, cores: 1}
		r.run(t.Context(), []job{j})
		r.repeat(t.Context())
		slices.Sort(r.total.Unsteady)
		r.total.report(&report)
		check.Equal(t, report.String(), c.want, "%s")
	}
}

// Repeated tests (-count) are counted each time; events of subtests may come after their parent's.
func TestRepeated(t *testing.T) {
	events := `
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestA/x"}
{"Action":"output","Package":"p","Test":"TestA/x","Output":"    a_test.go:1: flaked\n"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p","Test":"TestA/x"}
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestA/x"}
{"Action":"pass","Package":"p","Test":"TestA/x"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestA/x"}
{"Action":"fail","Package":"p","Test":"TestA/x"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p"}
`
	var total tally
	printed := 0
	r := reader{failure: func(string, string, string) { printed++ },
		finished: func(_ string, _ outcome, t tally, _ time.Duration) { total.add(t) }}
	must.OK(t, r.read(strings.NewReader(events)))
	if total.Passed != 1 || total.Failed["p TestA/x"] != 2 || len(total.Failed) != 1 {
		t.Errorf("%v %v, want 1 passed and p TestA/x failed 2 times", total, total.Failed)
	}
	check.Equal(t, printed, 1, "%d failures were printed")
}

func TestReusedResultsAreCounted(t *testing.T) {
	var total tally
	r := reader{finished: func(_ string, _ outcome, t tally, _ time.Duration) { total.add(t) }}
	for _, p := range []string{"\t(cached)", "\t0.1s"} {
		r.read(strings.NewReader(`{"Action":"pass","Package":"p","Test":"TestA"}` + "\n" +
			`{"Action":"output","Package":"p","Output":"ok  \tp` + strings.ReplaceAll(p, "\t", `\t`) + `\n"}` + "\n" +
			`{"Action":"pass","Package":"p"}` + "\n"))
	}
	if r.reused != 1 || total.Passed != 2 {
		t.Errorf("%d packages reused, %d tests passed; want 1 and 2", r.reused, total.Passed)
	}
}

func TestKilledPackageFails(t *testing.T) {
	var total tally
	r := reader{failure: func(string, string, string) {}, finished: func(_ string, o outcome, t tally,
		_ time.Duration) {
		if o != failed {
			total.Passed = 100
		}
		total.add(t)
	}}
	r.read(strings.NewReader(`{"Action":"run","Package":"p","Test":"TestA"}` + "\n" +
		`{"Action":"start","Package":"q"}` + "\n"))
	check.Equal(t, total.String(), "0 passed, 2 failed, 0 skipped", "%s")
}

func shell(name, script string) job {
	return job{name: name, command: []string{"sh", "-c", script}, cores: 1, limit: 10 * time.Minute}
}

func TestLongestJobStartsFirst(t *testing.T) {
	short, long, longest := shell("short", "true"), shell("long", "true"), shell("longest", "true")
	short.seconds, long.seconds, longest.seconds = 1, 2, 3
	_, total := run(t, 1, long, short, longest)
	var order []string
	for _, j := range total.Jobs {
		order = append(order, j.Name)
	}
	check.Same(t, order, []string{"longest", "long", "short"}, "ran %q")
}

// a, b and c wait for each other, so they have to run in parallel; wide, which needs both cores, must not start before
// they end.
func TestJobsShareCores(t *testing.T) {
	dir := t.TempDir()
	meet := func(me, other string) job {
		return shell(me, "cd "+dir+"; touch "+me+"; until [ -e "+other+" ]; do sleep 0.01; done")
	}
	wide := shell("wide", "cd "+dir+"; [ -e a ] && [ -e b ] && [ -e c ] && touch wide")
	wide.cores = 2
	light := meet("c", "a") // uses no share of a core
	light.cores, light.seconds = 0, 5
	a, b := meet("a", "b"), meet("b", "c")
	a.seconds, b.seconds = 2, 2
	out, total := run(t, 2, a, b, wide, light)
	if total.Passed != 4 {
		t.Errorf("%v, want 4 passed\n%s", total, out)
	}
	tooWide := shell("too wide", "true")
	tooWide.cores = 64
	if out, total := run(t, 2, tooWide); total.Passed != 1 {
		t.Errorf("a job wider than the machine: %v\n%s", total, out)
	}
}

func TestJobsFail(t *testing.T) {
	hang := shell("hang", "echo before; exec sleep 1000")
	hang.limit = 300 * time.Millisecond
	missing := shell("missing", "")
	missing.needs = "no-such-program"
	out, total := run(t, 8, shell("exit", "echo why; exit 1"),
		job{name: "absent", command: []string{"/no/such/file"}, limit: time.Minute}, hang, missing)
	check.Equal(t, total.String(), "0 passed, 3 failed, 1 skipped", "%s")
	check.Contains(t, out, "why\n", "killed by its limit of 300ms", "no such file", "needs no-such-program")
}

// A killed test's first line says so.
func TestKilledJobSaysSo(t *testing.T) {
	hang := shell("hang", `echo '{"Action":"run","Package":"p","Test":"TestA"}'; echo '{"Action":"output","Package":"p","Test":"TestA","Output":"before"}'; exec sleep 1000`)
	hang.test, hang.limit = true, time.Second
	out, _ := run(t, 1, hang)
	check.Contains(t, out, "--- FAIL: p TestA\nkilled by its limit of 1s, after ", "\nbefore")
}

// Of the stacks that a killed test's processes print, a few lines follow the first line; a file has all. go test's own
// timeout is such a limit, too.
func TestKilledJobPrintsFewStacks(t *testing.T) {
	dir := t.TempDir()
	stacks := "said before\n%s\n\n" + strings.Repeat("goroutine 8 [running]:\nruntime.park()\n\t/go/proc.go:1 +0x2\n\n",
		275) + "goroutine 7 [select]:\nm.TestA(0x1)\n\t/m/a_test.go:5 +0x1\n"
	for name, c := range map[string]struct{ first, script, want string }{
		"limit":   {"SIGQUIT: quit", `trap 'cat dump; exit 2' QUIT; while :; do sleep 0.05; done`, "killed by its limit of 1s, after "},
		"timeout": {"panic: test timed out after 15m0s", `cat dump; exit 2`, "killed by its limit of 15m0s (go test -timeout)\n"},
	} {
		events := `{"Action":"run","Package":"p","Test":"TestA"}` + "\n"
		for line := range strings.Lines(fmt.Sprintf(stacks, c.first)) {
			events += string(must.Get(json.Marshal(event{Action: "output", Package: "p", Test: "TestA", Output: line}))(
				t)) + "\n"
		}
		must.OK(t, os.WriteFile(filepath.Join(dir, "dump"), []byte(events), 0o600))
		j := shell(name, c.script)
		j.dir, j.test, j.limit = dir, true, time.Second
		var out strings.Builder
		r := &runner{out: &out, cores: 1, stacks: filepath.Join(dir, "stacks")}
		r.run(t.Context(), []job{j})
		check.Contains(t, out.String(), "--- FAIL: p TestA\n"+c.want, "m.TestA(0x1)", "all stacks: ")
		if n := strings.Count(out.String(), "\n"); n > 20 {
			t.Errorf("%s: %d lines", name, n)
		}
		check.Contains(t, string(must.Get(os.ReadFile(filepath.Join(dir, "stacks", "p-TestA.stacks")))(t)),
			"runtime.park()")
	}
}

func TestLimitCountsLessOnALoadedMachine(t *testing.T) {
	for _, c := range []struct {
		loadavg string
		cpus    int
		want    float64
	}{{"0.00 0.1 0.1 1/100 7\n", 2, 1}, {"2.00 0.1 0.1 1/100 7\n", 2, 1}, {"20.00 0.1 0.1 1/100 7\n", 2, 0.1},
		{"0.50 9 9", 1, 1}, {"", 2, 1}} {
		check.Equal(t, share(c.loadavg, c.cpus), c.want, "load "+c.loadavg+": %v")
	}
}

// Of a dump of stacks, a few lines of those that are in a test are printed.
func TestStacksAreBrief(t *testing.T) {
	check.Equal(t, brief("a_test.go:7: got 1\n\nwant 2\n"), "a_test.go:7: got 1\n\nwant 2\n", "%s")
	stack := "goroutine 7 [select]:\nm.TestHang(0x1)\n\t/m/a_test.go:5 +0x1\n\n"
	other := "goroutine 8 [running]:\nruntime.park()\n\t/go/proc.go:1 +0x2\n\n"
	for _, first := range []string{"panic: test timed out after 15m0s", "SIGQUIT: quit"} {
		got := brief("said before\n" + first + "\n\trunning tests:\n\n" +
			strings.Repeat(other, 100) + strings.Repeat(stack, 100))
		check.Equal(t, got, "said before\n"+first+"\n"+strings.Repeat(stack[:len(stack)-1], 4), "%s")
	}
}

func TestInterruptedRunStartsNothingMore(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out strings.Builder
	(&runner{out: &out, cores: 1}).run(ctx, []job{shell("never", "true")})
	check.Equal(t, out.String(), "", "printed %q")
}

// Every package with tests is in exactly one job of make test, not counting the sampled variants, and in make check,
// unless that lists it as left out.
func TestPlansHaveEveryPackage(t *testing.T) {
	needs.Tree(t)
	t.Chdir("../..")
	pkgs := must.Get(packages())(t)
	if len(pkgs) < 50 {
		t.Fatalf("%d packages", len(pkgs))
	}
	times := func(jobs []job) map[string]int {
		n := map[string]int{}
		for _, j := range jobs {
			for _, p := range pkgs {
				if j.left != "" && matches(j.name, p) {
					n[p]++
				}
			}
			if !j.test {
				continue
			}
			for _, arg := range j.command {
				n[strings.TrimPrefix(arg, "./")]++
			}
			if !strings.Contains(strings.Join(j.command, " "), " -timeout 0 ") {
				t.Errorf("%s: go test's own timeout counts the time of a loaded machine in full", j.name)
			}
		}
		return n
	}
	inTest, inCheck := times(tests(slices.Clone(pkgs))), times(slices.Concat(checkPlan(slices.Clone(pkgs))...))
	for _, p := range pkgs {
		if want := map[bool]int{false: 1}[separately(p)]; inTest[p] != want {
			t.Errorf("%s is in %d jobs of make test, want %d", p, inTest[p], want)
		}
		if inCheck[p] != 1 {
			t.Errorf("%s is in %d jobs of make check, want 1", p, inCheck[p])
		}
	}
	for p := range costs {
		if !slices.Contains(pkgs, p) {
			t.Errorf("costs has %s, which has no tests", p)
		}
	}
}

func TestMatches(t *testing.T) {
	for _, c := range []struct {
		pattern, pkg string
		want         bool
	}{
		{"./...", "nic/kit", true},
		{"./nic/...", "nic/kit", true},
		{"nic/...", "nic", true},
		{"nic/kit", "nic/kit", true},
		{"./nic/kit/", "nic/kit", true},
		{"nic/...", "nichts", false},
		{"nic", "nic/kit", false},
	} {
		if got := matches(c.pattern, c.pkg); got != c.want {
			t.Errorf("matches(%q, %q) is %v", c.pattern, c.pkg, got)
		}
	}
}
