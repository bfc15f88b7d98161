package endtoend

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/bench/testbed"
	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/attribution"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

// readReport returns the report of a bench that has succeeded.
func readReport(t *testing.T, dir string, r result) *report.Report {
	t.Helper()
	rep, err := report.Read(dir)
	if r.code != 0 || err != nil {
		t.Fatalf("exit %d, %v\n%s%s", r.code, err, r.out, r.errors)
	}
	return rep
}

// read is readReport for a bench whose probes were all answered.
func read(t *testing.T, dir string, r result) *report.Report {
	t.Helper()
	rep := readReport(t, dir, r)
	file := must.Get(os.Open(filepath.Join(dir, report.ReportFile)))(t)
	defer file.Close()
	published := must.Get(jsonschema.NewCompiler().Compile("../../docs/report.schema.json"))(t)
	if v, err := jsonschema.UnmarshalJSON(file); err != nil || published.Validate(v) != nil {
		t.Errorf("%s: %v %v", dir, err, published.Validate(v))
	}
	c := rep.Counts
	if c.Sent == 0 || c.Received != c.Sent || c.Lost != 0 || c.Corrupt != 0 || c.Duplicates != 0 ||
		rep.Main().Total.Count != c.Received {
		t.Errorf("%s: %+v, %d recorded\n%s", dir, c, rep.Main().Total.Count, r.errors)
	}
	check.Contains(t, r.out, "report "+dir)
	return rep
}

// TestKernelEcho measures the kernel's own echo by every driver and transport, each with both protocols and both
// families, at the smallest size and the greatest.
func TestKernelEcho(t *testing.T) {
	n := newNetwork(t)
	n.udpEcho(7, 0)
	for i, target := range []string{far4, far6} {
		for j, proto := range []string{"icmp", "udp"} {
			for k, way := range [][]string{
				{"-driver", "afpacket"},
				{"-driver", "afpacket", "-size", "1514", "-rate", "2k"},
				{"-driver", "afxdp"},
				{"-transport", "socket", "-size", "1514", "-timestamps"},
				{"-driver", "afpacket", "-timestamps", "-source", map[string]string{far4: "10.98.0.77", far6: "fd98::77"}[target]},
				{"-driver", "auto", "-source", map[string]string{far4: "10.98.0.78", far6: "fd98::78"}[target], "-rate", "5k"},
			} {
				if (i+j+k)%2 != 0 {
					continue // each pair of a family, a protocol and a way occurs once
				}
				name := strings.Join(append([]string{target, proto}, way...), " ")
				t.Run(name, func(t *testing.T) {
					// At a rate, a bench that was descheduled sends all due probes in one burst, which must fit into a
					// socket.
					count := int64(100)
					if strings.Contains(name, "-rate") {
						count = 30
					}
					rep, _ := n.measure(t, append([]string{"-target", target, "-proto", proto, "-count",
						fmt.Sprint(count)}, way...)...)
					check.Equal(t, rep.Counts.Sent, count, "%d sent")
					check.Equal(t, rep.Traffic.Protocol, proto, "protocol %q")
					check.Equal(t, rep.Metric, report.RoundTrip, "metric %q")
					check.Equal(t, rep.Find(latency.JitterSeries) != nil, true, "the report has jitter: %v")
					check.Equal(t, rep.Order != nil, true, "the report has the order of replies: %v")
					if a := rep.Attribution; a == nil || a.Probes == 0 || a.CausesBy == attribution.NotWatched {
						t.Errorf("the slowest round trips are not attributed, or the core was not watched: %+v", a)
					}
					if strings.Contains(name, "-rate") != (rep.Find(latency.UncorrectedSeries) != nil) {
						t.Error("both series belong to the open loop, and to it only")
					}
					// veth stamps in software in both directions; a ping socket's transmit timestamps come through its
					// error queue.
					if strings.Contains(name, "-timestamps") &&
						(rep.Find(latency.KernelSeries) == nil || rep.Find(latency.KernelSeries).Total.Count == 0) {
						t.Errorf("no kernel stamps: %v", rep.Notes)
					}
					if strings.Contains(name, "auto") && rep.Device.Driver != "afxdp" {
						t.Errorf("auto took %s for an address of the bench's own", rep.Device.Driver)
					}
				})
			}
		}
	}
}

// A report with many runs is written with the garbage collector on: it allocates far more than the process ever holds.
func TestReportMemory(t *testing.T) {
	n := newNetwork(t)
	// The kernel counts this process's peak as the child's, too, because they share memory until exec.
	debug.FreeOSMemory()
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil { // resets it (proc(5))
		t.Fatal(err)
	}
	_, r := n.measure(t, "-target", far4, "-driver", "afpacket", "-count", "5000", "-runs", "250")
	t.Logf("resident memory of %d MiB at most", r.peak>>10)
	if r.peak == 0 || r.peak > 180<<10 {
		t.Errorf("a report of 250 runs takes %d MiB of memory", r.peak>>10)
	}
}

func TestResponder(t *testing.T) {
	n := newNetwork(t)
	n.startResponder(t, "afpacket", "10.98.0.3/24", "fd98::3/64")
	for i, target := range []string{"10.98.0.3", "fd98::3"} {
		for j, proto := range []string{"icmp", "udp", "stamp"} {
			for k, more := range [][]string{nil, {"-rate", "3k", "-size", "1200"}, {"-transport", "socket"}} {
				if (i+j+k)%2 != 0 {
					continue // any two of them occur together at least once
				}
				t.Run(strings.Join(append([]string{target, proto}, more...), " "), func(t *testing.T) {
					rep, _ := n.measure(t, append([]string{"-target", target, "-proto", proto, "-count", "60"},
						more...)...)
					if proto != "stamp" {
						return
					}
					res := rep.Find(latency.ResidenceSeries)
					if res == nil || res.Total.Count == 0 || res.Total.Max > rep.Main().Total.Max ||
						rep.Find("network") == nil {
						t.Errorf("residence %+v, notes %v", res, rep.Notes)
					}
				})
			}
		}
	}
}

func TestName(t *testing.T) {
	n := newNetwork(t)
	serveUDP(t, n.near, "127.0.0.1:7", func(b []byte, _ netip.AddrPort) []byte { return b })
	rep, _ := n.measure(t, "-target", "localhost", "-source", "127.0.0.1", "-proto", "udp", "-transport", "socket",
		"-count", "20")
	if rep.Traffic.Target != "127.0.0.1:7" || rep.Label != "localhost" {
		t.Errorf("%+v, called %s", rep.Traffic, rep.Label)
	}
}

func TestInterrupted(t *testing.T) {
	n := newNetwork(t)
	for load, sig := range map[string]unix.Signal{"-closed": unix.SIGINT, "-rate=1k": unix.SIGTERM} {
		dir := filepath.Join(t.TempDir(), "r")
		c := n.startAsking("-target", far4, "-duration", "1h", "-out", dir, load)
		n.must(c.Process.Signal(sig))
		rep := read(t, dir, c.wait())
		check.Contains(t, strings.Join(rep.Warnings, " "), "interrupted")
	}
}

// startAsking starts a bench without a warm-up (a bench delayed during one would have sent enough, but measured
// nothing), and returns when it has sent 300 probes.
func (n *network) startAsking(args ...string) *running {
	n.t.Helper()
	from := n.received()
	c := n.prepare(quick(append([]string{"-warmup", "0s"}, args...)...)...).begin()
	await.Until(n.t, "300 requests", func() bool { return n.received() >= from+300 }, func() string {
		c.Process.Kill()
		return fmt.Sprintf("it sent %d: %v", n.received()-from, c.Wait())
	})
	return c
}

// Earlier measurements are written; the exit status says that the run failed.
func TestInterfaceVanishes(t *testing.T) {
	for _, driver := range []string{"afpacket", "afxdp"} {
		n := newNetwork(t)
		dir := filepath.Join(t.TempDir(), "r")
		c := n.startAsking("-target", far4, "-duration", "1h", "-out", dir, "-timeout", "200ms", "-driver", driver)
		n.link(n.far, farIface, netlink.LinkDel)
		c.wait().fails(t, 1, nearIface)
		if rep := must.Get(report.Read(dir))(t); rep.Counts.Received < 100 {
			t.Errorf("%s: the report has %d replies", driver, rep.Counts.Received)
		}
	}
}

// The bench host's kernel also sees the replies to raw UDP probes from its own address. It must not tell the target
// that the port is unreachable.
func TestKernelStaysSilent(t *testing.T) {
	n := newNetwork(t)
	n.udpEcho(7, 0)
	n.measure(t, "-target", far4, "-proto", "udp", "-driver", "afpacket", "-count", "100")
	check.Equal(t, n.noPorts(n.near), 0, "the kernel refused %d replies")
}

// noPorts returns the number of UDP datagrams to a closed port in a network namespace.
func (n *network) noPorts(in *testbed.Namespace) (count int64) {
	n.t.Helper()
	n.must(in.Do(func() error {
		b, err := os.ReadFile("/proc/thread-self/net/snmp")
		if err != nil {
			return err
		}
		_, rest, _ := strings.Cut(string(b), "\nUdp: InDatagrams NoPorts ")
		_, values, _ := strings.Cut(rest, "\nUdp: ")
		var received int64
		_, err = fmt.Sscan(values, &received, &count)
		return err
	}))
	return count
}

// The target is not on the link, so probes are sent to the next hop's MAC. Also tests a link-local target.
func TestThroughRouter(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.link(n.far, "lo", func(lo netlink.Link) error {
		return errors.Join(address(lo, "10.97.0.1/32"), address(lo, "fd97::1/128"),
			os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0))
	})
	n.route(n.near, "10.97.0.0/24", far4)
	n.route(n.near, "fd97::/64", far6)
	var local string
	await.Until(t, "the link-local address, after duplicate address detection", func() bool {
		n.link(n.far, farIface, func(l netlink.Link) error {
			all, err := netlink.AddrList(l, netlink.FAMILY_V6)
			for _, a := range all {
				if a.IP.IsLinkLocalUnicast() && a.Flags&unix.IFA_F_TENTATIVE == 0 {
					local = a.IP.String()
				}
			}
			return err
		})
		return local != ""
	})
	var number string // of the zone
	n.link(n.near, nearIface, func(l netlink.Link) error { number = strconv.Itoa(l.Attrs().Index); return nil })
	for _, args := range [][]string{
		{"-target", "10.97.0.1"},
		{"-target", "10.97.0.1", "-source", "10.98.0.77"},
		{"-target", "10.97.0.1", "-source", "10.98.0.77", "-gateway", far4, "-iface", nearIface, "-driver", "afpacket"},
		{"-target", "fd97::1"},
		{"-target", "fd97::1", "-driver", "afxdp"},
		{"-target", local + "%" + nearIface},
		{"-target", local + "%" + number},
		{"-target", local + "%" + number, "-transport", "socket"},
		{"-target", local, "-iface", nearIface, "-transport", "socket"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) { n.measure(t, append(args, "-count", "50")...) })
	}
}

// If a target stops answering, the headline and the exit status say so.
func TestTargetThatStopsAnswering(t *testing.T) {
	needs.Long(t)
	c := must.Get(net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}))(t)
	defer c.Close()
	go func() {
		b := make([]byte, 2048)
		for n := 0; ; n++ {
			size, from, err := c.ReadFromUDP(b)
			if err != nil {
				return
			}
			if n < 300 {
				_, _ = c.WriteToUDP(b[:size], from)
			}
		}
	}()
	dir := filepath.Join(t.TempDir(), "r")
	r := inProcess("run", "127.0.0.1", "-transport", "socket", "-proto", "udp", "-port",
		strconv.Itoa(c.LocalAddr().(*net.UDPAddr).Port),
		"-rate", "1k", "-count", "600", "-runs", "3", "-warmup", "0s", "-timeout", "1s", "-out", dir)
	r.fails(t, process.Failed, "none of the last run")
	check.Contains(t, r.out, "the target stopped answering")
	rep := must.Get(report.Read(dir))(t)
	if rep.Counts.Sent != 600 || rep.Counts.Received+rep.Counts.Late != 300 {
		t.Errorf("counts %+v", rep.Counts)
	}
}
