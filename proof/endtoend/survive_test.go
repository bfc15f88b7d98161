package endtoend

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/rebound-nic/rebound/internal/bench/foreign"
	"github.com/rebound-nic/rebound/internal/bench/measure"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// saved returns the number of runs in the log. A kill may have cut off the last line, which then does not count.
func saved(dir string) int {
	b, _ := os.ReadFile(filepath.Join(dir, report.HlogFile))
	return bytes.Count(b[:bytes.LastIndexByte(b, '\n')+1], []byte("\n#[Part: "))
}

func TestKilled(t *testing.T) {
	n := newNetwork(t)
	for _, c := range []struct {
		name string
		args []string
		runs int // number of runs to wait for
	}{
		{"first run", []string{"-duration", "500s", "-runs", "5000"}, 1},
		{"seventh run", []string{"-duration", "100s", "-runs", "5000"}, 7},
		{"rate", []string{"-duration", "100s", "-runs", "5000", "-rate", "2k"}, 3},
		{"sweep", []string{"-duration", "100s", "-runs", "5000", "-size", "64,200"}, 3},
		{"ab", []string{"-duration", "5m", "-slice", "20ms", "-ab", "size=64", "-ab", "size=200"}, 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "r")
			cmd := n.prepare(append(quick("-target", far4, "-driver", "afpacket", "-out", out), c.args...)...).begin()
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			dir := ""
			for dir == "" {
				found, _ := filepath.Glob(filepath.Join(out, "*", report.ReportFile))
				for _, f := range append(found, filepath.Join(out, report.ReportFile)) {
					if d := filepath.Dir(f); saved(d) >= c.runs {
						dir = d
					}
				}
				select {
				case err := <-ended:
					t.Fatalf("it ended by itself: %v\n%s", err, &cmd.said)
				case <-time.After(time.Millisecond):
				}
			}
			n.must(cmd.Process.Kill())
			<-ended
			was := saved(dir)
			rep := must.Get(report.Read(dir))(t)
			if m := rep.Main().Total.Count; len(rep.Runs) != was || m == 0 ||
				m != rep.Counts.Received+rep.Counts.Late || rep.Counts.Sent < m {
				t.Errorf("%d runs in the log, %d read, %d samples, %+v", was, len(rep.Runs), m, rep.Counts)
			}
			if n := rep.Device.Counters["tx_frames"]; int64(n) < rep.Counts.Sent || rep.Order == nil ||
				rep.Order.Extent != 0 {
				t.Errorf("the device counted %d frames of %d, order %+v: not those of the last part", n,
					rep.Counts.Sent, rep.Order)
			}
			want := fmt.Sprintf("unfinished: %d of ", was)
			inProcess("report", dir).prints(t, want)
			inProcess("compare", dir, dir).prints(t, want)
			check.Contains(t, content(t, filepath.Join(dir, report.HTMLFile)), "Unfinished: ")
		})
	}
}

// A search that is killed leaves the best rate that it had found, in a report that says so.
func TestKilledSearch(t *testing.T) {
	n := newNetwork(t)
	var whole atomic.Bool
	var count atomic.Int64
	n.udpServer(7, func(b []byte) []byte {
		if !whole.Load() && count.Add(1)%2 == 0 {
			return b[:0] // no probe's reply
		}
		return b
	})
	dir := filepath.Join(t.TempDir(), "r")
	cmd := n.prepare(quick("-target", far4, "-proto", "udp", "-transport", "socket", "-lossless", "1k", "-duration",
		"1s", "-warmup", "0s", "-timeout", "1s", "-out", dir)...).begin()
	await.Until(t, "a trial", func() bool { return strings.Contains(cmd.said.String(), " bytes at ") }, cmd.said.String)
	whole.Store(true)
	await.Until(t, "a rate without loss", func() bool { return exists(filepath.Join(dir, report.ReportFile)) },
		cmd.said.String)
	n.must(cmd.Process.Kill())
	_ = cmd.Wait()
	rep := must.Get(report.Read(dir))(t)
	if rep.Traffic.Rate == 0 || rep.Counts.Lost != 0 || !slices.Contains(rep.Warnings, measure.Unended) {
		t.Errorf("rate %v, %+v, warnings %q", rep.Traffic.Rate, rep.Counts, rep.Warnings)
	}
	inProcess("report", dir).prints(t, measure.Unended)
	inProcess("compare", dir, dir).prints(t)
}

// A watch that is killed at any moment leaves logs that can be read and compared, with all intervals written before.
// One that is restarted continues with them, and nothing stays attached to the interface.
func TestKilledWatch(t *testing.T) {
	n := newNetwork(t)
	logs := filepath.Join(t.TempDir(), "logs")
	files := func() []string { found, _ := filepath.Glob(filepath.Join(logs, "*.hlog")); return found }
	intervals := func() (sum int) { // lines: a log starts with only its header
		for _, f := range files() {
			b, _ := os.ReadFile(f)
			sum += bytes.Count(b, []byte("\nTag="))
		}
		return sum
	}
	trips := func() (sum int64) {
		t.Helper()
		for _, f := range files() {
			rep, err := foreign.Read(f, foreign.Options{Series: "icmp:" + far4})
			if err != nil {
				if strings.Contains(err.Error(), "no intervals") { // an hour that has just started
					continue
				}
				t.Fatal(err)
			}
			if c := rep.Counts; rep.Main().Total.Count != c.Received+c.Late {
				t.Errorf("%s has %d round trips, %+v", f, rep.Main().Total.Count, c)
			}
			sum += rep.Main().Total.Count
		}
		return sum
	}
	written := int64(0)
	for i, driver := range []string{"afpacket", "afxdp", "afpacket"} {
		before := intervals()
		w := n.watch(9490, "-driver", driver, "-target", far4, "-target", far6, "-rate", "50", "-dir", logs,
			"-interval", "1s")
		for range 1 + i%2 { // intervals
			from := intervals()
			await.Until(t, "an interval in the log", func() bool { return intervals() > from }, w.Log.String)
		}
		n.must(w.Process.Kill())
		_ = w.Wait()
		if now := trips(); now <= written || intervals() <= before {
			t.Errorf("%d round trips in the logs, %d before", now, written)
		} else {
			written = now
		}
		n.link(n.near, nearIface, func(l netlink.Link) error {
			if x := l.Attrs().Xdp; x != nil && x.Attached {
				t.Errorf("%s: an XDP program is left", driver)
			}
			return nil
		})
	}
	inProcess("report", "-series", "icmp:"+far4, logs).prints(t)
	inProcess("compare", "-series", "icmp:"+far4, logs, logs).prints(t)
}
