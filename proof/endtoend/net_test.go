package endtoend

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/fleet"
	"github.com/rebound-nic/rebound/internal/bench"
	"github.com/rebound-nic/rebound/internal/bench/measure"
	"github.com/rebound-nic/rebound/internal/bench/testbed"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/programs"
)

// TestMain lets the test binary act as the bench and as the watch, so that tests start it as a process.
func TestMain(m *testing.M) {
	if os.Getenv("BENCH_IS_MAIN") != "" {
		os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// run runs rebound-watch if its name or one of its commands comes first, else rebound-bench.
func run(args []string, stdout, stderr io.Writer) int {
	if len(args) > 0 {
		switch args[0] {
		case "watch":
			return fleet.Run(append([]string{"probe"}, args[1:]...), stdout, stderr)
		case "matrix", "suspects", "config":
			return fleet.Run(args, stdout, stderr)
		}
	}
	return bench.Run(args, stdout, stderr)
}

// network is two unnamed namespaces, joined by a veth pair: near has the bench, far has the kernel that answers.
type network struct {
	t         *testing.T
	near, far *testbed.Namespace
	user      uint32 // of the watch; 0 is root
}

const (
	nearIface, farIface = "tbench0", "tbench1"
	near4, far4         = "10.98.0.1", "10.98.0.2"
	near6, far6         = "fd98::1", "fd98::2"
)

func needRoot(t *testing.T) {
	t.Helper()
	needs.Root(t, "network namespaces")
}

func newNetwork(t *testing.T) *network {
	needRoot(t)
	n := &network{t: t}
	n.near, n.far = n.namespace("ipv4/ping_group_range=0 2147483647"), n.namespace("ipv4/ping_group_range=0 2147483647")
	n.connect(n.near, nearIface, n.far, farIface)
	for _, side := range []struct {
		in                *testbed.Namespace
		iface, ipv4, ipv6 string
	}{{n.near, nearIface, near4, near6}, {n.far, farIface, far4, far6}} {
		n.link(side.in, side.iface, func(l netlink.Link) error {
			return errors.Join(address(l, side.ipv4+"/24"), address(l, side.ipv6+"/64"), netlink.LinkSetUp(l))
		})
	}
	await.Until(t, "the veth pair is up", func() (up bool) {
		n.link(n.near, nearIface, func(l netlink.Link) error { up = l.Attrs().OperState == netlink.OperUp; return nil })
		return up
	})
	return n
}

// namespace creates a network namespace with a loopback interface and settings below /proc/sys/net.
func (n *network) namespace(settings ...string) *testbed.Namespace {
	n.t.Helper()
	in := must.Get(testbed.NewNamespace())(n.t)
	n.t.Cleanup(in.Close)
	n.link(in, "lo", netlink.LinkSetUp)
	// Tests that share a network also share its rate limit for errors.
	for _, key := range append(settings, "ipv4/icmp_ratelimit=0", "ipv6/icmp/ratelimit=0") {
		name, value, _ := strings.Cut(key, "=")
		n.must(in.Do(func() error { return os.WriteFile("/proc/sys/net/"+name, []byte(value), 0) }))
	}
	return in
}

// connect joins two namespaces by a veth pair.
func (n *network) connect(a *testbed.Namespace, name string, b *testbed.Namespace, peer string) {
	n.t.Helper()
	n.must(a.Do(func() error {
		pair := netlink.NewVeth(netlink.LinkAttrs{Name: name})
		pair.PeerName, pair.PeerNamespace = peer, netlink.NsFd(b.FD)
		return netlink.LinkAdd(pair)
	}))
}

// link calls f with an interface of a namespace, in that namespace.
func (n *network) link(in *testbed.Namespace, name string, f func(netlink.Link) error) {
	n.t.Helper()
	n.must(in.Do(func() error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return f(l)
	}))
}

func address(l netlink.Link, prefix string) error {
	a, err := netlink.ParseAddr(prefix)
	if err != nil {
		return err
	}
	a.Flags = unix.IFA_F_NODAD
	return netlink.AddrAdd(l, a)
}

// route adds a route by gateways, which have equal costs.
func (n *network) route(in *testbed.Namespace, to string, via ...string) {
	n.t.Helper()
	_, dst, err := net.ParseCIDR(to)
	n.must(err)
	r := &netlink.Route{Dst: dst}
	for _, v := range via {
		r.MultiPath = append(r.MultiPath, &netlink.NexthopInfo{Gw: net.ParseIP(v)})
	}
	if len(via) == 1 {
		r.Gw, r.MultiPath = net.ParseIP(via[0]), nil
	}
	n.must(in.Do(func() error { return netlink.RouteAdd(r) }))
}

func (n *network) must(err error) {
	n.t.Helper()
	must.OK(n.t, err)
}

func child(args ...string) *exec.Cmd {
	c := exec.Command("/proc/self/exe", args...)
	c.Env = append(os.Environ(), "BENCH_IS_MAIN=1")
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return c
}

type result struct {
	args        []string
	code        int
	out, errors string
	peak        int64 // of the process's resident memory, in KiB
}

// prints fails the test unless a bench succeeded and printed each of the texts.
func (r result) prints(t *testing.T, texts ...string) {
	t.Helper()
	if r.code != 0 {
		t.Errorf("bench %.200q: exit %d\n%s", r.args, r.code, r.errors)
	}
	check.Contains(t, r.out, texts...)
}

// fails fails the test unless a bench ended with the exit status and an error with each of the texts.
func (r result) fails(t *testing.T, code int, texts ...string) {
	t.Helper()
	if r.code != code {
		t.Errorf("bench %.200q: exit %d, want %d\n%s", r.args, r.code, code, r.errors)
	}
	check.Contains(t, r.errors, texts...)
}

// running is a bench process, with what it has printed so far.
type running struct {
	*exec.Cmd
	n         *network
	out, said programs.Output
}

// prepare returns a bench that begin starts in the near namespace.
func (n *network) prepare(args ...string) *running {
	r := &running{Cmd: child(args...), n: n}
	r.Stdout, r.Stderr = &r.out, &r.said
	return r
}

// alone is prepare for a bench that needs no network.
func alone(t *testing.T, args ...string) *running { return (&network{t: t}).prepare(args...) }

func (r *running) begin() *running {
	r.n.t.Helper()
	if r.n.near == nil {
		r.n.must(r.Start())
	} else {
		r.n.must(r.n.near.Do(r.Start))
	}
	return r
}

// wait returns what a bench that has ended did.
func (r *running) wait() result {
	r.n.t.Helper()
	err := r.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		r.n.t.Fatal(err)
	}
	res := result{args: r.Args[1:], code: r.ProcessState.ExitCode(), out: r.out.String(), errors: r.said.String()}
	if u, ok := r.ProcessState.SysUsage().(*syscall.Rusage); ok {
		res.peak = u.Maxrss
	}
	if !r.ProcessState.Exited() {
		r.n.t.Fatalf("bench %v died: %v\n%s", r.Args[1:], r.ProcessState, res.errors)
	}
	return res
}

func (n *network) bench(args ...string) result {
	n.t.Helper()
	return n.prepare(args...).begin().wait()
}

// inside is bench in this process, for arguments with which it starts nothing.
func (n *network) inside(args ...string) (r result) {
	n.t.Helper()
	n.must(n.near.Do(func() error { r = inProcess(args...); return nil }))
	return r
}

// measure runs a bench with quick's settings, which must answer every probe, and returns its report.
func (n *network) measure(t *testing.T, args ...string) (*report.Report, result) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "r")
	r := n.bench(quick(append([]string{"-out", dir}, args...)...)...)
	return read(t, dir, r), r
}

func quick(args ...string) []string {
	// the tests share two busy cores
	return append([]string{"run", "-self-test", "5ms", "-warmup", "1ms", "-timeout", "30s"}, args...)
}

func (n *network) udpEcho(port int, delay time.Duration) {
	n.t.Helper()
	n.udpServer(port, func(b []byte) []byte {
		time.Sleep(delay)
		return b
	})
}

// udpServer answers UDP in the target's namespace on a port, with the result of answer for each request.
func (n *network) udpServer(port int, answer func([]byte) []byte) {
	n.t.Helper()
	serveUDP(n.t, n.far, fmt.Sprintf(":%d", port), func(b []byte, _ netip.AddrPort) []byte { return answer(b) })
}

// serveUDP answers UDP in a namespace, with the result of answer for each request; nil is no reply.
func serveUDP(t *testing.T, in *testbed.Namespace, address string, answer func(b []byte, from netip.AddrPort) []byte) {
	t.Helper()
	var conn *net.UDPConn
	at := must.Get(net.ResolveUDPAddr("udp", address))(t)
	must.OK(t, in.Do(func() (err error) { conn, err = net.ListenUDP("udp", at); return err }))
	t.Cleanup(func() { conn.Close() })
	go func() {
		buf := make([]byte, 1<<16)
		for {
			k, from, err := conn.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			if b := answer(buf[:k], from); b != nil {
				_, _ = conn.WriteToUDPAddrPort(b, from)
			}
		}
	}()
}

// received and arrived return the number of frames that the far and the near interface have received.
func (n *network) received() uint64 { return n.frames(n.far, farIface) }
func (n *network) arrived() uint64  { return n.frames(n.near, nearIface) }

func (n *network) frames(in *testbed.Namespace, iface string) (count uint64) {
	n.link(in, iface, func(l netlink.Link) error { count = l.Attrs().Statistics.RxPackets; return nil })
	return count
}

// startResponder builds and starts the responder in the target's namespace on addresses that its kernel does not have.
func (n *network) startResponder(t *testing.T, driver string, addresses ...string) (pid int) {
	t.Helper()
	var sets, quoted []string // some addresses are settings
	for _, a := range addresses {
		if strings.Contains(a, "=") {
			sets = append(sets, "-set", a)
		} else {
			quoted = append(quoted, strconv.Quote(a))
		}
	}
	cores, err := measure.Choose(-1)
	n.must(err)
	c := exec.Command(programs.Path(t, "responder"), append(
		[]string{"-config", "/dev/null", "-set", "nic.device=" + farIface, "-set", "nic.driver=" + driver,
			"-set", "respond.addresses=[" + strings.Join(quoted, ",") + "]", "-set", "respond.udp_ports=[7]", "-set",
			"respond.stamp_ports=[862]",
			"-set", fmt.Sprintf("cpu.cores=[%d]", cores.Other())}, sets...)...)
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p := programs.Start(t, c, n.far.Do)
	if !strings.HasPrefix(p.Ready, "ready ") {
		t.Fatalf("the responder says %q: %s", p.Ready, p.Log)
	}
	t.Cleanup(func() { _ = c.Process.Signal(unix.SIGTERM); _ = c.Wait() })
	return c.Process.Pid
}
