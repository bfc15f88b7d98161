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

// many has each kind of expression and statement that a mutation changes, also where Go wants a constant.
const many = `package m

import "time"

const shift = 1 << 3

type (
	bits  uint16
	block [shift + 1]byte
)

var table = map[int]bits{4: 5, 6 + 1: 7}

type counter struct{ n, sum int }

func (c *counter) add(v int) { c.n++; c.sum += v }

func Many(v []int, on bool, s string, f float64) (c counter, b bits, d time.Duration, text string) {
	for i := 0; i < len(v); i++ {
		if x := v[i]; on && x >= 3 || !on && (x-1)*2 > 8 {
			c.add(x / 2)
		} else if x == 2 {
			c.sum--
			continue
		}
		b = b | bits(v[i])<<2 | 1<<uint(i)
	}
	switch b & 0xf0 {
	case 16, 0x20 | 1:
		b >>= 1
		b = b >> 2
	default:
		var x block
		x[2] += 3
		b += bits(x[2]) + table[4] - table[7]
	}
	if s > "b" != on {
		text = s + "c"
	}
	d = time.Duration(c.n)*time.Second + 3*time.Millisecond
	if f*1.5 <= 2 && f-0.5 < 1 {
		d = -d
	}
	true := on == (f != 0)
	_ = func() bool { return true || len(text) > 3 }()
	return c, b, d, text
}
`

// Mutations that one program has, each behind its number, do what they do when each is compiled by itself, and most of
// them can be in one program.
func TestSwitched(t *testing.T) {
	needs.Long(t)
	dir := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module example.com/m\ngo 1.24\n", "m.go": many,
		"m_test.go": `package m

import (
	"fmt"
	"testing"
)

func TestMany(t *testing.T) {
	for i, want := range []string{
		"{4 7} 62 -4.003sbc", "{1 2} 3 -1.003s", "{0 0} 1 3mscc",
	} {
		c, b, d, s := Many([][]int{{1, 2, 3, 4, 5, 6}, {2, 6}, nil}[i], i == 0, []string{"b", "a", "c"}[i], float64(i))
		if got := fmt.Sprint(c, b, d, s); got != want { t.Error(got) }
	}
}

func TestOther(t *testing.T) {}
`} {
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	t.Chdir(dir)
	all := must.Get(pick(must.Get(sources([]string{"./..."}))(t), 1))(t)
	ways := []way{{short: true}}
	one, by := must.Get(baseline("example.com/m", ways, 20*time.Second))(t),
		must.Get(baseline("example.com/m", ways, 20*time.Second))(t)
	work := t.TempDir()
	one.switched = must.Get(newSwitched(filepath.Join(work, "1"), filepath.Join(work, "reached"), "example.com/m", all,
		ways))(t)
	seen := map[result]int{}
	for _, m := range all[:24] {
		got, want := must.Get(one.try(t.TempDir(), m))(t), must.Get(by.try(t.TempDir(), m))(t)
		check.Equal(t, got, want, m.String()+": %s")
		seen[got]++
	}
	check.Equal(t, seen[killed] > 0 && seen[survived] > 0, true, "some are killed and some survive: %t")
	n := len(one.switched.numbers)
	check.Equal(t, len(one.switched.tests), 2, "%d tests pass without a mutation")
	t.Logf("%d of %d in one program", n, len(all))
	check.Equal(t, 10*n > 8*len(all), true, "most are in one program: %t")
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
