package report_test

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/latency/attribution"
	"github.com/rebound-nic/rebound/latency/host"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/synthetic"
)

// telling fills every field of a report that could contain a machine's name, addresses or folders.
func telling(t *testing.T) *report.Report {
	r := synthetic.Link{Median: 10_000, Rate: 1000, Seconds: 1}.Report()
	r.Label = "target=8.8.4.4,source=2a02:8071::7"
	r.Args = []string{"/home/jane/bin/bench", "run", "-target", "8.8.4.4", "-out", "/home/jane/out"}
	r.Traffic.Target = "[2a02:8071::7]:862"
	r.Notes = []string{"answered by ready driver=afxdp device=enx0252624e4901 mac=02:52:62:4e:49:01 addresses=10.99.0.3/24,2a02:8071::9/64",
		"no reply from 2a02:8071::8: 3 probes; the kernel reports: 8.8.4.4: unreachable"}
	r.Host = host.Facts{Hostname: "jane-box", CPU: "AMD EPYC", Cores: 4, Core: 3, Kernel: "6.1.0-28-acme-amd64",
		Cmdline: "root=UUID=4e4901 isolcpus=3",
		Findings: []host.Finding{{ID: "irqs", Severity: host.Warning,
			What: "CPU 3 serves device interrupts: 31 (enx0252624e4901)", Fix: "ask 8.8.4.4"}}}
	r.Device = report.Device{Driver: "mlx5", Device: "vfio-user:/home/jane/nic0",
		Model: "ConnectX-4 (15b3:1013 rev 00)", MAC: "02:52:62:4e:49:01",
		Backend: "sim", Notes: []string{"on vfio-user:/home/jane/nic0, group 02:52:62:4E:49:01"}}
	r.STAMP = &report.STAMP{TLVs: []report.TLV{{Name: "location", Answered: 1,
		Answers: []string{"from MAC 02:52:62:4e:49:01", "to 8.8.4.4"}}}}
	r.Attribution = &attribution.Result{Direction: "8.8.4.4 is not synchronised", Causes: []attribution.Count{
		{Side: "this host", Text: "polling thread descheduled on cpu 3", Name: "janes-job", Probes: 3},
		{Side: "this host", Text: "interrupts of enx0252624e4901 on cpu 3", Probes: 1}},
		Timeline: []attribution.Track{{Side: "this host", Text: "interrupts of enx0252624e4901 on cpu 3",
			Name: "janes-job"}}}
	return r
}

var secrets = []string{"8.8.4.4", "2a02", "jane", "acme", "4e4901", "02:52", "UUID"}

// filesOf returns the content of the five files in a report's folder.
func filesOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, e := range must.Get(os.ReadDir(dir))(t) {
		all[e.Name()] = string(must.Get(os.ReadFile(filepath.Join(dir, e.Name())))(t))
	}
	must.Equal(t, len(all), 5, "%d files")
	return all
}

// hidden returns the files of a report that has none of the secrets.
func hidden(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := filesOf(t, dir)
	for name, text := range files {
		for _, s := range secrets {
			if strings.Contains(strings.ToLower(text), strings.ToLower(s)) {
				t.Errorf("%s has %q", name, s)
			}
		}
	}
	return files
}

// No file of an anonymous report identifies the machine, and everything that the numbers depend on is kept.
func TestAnonymize(t *testing.T) {
	r := telling(t)
	notes := r.Device.Notes
	before := strings.Clone(notes[0])
	r.Anonymize()
	if notes[0] != before {
		t.Error("the device's own notes were changed")
	}
	dir := filepath.Join(t.TempDir(), "r")
	must.OK(t, report.Write(dir, r, page))
	files := hidden(t, dir)
	if strings.Contains(files[report.HTMLFile], "<address>") {
		t.Error("the page has a placeholder as an element")
	}
	back := must.Get(report.Read(dir))(t)
	if !back.Anonymous || back.Host.Kernel != "6.1.0" || back.Host.CPU != "AMD EPYC" ||
		back.Traffic.Target != "[<address>]:862" ||
		back.Device.Device != "vfio-user:nic0" || back.Label != "target=<address>,source=<address>" ||
		back.Main().Total.Count == 0 {
		t.Errorf("%+v %+v %+v", back.Host, back.Traffic, back.Device)
	}
	if !strings.Contains(back.Notes[0], "10.99.0.3/24,<address>/64") ||
		!strings.Contains(back.Notes[1], "<address>: 3 probes") {
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
		"fe80::52:62ff:fe4e:4901":                          "<address>", // contains a MAC address
		"::ffff:9.9.9.9 ::ffff:10.0.0.1":                   "<address> ::ffff:10.0.0.1",
		"2001:db8::1, 203.0.113.9, 198.18.0.1":             "2001:db8::1, 203.0.113.9, 198.18.0.1",
		"9.9.9.9:862":                                      "<address>:862",
		"firmware 14.12.1220, p99.9":                       "firmware 14.12.1220, p99.9",
		"172.15.0.1 172.16.0.1":                            "<address> 172.16.0.1",
		"to 2a00::1.":                                      "to <address>.", "2a00::": "<address>",
		"2620:fe:::": "2620:fe:::", // not an address
		"":           "",
	} {
		if got := report.Scrub(in); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
	for in, want := range map[string]string{"6.18.44": "6.18.44", "6.1.0-28-amd64": "6.1.0", "5.15.0+": "5.15.0",
		"6.-x": "6", "": "", "mainline": ""} {
		if got := report.KernelVersion(in); got != want {
			t.Errorf("kernel %q became %q, want %q", in, got, want)
		}
	}
}

func TestRewrite(t *testing.T) {
	r := telling(t)
	dir := filepath.Join(t.TempDir(), "r")
	must.OK(t, report.Write(dir, r, page))
	was := filesOf(t, dir)
	back := must.Get(report.Read(dir))(t)
	back.Anonymize()
	must.OK(t, back.Rewrite(page))
	for name, b := range hidden(t, dir) {
		if changed := b != was[name]; changed != (name == report.ReportFile || name == report.HTMLFile) {
			t.Errorf("%s changed: %t", name, changed)
		}
	}
	check.OK(t, check.Err(report.Read(dir)))
	back.Dir = filepath.Join(dir, "none")
	check.Fails(t, "a folder that is gone", back.Rewrite(page), nil, "none")
}
