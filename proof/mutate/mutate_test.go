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

// module writes a module's files and returns what tries its mutations, and these.
func module(t *testing.T, texts map[string]string) (*trial, []mutation) {
	dir := t.TempDir()
	texts["go.mod"] = "module example.com/m\ngo 1.24\n"
	for name, text := range texts {
		must.OK(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	t.Chdir(dir)
	all := must.Get(pick(must.Get(sources([]string{"./..."}))(t), 1))(t)
	return &trial{dir: t.TempDir(), ways: []way{{short: true}, {}}, limit: 12 * time.Second, others: time.Minute,
		workers: 2}, all
}

// The tests of a package kill some of its mutations, and those of other packages, also by a program that they start,
// some of the others. A mutation that makes a test hang counts as killed. One that no test reaches survives without a
// run. Tests that fail without a mutation notice none.
func TestTry(t *testing.T) {
	needs.Long(t)
	r, all := module(t, map[string]string{
		"m.go": limited + "\nconst Step = 4\n\nfunc Started() int { return 3 }\n\n" +
			"func never() int {\n\tconst n = 8\n\treturn n\n}\n",
		"m_test.go": `package m

import (
	"testing"
	"time"
)

func Test(t *testing.T) {
	if Limited(20) != 10 { t.Fail() }
	if Limited(1) == 10 { time.Sleep(time.Hour) }
}

func TestFails(t *testing.T) { t.Error(Limited(11), unused()) }
`,
		"user/user_test.go": `package user

import (
	"testing"

	"example.com/m"
)

func Test(t *testing.T) {
	if m.Step != 4 { t.Fail() }
	if testing.Short() { t.Skip() }
	if m.Limited(11) != 10 { t.Fail() }
}
`,
		"starts/starts_test.go": `package starts

import (
	"os/exec"
	"testing"

	_ "example.com/m/proof/programs"
)

func Test(t *testing.T) {
	if b, _ := exec.Command("go", "run", "example.com/m/cmd/p").Output(); string(b) != "3" { t.Errorf("%s", b) }
}
`,
		"cmd/p/main.go": `package main

import ("fmt"; "os"; "example.com/m")

func main() {
	if len(os.Args) == 1 {
		fmt.Print(m.Started())
	}
}
`,
		"proof/programs/p.go": "package programs\n",
		"proof/lab/x_test.go": "package lab\nimport (\"testing\"; _ \"example.com/m\")\nfunc Test(*testing.T) {}\n",
	})
	all = append(all, mutation{pkg: "example.com/m", file: all[0].file, start: all[0].start, what: "broken", with: "}"})
	must.OK(t, r.prepare(all))
	user, started := elsewhere+" example.com/m/user", elsewhere+" example.com/m/starts"
	want := map[string]result{}
	for r, changes := range map[result][]string{
		killed:   {"if n > 10 is negated", "return 10 becomes return 11"},
		survived: {"n > 10: > becomes >="},
		unreached: {"func unused() int { return 1 } becomes func unused() int { return 2 }",
			"const n = 8 becomes const n = 9"},
		invalid: {"broken", "fmt.Print(m.Started()) is removed"}, // fmt is not used then
		user:    {"if n > 10 { becomes if n > 11 {", "const Step = 4 becomes const Step = 5"},
		started: {"func Started() int { return 3 } becomes func Started() int { return 4 }",
			"len(os.Args) == 1: == becomes !=", "if len(os.Args) == 1 is negated",
			"if len(os.Args) == 1 { becomes if len(os.Args) == 2 {"},
	} {
		for _, what := range changes {
			want[what] = r
		}
	}
	check.Equal(t, len(all), len(want), "%d mutations")
	for _, a := range must.Get(r.try(all, len(all), nil, time.Now().Add(time.Hour)))(t) {
		got := a.result
		if a.by != "" {
			got += result(" " + a.by)
		}
		check.Equal(t, got, want[a.what], a.what+": %s")
	}
	late := &attempt{mutation: all[slices.IndexFunc(all, func(m mutation) bool { return want[m.what] == user })],
		result: survived} // and no time is left
	must.OK(t, r.byOthers(late, 0))
	check.Equal(t, late.cut, "-others", "the survivor says %q")
	text := string(must.Get(os.ReadFile(all[0].file))(t))
	check.Equal(t, strings.HasPrefix(text, limited), true, "m.go is as it was: %t")
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
	r, all := module(t, map[string]string{"m.go": many, "n/m.go": many, "m_test.go": `package m

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
`})
	must.OK(t, r.prepare(all))
	seen, n := map[result]int{}, 0
	for i, m := range all {
		if m.switched {
			n++
		}
		if i >= 24 || !m.switched {
			continue
		}
		one, alone := &attempt{mutation: m}, &attempt{mutation: m}
		alone.switched = false
		must.OK(t, r.own(one))
		must.OK(t, r.own(alone))
		check.Equal(t, one.result, alone.result, m.String()+": %s")
		seen[one.result]++
	}
	check.Equal(t, seen[killed] > 0 && seen[survived] > 0, true, "some are killed and some survive: %t")
	check.Equal(t, len(r.known[0].singles), 2, "%d tests pass without a mutation")
	t.Logf("%d of %d in one program", n, len(all))
	check.Equal(t, 10*n > 8*len(all), true, "most are in one program: %t")
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

// Of two tests that notice the same, the longer one is listed. One that ends the process does not hide what others
// notice.
func TestTwice(t *testing.T) {
	needs.Long(t)
	r, all := module(t, map[string]string{"m.go": limited, "m_test.go": `package m

import "testing"

func TestLong(t *testing.T) {
	if Limited(20) != 10 {
		t.Fail()
	}
}

func TestPanics(t *testing.T) { if Limited(20) != 10 { panic("") } }

func TestOther(t *testing.T) { if unused() != 1 { t.Fail() } }
`})
	must.OK(t, r.prepare(all))
	found := must.Get(r.noticed(r.known[0], all))(t)
	check.Equal(t, len(found["TestPanics"]) > 0 && len(found["TestPanics"]) == len(found["TestLong"]), true,
		"the test that ends the process and the other notice the same: %t")
	names, lines := found.unneeded(must.Get(lengths("."))(t))
	check.Equal(t, fmt.Sprint(names, lines), "[TestLong] 5", "%s")
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
	all := tally{killed: 3, elsewhere: 3, survived: 1, unreached: 1, equivalent: 5}
	check.Equal(t, all.String(), "3 killed (37.5 %), 3 killed-by-others (37.5 %), 1 survived (12.5 %), "+
		"1 unreached (12.5 %), 5 equivalent: 75.0 % killed", "%q")
}
