package xdp_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"rebound/fastpath"
	"rebound/nic"
	"rebound/nic/kit/netif"
	"rebound/nic/nictest/veth"
	"rebound/nic/xdp"
)

var _ nic.Port = (*xdp.Device)(nil)

// pair is a veth pair whose peer takes what an XDP program sends: it has a program too. (GRO at the peer, which is said to
// do, does not on Linux 6.18: nothing wakes its receive path.)
func pair(t *testing.T) *veth.Pair {
	t.Helper()
	v := veth.New(t)
	v.Peer.Do(func() {
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "Apache-2.0", Instructions: asm.Instructions{
			asm.Mov.Imm(asm.R0, 2), asm.Return(), // XDP_PASS
		}})
		if err != nil {
			t.Error(err)
			return
		}
		defer p.Close()
		i, err := net.InterfaceByName(v.Peer.Name)
		if err != nil {
			t.Error(err)
			return
		}
		l, err := link.AttachXDP(link.XDPOptions{Program: p, Interface: i.Index, Flags: link.XDPDriverMode})
		if err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(func() { l.Close() })
	})
	return v
}

func open(t *testing.T, e *veth.End, c *fastpath.Config, own xdp.Options) (d *xdp.Device) {
	t.Helper()
	var err error
	e.Do(func() { d, err = xdp.Open(nic.Options{Device: e.Name, Match: c}, own) })
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// serve is open until the test ends.
func serve(t *testing.T, e *veth.End, c *fastpath.Config, own xdp.Options) *xdp.Device {
	t.Helper()
	d := open(t, e, c, own)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func TestAnswers(t *testing.T) {
	for name, own := range map[string]xdp.Options{"xdp-drv": {}, "xdp-generic": {Generic: true}} {
		t.Run(name, func(t *testing.T) {
			v := pair(t)
			d := serve(t, &v.Host, v.Config(), own)
			if i := d.Info(); i.Push != name || i.Driver != "xdp" || i.Model != "veth" || i.MAC != v.Host.MAC.String() || !i.PartialChecksums {
				t.Errorf("info %+v", i)
			}
			if l, err := d.Link(); err != nil || !l.Up {
				t.Errorf("link %+v, %v", l, err)
			}
			for _, a := range []netip.Addr{veth.Our4.Addr(), veth.Our6.Addr()} {
				v.Ping(t, a)
				v.Ping(t, a, "-s", "1452")
				v.UDP(t, a)
			}
			v.Tagged(t)
			answered := d.Verdicts()
			v.TCP(t) // the kernel's own addresses are the kernel's
			v.Ping(t, v.Host.IPv4.Addr())
			v.Ping(t, v.Host.IPv6.Addr())
			s := d.Verdicts()
			if s[fastpath.AnsweredICMPv4] < 100 || s[fastpath.AnsweredICMPv6] < 100 || s[fastpath.AnsweredUDPv4] < 100 || s[fastpath.AnsweredUDPv6] < 100 ||
				s[fastpath.AnsweredARP] == 0 || s[fastpath.AnsweredND] == 0 {
				t.Errorf("counted %v", s)
			}
			if s[fastpath.AnsweredICMPv4] != answered[fastpath.AnsweredICMPv4] || s[fastpath.RefusedAddress] == 0 {
				t.Errorf("answered for the kernel: %v, then %v", answered, s)
			}
			counts, _ := d.Turnaround()
			sum := uint64(0)
			for _, n := range counts {
				sum += n
			}
			var st nic.Stats
			if err := d.ReadStats(&st); err != nil || st.TxFrames < s.Answered() || sum != st.TxFrames || st.RxBytes < st.TxBytes {
				t.Errorf("%d recorded, stats %+v, %v", sum, st, err)
			}
		})
	}
}

// Two of them, and one with a service that renews the TTL, end as on every driver.
func TestLoops(t *testing.T) {
	v := veth.New(t)
	us, they := v.Config(), v.Config()
	us.UDPPorts = []uint16{7001}
	they.UDPPorts, they.Addresses = []uint16{7000}, []netip.Prefix{netip.MustParsePrefix("192.0.2.20/24")}
	a, b := serve(t, &v.Host, us, xdp.Options{}), serve(t, &v.Peer, they, xdp.Options{})
	v.Peer.Raw(t).Send(v.Datagram(they.Addresses[0].Addr(), 7000, veth.Our4.Addr(), 7001))
	count := func(verdict fastpath.Verdict) uint64 { return a.Verdicts()[verdict] + b.Verdicts()[verdict] }
	wait(t, func() bool { return count(fastpath.RefusedHopLimit) == 1 })
	if n := count(fastpath.AnsweredUDPv4); n != 63 {
		t.Errorf("%d replies to a datagram with TTL 64, want 63", n)
	}
}

func wait(t *testing.T, done func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("nothing for a minute")
		}
	}
}

// After Close the interface is as it was: another program can be attached, and nothing is answered.
func TestClose(t *testing.T) {
	v := pair(t)
	for range 3 {
		d := open(t, &v.Host, v.Config(), xdp.Options{})
		v.Host.Do(func() {
			if _, err := xdp.Open(nic.Options{Device: v.Host.Name, Match: v.Config()}, xdp.Options{}); !errors.Is(err, nic.ErrBusy) || !strings.Contains(err.Error(), "XDP program") {
				t.Errorf("a second one: %v", err)
			}
		})
		v.Ping(t, veth.Our4.Addr())
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A process that is killed leaves no program behind.
func TestKilled(t *testing.T) {
	if name := os.Getenv("REBOUND_XDP_VICTIM"); name != "" {
		v := netip.MustParsePrefix("192.0.2.10/24")
		if _, err := xdp.Open(nic.Options{Device: name, Match: &fastpath.Config{Addresses: []netip.Prefix{v}}}, xdp.Options{}); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("open")
		time.Sleep(time.Hour)
	}
	v := pair(t)
	v.Host.Do(func() {
		c := exec.Command(os.Args[0], "-test.run", "^TestKilled$")
		c.Env = append(os.Environ(), "REBOUND_XDP_VICTIM="+v.Host.Name)
		out, err := c.StdoutPipe()
		if err != nil {
			t.Error(err)
			return
		}
		if err := c.Start(); err != nil {
			t.Error(err)
			return
		}
		line := make([]byte, 5)
		if _, err := out.Read(line); err != nil || string(line[:4]) != "open" {
			t.Errorf("the victim says %q, %v", line, err)
		}
		program := func() uint32 {
			i, err := netif.Lookup(v.Host.Name)
			if err != nil {
				t.Error(err)
				return 0
			}
			defer i.Close()
			return i.XDP
		}
		if program() == 0 {
			t.Error("no program is attached")
		}
		c.Process.Signal(syscall.SIGKILL)
		c.Wait()
		wait(t, func() bool { return program() == 0 })
	})
}

func TestOpenRefuses(t *testing.T) {
	v := pair(t)
	v.Host.Do(func() {
		for want, o := range map[string]nic.Options{
			"Match is not set": {Device: v.Host.Name},
			"no such":          {Device: "nosuch0", Match: v.Config()},
			"no address":       {Device: v.Host.Name, Match: &fastpath.Config{}},
			"STAMPBase":        {Device: v.Host.Name, Match: &fastpath.Config{STAMPBase: true, Addresses: []netip.Prefix{veth.Our4}}},
		} {
			_, err := xdp.Open(o, xdp.Options{})
			if err == nil || want != "no such" && !strings.Contains(err.Error(), want) || want == "no such" && !errors.Is(err, nic.ErrNoDevice) {
				t.Errorf("%s: %v", want, err)
			}
		}
	})
}
