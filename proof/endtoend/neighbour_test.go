package endtoend

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

// believe makes the near kernel believe that the target has a MAC address that it does not have, as after a failover
// that was not announced.
func (n *network) believe(state int, targets ...string) {
	n.t.Helper()
	n.link(n.near, nearIface, func(l netlink.Link) error {
		for _, target := range targets {
			if err := netlink.NeighSet(&netlink.Neigh{LinkIndex: l.Attrs().Index, State: state, IP: net.ParseIP(target),
				HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 99}}); err != nil {
				return err
			}
		}
		return nil
	})
}

// change gives the target's interface another MAC address, which Linux does not announce by default.
func (n *network) change(last byte) {
	n.t.Helper()
	n.link(n.far, farIface, func(l netlink.Link) error {
		return netlink.LinkSetHardwareAddr(l, net.HardwareAddr{2, 0, 0, 0, 1, last})
	})
}

// A run whose target has another MAC than the kernel believes asks for it after a few lost probes.
func TestRunFindsNewMAC(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	// Otherwise the kernel ignores a new MAC within a second of the last change, which is this test's.
	n.must(n.near.Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv4/neigh/"+nearIface+"/locktime", []byte("0"),
			0)
	}))
	for _, target := range []string{far4, far6} {
		for _, driver := range []string{"afpacket", "afxdp"} {
			n.believe(netlink.NUD_STALE, target)
			dir := filepath.Join(t.TempDir(), "r")
			rep := readReport(t, dir, n.bench(quick("-target", target, "-driver", driver, "-count", "100", "-timeout",
				"40ms", "-warmup", "0s", "-out", dir)...))
			// Four probes, then three requests by unicast and one to all, 100 ms apart, and as long until the kernel's
			// table is read again.
			if c := rep.Counts; c.Sent != 100 || c.Received+c.Late < 70 {
				t.Errorf("%s, %s: %d of %d probes answered", target, driver, c.Received+c.Late, c.Sent)
			}
		}
		n.believe(netlink.NUD_PERMANENT, target)
		n.bench(quick("-target", target, "-driver", "afpacket", "-count", "30", "-timeout", "10ms", "-warmup", "0s",
			"-out", filepath.Join(t.TempDir(), "r"))...).fails(t, process.Failed, "no usable reply")
	}
}

// The same after a hook that has changed it, from an address that the kernel does not have.
func TestHookChangesMAC(t *testing.T) {
	t.Parallel()
	needs.Programs(t, "nsenter", "ip")
	n := newNetwork(t)
	to := func(last int) string {
		return fmt.Sprintf("do=nsenter --net=/proc/%d/fd/%d ip link set %s address 02:00:00:00:01:%02x", os.Getpid(),
			n.far.FD, farIface, last)
	}
	for _, c := range [][]string{{far4, "afpacket", "10.98.0.77"}, {far6, "afxdp", "fd98::77"},
		{far4, "afpacket", near4}} {
		dir := t.TempDir()
		n.bench(quick("-target", c[0], "-driver", c[1], "-source", c[2], "-iface", nearIface, "-ab", "name=a,"+to(1),
			"-ab", "name=b,"+to(2), "-slice", "20ms", "-duration", "20ms",
			"-out", dir)...).prints(t, "a", "b")
		for i, name := range []string{"a", "b"} {
			rep := must.Get(report.Read(filepath.Join(dir, fmt.Sprintf("%02d-%s", i+1, name))))(t)
			if rep.Counts.Received == 0 || rep.Counts.Lost > 0 {
				t.Errorf("%q, %s: %+v", c, name, rep.Counts)
			}
		}
	}
}

// A watch finds out that a target has another MAC than the kernel believes, and that it changes again later, without an
// announcement.
func TestWatchFindsNewMAC(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	for i, args := range [][]string{
		{"-driver", "afpacket"},
		{"-driver", "afpacket", "-iface", nearIface, "-source", "10.98.0.77", "-source", "fd98::77"},
	} {
		n.believe(netlink.NUD_STALE, far4, far6)
		w := n.watch(9480+i, append(args, far4, far6, "-rate", "20", "-timeout", "100ms")...)
		answered := func(more float64) (four, six float64) {
			w.until(fmt.Sprint(args, " replies"), func(v map[string]float64) bool {
				four, six = v[of("rebound_rtt_seconds_count", "icmp:"+far4)],
					v[of("rebound_rtt_seconds_count", "icmp:["+far6+"]")]
				return min(four, six) >= more
			})
			return four, six
		}
		answered(5)
		n.change(byte(10 + i))
		lost := func(v map[string]float64) bool {
			return v[of("rebound_lost_total", "icmp:"+far4)] >= 5 && v[of("rebound_lost_total", "icmp:["+far6+"]")] >= 5
		}
		w.until("loss", lost)
		four, six := answered(0)
		answered(max(four, six) + 5)
		w.end()
	}
}

// Two programs cannot both use an address that the kernel does not have, unless both have packet sockets.
func TestSourceInUse(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	source := []string{"-iface", nearIface, "-source", "10.98.0.77"}
	w := n.watch(9483, append(source, "-driver", "afpacket", far4)...)
	n.bench(quick(append(source, "-target", far4, "-count", "5", "-out", filepath.Join(t.TempDir(), "r"))...)...).fails(
		t, process.Usage,
		"-source: address 10.98.0.77: ", fmt.Sprintf("process %d", w.Process.Pid), "answers for it on "+nearIface)
	n.measure(t, append(source, "-target", far4, "-driver", "afpacket", "-count", "5")...)
	w.end()
	w = n.watch(9484, append(source, "-driver", "afxdp", far4)...)
	n.bench(quick(append(source, "-target", far4, "-driver", "afpacket", "-count", "5", "-out",
		filepath.Join(t.TempDir(), "r"))...)...).fails(t, process.Failed,
		fmt.Sprintf("process %d", w.Process.Pid), "answers for it on "+nearIface, "did not answer")
	w.end()
}

// With -qdisc, frames go through the interface's queueing discipline. Otherwise they bypass it, and the headline warns.
func TestQdisc(t *testing.T) {
	t.Parallel()
	needs.Programs(t, "tc")
	n := newNetwork(t)
	tc := func(args string) {
		t.Helper()
		n.must(n.near.Do(func() error {
			if out, err := exec.Command("tc", strings.Fields(args)...).CombinedOutput(); err != nil {
				return fmt.Errorf("tc %s: %w: %s", args, err, out)
			}
			return nil
		}))
	}
	const warning = "raw frames bypass what tc has configured on " + nearIface + " (pfifo)"
	tc("qdisc add dev " + nearIface + " root pfifo")
	queued := func() (packets int) {
		n.link(n.near, nearIface, func(l netlink.Link) error {
			all, err := netlink.QdiscList(l)
			for _, q := range all {
				packets += int(q.Attrs().Statistics.Basic.Packets)
			}
			return err
		})
		return packets
	}
	for _, c := range []struct {
		args    []string
		through bool
	}{{nil, false}, {[]string{"-driver", "afxdp", "-source", "10.98.0.78"}, false}, {[]string{"-qdisc"}, true},
		{[]string{"-qdisc", "-source", "10.98.0.78"}, true}} {
		before := queued()
		rep, r := n.measure(t, append([]string{"-target", far4, "-count", "50", "-iface", nearIface}, c.args...)...)
		if got := queued() - before; got >= 50 != c.through ||
			strings.Contains(strings.Join(rep.Warnings, "\n"), warning) == c.through ||
			strings.Contains(r.out, warning) == c.through {
			t.Errorf("%q: %d packets in the queue, %q\n%s", c.args, got, rep.Warnings, r.out)
		}
	}
	w := n.watch(9485, far4)
	w.says(warning)
	w.end()
	n.bench(quick("-target", far4, "-qdisc", "-driver", "afxdp")...).fails(t, process.Usage,
		"-qdisc: driver afxdp sends without")
	n.bench(quick("-target", far4, "-qdisc", "-transport", "socket")...).fails(t, process.Usage,
		"-qdisc has no effect with -transport socket")
}

// What the kernel does with packets to a target is the reason why a run does not start.
func TestNoFrames(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	_, prohibited, _ := net.ParseCIDR("10.96.0.0/24")
	n.must(n.near.Do(func() error {
		tun := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "tbench9"}, Mode: netlink.TUNTAP_MODE_TUN}
		if err := netlink.LinkAdd(tun); err != nil {
			return err
		}
		for _, fd := range tun.Fds {
			t.Cleanup(func() { fd.Close() })
		}
		return netlink.RouteAdd(&netlink.Route{Dst: prohibited, Type: unix.RTN_PROHIBIT})
	}))
	n.link(n.near, "tbench9", func(l netlink.Link) error {
		if err := address(l, "10.95.0.1/24"); err != nil {
			return err
		}
		return netlink.LinkSetUp(l)
	})
	n.bench(quick("-target", "10.95.0.2")...).fails(t, process.Usage,
		"interface tbench9 carries no Ethernet frames (its link type is none): use -transport socket")
	for _, args := range [][]string{nil, {"-transport", "socket"}} {
		n.bench(quick(append(args, "-target", "10.96.0.1")...)...).fails(t, process.Usage,
			"to 10.96.0.1: no route: a route or a rule of the kernel prohibits it")
	}
	w := n.watch(9486, "10.96.0.1", "10.95.0.2", far4)
	w.says("prohibits it")
	w.says("carries no Ethernet frames")
	w.end()
	r := n.bench(quick("-target", "10.95.0.2", "-transport", "socket", "-count", "1", "-timeout", "1ms", "-out",
		filepath.Join(t.TempDir(), "r"))...)
	check.Contains(t, r.errors, "none answered") // it was sent
}
