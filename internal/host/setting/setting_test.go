package setting

import (
	"flag"
	"fmt"
	"io"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"
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
	return New(
		String("a.name", &c.name, "none", nil, "A name."),
		Int("a.size_max", &c.size, 7, func(n int) error { _, err := same(n); return err }, "A size."),
		Bool("a.on", &c.on, true, "A switch."),
		OneOf("b.mode", &c.mode, "x", []Choice{{"x", "the first"}, {"yy", "the `second`"}}, "A mode:"),
		Ints("b.ports", &c.ports, []int{1, 2}, same, "Ports."),
		Strings("b.names", &c.names, func(s string) (string, error) { return s, nil }, "Names.\n\nMore of `them`."),
		Interval("b.every", &c.every, time.Second, "How often."),
	)
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
	if err := read.Parse("F", doc); err != nil {
		t.Fatalf("%v\n%s", err, doc)
	}
	if err := read.Apply(); err != nil {
		t.Fatal(err)
	}
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
		{"\n[a]\n'name.b' = 1", "F:3: a.name.b: unknown key"},
		{"[a]\nname.b = 1", "F:2: a.name: is a table, must be a string"},
		{"[a]\nName = ''", "F:2: a.Name: unknown key"},
		{"[b]\nports = [[1]]", "F:2: b.ports: has a list, must be a list of integers"},
		{"[b]\nports = 2001-01-01", "F:2: b.ports: is a date or time, must be a list of integers"},
		{"[b]\n\nmode = 'z'", `F:3: b.mode: "z" is not one of x, yy`},
		{"\n\n[[c]]", "F:3: c: unknown section"},
		{"\nc.d = 1", "F:2: c: unknown section"},
		{"[b]\nevery = '5ms'", `F:2: b.every: "5ms" is not a duration of 1s or more, such as "10s"; "0s" is off`},
	} {
		var v chosen
		tab := table(&v)
		err := tab.Parse("F", c.doc)
		if err == nil {
			err = tab.Apply()
		}
		if err == nil || err.Error() != c.want {
			t.Errorf("%q:\ngot  %v\nwant %s", c.doc, err, c.want)
		}
	}
}

// A value that a later one replaces is not checked.
func TestLaterWins(t *testing.T) {
	var c chosen
	tab := table(&c)
	if err := tab.Parse("F", "a.size_max = -1"); err != nil {
		t.Fatal(err)
	}
	if err := tab.Set("a.size_max=3"); err != nil {
		t.Fatal(err)
	}
	if err := tab.Apply(); err != nil || c.size != 3 {
		t.Errorf("size %d, error %v", c.size, err)
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
	for _, want := range []string{"-size-max value", "A size. (default 7)", "x    the first", "yy   the second", "-mode value", "More of them. (default [])", "-on\n"} {
		if !strings.Contains(help.String(), want) {
			t.Errorf("help lacks %q:\n%s", want, help.String())
		}
	}
	f.SetOutput(io.Discard)
	if err := f.Parse([]string{"-size-max", "9", "-on=false", "-mode=yy", "-ports=3,x", "-names", "[a, b]", "-name=5"}); err == nil {
		t.Error("-ports=3,x is no list of integers")
	}
	err := f.Parse([]string{"-size-max", "9", "-on=false", "-mode=yy", "-ports=3,4", "-names", "[a, b]", "-name=5"})
	if want := (chosen{"5", 9, false, "yy", []int{3, 4}, []string{"a", "b"}, 0}); err != nil || !reflect.DeepEqual(c, want) {
		t.Errorf("%+v, %v", c, err)
	}
	for arg, want := range map[string]string{
		"-size-max=-2": `invalid value "-2" for flag -size-max: -2 is negative`,
		"-size-max=a":  `invalid value "a" for flag -size-max: is a string, must be an integer`,
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
	if err := table.Parse("config.toml", "[cpu]\ncores = []\npriority = 50\n"); err != nil {
		t.Fatal(err)
	}
	if err := table.Apply(); err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprint(table.Unused("xdp"))
	if want := "[config.toml:3: cpu.priority: has no effect with driver xdp (it is for afxdp, ena)]"; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	if got := table.Unused("ena"); len(got) > 0 {
		t.Errorf("ena has them, and %v is said", got)
	}
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
		if err := tab.Parse("F", doc); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(tab.Unused("")); got != want {
			t.Errorf("%q: got %s, want %s", doc, got, want)
		}
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
		if c.s.Doc != c.doc {
			t.Errorf("described as %q, want %q", c.s.Doc, c.doc)
		}
		if err := c.s.Assign(c.bad); err == nil || err.Error() != c.want {
			t.Errorf("%s: %v, want %s", c.bad, err, c.want)
		}
		if err := c.s.Assign(c.s.Default); err != nil {
			t.Errorf("%s: the default is refused: %v", c.doc, err)
		}
	}
	s := Range("a.b", &small, 1, 9, 0, "the middle", "A size.")
	if err := s.Assign("7"); err != nil || small != 7 {
		t.Errorf("%d, %v", small, err)
	}
}
