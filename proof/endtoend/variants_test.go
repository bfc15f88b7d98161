package endtoend

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/latency/schedule"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

func TestSeries(t *testing.T) {
	n := newNetwork(t)
	n.udpEcho(7, 0)
	t.Run("ab", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "r")
		r := n.bench(quick("-ab", "name=small,target="+far4, "-ab", "name=big,size=1514,target="+far4, "-count", "120",
			"-slice", "10ms", "-v", "-out", dir)...)
		if strings.Contains(r.out, "NOT COMPARABLE") || !strings.Contains(r.out,
			"note: frame size: small has 60, big has 1514") || !strings.Contains(r.out, "A  small, ") {
			t.Errorf("sizes that -ab varies are compared, with a note, and -v names both sides:\n%s", r.out)
		}
		a, b := read(t, filepath.Join(dir, "01-small"), r), read(t, filepath.Join(dir, "02-big"), r)
		if len(a.Runs) != 20 || len(b.Runs) != 20 || a.Session == "" || a.Session != b.Session ||
			b.Traffic.FrameSize != 1514 || a.Traffic.FrameSize != 60 {
			t.Errorf("%d and %d runs, sessions %q and %q", len(a.Runs), len(b.Runs), a.Session, b.Session)
		}
		if a.Schedule == nil || b.Schedule == nil || a.Schedule.Seed == "" || a.Schedule.Seed != b.Schedule.Seed {
			t.Fatalf("schedules %+v and %+v", a.Schedule, b.Schedule)
		}
		seed := must.Get(strconv.ParseUint(a.Schedule.Seed, 16, 64))(t)
		for i, block := range schedule.Draw(seed, 2, 20) { // the measured order is the one drawn from the seed
			first := 1
			if a.Runs[i].Start+a.Start.UnixNano() < b.Runs[i].Start+b.Start.UnixNano() {
				first = 0
			}
			if want := block.Order[0]; first != want || a.Schedule.Places[i] != slices.Index(block.Order, 0) ||
				b.Schedule.Places[i] != slices.Index(block.Order, 1) {
				t.Errorf("slice %d: variant %d was first, places %d and %d; want %v", i, first, a.Schedule.Places[i],
					b.Schedule.Places[i], block.Order)
			}
		}
		if a.Counts.Sent != 120 || b.Counts.Sent != 120 {
			t.Errorf("%d and %d probes, want 120 of each", a.Counts.Sent, b.Counts.Sent)
		}
	})
	t.Run("two drivers on one interface", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "r")
		r := n.bench(quick("-target", far4, "-ab", "driver=afpacket", "-ab", "driver=afxdp", "-count", "60", "-slice",
			"10ms", "-out", dir)...)
		a, b := read(t, filepath.Join(dir, "01-driver-afpacket"), r), read(t, filepath.Join(dir, "02-driver-afxdp"), r)
		if a.Device.Driver != "afpacket" || b.Device.Driver != "afxdp" {
			t.Errorf("%s and %s", a.Device.Driver, b.Device.Driver)
		}
	})
	t.Run("sweep and runs", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "r")
		r := n.bench(quick("-target", far4, "-rate", "1k,4k", "-size", "60,1514", "-count", "60", "-runs", "3", "-out",
			dir)...)
		for i, name := range []string{"rate-1k-size-60", "rate-1k-size-1514", "rate-4k-size-60", "rate-4k-size-1514"} {
			rep := readReport(t, filepath.Join(dir, fmt.Sprintf("%02d-%s", i+1, name)), r)
			if len(rep.Runs) != 3 || rep.Counts.Sent != 60 || !strings.Contains(r.out, name) {
				t.Errorf("%s: %d runs, %d sent", name, len(rep.Runs), rep.Counts.Sent)
			}
		}
		hasIndex(t, r, dir, "Latency by rate", 4)
	})
	t.Run("lossless", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "r")
		var r result
		// a machine that is busy at the end of each trial reaches no rate in time, which the bench reports
		for range 10 {
			if r = n.bench(quick("-target", far4, "-lossless", "2k", "-duration", "50ms", "-out",
				dir)...); !strings.Contains(r.errors, "no rate down to") {
				break
			}
		}
		r.prints(t, "probes per second without loss")
		rep := readReport(t, dir, r)
		if rep.Counts.Lost != 0 || rep.Traffic.Rate > 2000 || rep.Traffic.Rate < 1 {
			t.Errorf("%+v", rep)
		}
		if a := rep.Attribution; a == nil || a.How == "" {
			t.Error("the report does not say how causes on this host are known")
		}
	})
	t.Run("anonymous", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "r")
		r := n.bench(quick("-target", far4, "-count", "20", "-ab", "gateway="+far4+",name=to 8.8.4.4", "-ab",
			"size=100,name=b", "-anonymous", "-out", dir)...)
		a := read(t, filepath.Join(dir, "01-to--address-"), r)
		host := must.Get(os.Hostname())(t)
		if a.Host.Hostname+a.Host.Cmdline+a.Device.MAC != "" || a.Host.CPU == "" || a.Label != "to <address>" ||
			len(a.Args) > 0 || a.Traffic.Target != far4 {
			t.Errorf("%+v", a)
		}

		plain := filepath.Join(t.TempDir(), "plain")
		if was := read(t, plain, n.bench(quick("-target", far4, "-count", "20", "-out",
			plain)...)); was.Host.Hostname != host || was.Device.MAC == "" || len(was.Args) == 0 {
			t.Errorf("without -anonymous: %+v", was)
		}
		n.inside("report", "-anonymous", plain).prints(t, "page "+plain)
		is := must.Get(report.Read(plain))(t)
		if !is.Anonymous || is.Host.Hostname+is.Host.Cmdline+is.Device.MAC != "" || is.Main().Total.Count != 20 {
			t.Errorf("%+v", is)
		}
		if page := content(t, filepath.Join(plain, "report.html")); strings.Contains(page, host) ||
			!strings.Contains(page, "Left out") {
			t.Errorf("the page still names %s, or says nothing of it", host)
		}
		n.inside("compare", "-v", plain, filepath.Join(dir, "01-to--address-")).prints(t, "machine unnamed")
	})
}

// Hooks switch the responder's host between two settings, and each slice is measured only with its own setting.
func TestHooks(t *testing.T) {
	n := newNetwork(t)
	dir := t.TempDir()
	setting, log := filepath.Join(dir, "setting"), filepath.Join(dir, "log")
	var mu sync.Mutex
	sizes := map[string]map[int]bool{} // of the requests seen with each setting
	n.udpServer(7, func(b []byte) []byte {
		s, _ := os.ReadFile(setting)
		mu.Lock()
		defer mu.Unlock()
		if sizes[string(s)] == nil {
			sizes[string(s)] = map[int]bool{}
		}
		sizes[string(s)][len(b)] = true
		return b
	})
	hook := "do=echo $REBOUND_VARIANT, >> " + log + "; printf $REBOUND_VARIANT > " + setting
	out := filepath.Join(dir, "r")
	run := func(out string, more ...string) result {
		return n.bench(quick(append([]string{"-target", far4, "-proto", "udp", "-slice", "30ms", "-duration", "240ms",
			"-out", out}, more...)...)...)
	}
	r := run(out, "-ab", "name=quick,"+hook, "-ab", "name=slow,size=100,"+hook)
	a, b := read(t, filepath.Join(out, "01-quick"), r), read(t, filepath.Join(out, "02-slow"), r)
	if len(a.Runs) != 8 || len(b.Runs) != 8 {
		t.Errorf("%d and %d runs, want 8 of each", len(a.Runs), len(b.Runs))
	}
	mu.Lock()
	if q, s := sizes["quick"], sizes["slow"]; len(q) != 1 || len(s) != 1 || maps.Equal(q, s) {
		t.Errorf("requests by setting: %v, want one size for each, and not the same", sizes)
	}
	mu.Unlock()
	said, _ := os.ReadFile(log)
	order := strings.Fields(string(said))
	if len(order) != 16 || strings.Count(string(said), "quick,") != 8 {
		t.Fatalf("order of the hooks: %q", said)
	}
	for i := 0; i < 16; i += 2 {
		if order[i] == order[i+1] {
			t.Errorf("pair %d has the same hook twice: %q", i/2, said)
		}
	}
	check.Contains(t, r.errors, "the last do= command remains in force\" variant="+strings.TrimSuffix(order[15], ","))
	run(filepath.Join(dir, "fails"), "-ab", "name=quick,"+hook, "-ab", "name=slow,do=echo no such setting; exit 7").
		fails(t, 1, "no such setting", "exit status 7", "variant=slow")
}

// With -json all of stdout is one JSON value with the numbers of the report.
func TestJSON(t *testing.T) {
	n := newNetwork(t)
	type printed struct {
		Reports []struct {
			Dir    string
			Report *report.Report
		}
		Trials []json.RawMessage
	}
	reports := func(r result, reports int) (p printed) {
		t.Helper()
		if err := json.Unmarshal([]byte(r.out), &p); err != nil || r.code != 0 || len(p.Reports) != reports {
			t.Fatalf("%v, exit %d, %d reports\n%s\n%s", err, r.code, len(p.Reports), r.out, r.errors)
		}
		return p
	}
	dir := filepath.Join(t.TempDir(), "r")
	p := reports(n.bench(quick("-target", far4, "-count", "20", "-json", "-out", dir)...), 1)
	if p.Reports[0].Dir != dir || p.Reports[0].Report.Counts.Received != 20 ||
		p.Reports[0].Report.Find(latency.MainSeries).Summary.P50 == 0 {
		t.Errorf("%+v", p.Reports[0])
	}
	reports(n.inside("report", "-json", dir, dir), 2)
	reports(n.bench(quick("-target", far4, "-count", "20", "-size", "60,100", "-json", "-out", dir+"-sweep")...), 2)
	reports(n.bench(quick("-ab", "size=60,target="+far4, "-ab", "size=100,target="+far4, "-slice", "10ms", "-count",
		"60", "-json", "-out", dir+"-ab")...), 2)
}

// hasIndex fails unless a command printed and wrote the page index.html with that text and a link to each of n reports.
func hasIndex(t *testing.T, r result, dir, text string, n int) {
	t.Helper()
	path := filepath.Join(dir, "index.html")
	r.prints(t, "page "+path+"\n")
	html := content(t, path)
	check.Contains(t, html, text)
	links := regexp.MustCompile(`<a href="([^"]+)"`).FindAllStringSubmatch(html, -1)
	for _, l := range links {
		check.OK(t, check.Err(os.Stat(filepath.Join(dir, l[1]))))
	}
	check.Equal(t, len(links), n, "%d links")
}

// A comparison beyond its limits exits with 3, an undecided one with 1.
func TestWorse(t *testing.T) {
	n := newNetwork(t)
	n.udpEcho(7, 0)
	n.udpEcho(8, 20*time.Millisecond)
	// 20 ms is longer than a busy machine deschedules a thread; ten probes per slice are enough for p50 with ten pairs.
	dir := t.TempDir()
	r := n.bench(quick("-ab", "name=a,target="+far4+",proto=udp", "-ab", "name=c,proto=udp,port=8,target="+far4,
		"-count", "200", "-slice", "20ms", "-out", dir)...)
	hasIndex(t, r, dir, "<h1>c is ", 2)
	a, c := filepath.Join(dir, "01-a"), filepath.Join(dir, "02-c")
	for _, limit := range []struct {
		text string
		code int
		says string
	}{
		{"p50>+900%+1s", 0, "p50"},
		{"p50>+5%+200ns", process.Worse, "p50"},
		{"p99>+5%+200ns", process.Failed, "p99 needs 1,000 samples"},
	} {
		page := filepath.Join(t.TempDir(), "c.html")
		r := inProcess("compare", "-html", page, "-fail-if", limit.text, a, c)
		r.fails(t, limit.code)
		check.Contains(t, r.out+r.errors, limit.says)
		check.Contains(t, content(t, page), "<svg")
	}
}

// -auto ends the measurement when there is a verdict. The reports say how many tests were planned, including those that
// were not needed.
func TestAutoEnds(t *testing.T) {
	n := newNetwork(t)
	n.udpEcho(7, 0)
	n.udpEcho(8, 5*time.Millisecond)
	dir := t.TempDir()
	r := n.bench(quick("-ab", "name=a,target="+far4+",proto=udp", "-ab", "name=c,proto=udp,port=8,target="+far4,
		"-auto", "p50", "-slice", "25ms", "-out", dir)...)
	if !strings.HasPrefix(r.out, "c is ") || !strings.Contains(r.out, " slower at p50") {
		t.Error(r)
	}
	for _, name := range []string{"01-a", "02-c"} {
		rep := readReport(t, filepath.Join(dir, name), r)
		if s := rep.Schedule; s == nil || s.Looks != 11 || len(rep.Runs) >= 6000 || len(s.Places) != len(rep.Runs) {
			t.Errorf("%d slices, %+v", len(rep.Runs), s)
		}
	}
}

// Two kernels that answer pings and have no UDP echo are compared by ICMP only; the answer, on its first line and on
// the page, says so and why.
func TestVersusWithoutUDP(t *testing.T) {
	n := newNetwork(t)
	const other4 = "10.98.0.3"
	n.link(n.far, farIface, func(l netlink.Link) error { return address(l, other4+"/24") })
	dir := filepath.Join(t.TempDir(), "r")
	r := n.bench(append([]string{"versus", far4, other4}, quick("-count", "120", "-slice", "10ms", "-out",
		dir)[1:]...)...)
	first, _, _ := strings.Cut(r.out, "\n")
	const why = "(by ICMP only: " + far4 + " does not echo UDP, its port 7 is closed): "
	check.Contains(t, first, why)
	check.Contains(t, r.out, "\nICMP\n")
	if strings.Contains(r.out, "\nUDP\n") {
		t.Errorf("UDP is compared, too:\n%s", r.out)
	}
	html := strings.ReplaceAll(string(must.Get(os.ReadFile(filepath.Join(dir, "index.html")))(t)), "\u00a0", " ")
	check.Contains(t, html, why)
}
