package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

const limited = `package m

func Limited(n int) int {
	if n > 10 {
		return 10
	}
	return n
}

func unused() int { return 1 }
`

func TestMutations(t *testing.T) {
	all := must.Get(mutations("m", "m.go", []byte(limited)))(t)
	var got []string
	for _, m := range all {
		for i, line := range strings.Split(string(m.apply([]byte(limited))), "\n") {
			if line != strings.Split(limited, "\n")[i] {
				got = append(got, strings.TrimSpace(line))
			}
		}
	}
	slices.Sort(got)
	want := []string{"func unused() int { return 2 }", "if !(n > 10) {", "if n > 11 {", "if n >= 10 {",
		"return 11"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// A weak test kills some of a package's mutations, and a mutation that makes the test hang counts as killed. One that
// no test reaches survives without a run, unless the tests start processes.
func TestTry(t *testing.T) {
	needs.Long(t)
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":    "module example.com/m\ngo 1.24\n",
		"m.go":      limited,
		"m_test.go": "package m\nimport \"testing\"\nfunc Test(t *testing.T) {\n\tif Limited(20) != 10 { t.Fail() }\n\tfor Limited(1) == 10 {}\n}\n",
	} {
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	t.Chdir(dir)
	files := must.Get(sources([]string{"./..."}))(t)
	all := must.Get(pick(files, 1))(t)
	all = append(all, mutation{pkg: "example.com/m", file: all[0].file, what: "broken", with: "}"})
	weak := must.Get(baseline("example.com/m", []way{{short: true}}, 5*time.Second))(t)
	for _, m := range all {
		want := map[string]result{
			"if n > 10 is negated":            killed,
			"if n > 10 { becomes if n > 11 {": survived,
			"return 10 becomes return 11":     killed,
			"n > 10: > becomes >=":            survived,
			"func unused() int { return 1 } becomes func unused() int { return 2 }": unreached,
			"broken": invalid,
		}[m.what]
		if got, err := weak.try(t.TempDir(), m); got != want || err != nil {
			t.Errorf("%v: %s, %v; want %s", m, got, err, want)
		}
	}
	must.OK(t, os.WriteFile(filepath.Join(dir, "fails_test.go"),
		[]byte("package m\nimport (\"os/exec\"; \"testing\")\nfunc TestFails(t *testing.T) {\n"+
			"if testing.Short() { t.Skip() }; t.Fail() }\n"+
			"var _ = exec.Command\n"), 0o644))
	fails := must.Get(baseline("example.com/m", []way{{short: true}, {}}, 5*time.Second))(t)
	for len(fails.ways) > 0 {
		must.OK(t, fails.learn(t.TempDir()))
	}
	check.Equal(t, len(fails.stages), 1, "the tests pass in %d ways")
	for _, m := range all {
		if weak.misses(m) && fails.misses(m) {
			t.Errorf("%v: unreached, but the tests may start a process that reaches it", m)
		}
	}
	if b, err := os.ReadFile(filepath.Join(dir, "m.go")); err != nil || string(b) != limited {
		t.Errorf("m.go was changed: %v\n%s", err, b)
	}
}

// The quickest tests run first. Those that -short leaves out in whole or in part run without it.
func TestStages(t *testing.T) {
	all, left := stages(way{short: true}, []byte("=== RUN TestA\n--- PASS: TestA (3.00s)\n--- PASS: TestB (0.30s)\n"+
		"--- SKIP: TestC (0.00s)\n    --- SKIP: TestD/x (0.00s)\n    --- PASS: TestD/y (9.00s)\n"+
		"--- PASS: TestD (0.20s)\n"), time.Minute)
	check.Equal(t, fmt.Sprint(all),
		"[{{true <nil>} [TestC TestD TestB] 17500000000} {{true <nil>} [TestA] 30000000000}]", "%s")
	check.Same(t, left, []string{"TestC", "TestD"}, "left out: %q")
	check.Same(t, only(left), []string{"-test.run=^(TestC|TestD)$"}, "%q")
	check.Equal(t, len(only(nil)), 0, "%d flags for all")
	_, left = stages(way{}, []byte("--- PASS: TestA (4.00s)\n"), time.Minute)
	check.Equal(t, left != nil && len(left) == 0, true, "nothing was left out: %t")
}

// A program in the sandbox is root, and reaches neither this machine's network, processes and files nor its build
// cache. What it does to the tree is gone afterwards.
func TestSandbox(t *testing.T) {
	needs.Root(t, "namespaces")
	needs.Programs(t, "bwrap")
	dir := t.TempDir()
	must.OK(t, os.WriteFile(filepath.Join(dir, "kept"), []byte("as it was\n"), 0o644))
	t.Chdir(dir)
	box := must.Get(newSandbox(t.TempDir()))(t)
	run := func(script string) string {
		args := box.wrap(dir, []string{"sh", "-c", script})
		out, _ := exec.Command(args[0], args[1:]...).CombinedOutput()
		return strings.TrimSpace(string(out))
	}
	check.Equal(t, run("id -u"), "0", "user %s")
	check.Equal(t, run("ls /sys/class/net >/dev/null; ip -o link | wc -l"), "1", "%s interfaces")
	check.Equal(t, run("ip link add veth7 type veth peer name veth8; echo $?"), "0",
		"adding an interface exits with %s")
	check.Equal(t, run(fmt.Sprintf("kill -0 %d 2>/dev/null; echo $?", os.Getpid())), "1",
		"a signal to this process exits with %s")
	check.Equal(t, run("touch /etc/of-a-mutant 2>/dev/null; echo $?"), "1", "writing to /etc exits with %s")
	check.Equal(t, run("ls /dev/mem /dev/sda /dev/vda 2>/dev/null | wc -l"), "0", "%s devices")
	check.Equal(t, run("echo broken >kept; cat kept"), "broken", "the sandbox reads back %q")
	check.Equal(t, string(must.Get(os.ReadFile("kept"))(t)), "as it was\n", "the tree has %q")
	check.Equal(t, run("echo x >"+box.cache+"/of-a-mutant; ls "+box.cache+"/of-a-mutant >/dev/null; echo $?"), "0",
		"the cache can be written: %s")
	if _, err := os.Stat(box.cache + "/of-a-mutant"); err == nil {
		t.Error("the cache of this machine was written")
	}
}

// A listed survivor is known by its file and change, wherever it has moved, and needs a reason.
func TestEquivalent(t *testing.T) {
	defer func(was string) { equivalentFile = was }(equivalentFile)
	root := must.Get(os.Getwd())(t)
	m := mutation{file: filepath.Join(root, "a", "b.go"), line: 7, what: "n > 10: > becomes >="}
	equivalentFile = "# a comment\n\na/b.go: n > 10: > becomes >= because both return 10 for 10\n"
	check.Equal(t, must.Get(readEquivalent())(t)[m.key()], "both return 10 for 10", "reason %q")
	equivalentFile = "a/b.go: n > 10: > becomes >=\n"
	check.Fails(t, "a line without a reason", check.Err(readEquivalent()), nil, "equivalent.txt:1")
	all := tally{killed: 3, survived: 1, equivalent: 5}
	check.Equal(t, all.share(), 0.75, "share %v")
	check.Equal(t, all.String(), "3 killed, 1 survived, 0 unreached, 5 equivalent: 75.0 % killed",
		"%q")
}
