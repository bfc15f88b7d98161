package endtoend

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// Replies that arrive after the timeout are late, not lost.
func TestLate(t *testing.T) {
	n := newNetwork(t)
	for _, how := range ways {
		t.Run(strings.Join(how, " "), func(t *testing.T) {
			const first, held, timeout = 100, 50, 2 * time.Second
			i := n.newImpairer()
			var answered, released atomic.Int64
			i.answer(func(r reply) {
				if i.got <= first || i.got > first+held {
					i.send(r)
					answered.Add(1)
					return
				}
				time.AfterFunc(timeout, func() { // from its arrival: later than its timeout
					i.send(r)
					released.Add(1)
				})
			})
			dir := filepath.Join(t.TempDir(), "out")
			c := n.prepare(slices.Concat(quick("-target", far4, "-proto", "udp", "-port", i.port(), "-duration", "1h",
				"-rate", "500",
				"-warmup", "0s", "-timeout", timeout.String(), "-out", dir), how)...).begin()
			holds := await.Holds(func() bool { return released.Load() == held })
			before := answered.Load()
			// probes that the bench sent since
			holds = holds && await.Holds(func() bool { return answered.Load() > before+100 })
			n.must(c.Process.Signal(unix.SIGINT))
			r := c.wait()
			i.end()
			counts := readReport(t, dir, r).Counts
			if !holds {
				t.Fatalf("%d released\n%s", released.Load(), r.errors)
			}
			if counts.Late < held || counts.Lost != 0 || counts.Sent != i.got ||
				counts.Received+counts.Late != counts.Sent {
				t.Errorf("%+v; %d of %d replies were late\n%s", counts, held, i.got, r.out)
			}
			check.Contains(t, r.out, fmt.Sprintf("late %d", counts.Late))
		})
	}
}

// Probes that the target's responder refuses because of its rate limit were not lost between the hosts, and its metrics
// say so. With driver xdp the program drops them in the kernel.
func TestRateLimitThere(t *testing.T) {
	for i, driver := range []string{"afxdp", "xdp", "afpacket"} {
		t.Run(driver, func(t *testing.T) {
			n := newNetwork(t)
			n.startResponder(t, driver, "10.98.0.3/24", "stats.listen="+far4+":9470", "guard.rate=1", "guard.burst=100")
			dir := filepath.Join(t.TempDir(), "out")
			before := n.received()
			r := n.bench(slices.Concat(quick("-target", "10.98.0.3", "-proto", "udp", "-count", "1000", "-runs", "1",
				"-rate", "2000", "-warmup", "0s",
				"-timeout", "2s", "-responder-metrics", "http://"+far4+":9470/metrics", "-out", dir), ways[i])...)
			n.wantThere(dir, r, report.RefusedThere, "responder: rate", n.received()-before)
		})
	}
}

// Probes that did not fit into the responder's ring, because the responder was stopped, were dropped there.
func TestDroppedThere(t *testing.T) {
	for _, driver := range []string{"afpacket", "afxdp"} {
		t.Run(driver, func(t *testing.T) {
			n := newNetwork(t)
			pid := n.startResponder(t, driver, "10.98.0.3/24", "stats.listen="+far4+":9470", "guard.rate=0",
				"nic.ring_size=64")
			dir := filepath.Join(t.TempDir(), "out")
			c := n.startCounting(dir)
			n.must(stopProcess(pid))
			await.Until(t, "all probes", func() bool { return n.received() >= c.start+counted })
			n.must(syscall.Kill(pid, syscall.SIGCONT))
			r, arrived := c.end()
			n.wantThere(dir, r, report.DroppedThere, "responder: rx_dropped", arrived)
		})
	}
}

// Replies that the driver of the responder's interface drops after the XDP program, because they cannot be sent, were
// dropped there. A veth pair drops them when the XDP program at its other end is removed.
func TestReplyDroppedThere(t *testing.T) {
	n := newNetwork(t)
	pass := must.Get(ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "Apache-2.0",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}}))(t) // XDP_PASS
	defer pass.Close()
	var attached link.Link
	n.link(n.near, nearIface, func(l netlink.Link) (err error) {
		attached, err = link.AttachXDP(link.XDPOptions{Program: pass, Interface: l.Attrs().Index,
			Flags: link.XDPDriverMode})
		return err
	})
	n.startResponder(t, "xdp", "10.98.0.3/24", "stats.listen="+far4+":9470", "guard.rate=0")
	dir := filepath.Join(t.TempDir(), "out")
	c := n.startCounting(dir)
	n.must(attached.Close())
	r, arrived := c.end()
	// A veth pair counts these frames at both ends.
	n.wantThere(dir, r, report.DroppedThere, "responder: interface_tx_dropped", arrived,
		"interface "+nearIface+": rx_dropped")
}

// counting is a bench that sends probes to the responder and reads its counters.
type counting struct {
	*running
	start uint64 // frames that the responder's interface had received before
}

const counted = 5000 // probes, in under two seconds

// startCounting starts a bench that writes its report to dir, and returns when the responder has received probes.
func (n *network) startCounting(dir string) *counting {
	n.t.Helper()
	c := &counting{start: n.received()}
	c.running = n.startAsking("-target", "10.98.0.3", "-proto", "udp", "-driver", "afpacket", "-count",
		fmt.Sprint(counted), "-runs", "1", "-rate", "3000",
		"-timeout", "2s", "-responder-metrics", "http://"+far4+":9470/metrics", "-out", dir)
	return c
}

// end waits for the bench, and returns how many frames the responder's interface received meanwhile.
func (c *counting) end() (r result, arrived uint64) {
	c.n.t.Helper()
	r = c.wait()
	return r, c.n.received() - c.start
}

// wantThere fails unless all probes without a reply are assigned to one place on the target's host, by one of its
// counters, which may also count other received frames. Of this host's counters, only the named ones may be above zero.
func (n *network) wantThere(dir string, r result, at report.Place, by string, arrived uint64, here ...string) {
	n.t.Helper()
	rep := readReport(n.t, dir, r)
	c := rep.Counts
	missing := c.Sent - c.Received - c.Late
	var frames, own int64
	for _, d := range rep.Drops {
		switch {
		case d.Place == at && d.By == by:
			frames += d.Frames
		case (d.Place == report.DroppedHere || d.Place == report.NotSent) && !slices.Contains(here, d.By):
			own += d.Frames
		}
	}
	if missing == 0 || frames < missing || frames > missing+int64(arrived)-c.Sent || c.Lost != missing ||
		c.LostLeast() != 0 || own != 0 {
		n.t.Errorf("%+v: %d are missing, %q counts %d; %d frames arrived there\n%s", c, missing, by, frames, arrived,
			r.out)
	}
	check.Contains(n.t, strings.Join(rep.ByCounter(), "\n"), string(at)+": ")
}

// Probes that the queueing discipline of the bench's interface drops did not leave this host, although the sender sees
// no error.
func TestNotSent(t *testing.T) {
	n := newNetwork(t)
	n.knowNeighbours()
	i := n.newImpairer()
	i.serve(false, 0, 0, nil)
	n.limitQueue()
	dir := filepath.Join(t.TempDir(), "out")
	r := n.bench(i.probes(dir, 1000, 2000, "-transport", "socket", "-size", "100")...)
	var truth int64
	n.link(n.near, nearIface, func(l netlink.Link) error {
		all, err := netlink.QdiscList(l)
		for _, q := range all {
			if q.Attrs().Parent == netlink.HANDLE_ROOT && q.Attrs().Statistics.Queue != nil {
				truth = int64(q.Attrs().Statistics.Queue.Drops)
			}
		}
		return err
	})
	i.end()
	c := readReport(t, dir, r).Counts
	if c.Sent != 1000 || c.Received+c.Late+c.DroppedHere != i.got-i.lost || c.SendFailed < 1000-i.got ||
		c.SendFailed > truth || truth == 0 {
		t.Errorf("%+v: %d probes arrived, %d replies were lost, %d frames dropped\n%s", c, i.got, i.lost, truth, r.out)
	}
	if c.LostLeast() > i.lost || c.Lost < i.lost || !strings.Contains(r.out, "not sent") {
		t.Errorf("%s were lost, want %d in it\n%s", c.LostText(), i.lost, r.out)
	}
}

// knowNeighbours gives each side the other one's MAC address.
func (n *network) knowNeighbours() {
	var near, far *netlink.LinkAttrs
	n.link(n.near, nearIface, func(l netlink.Link) error { near = l.Attrs(); return nil })
	n.link(n.far, farIface, func(l netlink.Link) error { far = l.Attrs(); return nil })
	know := func(on *netlink.LinkAttrs, ip string, mac net.HardwareAddr) func() error {
		return func() error {
			return netlink.NeighSet(&netlink.Neigh{LinkIndex: on.Index, State: netlink.NUD_PERMANENT,
				IP: net.ParseIP(ip), HardwareAddr: mac})
		}
	}
	n.must(n.near.Do(know(near, far4, far.HardwareAddr)))
	n.must(n.far.Do(know(far, near4, near.HardwareAddr)))
}

// limitQueue gives the bench's interface a queue of two frames that sends 1000 bytes per second, after a burst of about
// 700 frames.
func (n *network) limitQueue() {
	n.t.Helper()
	var err error
	n.link(n.near, nearIface, func(l netlink.Link) error {
		err = netlink.QdiscAdd(&netlink.Tbf{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: l.Attrs().Index,
			Handle: netlink.MakeHandle(1, 0),
			Parent: netlink.HANDLE_ROOT}, Rate: 1000, Limit: 250, Buffer: 1 << 30})
		return nil
	})
	if errors.Is(err, unix.ENOENT) {
		n.t.Skipf("the kernel has no sch_tbf: %v", err)
	}
	n.must(err)
}

// A search never reports a rate as the network's limit that this host's own queue could not send.
func TestLosslessOwnLimit(t *testing.T) {
	n := newNetwork(t)
	n.knowNeighbours()
	n.udpEcho(7, 0)
	n.limitQueue()
	c := n.prepare(quick("-target", far4, "-proto", "udp", "-transport", "socket", "-lossless", "4k", "-duration",
		"500ms", "-warmup", "0s",
		"-timeout", "2s", "-size", "100", "-out", filepath.Join(t.TempDir(), "out"))...).begin()
	trials := func() (lines []string) {
		for line := range strings.Lines(c.said.String()) {
			if strings.Contains(line, " bytes at ") {
				lines = append(lines, line)
			}
		}
		return lines
	}
	await.Until(t, "three trials", func() bool { return len(trials()) >= 3 }, c.said.String)
	n.must(c.Process.Signal(unix.SIGINT))
	c.wait()
	for _, line := range trials()[:3] {
		if !strings.Contains(line, "loss of between 0 % and ") && !strings.Contains(line, "this host") ||
			!strings.Contains(line, "not sent") && !strings.Contains(line, "not offered") {
			t.Error(line)
		}
	}
}
