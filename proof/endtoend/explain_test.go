package endtoend

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/bench/measure"
	"github.com/rebound-nic/rebound/latency/attribution"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/ixgbesim"
	"github.com/rebound-nic/rebound/sim/simtest"
)

// hog starts a process with that name on a CPU, where it takes its share from other threads.
func hog(t *testing.T, cpu int, name string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	c := exec.Command(path, "-c", "while :; do :; done")
	must.OK(t, unix.Symlink(must.Get(exec.LookPath("sh"))(t), path))
	must.OK(t, c.Start())
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	var set unix.CPUSet
	set.Set(cpu)
	must.OK(t, unix.SchedSetaffinity(c.Process.Pid, &set))
}

// A program that takes the measuring core is named as a cause on this host, in the text and in the report; without
// -explain nothing is attributed.
func TestExplainNamesTheHog(t *testing.T) {
	n := newNetwork(t)
	rep, r := n.measure(t, "-target", far4, "-driver", "afpacket", "-count", "20", "-explain=false")
	if rep.Attribution != nil || strings.Contains(r.out, "slowest (") {
		t.Errorf("attributed without -explain: %+v", rep.Attribution)
	}
	hog(t, rep.Host.Core, "plantedhog")
	rep, r = n.measure(t, "-target", far4, "-driver", "afpacket", "-count", "20000")
	a := rep.Attribution
	if a == nil {
		t.Fatalf("nothing is attributed\n%s", r.out)
	}
	t.Logf("%s\n%+v", r.out, a.Causes)
	if a.CausesBy == attribution.Counters {
		t.Skip("names need tracepoints: " + a.How)
	}
	check.Equal(t, a.CausesBy, attribution.Tracepoints, "causes are known by %v")
	check.Contains(t, r.out, "polling thread descheduled on cpu")
	check.Contains(t, r.out, "plantedhog")
	if !slices.ContainsFunc(a.Causes, func(c attribution.Count) bool {
		return c.Side == attribution.Here.String() && c.Name == "plantedhog" && !c.Weak && c.Probes > 0
	}) {
		t.Errorf("%+v", a.Causes)
	}
}

// The responder reports over STAMP when its loop ran, so a program that takes its core shows as the responder's host.
func TestExplainNamesTheResponder(t *testing.T) {
	n := newNetwork(t)
	n.startResponder(t, "afpacket", "10.98.0.3/24")
	hog(t, must.Get(measure.Choose(-1))(t).Other(), "plantedhog")
	rep, r := n.measure(t, "-target", "10.98.0.3", "-proto", "stamp", "-driver", "afpacket", "-count", "20000")
	t.Log(r.out)
	a := rep.Attribution
	if a == nil || a.FarLoop != "" {
		t.Fatalf("the responder's part is unknown: %+v\n%s", a, r.out)
	}
	if !slices.ContainsFunc(a.Shares, func(s attribution.Share) bool {
		return s.Side == attribution.Responder.String() && s.Probes > 0
	}) {
		t.Errorf("%+v", a.Shares)
	}
	check.Contains(t, r.out, "slowest (")
}

// With -timestamps, rows have the kernel's times of both frames with their error bounds, by sockets and raw frames, and
// still add up.
func TestExplainHasKernelTimes(t *testing.T) {
	n := newNetwork(t)
	n.udpEcho(7, 0)
	for _, way := range [][]string{{"-transport", "socket", "-timestamps"}, {"-driver", "afpacket", "-timestamps"},
		{"-transport", "socket"}} {
		rep, r := n.measure(t, append([]string{"-target", far4, "-proto", "udp", "-count", "2000"}, way...)...)
		a := rep.Attribution
		if a == nil {
			t.Fatalf("%v: nothing is attributed\n%s", way, r.out)
		}
		left, reached := 0, 0
		for i := range a.Rows {
			row := &a.Rows[i]
			check.Equal(t, row.Parts.Sum(), row.RTT, "the parts add up to %d")
			at, off := row.Times, row.Errors
			if at[2] != attribution.NotKnown {
				left++
				if at[2] < at[1] || at[2] > at[8] || off[2] < 1 {
					t.Errorf("%v: left at %d±%d: %v", way, at[2], off[2], at)
				}
			}
			if at[7] != attribution.NotKnown {
				reached++
				if at[7] < max(at[1], at[2]) || at[7] > at[8] || off[7] < 1 {
					t.Errorf("%v: came at %d±%d: %v", way, at[7], off[7], at)
				}
			}
		}
		t.Logf("%v: %d rows, %d left, %d reached", way, len(a.Rows), left, reached)
		stamped, clock := slices.Contains(way, "-timestamps"), ""
		if stamped {
			clock = "this host's kernel"
		}
		if (10*left > 9*len(a.Rows)) != stamped || (10*reached > 9*len(a.Rows)) != stamped {
			t.Errorf("%v: %d and %d of %d rows have the kernel's times", way, left, reached, len(a.Rows))
		}
		check.Equal(t, a.Points[2].Clock, clock, "left by %q")
		check.Equal(t, a.Points[7].Clock, clock, "reached by %q")
	}
}

// What watching costs is measured by variants with and without it, whose slices alternate: the one without is not
// watched, and the differences are printed. Other reports say that the cost is not measured, and how to.
func TestCostOfExplain(t *testing.T) {
	n := newNetwork(t)
	dir := filepath.Join(t.TempDir(), "r")
	r := n.bench(quick("-target", far4, "-driver", "afpacket", "-ab", "name=watched,explain=true", "-ab",
		"name=unwatched,explain=false", "-count", "4000", "-out", dir)...)
	on := read(t, filepath.Join(dir, "01-watched"), r)
	off := read(t, filepath.Join(dir, "02-unwatched"), r)
	if on.Attribution == nil || off.Attribution != nil {
		t.Fatalf("attributed: %v and %v\n%s", on.Attribution, off.Attribution, r.out)
	}
	check.Contains(t, r.out, "p99.9")
	check.Contains(t, on.Attribution.Cost, "explain=false")
	if off.Tail == nil {
		t.Fatal("the unwatched variant has nothing about its slowest")
	}
	for _, c := range off.Tail.Causes {
		if c.Within != 0 {
			t.Errorf("its core was watched: %+v", c)
		}
	}
	single, _ := n.measure(t, "-target", far4, "-driver", "afpacket", "-count", "200")
	check.Contains(t, single.Attribution.Cost, "not measured", "-ab explain=false")
	for _, c := range single.Tail.Causes {
		if c.Within != 0 {
			t.Errorf("two watchers read the counters: %+v", c)
		}
	}
	bad := n.bench(quick("-target", far4, "-ab", "explain=perhaps", "-ab", "explain=true")...)
	check.Contains(t, bad.errors, "explain: \"perhaps\"")
}

// With -timestamps and a driver of our own, rows have the times of the card's own clock, here a model's, with their
// error bounds. They still add up, and the page has the time from the NIC to the thread by itself.
func TestExplainHasCardTimes(t *testing.T) {
	n := newNetwork(t)
	n.udpEcho(7, 0)
	const target, source = "10.97.0.2", "10.97.0.1"
	port, _, device := simtest.Serve(t, ixgbesim.New(ixgbesim.Options{MAC: [6]byte{2, 0x52, 0x62, 0, 0, 9}}))
	var tap *sim.Tap
	must.OK(t, n.far.Do(func() (err error) { tap, err = sim.OpenTap("card0", 1500); return err }))
	t.Cleanup(func() { port.Connect(nil); tap.Close() })
	n.link(n.far, "card0", func(l netlink.Link) error { return address(l, target+"/24") })
	port.Connect(tap)
	dir := filepath.Join(t.TempDir(), "r")
	r := n.bench(quick("-out", dir, "-driver", "ixgbe", "-iface", device, "-source", source, "-gateway", target,
		"-target", target, "-proto", "udp", "-timestamps", "-closed", "-count", "1000")...)
	rep := read(t, dir, r)
	a := rep.Attribution
	if a == nil {
		t.Fatalf("nothing is attributed\n%s", r.out)
	}
	left, reached := 0, 0
	for i := range a.Rows {
		row := &a.Rows[i]
		check.Equal(t, row.Parts.Sum(), row.RTT, "the parts add up to %d")
		at, off := row.Times, row.Errors
		if at[2] != attribution.NotKnown {
			left++
			if at[2] < at[1] || at[2] > at[8] || off[2] < 1 {
				t.Errorf("left at %d±%d: %v", at[2], off[2], at)
			}
		}
		if at[7] != attribution.NotKnown {
			reached++
			if at[7] < max(at[1], at[2]) || at[7] > at[8] || off[7] < 1 {
				t.Errorf("came at %d±%d: %v", at[7], off[7], at)
			}
		}
	}
	t.Logf("%d rows, %d left, %d reached; usual %+v; %v", len(a.Rows), left, reached, a.Usual, a.Rows[0])
	if len(a.Rows) == 0 || 10*left < 9*len(a.Rows) || 10*reached < 9*len(a.Rows) {
		t.Errorf("%d and %d of %d rows have the card's times", left, reached, len(a.Rows))
	}
	check.Equal(t, a.Points[2].Clock, "this host's card", "left by %q")
	check.Equal(t, a.Points[7].Clock, "this host's card", "reached by %q")
	check.Contains(t, string(must.Get(os.ReadFile(filepath.Join(dir, report.HTMLFile)))(t)), "this host: NIC to seen")
}

// Pulses of SIGSTOP to the responder are its host's, for ICMP and UDP too, when its own report is added. The link and
// this host had no part.
func TestExplainWithTheRespondersReport(t *testing.T) {
	for _, proto := range []string{"icmp", "udp"} {
		t.Run(proto, func(t *testing.T) {
			n := newNetwork(t)
			far, near := filepath.Join(t.TempDir(), "far"), filepath.Join(t.TempDir(), "near")
			pid := n.startResponder(t, "afpacket", "10.98.0.3/24", fmt.Sprintf("stats.report=%q", far))
			running := n.prepare(quick("-target", "10.98.0.3", "-proto", proto, "-driver", "afpacket", "-duration",
				"6s", "-runs", "1", "-out", near)...).begin()
			var pulses [][2]int64
			ended := make(chan struct{})
			go func() { defer close(ended); running.wait() }()
			for measuring := true; measuring; {
				must.OK(t, unix.Kill(pid, unix.SIGSTOP))
				from := time.Now().UnixMicro()
				time.Sleep(20 * time.Millisecond) // the length of the pulse; nothing depends on it
				pulses = append(pulses, [2]int64{from, time.Now().UnixMicro()})
				must.OK(t, unix.Kill(pid, unix.SIGCONT))
				select {
				case <-ended:
					measuring = false
				case <-time.After(time.Duration(100+rand.IntN(100)) * time.Millisecond): // periodic gaps would align no clocks
				}
			}
			must.OK(t, unix.Kill(pid, unix.SIGTERM))
			await.Until(t, "the responder's report is there", func() bool {
				_, err := os.Stat(filepath.Join(far, report.HTMLFile))
				return err == nil
			})
			before := must.Get(report.Read(near))(t)
			if slices.ContainsFunc(before.Attribution.Shares,
				func(s attribution.Share) bool { return s.Side == attribution.Responder.String() }) {
				t.Errorf("without the responder's report: %+v", before.Attribution.Shares)
			}
			r := n.bench("explain", near, far)
			a := must.Get(report.Read(near))(t).Attribution
			t.Logf("%s\n%s", r.out, r.errors)
			check.Contains(t, r.out, "Clocks aligned by ", "responder's host")
			sides := map[string]int{}
			for i := range a.Rows {
				row := &a.Rows[i]
				if row.RTT > 5e6 && slices.ContainsFunc(pulses,
					func(p [2]int64) bool {
						return 2000*(min(p[1], row.At+row.RTT/1000)-max(p[0],
							row.At)) > row.RTT
					}) {
					sides[row.Side]++
				}
			}
			t.Log(sides)
			if right := sides[attribution.Responder.String()]; right == 0 ||
				right < 9*sides[attribution.Network.String()] {
				t.Errorf("round trips of which half was in a pulse: %v; gaps: %+v", sides,
					must.Get(report.Read(far))(t).Gaps)
			}
			check.Contains(t, string(must.Get(os.ReadFile(filepath.Join(far, report.HTMLFile)))(t)),
				"What had the polling cores", "polling gaps of")
			other := n.bench("explain", near, near)
			check.Contains(t, other.errors, "not of a responder")
		})
	}
}
