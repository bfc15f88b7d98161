package targets

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/internal/host/stampkey"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

func names(all []Target) string {
	var out []string
	for _, t := range all {
		s := t.Name()
		for _, k := range []string{"site", "rack"} {
			if v, ok := t.Labels[k]; ok {
				s += " " + k + "=" + v
			}
		}
		out = append(out, s)
	}
	return strings.Join(out, ", ")
}

func TestParse(t *testing.T) {
	d := Defaults{Proto: probe.UDP}
	for text, want := range map[string]string{
		"10.0.0.2": "udp:10.0.0.2:7", "10.0.0.2:99": "udp:10.0.0.2:99", "icmp:10.0.0.2:99": "icmp has no ports",
		"stamp:10.0.0.2": "stamp:10.0.0.2:862",
		"fd00::2":        "udp:[fd00::2]:7", "[fd00::2]:8": "udp:[fd00::2]:8",
		"stamp:[fd00:0::2]": "stamp:[fd00::2]:862", "icmp:fd00::2": "icmp:[fd00::2]",
		"host.example:80": "udp:host.example:80", "stamp:a-b.example": "stamp:a-b.example:862",
		"::ffff:10.0.0.2": "udp:10.0.0.2:7",
		"":                "", "10.0.0": "neither", "10.0.0.2:0": "port", "10.0.0.2:": "port is missing",
		"[fd00::2": "bracket", "[fd00::2]x": "bracket", "[10.0.0.2]:7": "not an IPv6 address",
		"tcp:10.0.0.2": "port", "224.0.0.1": "not the address of one host", "0.0.0.0": "not the address of one host",
		"a b": "neither", "-x": "neither", "host:99999": "1 to 65535",
	} {
		got, err := d.Parse(text)
		switch {
		case err == nil && got.Name() != want:
			t.Errorf("%q: %s, want %s", text, got.Name(), want)
		case err != nil && (strings.Contains(want, ":") || !strings.Contains(err.Error(), `target "`+text+`"`)):
			t.Errorf("%q: %v", text, err)
		case err == nil && want == "":
			t.Errorf("%q was taken", text)
		}
	}
	if got, _ := (Defaults{Port: 9}).Parse("udp:10.0.0.2:9469"); got.Name() != "udp:10.0.0.2:9" {
		t.Errorf("a port for all: %s", got.Name())
	}
	// Tags are unique, and have only the characters that a log's tags may have.
	seen := map[string]string{}
	for _, text := range []string{"icmp:10.0.0.2", "icmp:10-0-0-2", "udp:10.0.0.2:7", "udp:10.0.0.27:7",
		"udp:[fd00::2]:7"} {
		x := must.Get(d.Parse(text))(t)
		tag := x.Tag()
		if seen[tag] != "" || strings.Trim(tag,
			"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") != "" {
			t.Errorf("%s and %s: tag %q", text, seen[tag], tag)
		}
		seen[tag] = text
	}
}

const yamlSD = `# two groups
- targets: ['10.0.0.2', "stamp:10.0.0.3:863"]
  labels: {site: ams, __meta_x: y}
- labels:
    __param_proto: udp
    rack: 12
  targets:
  - fd00::2
`

const jsonSD = `[
 {"targets": ["10.0.0.2", "stamp:10.0.0.3:863"], "labels": {"site": "ams", "__meta_x": "y"}},
 {"labels": {"__param_proto": "udp", "rack": "12"},
  "targets": ["fd00::2"]}
]
`

func TestFormats(t *testing.T) {
	var d Defaults
	const want = "icmp:10.0.0.2 site=ams, stamp:10.0.0.3:863 site=ams, udp:[fd00::2]:7 rack=12"
	for name, text := range map[string]string{"x.yml": yamlSD, "x.YAML": yamlSD, "x.json": jsonSD} {
		got, err := d.parseFileSD(name, []byte(text))
		if err != nil || names(got) != want {
			t.Errorf("%s: %s, %v", name, names(got), err)
		}
	}
	for _, empty := range []string{"", "# nothing\n", "[]", "---\n", "null"} {
		if got, err := d.parseFileSD("x.yml", []byte(empty)); err != nil || len(got) != 0 {
			t.Errorf("%q: %v, %v", empty, got, err)
		}
	}
	// A file_sd's port belongs to another scraped service, unless the protocol in its labels has ports.
	const ported = "- targets: ['10.0.0.2:9100']\n- targets: ['10.0.0.2:9100']\n  labels: {__param_proto: udp}\n"
	if got, err := d.parseFileSD("x.yml", []byte(ported)); err != nil ||
		names(got) != "icmp:10.0.0.2, udp:10.0.0.2:9100" {
		t.Errorf("ports: %s, %v", names(got), err)
	}
	got, err := d.parseList("x", []byte("# all\n10.0.0.2 site=ams # here\n\nudp:fd00::2 rack=12\n"))
	if err != nil || names(got) != "icmp:10.0.0.2 site=ams, udp:[fd00::2]:7 rack=12" {
		t.Errorf("a list: %s, %v", names(got), err)
	}
}

func TestFormatErrors(t *testing.T) {
	var d Defaults
	for _, c := range []struct{ name, text, line, says string }{
		{"x.json", "", "x.json:1:", "empty"},
		{"x.json", "{}", "x.json:1:", "want a list of groups"},
		{"x.json", "[\n{\"targets\": [\"10.0.0.2\",\n7]}]", "x.json:3:", "a target is 7, must be a string"},
		{"x.json", "[\n{\"target\": []}]", "x.json:2:", `unknown key "target"`},
		{"x.json", "[\n{\"targets\": [\"10.0.0.2\"]\n", "x.json:3:", "ends in the middle"},
		{"x.json", "[]\n[]", "x.json:2:", "something follows"},
		{"x.json", "[\n{\"targets\": [\n\"10.0.0.2\",\n\"10.0.0\"]}]", "x.json:4:", `target "10.0.0"`},
		{"x.json", "[{\"targets\": [\"10.0.0.2\"], \"labels\":\n{\"le\": \"1\"}}]", "x.json:2:", "used by the metrics"},
		{"x.json", "[{\"targets\": [\"10.0.0.2\"], \"labels\":\n{\"a-b\": \"1\"}}]", "x.json:2:", "letters, digits and underscores"},
		{"x.yml", "targets: [10.0.0.2]\n", "x.yml:1:", "want a list of groups"},
		{"x.yml", "- targets: [10.0.0.2]\n  lables: {}\n", "x.yml:2:", `unknown key "lables"`},
		{"x.yml", "- targets:\n  - 10.0.0.2\n  - {a: b}\n", "x.yml:3:", "a target is a mapping"},
		{"x.yml", "- targets: 10.0.0.2\n", "x.yml:1:", "must be a list of strings"},
		{"x.yml", "- targets: [10.0.0.2]\n  labels: [a]\n", "x.yml:2:", "must be a mapping"},
		{"x.yml", "- targets: [10.0.0.2]\n  labels:\n    __param_proto: tcp\n", "x.yml:3:", `protocol "tcp"`},
		{"x.yml", "- targets: [10.0.0.2\n- x", "x.yml:", ""},
		{"x.toml", "", "x.toml", ".json, .yml or .yaml"},
	} {
		check.Fails(t, c.text, check.Err(d.parseFileSD(c.name, []byte(c.text))), nil, c.line, c.says)
	}
	for text, want := range map[string]string{"10.0.0.2\n10.0.0": "x:2: target",
		"udp:10.0.0.2:9\n10.0.0.2:9":                  `x:2: target "10.0.0.2:9": icmp has no ports`,
		"stamp:10.0.0.2 __param_stamp_ssid=0":         "x:1: label __param_stamp_ssid: \"0\" is not",
		"stamp:10.0.0.2 __param_stamp_key=/none/such": "x:1: label __param_stamp_key: ",
		"udp:10.0.0.2 __param_stamp_ssid=7":           "x:1: target \"10.0.0.2\": udp has neither",
		"10.0.0.2 __param_szie=100":                   "x:1: label __param_szie is none of __param_proto, ",
		"10.0.0.2 site":                               "x:1: \"site\" after", "\n\n10.0.0.2 9=x": "x:3: label",
		"10.0.0.2 __param_interval=0s":         "x:1: label __param_interval: \"0s\" is not a time from 100µs to 1m40s",
		"10.0.0.2 __param_interval=2":          "x:1: label __param_interval",
		"10.0.0.2 __param_interval=1h":         "x:1: label __param_interval",
		"10.0.0.2 __param_size=65536":          "x:1: label __param_size: \"65536\" is not 0 to 65535",
		"10.0.0.2 __param_size=-1":             "x:1: label __param_size",
		"10.0.0.2 __param_dscp=64":             "x:1: label __param_dscp: \"64\" is not 0 to 63",
		"udp:10.0.0.2 __param_source_ports=65": "x:1: label __param_source_ports: \"65\" is not 1 to 64",
		"udp:10.0.0.2 __param_source_ports=0":  "x:1: label __param_source_ports: \"0\" is",
		"10.0.0.2 __param_source_ports=2":      "x:1: target \"10.0.0.2\": icmp has no ports: __param_source_ports is for udp and stamp", "10.0.0.2 hop=x": "x:1: label \"hop\" is used"} {
		if _, err := d.parseList("x", []byte(text)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

// A target's labels have precedence over the defaults of its probes, and a changed value makes them different probes.
func TestProbesOfATarget(t *testing.T) {
	d := Defaults{Probes: Probes{Interval: time.Second, Size: 100, DSCP: 8}}
	got, err := d.parseList("x",
		[]byte("10.0.0.2 __param_interval=20ms __param_size=0 __param_dscp=0\n10.0.0.2\n10.0.0.2 __param_dscp=46\n"))
	if err != nil || len(got) != 3 || got[0].Probes != (Probes{Interval: 20 * time.Millisecond}) ||
		got[1].Probes != d.Probes || got[2].DSCP != 46 || got[2].Size != 100 {
		t.Fatalf("%+v, %v", got, err)
	}
	d.SourcePorts = 8
	ports, err := d.parseList("x", []byte("10.0.0.2\nudp:10.0.0.2\nudp:10.0.0.3 __param_source_ports=1\n"))
	if err != nil || len(ports) != 3 || ports[0].SourcePorts != 0 || ports[1].SourcePorts != 8 ||
		ports[2].SourcePorts != 1 {
		t.Errorf("%+v, %v", ports, err)
	}
	check.Equal(t, got[0].Equal(got[1]), false, "other source ports: Equal is %v")
	check.Equal(t, got[1].SameProbes(got[2]), false, "other source ports: SameProbes is %v")
	check.Equal(t, len(got[0].Labels), 0, "%d labels")
}

// A STAMP target's own values have precedence over the defaults, and a changed key makes it a different target.
func TestSTAMPTarget(t *testing.T) {
	dir := t.TempDir()
	key := func(name, digit string) string {
		path := filepath.Join(dir, name)
		must.OK(t, os.WriteFile(path, []byte(strings.Repeat(digit, 64)), 0o600))
		return path
	}
	own, all := key("own", "a"), key("all", "b")
	common := must.Get(stampkey.Read(all))(t)
	d := Defaults{SSID: 9, Key: common}
	got, err := d.parseList("x", []byte("stamp:10.0.0.2 __param_stamp_ssid=7 site=ams __param_stamp_key="+own+
		"\nstamp:10.0.0.3\nudp:10.0.0.4\n"))
	if err != nil || len(got) != 3 {
		t.Fatal(got, err)
	}
	a, b, c := got[0], got[1], got[2]
	check.Same(t, []uint16{a.SSID, b.SSID, c.SSID}, []uint16{7, 9, 0}, "SSIDs %v")
	check.Equal(t, a.Key.Bytes()[0], 0xaa, "the target's own key begins with %#x")
	check.Equal(t, b.Key.Bytes()[0], 0xbb, "the default key begins with %#x")
	check.Equal(t, len(c.Key.Bytes()), 0, "UDP has a key of %d bytes")
	check.Equal(t, len(a.Labels), 1, "%d labels")
	key("own", "c")
	again, err := d.parseList("x", []byte("stamp:10.0.0.2 __param_stamp_ssid=7 site=ams __param_stamp_key="+own+"\n"))
	must.OK(t, err)
	check.Equal(t, a.Equal(again[0]), false, "with another key Equal is %v")
	check.Equal(t, a.Equal(a), true, "with itself Equal is %v")
}

// fake is a DNS resolver.
type fake struct {
	srv   []*net.SRV
	err   error
	asked int
}

func (f *fake) LookupSRV(context.Context, string, string, string) (string, []*net.SRV, error) {
	f.asked++
	return "", f.srv, f.err
}

func (f *fake) LookupNetIP(_ context.Context, network, _ string) ([]netip.Addr, error) {
	f.asked++
	if network == "ip6" {
		return []netip.Addr{netip.MustParseAddr("fd00::9")}, f.err
	}
	return []netip.Addr{netip.MustParseAddr("10.0.0.9"), netip.MustParseAddr("::ffff:10.0.0.8")}, f.err
}

// Files are read again when they have changed, DNS names after the refresh interval; a failed source keeps its targets
// and is reported once.
func TestSources(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		file := filepath.Join(dir, name)
		must.OK(t, os.WriteFile(file+".new", []byte(text), 0o644))
		must.OK(t, os.Rename(file+".new", file))
	}
	write("a.yml", "- targets: [10.0.0.2]\n")
	write("b.json", `[{"targets": ["10.0.0.3", "10.0.0.2"], "labels": {"site": "b"}}]`)
	write("list", "10.0.0.4\n")
	dns := &fake{srv: []*net.SRV{{Target: "h.example.", Port: 861}}}
	s := Sources{List: filepath.Join(dir, "list"), FileSD: []string{filepath.Join(dir, "*.yml"),
		filepath.Join(dir, "b.json")}, Refresh: time.Minute, Resolver: dns,
		DNS: []Query{{Name: "x", Type: "SRV", Proto: probe.STAMP}, {Name: "y", Type: "A"},
			{Name: "y", Type: "AAAA", Proto: probe.UDP, Port: 8}}}
	now := time.Unix(1000, 0)
	ctx := context.Background()
	expect := func(when, want string, failures ...string) {
		t.Helper()
		got, failed := s.Read(ctx, false, now)
		var said []string
		for _, f := range failed {
			said = append(said, fmt.Sprintf("%t %v", f.New, f.Err))
		}
		if names(got) != want || !slices.EqualFunc(said, failures,
			func(a, b string) bool { return strings.Contains(a, b) }) {
			t.Errorf("%s:\n%s, %q\nwant\n%s, %q", when, names(got), said, want, failures)
		}
	}
	const others = "icmp:10.0.0.2 site=b, icmp:10.0.0.3 site=b, icmp:10.0.0.4, "
	const resolved = "icmp:10.0.0.8, icmp:10.0.0.9, stamp:h.example:861, udp:[fd00::9]:8"
	expect("first", others+resolved)
	write("a.yml", "- targets: [10.0.0.5]\n")
	expect("changed", others+"icmp:10.0.0.5, "+resolved)
	// The same size and time: only the file is another one.
	info := must.Get(os.Stat(filepath.Join(dir, "list")))(t)
	write("list.6", "10.0.0.6\n")
	must.OK(t, os.Chtimes(filepath.Join(dir, "list.6"), info.ModTime(), info.ModTime()))
	must.OK(t, os.Rename(filepath.Join(dir, "list"), filepath.Join(dir, "list.4")))
	must.OK(t, os.Rename(filepath.Join(dir, "list.6"), filepath.Join(dir, "list")))
	expect("exchanged", "icmp:10.0.0.2 site=b, icmp:10.0.0.3 site=b, icmp:10.0.0.5, icmp:10.0.0.6, "+resolved)
	must.OK(t, os.Rename(filepath.Join(dir, "list.4"), filepath.Join(dir, "list")))
	write("a.yml", "- targets: [nonsense/]\n")
	expect("broken", others+"icmp:10.0.0.5, "+resolved, "true "+dir+"/a.yml:1:")
	expect("still broken", others+"icmp:10.0.0.5, "+resolved, "false "+dir+"/a.yml:1:")
	os.Remove(filepath.Join(dir, "a.yml"))
	expect("gone", others+resolved)
	os.Remove(filepath.Join(dir, "b.json")) // a name without a * must exist
	expect("not there", others+resolved, "true ")
	if dns.asked != 3 {
		t.Errorf("DNS was asked %d times within a minute", dns.asked)
	}
	dns.err = errors.New("no answer")
	now = now.Add(time.Minute)
	expect("DNS fails", others+resolved, "false ", "true DNS: no answer", "true DNS: no answer", "true DNS: no answer")
	dns.err, dns.srv = nil, nil
	now = now.Add(time.Minute)
	expect("no records", others+"icmp:10.0.0.8, icmp:10.0.0.9, udp:[fd00::9]:8", "false ")
}

func TestQuery(t *testing.T) {
	var d Defaults
	if q, err := d.ParseQuery("stamp:_stamp._udp.example.org", "SRV", 0); err != nil || q.Proto != probe.STAMP ||
		q.Name != "_stamp._udp.example.org" {
		t.Errorf("%+v, %v", q, err)
	}
	for _, bad := range []string{"", "x:example.org", "a b", "_x..y"} {
		check.Fails(t, bad, check.Err(d.ParseQuery(bad, "SRV", 0)), nil)
	}
}

func TestLabelsAreBounded(t *testing.T) {
	var labels strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&labels, "a%d: b, ", i)
	}
	group := "- &a\n  targets: [x]\n  labels: &l {" + labels.String() + "}\n"
	for name, text := range map[string]string{
		"groups":  group + strings.Repeat("- *a\n", 1000),
		"labels":  group + strings.Repeat("- labels: *l\n", 1000),
		"targets": "- labels: {" + labels.String() + "}\n  targets: [" + strings.Repeat("x, ", 1001) + "]\n",
	} {
		var d Defaults
		check.Fails(t, name, check.Err(d.parseFileSD("x.yml", []byte(text))), nil, "x.yml:", "more than 1000000 labels")
	}
}

// Every file gives targets or an error with its name; accepted targets can be written and read again.
func FuzzFileSD(f *testing.F) {
	for _, s := range []string{yamlSD, "", "- targets: [&a 10.0.0.2, *a]\n", "a: &a [*a]",
		"- &a\n  targets: [x]\n- *a\n", "- {targets: [x], labels: {a: b}}"} {
		f.Add(s, false)
	}
	for _, s := range []string{jsonSD, "[", `[{"targets":["\ud83d"]}]`, `[{"targets":[],"labels":{}}]`} {
		f.Add(s, true)
	}
	f.Fuzz(func(t *testing.T, text string, isJSON bool) {
		name := "x.yml"
		if isJSON {
			name = "x.json"
		}
		var d Defaults
		got, err := d.parseFileSD(name, []byte(text))
		if err != nil {
			if !strings.HasPrefix(err.Error(), name+":") {
				t.Errorf("%v", err)
			}
			return
		}
		for _, x := range got {
			again, err := d.Parse(x.Name())
			if err != nil || again.Name() != x.Name() {
				t.Errorf("%s: %s, %v", x.Name(), again.Name(), err)
			}
		}
	})
}

func TestTargetKeepsTheLabelsOfAFile(t *testing.T) {
	all := distinct([]Target{
		{Host: "10.0.0.1", Labels: map[string]string{"zone": "own"}}, {Host: "10.0.0.2"},
		{Host: "10.0.0.1", Labels: map[string]string{"zone": "file", "rack": "7"}},
	})
	if len(all) != 2 || !maps.Equal(all[0].Labels, map[string]string{"zone": "own", "rack": "7"}) ||
		all[1].Labels != nil {
		t.Errorf("targets %+v", all)
	}
}
