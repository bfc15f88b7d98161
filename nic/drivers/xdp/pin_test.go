package xdp_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/drivers/xdp"
	"github.com/rebound-nic/rebound/nic/kit/netif"
	"github.com/rebound-nic/rebound/nic/kit/xdpkit"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/nictest"
	"github.com/rebound-nic/rebound/proof/nictest/veth"
)

func TestMain(m *testing.M) {
	if os.Getenv(victim) != "" {
		beVictim()
	}
	os.Exit(nictest.WithBPFFS(m.Run))
}

// bpfFiles fails the test if it leaves programs, maps or links of the kernel's open.
func bpfFiles(t *testing.T) {
	t.Helper()
	runtime.GC()
	percent := debug.SetGCPercent(-1) // it would close what Close forgot
	count := func() (n int) {
		for _, f := range must.Get(os.ReadDir("/proc/self/fd"))(t) {
			if to, _ := os.Readlink("/proc/self/fd/" + f.Name()); strings.HasPrefix(to, "anon_inode:bpf") {
				n++
			}
		}
		return n
	}
	before := count()
	t.Cleanup(func() {
		if n := count(); n > before {
			t.Errorf("%d programs, maps and links are open, before there were %d", n, before)
		}
		debug.SetGCPercent(percent)
	})
}

func answered(t *testing.T, pin string) uint64 {
	t.Helper()
	p := must.Get(xdp.OpenPinned(pin))(t)
	defer p.Close()
	s := p.Verdicts()
	return s[fastpath.AnsweredICMPv4] + s[fastpath.AnsweredICMPv6] + s[fastpath.AnsweredUDPv4]
}

func unpin(t *testing.T, e *veth.End, name string) {
	t.Helper()
	e.Do(func() {
		check.OK(t, xdp.Unpin(name))
	})
}

// The program continues to answer when its device is closed; a device that joins continues its counts with new rules;
// Unpin ends it.
func TestPin(t *testing.T) {
	nictest.NeedBPFFS(t)
	for name, own := range map[string]xdp.Options{"driver": {Pin: "p"}, "generic": {Pin: "p", Generic: true}} {
		t.Run(name, func(t *testing.T) {
			bpfFiles(t)
			v := pair(t)
			d := open(t, &v.Host, v.Config(), own)
			v.Ping(t, veth.Our4.Addr())
			v.Ping(t, veth.Our6.Addr())
			must.Close(t, d)
			v.Ping(t, veth.Our4.Addr())
			v.Ping(t, veth.Our6.Addr())
			check.Equal(t, answered(t, "p"), 200, "%d answered")
			groups := func() string {
				b, _ := os.ReadFile("/proc/thread-self/net/dev_mcast")
				return string(b)
			}
			v.Host.Do(func() {
				check.Contains(t, groups(), "3333ff000010") // the solicited-node group
			})
			before := program(t, v)
			c := v.Config()
			c.UDPPorts = []uint16{veth.EchoPort, 4000}
			d = open(t, &v.Host, c, own)
			if now := program(t, v); now == before || now == 0 {
				t.Errorf("program %d is still there", now)
			}
			check.Contains(t, strings.Join(d.Info().Notes, "; "), `joined pin "p"`)
			check.OK(t, d.Err())
			if s := d.Verdicts(); s[fastpath.AnsweredICMPv4]+s[fastpath.AnsweredICMPv6] != 200 {
				t.Errorf("the counts restart: %v", s)
			}
			v.UDP(t, veth.Our4.Addr())
			p := must.Get(xdp.OpenPinned("p"))(t)
			if a := p.About; !p.Attached || a.Device != v.Host.Name || a.Hook != d.Info().Push ||
				!slices.Equal(a.UDPPorts, c.UDPPorts) || a.PID != os.Getpid() ||
				a.Mode != "strict" || len(a.Addresses) != 2 || a.MAC != v.Host.MAC.String() ||
				a.Since.After(a.Updated) {
				t.Errorf("%+v", p)
			}
			p.Close()
			must.Close(t, d)
			unpin(t, &v.Host, "p")
			check.Equal(t, program(t, v), 0, "program %d is attached after Unpin")
			v.Host.Do(func() {
				check.Equal(t, strings.Contains(groups(), "3333ff000010"), false,
					"the solicited-node group is still let in: %v")
			})
			if left, err := os.ReadDir(xdpkit.PinRoot); len(left) != 0 || err != nil {
				t.Errorf("%v is left, %v", left, err)
			}
		})
	}
}

// program is the identifier of the host's XDP program, 0 if it has none.
func program(t *testing.T, v *veth.Pair) (id uint32) {
	t.Helper()
	v.Host.Do(func() {
		i, err := netif.Lookup(v.Host.Name)
		if err != nil {
			t.Error(err)
			return
		}
		id = i.XDP
		i.Close()
	})
	return id
}

const victim = "REBOUND_XDP_VICTIM" // the interface, and a pin

// held is the victim's device. Without a reference, the next garbage collection would close its program.
var held *xdp.Device

func beVictim() {
	name, pin, _ := strings.Cut(os.Getenv(victim), " ")
	var err error
	held, err = xdp.Open(nic.Options{Device: name, Match: &fastpath.Config{Addresses: []netip.Prefix{veth.Our4}}},
		xdp.Options{Pin: pin})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	runtime.GC() // closes what nothing refers to
	fmt.Println("open")
	select {}
}

func startVictim(t *testing.T, v *veth.Pair, pin string) *exec.Cmd {
	t.Helper()
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), victim+"="+strings.TrimSpace(v.Host.Name+" "+pin))
	out, err := c.StdoutPipe()
	must.OK(t, err)
	v.Host.Do(func() { err = c.Start() })
	must.OK(t, err)
	t.Cleanup(func() {
		c.Process.Kill()
		c.Wait()
	})
	line := make([]byte, 400)
	if n, err := out.Read(line); err != nil || string(line[:4]) != "open" {
		t.Fatalf("the victim says %q, %v", line[:n], err)
	}
	return c
}

func TestKilled(t *testing.T) {
	v := pair(t)
	c := startVictim(t, v, "")
	check.Equal(t, program(t, v) != 0, true, "a program is attached: %v")
	c.Process.Signal(syscall.SIGKILL)
	c.Wait()
	await.Until(t, "the end of the program", func() bool { return program(t, v) == 0 })
}

// With a pin, answering continues after SIGKILL, and while processes join one after the other, without lost or
// duplicate replies.
func TestKilledPinned(t *testing.T) {
	nictest.NeedBPFFS(t)
	v := pair(t)
	c := startVictim(t, v, "killed")
	defer unpin(t, &v.Host, "killed")
	v.Ping(t, veth.Our4.Addr())
	c.Process.Signal(syscall.SIGKILL)
	c.Wait()
	v.Ping(t, veth.Our4.Addr())
	done := make(chan bool)
	go func() {
		defer close(done)
		for range 4 {
			open(t, &v.Host, v.Config(), xdp.Options{Pin: "killed"}).Close()
		}
	}()
	n := 0
	for taking := true; taking; n++ {
		select {
		case <-done:
			taking = false
		default:
		}
		v.Ping(t, veth.Our4.Addr())
	}
	check.Equal(t, answered(t, "killed"), uint64(100+50*n), "%d answered")
}

// If an interface is removed, so is the program; the counts are kept for a new interface of the same name.
func TestPinGone(t *testing.T) {
	nictest.NeedBPFFS(t)
	bpfFiles(t)
	v := pair(t)
	open(t, &v.Host, v.Config(), xdp.Options{Pin: "gone"}).Close()
	v.Ping(t, veth.Our4.Addr())
	v.Host.Do(func() {
		l, err := netlink.LinkByName(v.Host.Name)
		if err == nil {
			err = netlink.LinkDel(l)
		}
		check.OK(t, err)
	})
	await.Until(t, "the end of the program", func() bool {
		p := must.Get(xdp.OpenPinned("gone"))(t)
		defer p.Close()
		return !p.Attached
	})
	v.Host.Do(func() {
		l := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: v.Host.Name, MTU: 1500, TxQLen: 1000, NumTxQueues: 1,
			NumRxQueues: 1}, PeerName: "other"}
		check.OK(t, netlink.LinkAdd(l))
		check.OK(t, netlink.LinkSetUp(l))
	})
	d := open(t, &v.Host, v.Config(), xdp.Options{Pin: "gone"})
	check.Equal(t, d.Verdicts()[fastpath.AnsweredICMPv4], 50, "%d answered before")
	d.Close()
	p := must.Get(xdp.OpenPinned("gone"))(t)
	check.Equal(t, p.Attached, true, "attached: %v")
	p.Close()
	unpin(t, &v.Host, "gone")
}

// The interface accepts frames for a pin's groups and MAC until a responder without them joins it, or it is removed.
func TestPinStations(t *testing.T) {
	nictest.NeedBPFFS(t)
	bpfFiles(t)
	v := pair(t)
	own := xdp.Options{Pin: "stations"}
	mac := [6]byte{2, 7, 7, 7, 7, 7}
	accepts := func(when string, station, group bool) {
		t.Helper()
		v.Host.Do(func() {
			l, err := netlink.LinkByName(v.Host.Name)
			check.OK(t, err)
			list, err := netlink.NeighList(l.Attrs().Index, unix.AF_BRIDGE)
			check.OK(t, err)
			has := slices.ContainsFunc(list, func(n netlink.Neigh) bool {
				return string(n.HardwareAddr) == string(mac[:])
			})
			check.Equal(t, has, station, when+": frames for the MAC are accepted: %v")
			b, _ := os.ReadFile("/proc/thread-self/net/dev_mcast")
			check.Equal(t, strings.Contains(string(b), "3333ff000010"), group,
				when+": frames for the group are accepted: %v")
			check.Equal(t, strings.Contains(string(b), "020707070707"), false, when+": the MAC is a group: %v")
		})
	}
	join := func(mac [6]byte, c *fastpath.Config) {
		t.Helper()
		v.Host.Do(func() {
			d, err := xdp.Open(nic.Options{Device: v.Host.Name, Match: c, MAC: mac}, own)
			if check.OK(t, err); err == nil {
				must.Close(t, d)
			}
		})
	}
	accepts("before", false, false)
	for range 2 {
		join(mac, v.Config())
		accepts("pinned", true, true)
	}
	c := v.Config()
	c.Addresses, c.Mode = []netip.Prefix{veth.Our4}, fastpath.Open
	join([6]byte{}, c)
	accepts("joined without them", false, false)
	p := must.Get(xdp.OpenPinned("stations"))(t)
	check.Equal(t, fmt.Sprint(p.About.Mode, p.About.Groups, p.About.T2), "open[]program", "the pin is %s")
	p.Close()
	join(mac, v.Config())
	unpin(t, &v.Host, "stations")
	accepts("unpinned", false, false)
}

// The error for a pin that cannot be joined says what can be done, and the pin is unchanged.
func TestPinRefuses(t *testing.T) {
	nictest.NeedBPFFS(t)
	bpfFiles(t)
	v, w := pair(t), pair(t)
	try := func(what string, e *veth.End, own xdp.Options, kind error, says ...string) {
		t.Helper()
		e.Do(func() {
			check.Fails(t, what, check.Err(xdp.Open(nic.Options{Device: e.Name, Match: v.Config()}, own)), kind,
				says...)
		})
	}
	open(t, &v.Host, v.Config(), xdp.Options{Pin: "a"}).Close()
	try("a name with a dot", &v.Host, xdp.Options{Pin: "a.b"}, nil, "cannot name a pin")
	try("without the pin", &v.Host, xdp.Options{}, nic.ErrBusy, `pinned it as "a"`, "responder unpin a")
	try("another pin", &v.Host, xdp.Options{Pin: "b"}, nic.ErrBusy, `pinned it as "a"`)
	try("another namespace", &w.Host, xdp.Options{Pin: "a"}, nil, "another network namespace", "responder unpin a")
	try("another interface", &v.Peer, xdp.Options{Pin: "a"}, nil, "another network namespace")
	try("another hook", &v.Host, xdp.Options{Pin: "a", Generic: true}, nil, "driver's hook")

	notes := must.Get(ebpf.LoadPinnedMap(xdpkit.PinRoot+"/a/about", nil))(t)
	defer notes.Close()
	was := make([]byte, notes.ValueSize())
	must.OK(t, notes.Lookup(uint32(0), &was))
	write := func(text []byte) {
		must.OK(t, notes.Put(uint32(0), append(text, make([]byte, len(was)-len(text))...)))
	}
	var a xdp.About
	must.OK(t, json.Unmarshal([]byte(strings.TrimRight(string(was), "\x00")), &a))
	about := func(change func(a *xdp.About)) {
		a := a
		change(&a)
		write(must.Get(json.Marshal(a))(t))
	}
	about(func(a *xdp.About) { a.Device = "other0" })
	try("of another name", &v.Host, xdp.Options{Pin: "a"}, nil, "is on interface other0, not "+v.Host.Name)
	about(func(a *xdp.About) { a.Ifindex++ })
	try("of another number", &v.Host, xdp.Options{Pin: "a"}, nil, "another interface that had the name "+v.Host.Name)
	write([]byte("{"))
	try("no JSON", &v.Host, xdp.Options{Pin: "a"}, xdp.ErrForeign, "about: unexpected end")
	about(func(a *xdp.About) { a.Layout = "0123456789abcdef" })
	try("another version", &v.Host, xdp.Options{Pin: "a"}, xdp.ErrForeign, "laid out as 0123456789abcdef",
		"responder unpin a")
	check.Fails(t, "another version is looked at", check.Err(xdp.OpenPinned("a")), xdp.ErrForeign)
	v.Ping(t, veth.Our4.Addr()) // it still answers
	unpin(t, &v.Host, "a")
	check.Equal(t, program(t, v), 0, "program %d stays, although another version's pin is ended")

	folder := xdpkit.PinRoot + "/b"
	must.OK(t, os.Mkdir(folder, 0o700))
	m := must.Get(ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1}))(t)
	defer m.Close()
	must.OK(t, m.Pin(folder+"/theirs"))
	try("somebody else's", &v.Host, xdp.Options{Pin: "b"}, xdp.ErrForeign)
	check.Fails(t, "somebody else's is unpinned", xdp.Unpin("b"), xdp.ErrForeign)
	must.OK(t, errors.Join(os.Remove(folder+"/theirs"), m.Pin(folder+"/about")))
	try("an about of another size", &v.Host, xdp.Options{Pin: "b"}, xdp.ErrForeign, "4 bytes")
	must.OK(t, os.Remove(folder+"/about"))
	open(t, &v.Host, v.Config(), xdp.Options{Pin: "b"}).Close() // an incomplete pin is no obstacle
	unpin(t, &v.Host, "b")
	check.Fails(t, "what is not there is unpinned", xdp.Unpin("b"), xdp.ErrNoPin)

	must.OK(t, unix.Unmount("/sys/fs/bpf", 0))
	try("no bpffs", &v.Host, xdp.Options{Pin: "c"}, nil, "mount -t bpf")
	if names, err := xdp.Pins(); names != nil || err != nil {
		t.Errorf("%v, %v", names, err)
	}
	must.OK(t, unix.Mount("bpf", "/sys/fs/bpf", "bpf", 0, ""))
}
