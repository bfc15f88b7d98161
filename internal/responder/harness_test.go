package responder

import (
	"net"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/nictest"
	"github.com/rebound-nic/rebound/proof/numbers"
	"github.com/rebound-nic/rebound/proof/programs"
)

// socketDrivers are the drivers that a test can use on any machine.
var socketDrivers = []string{"afpacket", "afxdp"}

func TestMain(m *testing.M) { os.Exit(nictest.WithBPFFS(m.Run)) }

func program(t testing.TB) string {
	t.Helper()
	return programs.Path(t, "responder")
}

func needRoot(t testing.TB) {
	t.Helper()
	needs.Root(t, "network namespaces")
}

// lastOfTwoCPUs returns the last of this machine's CPUs, of which there must be two.
func lastOfTwoCPUs(t testing.TB) string {
	t.Helper()
	online := must.Get(onlineCPUs())(t)
	if len(online) < 2 {
		t.Skip("needs two CPUs")
	}
	return strconv.Itoa(online[len(online)-1])
}

// space is an unnamed network namespace: it disappears with the test, however that ends.
type space struct{ handle netns.NsHandle }

func newSpace(t testing.TB) *space {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home := must.Get(netns.Get())(t)
	defer home.Close()
	h := must.Get(netns.New())(t)
	must.OK(t, netns.Set(home))
	t.Cleanup(func() { h.Close() })
	return &space{h}
}

// do runs f in the namespace. A process that f starts, and a socket that it opens, stay there. Without a namespace it
// only runs f.
func (s *space) do(t testing.TB, f func()) {
	t.Helper()
	if s == nil {
		f()
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home := must.Get(netns.Get())(t)
	defer home.Close()
	must.OK(t, netns.Set(s.handle))
	defer func() {
		if err := netns.Set(home); err != nil {
			panic(err)
		}
	}()
	f()
}

// try returns a function that runs its argument in the namespace, and returns its error.
func (s *space) try(t testing.TB) func(f func() error) error {
	return func(f func() error) (err error) {
		s.do(t, func() { err = f() })
		return err
	}
}

// in returns what f returns in a namespace.
func in[V any](t testing.TB, s *space, f func() (V, error)) (v V) {
	t.Helper()
	var err error
	s.do(t, func() { v, err = f() })
	must.OK(t, err)
	return v
}

// wire is a veth pair: "port" in the responder's namespace, "peer" in the other, where the kernel has addresses.
type wire struct{ here, there *space }

const (
	port, peer = "port", "peer"
	ours4      = "10.77.0.2"
	ours6      = "fd77::2"
	kernels4   = "10.77.0.3" // of the responder's host
)

func newWire(t testing.TB) *wire {
	t.Helper()
	return newWireOf(t, 1)
}

// newWireOf returns a wire whose interfaces have this number of receive queues.
func newWireOf(t testing.TB, queues int) *wire {
	t.Helper()
	needRoot(t)
	w := &wire{newSpace(t), newSpace(t)}
	address := func(l netlink.Link, cidr string) {
		t.Helper()
		a := must.Get(netlink.ParseAddr(cidr))(t)
		a.Flags = unix.IFA_F_NODAD
		must.OK(t, netlink.AddrAdd(l, a))
	}
	up := func(name string) netlink.Link {
		t.Helper()
		l := must.Get(netlink.LinkByName(name))(t)
		must.OK(t, netlink.LinkSetUp(l))
		return l
	}
	w.here.do(t, func() {
		v := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: peer,
			PeerNamespace: netlink.NsFd(w.there.handle)}
		v.Name, v.NumRxQueues, v.NumTxQueues = port, queues, queues
		must.OK(t, netlink.LinkAdd(v))
		up("lo")
		address(up(port), kernels4+"/24")
	})
	w.there.do(t, func() {
		up("lo")
		l := up(peer)
		address(l, "10.77.0.1/24")
		address(l, "fd77::1/64")
	})
	await.Until(t, "the kernel has noticed the carrier", func() (up bool) { // until then it drops what is sent
		w.here.do(t, func() { up = must.Get(netlink.LinkByName(port))(t).Attrs().OperState == netlink.OperUp })
		return up
	})
	return w
}

// xdp returns the identifier of the XDP program that is attached to the responder's port, 0 if there is none.
func (w *wire) xdp(t *testing.T) (id uint32) {
	t.Helper()
	w.here.do(t, func() {
		l, err := netlink.LinkByName(port)
		if err != nil {
			return // the port is gone, with everything that was attached to it
		}
		if x := l.Attrs().Xdp; x != nil && x.Attached {
			id = x.ProgId
		}
	})
	return id
}

// child is a running responder.
type child struct{ *programs.Running }

// command is a responder that has not been started.
func (w *wire) command(t testing.TB, sets ...string) (cmd *exec.Cmd) {
	t.Helper()
	base := []string{"nic.device=" + port, "respond.addresses=[" + ours4 + "/24, " + ours6 + "/64]",
		"respond.stamp_ports=862"}
	return exec.Command(program(t), append(set(append(base, sets...)...), "-v")...)
}

// set returns the arguments that set keys.
func set(sets ...string) (args []string) {
	for _, s := range sets {
		args = append(args, "-set", s)
	}
	return slices.Clip(args) // which several callers append to
}

// outcome runs a program in the namespace until it ends.
func (s *space) outcome(t testing.TB, c *exec.Cmd) (stdout, stderr string, code int) {
	t.Helper()
	var out, err strings.Builder
	c.Stdout, c.Stderr = &out, &err
	must.OK(t, s.try(t)(c.Start))
	timer := time.AfterFunc(2*time.Minute, func() { c.Process.Kill() }) // a responder that should have refused to start
	defer timer.Stop()
	c.Wait()
	return out.String(), err.String(), c.ProcessState.ExitCode()
}

func (w *wire) responder(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return w.here.outcome(t, exec.Command(program(t), args...))
}

func (w *wire) start(t testing.TB, env []string, sets ...string) *child {
	t.Helper()
	c := w.command(t, sets...)
	c.Env = append(os.Environ(), env...)
	return &child{programs.Start(t, c, w.here.try(t))}
}

func (p *child) summary(t testing.TB) string {
	t.Helper()
	var b strings.Builder
	for {
		line, err := p.Lines.ReadString('\n')
		b.WriteString(line)
		if err != nil {
			t.Fatalf("no summary: %v\n%s%s", err, b.String(), p.Log)
		}
		if last := map[bool]string{false: "gap ", true: "turnaround "}[strings.Contains(b.String(),
			" xdp on ")]; strings.HasPrefix(line, last) {
			return b.String()
		}
	}
}

// logs waits until the log contains text, because the log is on another pipe than the ready line.
func (p *child) logs(text string) bool {
	return await.Holds(func() bool { return strings.Contains(p.Log.String(), text) })
}

// counted requests summaries until one has as much of everything as is wanted, and returns that, or the last one of a
// minute: ping waits for the last replies no longer than for the ones before, so that its last requests may still be
// on their way when it ends.
func (p *child) counted(t *testing.T, want map[string]int) string {
	t.Helper()
	var s string
	await.Holds(func() bool {
		must.OK(t, p.Process.Signal(unix.SIGUSR1))
		s = p.summary(t)
		for name, n := range want {
			if count(t, s, name) < n {
				return false
			}
		}
		return true
	})
	return s
}

func count(t *testing.T, summary, name string) int {
	t.Helper()
	m := regexp.MustCompile(`(?m)^ *` + name + ` +([\d,]+)`).FindStringSubmatch(summary)
	if m == nil {
		return 0
	}
	return must.Get(strconv.Atoi(strings.ReplaceAll(m[1], ",", "")))(t)
}

// stop ends the responder with a signal.
func (p *child) stop(t testing.TB, s syscall.Signal) (summary string) {
	t.Helper()
	must.OK(t, p.Process.Signal(s))
	return p.end(t, exitDone)
}

// end waits for the end, and fails unless the responder exits with this code.
func (p *child) end(t testing.TB, want int) (summary string) {
	t.Helper()
	summary = p.summary(t)
	for _, f := range numbers.Others(summary, nil) {
		t.Error(f)
	}
	p.Wait()
	if code := p.ProcessState.ExitCode(); code != want {
		t.Errorf("exit %d, want %d\n%s%s", code, want, summary, p.Log)
	}
	return summary
}

func (w *wire) run(t *testing.T, name string, args ...string) (out string) {
	t.Helper()
	needs.Programs(t, name)
	w.there.do(t, func() {
		b, err := exec.Command(name, args...).CombinedOutput()
		if out = string(b); err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
	})
	return out
}

func (w *wire) dial(t *testing.T, to string) *net.UDPConn {
	t.Helper()
	c := in(t, w.there, func() (net.Conn, error) { return net.Dial("udp", to) })
	t.Cleanup(func() { c.Close() })
	return c.(*net.UDPConn)
}
