package setting

import (
	"cmp"
	"flag"
	"fmt"
	"io"
	"math"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/golden"
)

type chosen struct {
	name  string
	size  int
	on    bool
	mode  string
	ports []int
	names []string
	every time.Duration
}

func table(c *chosen) *Table {
	same := func(n int) (int, error) {
		if n < 0 {
			return 0, fmt.Errorf("%d is negative", n)
		}
		return n, nil
	}
	t := New(
		String("a.name", &c.name, "none", nil, "A name."),
		Int("a.size_max", &c.size, 7, func(n int) error { _, err := same(n); return err }, "A size."),
		Bool("a.on", &c.on, true, "A switch."),
		OneOf("b.mode", &c.mode, "x", []Choice{{"x", "the first"}, {"yy", "the `second`"}}, "A mode:"),
		Ints("b.ports", &c.ports, []int{1, 2}, same, "Ports."),
		Strings("b.names", &c.names, func(s string) (string, error) { return s, nil }, "Names.\n\nMore of `them`."),
		Interval("b.every", &c.every, time.Second, "How often."),
	)
	t.Removed = map[string]string{"a.old": "use a.name"}
	return t
}

// parse assigns what a document has to the settings.
func parse(doc string) error {
	var c chosen
	tab := table(&c)
	if err := tab.Parse("F", doc); err != nil {
		return err
	}
	return tab.Apply()
}

func TestTOMLRoundTrip(t *testing.T) {
	var c chosen
	doc := table(&c).TOML("An introduction.")
	want := chosen{"none", 7, true, "x", []int{1, 2}, nil, 0}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("defaults are %+v", c)
	}
	read := table(&c)
	c = chosen{names: []string{"left"}}
	check.OK(t, read.Parse("F", doc))
	check.OK(t, read.Apply())
	if want.names = []string{}; !reflect.DeepEqual(c, want) {
		t.Errorf("%+v from\n%s", c, doc)
	}
}

func TestLines(t *testing.T) {
	for _, c := range []struct{ doc, want string }{
		{"\n[b]\nports = [\n  1, # one, two\n\n  2, -3,\n]", "F:6: b.ports: -3 is negative"},
		{"[b]\nports = [ 1,\n-2 ] # end", "F:3: b.ports: -2 is negative"},
		{"[b]\nnames = ['a', \"\"\"\nb]\n\"\"\",\n 3]", "F:5: b.names: has an integer, must be a list of strings"},
		{"b.mode = 'x'\na.size_max = -1", "F:2: a.size_max: -1 is negative"},
		{"\na = {name = 'x', size_max = -1}", "F:2: a.size_max: -1 is negative"},
		{"b = {ports = [1,\n-1]}", "F:1: b.ports: -1 is negative"},
		{"[a]\nsize_max = 99999999999999999999", "F:2: a.size_max: 99999999999999999999 is out of range for int64"},
		{"[a]\nname = '''\n'''\nsize_max = -1", "F:4: a.size_max: -1 is negative"},
		{"\n[a.name.b]\nc = 1", "F:2: a.name: is a table, must be a string"},
		{"\n[a]\n'name.b' = 1", "F:3: a.name.b: unknown key (did you mean a.name?)"},
		{"[a]\nold = 1", "F:2: a.old: this setting was removed: use a.name"},
		{"[a]\nname.b = 1", "F:2: a.name: is a table, must be a string"},
		{"[a]\nName = ''", "F:2: a.Name: unknown key (did you mean a.name?)"},
		{"[b]\nports = [[1]]", "F:2: b.ports: has a list, must be a list of integers"},
		{"[b]\nports = 2001-01-01", "F:2: b.ports: is a date or time, must be a list of integers"},
		{"[b]\n\nmode = 'z'", `F:3: b.mode: "z" is not one of x, yy`},
		{"\n\n[[c]]", "F:3: c: unknown section"},
		{"\nc.d = 1", "F:2: c: unknown section"},
		{"c = 1\n[a]", "F:1: c: unknown key"},
		{"a = 3", "F:1: a: is an integer, must be a section"},
		{"[[a]]", "F:1: a: is a list of tables, must be a section"},
		{"[a", `F:1: expected '.' or ']' to end table name, but got '\x00' instead`},
		{"[a]\nname = 7", "F:2: a.name: is an integer, must be a string"},
		{"[a]\nname = true", "F:2: a.name: is a boolean, must be a string"},
		{"[a]\nname = \"x\n\"", "F:2: a.name: strings cannot contain newlines"},
		{"[a]\nname = 'x'\nname = 'x'", "F:3: a.name: Key 'a.name' has already been defined."},
		{"[a]\nsize_max = 1.5", "F:2: a.size_max: is a float, must be an integer"},
		{"[b]\nports = '2'", "F:2: b.ports: is a string, must be a list of integers"},
		{"[b]\nports = 2", "F:2: b.ports: is an integer, must be a list of integers"},
		{"[b]\nevery = '5ms'", `F:2: b.every: "5ms" is not a duration of 1s or more, such as "10s"; "0s" is off`},
	} {
		if err := parse(c.doc); err == nil || err.Error() != c.want {
			t.Errorf("%q:\ngot  %v\nwant %s", c.doc, err, c.want)
		}
	}
}

// A value that a later one replaces is not checked.
func TestLaterWins(t *testing.T) {
	var c chosen
	tab := table(&c)
	check.OK(t, tab.Parse("F", "a.size_max = -1"))
	check.OK(t, tab.Set("a.size_max=3"))
	check.OK(t, tab.Apply())
	check.Equal(t, c.size, 3, "size %d")
}

func TestSet(t *testing.T) {
	for set, want := range map[string]string{
		"a.nam=x":         "-set: a.nam: unknown key (did you mean a.name?)",
		"a.nmae=x":        "-set: a.nmae: unknown key (did you mean a.name?)",
		"x.ports=7":       "-set: x.ports: unknown key (did you mean b.ports?)",
		"ports=7":         "-set: ports: unknown key (did you mean b.ports?)",
		"a.colour=x":      "-set: a.colour: unknown key",
		"a.size_maximu=x": "-set: a.size_maximu: unknown key (did you mean a.size_max?)",
		"a=x":             "-set: a: unknown key",
		"a.old=x":         "-set: a.old: this setting was removed: use a.name",
		"a.name":          "-set: a.name: wants KEY=VALUE",
		"a.size_max=x":    "-set: a.size_max: is a string, must be an integer",
		"b.ports=[7,x]":   "-set: b.ports: has a string, must be a list of integers",
		"a.size_max=1\nb": "-set: a.size_max: is a string, must be an integer",
	} {
		var c chosen
		tab := table(&c)
		if err := cmp.Or(tab.Set(set), tab.Apply()); err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", set, err, want)
		}
	}
}

func TestFlags(t *testing.T) {
	var c chosen
	f := flag.NewFlagSet("", flag.ContinueOnError)
	var help strings.Builder
	f.SetOutput(&help)
	for _, s := range table(&c).Settings {
		s.AddFlag(f)
	}
	f.PrintDefaults()
	check.Contains(t, help.String(), "-size-max value", "A size. (default 7)", "x    the first", "yy   the second",
		"-mode value", "More of them. (default [])", "-on\n")
	f.SetOutput(io.Discard)
	err := f.Parse([]string{"-size-max", "9", "-on=false", "-mode=yy", "-ports=3,4", "-names", "[a, b]", "-name=5"})
	if want := (chosen{"5", 9, false, "yy", []int{3, 4}, []string{"a", "b"}, 0}); err != nil ||
		!reflect.DeepEqual(c, want) {
		t.Errorf("%+v, %v", c, err)
	}
	for arg, want := range map[string]string{
		"-size-max=-2": `invalid value "-2" for flag -size-max: -2 is negative`,
		"-size-max=a":  `invalid value "a" for flag -size-max: is a string, must be an integer`,
		"-ports=3,x":   `invalid value "3,x" for flag -ports: has a string, must be a list of integers`,
		"-on=maybe":    `invalid boolean value "maybe" for -on: is a string, must be true or false`,
		"-mode=z":      `invalid value "z" for flag -mode: "z" is not one of x, yy`,
	} {
		if err := f.Parse([]string{arg}); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", arg, err, want)
		}
	}
}

// A setting that the driver lacks is reported, unless its value is the default: a file may contain every key.
func TestUnused(t *testing.T) {
	var cores []int
	var priority int
	table := New(Ints("cpu.cores", &cores, nil, func(n int) (int, error) { return n, nil }, "Cores."),
		Int("cpu.priority", &priority, 0, func(int) error { return nil }, "Priority."))
	for i := range table.Settings {
		table.Settings[i].Drivers = []string{"afxdp", "ena"}
	}
	check.OK(t, table.Parse("config.toml", "[cpu]\ncores = []\npriority = 50\n"))
	check.OK(t, table.Apply())
	check.Equal(t, fmt.Sprint(table.Unused("xdp")),
		"[config.toml:3: cpu.priority: has no effect with driver xdp (it is for afxdp, ena)]", "xdp: %s")
	check.Equal(t, len(table.Unused("ena")), 0, "ena: %d unused")
}

// A setting whose condition is not met is reported, whatever the driver.
func TestNeeds(t *testing.T) {
	for doc, want := range map[string]string{
		"[b]\nevery = '5s'":                                  "[F:2: b.every: has no effect without b.mode=yy or b.names]",
		"[b]\nevery = '0s'":                                  "[]",
		"[b]\nevery = '5s'\nnames = ['x']":                   "[]",
		"[b]\nevery = '5s'\nmode = 'yy'":                     "[]",
		"[a]\nsize_max = 1\n[b]\nmode = 'yy'":                "[F:2: a.size_max: has no effect without b.mode!=yy]",
		"[a]\nsize_max = 1":                                  "[]",
		"[a]\nsize_max = 1\n[b]\nmode = 'yy'\nnames = ['x']": "[F:2: a.size_max: has no effect without b.mode!=yy]",
	} {
		var c chosen
		tab := table(&c)
		tab.Find("b.every").Needs = []string{"b.mode=yy", "b.names"}
		tab.Find("a.size_max").Needs = []string{"b.mode!=yy"}
		check.OK(t, tab.Parse("F", doc))
		check.Equal(t, fmt.Sprint(tab.Unused("")), want, strconv.Quote(doc)+": %s")
	}
}

// The range of an integer is in its description and in the error for a value outside it.
func TestRange(t *testing.T) {
	var small uint8
	var n int
	for _, c := range []struct {
		s         Setting
		doc       string
		bad, want string
	}{
		{Range("a.b", &small, 1, 9, 0, "the middle", "A size (of something). It matters."), "A size (of something), 1 to 9; 0 is the middle. It matters.", "10", "10 is not 1 to 9; 0 is the middle"},
		{Range("a.b", &n, 0, math.MaxInt, 5, "no limit", "A size."), "A size; 0 is no limit.", "-1", "-1 is not 0 or more"},
		{Range("a.b", &n, 1, math.MaxInt, 5, "", "A size"), "A size, 1 or more.", "0", "0 is not 1 or more"},
		{Range("a.b", &n, -1, 3, -1, "", "A size"), "A size, -1 to 3.", "4", "4 is not -1 to 3"},
	} {
		check.Equal(t, c.s.Doc, c.doc, "described as %q")
		if err := c.s.Assign(c.bad); err == nil || err.Error() != c.want {
			t.Errorf("%s: %v, want %s", c.bad, err, c.want)
		}
		if err := c.s.Assign(c.s.Default); err != nil {
			t.Errorf("%s: the default is refused: %v", c.doc, err)
		}
	}
	s := Range("a.b", &small, 0, 9, 3, "the middle", "A size.")
	check.Equal(t, small, 3, "before it is assigned it is %d")
	if err := s.Assign("7"); err != nil || small != 7 {
		t.Errorf("%d, %v", small, err)
	}
}

// The whole text of a configuration file.
func TestTOMLText(t *testing.T) {
	var c chosen
	golden.Equal(t, "testdata/settings.txt", table(&c).TOML("An introduction.\n\nIn two paragraphs."))
}

// Choices are a list of names, unless one of them is described.
func TestChoices(t *testing.T) {
	check.Equal(t, choices([]Choice{{Name: "a"}, {}, {Name: "bc"}}, "# ", 40), "# a, bc\n", "%q")
	check.Equal(t, choices([]Choice{{Name: "a"}, {Name: "bc", Doc: "the second"}}, "# ", 40),
		"# a    \n# bc   the second\n", "%q")
	check.Equal(t, choices(nil, "# ", 40), "", "%q")
}
