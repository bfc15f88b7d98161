package bench

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/bench/affinity"
	"github.com/rebound-nic/rebound/internal/bench/testbed"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/programs"
)

// TestMain lets the test binary act as the bench, so that tests start it as a process.
func TestMain(m *testing.M) {
	if os.Getenv("BENCH_IS_MAIN") != "" {
		os.Exit(bench(os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
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
	for _, side := range []**testbed.Namespace{&n.near, &n.far} {
		s := must.Get(testbed.NewNamespace())(t)
		t.Cleanup(s.Close)
		*side = s
	}
	n.must(n.near.Do(func() error {
		pair := netlink.NewVeth(netlink.LinkAttrs{Name: nearIface})
		pair.PeerName, pair.PeerNamespace = farIface, netlink.NsFd(n.far.FD)
		return netlink.LinkAdd(pair)
	}))
	up := func(name string, prefixes ...string) func() error {
		return func() error {
			for _, each := range []string{name, "lo"} {
				l, err := netlink.LinkByName(each)
				if err != nil {
					return err
				}
				for _, p := range prefixes {
					a, err := netlink.ParseAddr(p)
					if err != nil {
						return err
					}
					a.Flags = unix.IFA_F_NODAD
					if err := netlink.AddrAdd(l, a); each == name && err != nil {
						return err
					}
				}
				if err := netlink.LinkSetUp(l); err != nil {
					return err
				}
				prefixes = nil
			}
			// Tests that share a network also share its rate limit for errors.
			return errors.Join(os.WriteFile("/proc/sys/net/ipv4/ping_group_range", []byte("0 2147483647"), 0),
				os.WriteFile("/proc/sys/net/ipv4/icmp_ratelimit", []byte("0"), 0), os.WriteFile("/proc/sys/net/ipv6/icmp/ratelimit", []byte("0"), 0))
		}
	}
	n.must(n.near.Do(up(nearIface, near4+"/24", near6+"/64")))
	n.must(n.far.Do(up(farIface, far4+"/24", far6+"/64")))
	n.must(n.near.Do(func() error {
		var err error
		if !await.Holds(func() bool {
			var l netlink.Link
			l, err = netlink.LinkByName(nearIface)
			return err != nil || l.Attrs().OperState == netlink.OperUp
		}) {
			err = errors.New("the veth pair does not come up")
		}
		return err
	}))
	return n
}

func (n *network) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

func command(args ...string) *exec.Cmd {
	c := exec.Command("/proc/self/exe", args...)
	c.Env = append(os.Environ(), "BENCH_IS_MAIN=1")
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return c
}

type result struct {
	code        int
	out, errors string
	peak        int64 // of the process's resident memory, in KiB
}

// running is a bench process, with what it has printed so far.
type running struct {
	*exec.Cmd
	n         *network
	out, said programs.Output
}

// prepare returns a bench that begin starts in the near namespace.
func (n *network) prepare(args ...string) *running {
	r := &running{Cmd: command(args...), n: n}
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
	res := result{code: r.ProcessState.ExitCode(), out: r.out.String(), errors: r.said.String()}
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
	n.must(n.near.Do(func() error {
		r.code, r.out, r.errors = inProcess(args...)
		return nil
	}))
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
	return append([]string{"run", "-self-test", "5ms", "-warmup", "1ms", "-timeout", "30s"}, args...) // the tests share two busy cores
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
	if err := in.Do(func() error {
		at, err := net.ResolveUDPAddr("udp", address)
		if err == nil {
			conn, err = net.ListenUDP("udp", at)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
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

func (n *network) received() (count uint64) {
	n.must(n.far.Do(func() error {
		l, err := netlink.LinkByName(farIface)
		if err == nil {
			count = l.Attrs().Statistics.RxPackets
		}
		return err
	}))
	return count
}

// startResponder builds and starts the responder in the target's namespace on addresses that its kernel does not have.
func (n *network) startResponder(t *testing.T, driver string, addresses ...string) (pid int) {
	t.Helper()
	var sets []string // those of addresses that are settings
	addresses = slices.DeleteFunc(slices.Clone(addresses), func(a string) bool {
		if strings.Contains(a, "=") {
			sets = append(sets, "-set", a)
			return true
		}
		return false
	})
	quoted := make([]string, len(addresses))
	for i, a := range addresses {
		quoted[i] = fmt.Sprintf("%q", a)
	}
	cores, err := affinity.Choose(-1)
	n.must(err)
	c := exec.Command(programs.Path(t, "responder"), append([]string{"-config", "/dev/null", "-set", "nic.device=" + farIface, "-set", "nic.driver=" + driver,
		"-set", "respond.addresses=[" + strings.Join(quoted, ",") + "]", "-set", "respond.udp_ports=[7]", "-set", "respond.stamp_ports=[862]",
		"-set", fmt.Sprintf("cpu.cores=[%d]", cores.Other())}, sets...)...)
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p := programs.Start(t, c, n.far.Do)
	if !strings.HasPrefix(p.Ready, "ready ") {
		t.Fatalf("the responder says %q: %s", p.Ready, p.Log)
	}
	t.Cleanup(func() { _ = c.Process.Signal(unix.SIGTERM); _ = c.Wait() })
	return c.Process.Pid
}

func deleteLink(name string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkDel(l)
}
