package afxdp_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/drivers/afxdp"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/nictest"
	"github.com/rebound-nic/rebound/proof/nictest/veth"
)

var _ nic.Device = (*afxdp.Device)(nil)

func open(o nic.Options) (nic.Device, error) { return afxdp.Open(o, afxdp.Options{}) }

func generic(o nic.Options) (nic.Device, error) { return afxdp.Open(o, afxdp.Options{Generic: true}) }

func onHost(v *veth.Pair, own afxdp.Options) (d *afxdp.Device, err error) {
	v.Host.Do(func() { d, err = afxdp.Open(nic.Options{Device: v.Host.Name}, own) })
	return d, err
}

func TestAnswers(t *testing.T) { veth.Answers(t, open, nic.Options{}) }
func TestFaults(t *testing.T)  { veth.Faults(t, open) }
func TestLoops(t *testing.T)   { veth.Loops(t, open) }

func TestGeneric(t *testing.T) {
	v := veth.New(t)
	s := v.Serve(t, generic, nic.Options{})
	check.Equal(t, s.Device.Info().Push, "xdp-generic", "hook %s")
	v.Flows(t, s)
}

// TestQueues serves two receive queues, which write to no common cache line, notes one that is not served, and refuses
// one that does not exist.
func TestQueues(t *testing.T) {
	v := veth.NewQueues(t, 2)
	d := must.Get(onHost(v, afxdp.Options{}))(t)
	check.Contains(t, fmt.Sprint(d.Info().Notes), "ethtool -L") // it is one of two queues
	must.Close(t, d)
	check.Fails(t, "queue 2 of two", check.Err(onHost(v, afxdp.Options{Queue: 2})), nil, "no queue 2")
	s := v.Serve(t, open, nic.Options{Queues: 2})
	nictest.Apart(t, s.Device.(*afxdp.Device).Queues())
	v.Flows(t, s)
}

// Variables that select what the test binary does in another process; child names the interface.
const (
	child   = "AFXDP_TEST_CHILD"
	memlock = "AFXDP_TEST_MEMLOCK" // bytes that the child may lock
)

func TestMain(m *testing.M) {
	if name := os.Getenv(child); name != "" {
		if name == "lo" {
			if lo, err := netlink.LinkByName(name); err == nil {
				netlink.LinkSetMTU(lo, 1500)
				netlink.LinkSetUp(lo)
			}
			var n uint64
			if _, err := fmt.Sscan(os.Getenv(memlock), &n); err == nil {
				unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: n, Max: n})
			}
		}
		d, err := afxdp.Open(nic.Options{Device: name}, afxdp.Options{})
		if err != nil {
			println(err.Error())
			os.Exit(1)
		}
		os.Stdout.WriteString("open\n")
		for {
			d.Recv(nil)
		}
	}
	os.Exit(m.Run())
}

// attached returns the identifier of the host's XDP program, 0 if it has none.
func attached(t *testing.T, v *veth.Pair) (id uint32) {
	v.Host.Do(func() {
		l, err := netlink.LinkByName(v.Host.Name)
		if err != nil {
			t.Error(err)
		} else if x := l.Attrs().Xdp; x != nil && x.Attached {
			id = x.ProgId
		}
	})
	return id
}

func TestKill(t *testing.T) {
	v := veth.New(t)
	c := exec.Command("/proc/self/exe")
	c.Env, c.Stderr = []string{child + "=" + v.Host.Name}, os.Stderr
	out, err := c.StdoutPipe()
	must.OK(t, err)
	v.Host.Do(func() { err = c.Start() })
	must.OK(t, err)
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "open\n" {
		t.Fatal(line, err)
	}
	check.Equal(t, attached(t, v) != 0, true, "a program is attached while the process lives: %v")
	c.Process.Kill()
	c.Wait()
	for deadline := time.Now().Add(time.Minute); attached(t, v) != 0 && time.Now().Before(deadline); {
	}
	check.Equal(t, attached(t, v), 0, "program %d is attached after SIGKILL")
}

// TestRights opens a device in a user namespace, which may not load an XDP program, nor lock more memory than its
// limit.
func TestRights(t *testing.T) {
	needs.Root(t, "becoming another user")
	for _, c := range []struct {
		memlock int
		want    string
	}{{8 << 20, "user namespace"}, {1 << 20, "RLIMIT_MEMLOCK"}} {
		x := exec.Command("/proc/self/exe")
		x.Env = []string{child + "=lo", fmt.Sprint(memlock, "=", c.memlock)}
		x.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNET,
			Credential:  &syscall.Credential{NoSetGroups: true},
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 65534, Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 65534, Size: 1}}}
		out, err := x.CombinedOutput()
		t.Logf("%s", out)
		if x.Process == nil {
			t.Skip("no user namespace here: ", err)
		}
		check.Contains(t, string(out), nic.ErrRights.Error(), c.want)
	}
}

// Each capability that is missing is named.
func TestMissingCapability(t *testing.T) {
	v := veth.New(t)
	for name, c := range map[string]int{"CAP_NET_ADMIN": unix.CAP_NET_ADMIN, "CAP_NET_RAW": unix.CAP_NET_RAW,
		"CAP_BPF": unix.CAP_BPF, "CAP_PERFMON": unix.CAP_PERFMON} {
		v.Host.Without(t, c, func() {
			check.Fails(t, "without "+name, check.Err(afxdp.Open(nic.Options{Device: v.Host.Name, Match: v.Config()},
				afxdp.Options{})), nic.ErrRights, name)
		})
	}
}

// TestForeignProgram leaves another process's program in place, and another socket its queue.
func TestForeignProgram(t *testing.T) {
	v := veth.New(t)
	p := must.Get(ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "Apache-2.0",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}}))(t)
	defer p.Close()
	var x link.Link
	var err error
	v.Host.Do(func() {
		var l netlink.Link
		if l, err = netlink.LinkByName(v.Host.Name); err == nil {
			x, err = link.AttachXDP(link.XDPOptions{Program: p, Interface: l.Attrs().Index})
		}
	})
	must.OK(t, err)
	before := attached(t, v)
	check.Fails(t, "open beside another program", check.Err(onHost(v, afxdp.Options{})), nic.ErrBusy)
	check.Equal(t, attached(t, v), before, "program %d is attached")
	must.Close(t, x)
	must.Close(t, must.Get(onHost(v, afxdp.Options{}))(t))
	check.Equal(t, attached(t, v), 0, "program %d is attached after Close")
}

// TestHiddenTag sends a VLAN tag outside of the frame, where veth keeps it, as a card with rx-vlan-offload does.
func TestHiddenTag(t *testing.T) {
	t.Run("driver", func(t *testing.T) { hiddenTag(t, open, "xdp-drv") })
	t.Run("generic", func(t *testing.T) { hiddenTag(t, generic, "xdp-generic") })
}

func hiddenTag(t *testing.T, open veth.Open, hook string) {
	v := veth.New(t)
	v.HideTags(t)
	s := v.Serve(t, open, nic.Options{})
	if got := s.Device.Info().Push; !strings.HasPrefix(got, hook) {
		t.Errorf("the program is at %q", got)
	}
	raw := v.Peer.Raw(t)
	sent := v.Echo(veth.Our4.Addr(), 7)
	raw.Send(sent)
	got := raw.Recv(func(f []byte) bool { return len(f) > 60 && string(f[:6]) == string(v.Peer.MAC) })
	told := strings.Contains(strings.Join(s.Device.Info().Notes, " "), "replies to tagged frames are untagged")
	tagged := len(got) == len(sent)+4 && string(got[12:16]) == "\x81\x00\x60\x07"
	t.Logf("% x; notes %q", got[:18], s.Device.Info().Notes)
	if tagged == told {
		t.Errorf("reply to a frame with a hidden tag: tagged %v, although the notes are %q", tagged,
			s.Device.Info().Notes)
	}
}

func TestHotLoop(t *testing.T) {
	nictest.StackAccesses(t, "github.com/rebound-nic/rebound/nic/drivers/afxdp", "(*Queue).Poll", 33)
	nictest.HotLoop(t, "github.com/rebound-nic/rebound/nic/drivers/afxdp", "(*Queue).Poll",
		"afxdp.(*Queue).idle", "afxdp.(*Queue).reclaim", "afxdp.(*Queue).kick", "afxdp.(*Queue).post", "mmio.Store32",
		"runtime.panicunsafeslicelen", "runtime.panicunsafeslicenilptr")
	nictest.HotLoop(t, "github.com/rebound-nic/rebound/nic/drivers/afxdp", "(*Queue).post", "mmio.Store32",
		"afxdp.(*Queue).kick")
	nictest.HotLoop(t, "github.com/rebound-nic/rebound/nic/drivers/afxdp", "(*Queue).reclaim", "mmio.Store32",
		"runtime.panicBounds") // of Send's chunks
}
