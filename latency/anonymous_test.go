package latency

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"rebound/latency/host"
)

// telling fills every field of a report that a machine's name, addresses or folders could be in.
func telling(t *testing.T) *Report {
	r := link{median: 10_000, rate: 1000, seconds: 1}.report(t)
	r.Label = "target=8.8.4.4,source=2a02:8071::7"
	r.Args = []string{"/home/jane/bin/bench", "run", "-target", "8.8.4.4", "-out", "/home/jane/out"}
	r.Traffic.Target = "[2a02:8071::7]:862"
	r.Notes = []string{"answered by ready driver=afxdp device=enx0252624e4901 mac=02:52:62:4e:49:01 addresses=10.99.0.3/24,2a02:8071::9/64",
		"no reply from 2a02:8071::8: 3 probes; the kernel reports: 8.8.4.4: unreachable"}
	r.Host = host.Facts{Hostname: "jane-box", CPU: "AMD EPYC", Cores: 4, Core: 3, Kernel: "6.1.0-28-acme-amd64", Cmdline: "root=UUID=4e4901 isolcpus=3",
		Findings: []host.Finding{{ID: "irqs", Severity: host.Warning, What: "CPU 3 serves device interrupts: 31 (enx0252624e4901)", Mend: "ask 8.8.4.4"}}}
	r.Device = Device{Driver: "mlx5", Device: "vfio-user:/home/jane/nic0", Model: "ConnectX-4 (15b3:1013 rev 00)", MAC: "02:52:62:4e:49:01",
		Backend: "sim", Notes: []string{"on vfio-user:/home/jane/nic0, group 02:52:62:4E:49:01"}}
	return r
}

var secrets = []string{"8.8.4.4", "2a02", "jane", "acme", "4e4901", "02:52", "UUID"}

// TestAnonymize: nothing that tells which machine it was is left in any file, and all that the numbers depend on is.
func TestAnonymize(t *testing.T) {
	r := telling(t)
	notes := r.Device.Notes
	before := strings.Clone(notes[0])
	r.Anonymize()
	if notes[0] != before {
		t.Error("the device's own notes were changed")
	}
	dir := filepath.Join(t.TempDir(), "r")
	if err := Write(dir, r); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 5 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		b, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range secrets {
			if bytes.Contains(bytes.ToLower(b), bytes.ToLower([]byte(s))) {
				t.Errorf("%s still has %q", f.Name(), s)
			}
		}
		if f.Name() == htmlFile && bytes.Contains(b, []byte("<address>")) {
			t.Error("the page has a placeholder as an element")
		}
	}
	back, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	if !back.Anonymous || back.Host.Kernel != "6.1.0" || back.Host.CPU != "AMD EPYC" || back.Traffic.Target != "[<address>]:862" ||
		back.Device.Device != "vfio-user:nic0" || back.Label != "target=<address>,source=<address>" || back.Main().Total.Count == 0 {
		t.Errorf("%+v %+v %+v", back.Host, back.Traffic, back.Device)
	}
	if !strings.Contains(back.Notes[0], "10.99.0.3/24,<address>/64") || !strings.Contains(back.Notes[1], "<address>: 3 probes") {
		t.Errorf("notes %q", back.Notes)
	}
	again := *back
	again.Anonymize()
	if !reflect.DeepEqual(&again, back) {
		t.Error("a second time changes something")
	}
}

func TestScrub(t *testing.T) {
	for in, want := range map[string]string{
		"0000:03:00.0 at 12:30:45":                         "0000:03:00.0 at 12:30:45",
		"fd98::2 fe80::1%eth0 ::1 192.168.1.4:7 127.0.0.1": "fd98::2 fe80::1%eth0 ::1 192.168.1.4:7 127.0.0.1",
		"fe80::52:62ff:fe4e:4901":                          "<address>", // holds a MAC address
		"::ffff:9.9.9.9 ::ffff:10.0.0.1":                   "<address> ::ffff:10.0.0.1",
		"2001:db8::1, 203.0.113.9, 198.18.0.1":             "2001:db8::1, 203.0.113.9, 198.18.0.1",
		"9.9.9.9:862":                                      "<address>:862",
		"firmware 14.12.1220, p99.9":                       "firmware 14.12.1220, p99.9",
		"172.15.0.1 172.16.0.1":                            "<address> 172.16.0.1",
		"to 2a00::1.":                                      "to <address>.", "2a00::": "<address>",
		"2620:fe:::": "2620:fe:::", // no address
		"":           "",
	} {
		if got := Scrub(in); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
	for in, want := range map[string]string{"6.18.44": "6.18.44", "6.1.0-28-amd64": "6.1.0", "5.15.0+": "5.15.0", "6.-x": "6", "": "", "mainline": ""} {
		if got := kernelVersion(in); got != want {
			t.Errorf("kernel %q became %q, want %q", in, got, want)
		}
	}
}

// TestCompareAnonymous: what is left out is unknown, not different.
func TestCompareAnonymous(t *testing.T) {
	facts := func(name, kernel, cmdline string) host.Facts {
		return host.Facts{Hostname: name, Kernel: kernel, Cmdline: cmdline}
	}
	for _, c := range []struct {
		name string
		a, b host.Facts
		hide int // how many of the two are anonymous
		want string
		not  string
	}{
		{"the same", facts("x", "6.1.0-a", "quiet"), facts("x", "6.1.0-a", "quiet"), 0, "", "kernel"},
		{"two machines", facts("x", "6.1.0-a", ""), facts("y", "6.1.0-a", ""), 0, "measured on x (6.1.0-a), b on y (6.1.0-a)", ""},
		{"another suffix", facts("x", "6.1.0-a", ""), facts("x", "6.1.0-b", ""), 0, "measured on x (6.1.0-a), b on x (6.1.0-b)", ""},
		{"other settings", facts("x", "6.1.0", "quiet isolcpus=3"), facts("x", "6.1.0", "quiet nosmt"), 0, "only a has isolcpus=3, only b has nosmt", ""},
		{"the order of settings", facts("x", "6.1.0", "quiet nosmt"), facts("x", "6.1.0", "nosmt quiet"), 0, "", "kernel"},
		{"an unknown command line", facts("x", "6.1.0", "quiet"), facts("x", "6.1.0", ""), 0, "", "kernel"},
		{"one anonymous", facts("x", "6.1.0-a", "quiet"), facts("x", "6.1.0-a", "quiet"), 1, "leaves its machine unnamed", "was measured on"},
		{"both anonymous", facts("x", "6.1.0-a", "quiet"), facts("y", "6.1.0-b", "nosmt"), 2, "leaves its machine unnamed", "kernel command line"},
		{"anonymous, other kernels", facts("x", "6.1.0-a", ""), facts("x", "6.12.1-a", ""), 2, "on a machine left unnamed (6.1.0), b on a machine left unnamed (6.12.1)", "both may come"},
	} {
		a, b := link{median: 10_000, rate: 1000, seconds: 1}.report(t), link{median: 10_000, rate: 1000, seconds: 1}.report(t)
		a.Label, b.Label, a.Host, b.Host = "a", "b", c.a, c.b
		for _, r := range []*Report{b, a}[:c.hide] {
			r.Anonymize()
		}
		notes := strings.Join(Compare(a, b).Notes, "\n")
		if !strings.Contains(notes, c.want) || c.not != "" && strings.Contains(notes, c.not) {
			t.Errorf("%s: want %q and not %q:\n%s", c.name, c.want, c.not, notes)
		}
	}
}

// TestRewrite replaces what has names and keeps the rest to the byte.
func TestRewrite(t *testing.T) {
	r := telling(t)
	dir := filepath.Join(t.TempDir(), "r")
	if err := Write(dir, r); err != nil {
		t.Fatal(err)
	}
	files := func() map[string]string {
		all := map[string]string{}
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			b, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				t.Fatal(err)
			}
			all[e.Name()] = string(b)
		}
		return all
	}
	was := files()
	back, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	back.Anonymize()
	if err := back.Rewrite(); err != nil {
		t.Fatal(err)
	}
	is := files()
	if len(is) != len(was) || len(was) != 5 {
		t.Errorf("%d files, before %d", len(is), len(was))
	}
	for name, b := range is {
		if changed := b != was[name]; changed != (name == reportFile || name == htmlFile) {
			t.Errorf("%s changed: %t", name, changed)
		}
		for _, s := range secrets {
			if strings.Contains(b, s) {
				t.Errorf("%s has %q", name, s)
			}
		}
	}
	if _, err := Read(dir); err != nil {
		t.Error(err)
	}
	back.Dir = filepath.Join(dir, "none")
	if err := back.Rewrite(); err == nil || !strings.Contains(err.Error(), "none") {
		t.Errorf("a folder that is gone: %v", err)
	}
}
