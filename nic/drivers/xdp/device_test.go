package xdp_test

import (
	"net"
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/drivers/xdp"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/corpus"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/nictest/veth"
)

var _ nic.Port = (*xdp.Device)(nil)

// pair is a veth pair whose peer receives frames sent by an XDP program, because it has a program too. (GRO at the
// peer, which is supposed to suffice, does not on Linux 6.18: nothing wakes its receive path.)
func pair(t *testing.T) *veth.Pair {
	t.Helper()
	v := veth.New(t)
	passAll(t, v)
	return v
}

func passAll(t *testing.T, v *veth.Pair) {
	t.Helper()
	p := must.Get(ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, Flags: unix.BPF_F_XDP_HAS_FRAGS,
		License:      "Apache-2.0",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}}))(t) // XDP_PASS
	defer p.Close()
	var l link.Link
	var err error
	v.Peer.Do(func() {
		var i *net.Interface
		if i, err = net.InterfaceByName(v.Peer.Name); err == nil {
			l, err = link.AttachXDP(link.XDPOptions{Program: p, Interface: i.Index, Flags: link.XDPDriverMode})
		}
	})
	must.OK(t, err)
	t.Cleanup(func() { l.Close() })
}

func open(t *testing.T, e *veth.End, c *fastpath.Config, own xdp.Options) (d *xdp.Device) {
	t.Helper()
	var err error
	e.Do(func() { d, err = xdp.Open(nic.Options{Device: e.Name, Match: c}, own) })
	must.OK(t, err)
	return d
}

func serve(t *testing.T, e *veth.End, c *fastpath.Config, own xdp.Options) *xdp.Device {
	t.Helper()
	d := open(t, e, c, own)
	t.Cleanup(func() { must.Close(t, d) })
	return d
}

// Each missing capability is named.
func TestMissingCapability(t *testing.T) {
	v := pair(t)
	for name, c := range map[string]int{"CAP_NET_ADMIN": unix.CAP_NET_ADMIN, "CAP_NET_RAW": unix.CAP_NET_RAW,
		"CAP_BPF": unix.CAP_BPF, "CAP_PERFMON": unix.CAP_PERFMON} {
		v.Host.Without(t, c, func() {
			check.Fails(t, "without "+name, check.Err(xdp.Open(nic.Options{Device: v.Host.Name, Match: v.Config()},
				xdp.Options{})), nic.ErrRights, name)
		})
	}
	serve(t, &v.Host, v.Config(), xdp.Options{})
}

func TestAnswers(t *testing.T) {
	for name, own := range map[string]xdp.Options{"xdp-drv": {}, "xdp-generic": {Generic: true}} {
		t.Run(name, func(t *testing.T) {
			v := pair(t)
			d := serve(t, &v.Host, v.Config(), own)
			if i := d.Info(); i.Push != name || i.Driver != "xdp" || i.Model != "veth" ||
				i.MAC != v.Host.MAC.String() || !i.PartialChecksums {
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
			v.TCP(t) // the kernel's own addresses still reach the kernel
			v.Ping(t, v.Host.IPv4.Addr())
			v.Ping(t, v.Host.IPv6.Addr())
			s := d.Verdicts()
			if s[fastpath.AnsweredICMPv4] < 100 || s[fastpath.AnsweredICMPv6] < 100 ||
				s[fastpath.AnsweredUDPv4] < 100 || s[fastpath.AnsweredUDPv6] < 100 ||
				s[fastpath.AnsweredARP] == 0 || s[fastpath.AnsweredND] == 0 {
				t.Errorf("counted %v", s)
			}
			if s[fastpath.AnsweredICMPv4] != answered[fastpath.AnsweredICMPv4] || s[fastpath.RefusedAddress] == 0 {
				t.Errorf("answered for the kernel: %v, then %v", answered, s)
			}
			counts := d.Turnaround().Counts
			sum := uint64(0)
			for _, n := range counts {
				sum += n
			}
			var st nic.Stats
			if err := d.ReadStats(&st); err != nil || st.TxFrames < s.Answered() || sum == 0 || sum > st.TxFrames ||
				st.RxBytes < st.TxBytes {
				t.Errorf("%d recorded, stats %+v, %v", sum, st, err)
			}
		})
	}
}

// Jumbo frames, which veth delivers in several buffers, are answered in both modes, and their checksums are verified
// completely.
func TestJumbo(t *testing.T) {
	for name, own := range map[string]xdp.Options{"xdp-drv": {}, "xdp-generic": {Generic: true}} {
		t.Run(name, func(t *testing.T) {
			v := veth.New(t)
			for _, e := range []*veth.End{&v.Host, &v.Peer} {
				e.Do(func() {
					l, err := netlink.LinkByName(e.Name)
					if err == nil {
						err = netlink.LinkSetMTU(l, 9000)
					}
					check.OK(t, err)
				})
			}
			passAll(t, v)
			d := serve(t, &v.Host, v.Config(), own)
			if i := d.Info(); i.Push != name || i.MTU != 9000 {
				t.Errorf("info %+v", i)
			}
			for _, a := range []netip.Addr{veth.Our4.Addr(), veth.Our6.Addr()} {
				for _, size := range []string{"56", "1473", "3300", "3600", "8000", "8952"} {
					v.Ping(t, a, "-M", "do", "-s", size)
				}
				v.UDP(t, a)
			}
			v.TCP(t)
			f := corpus.Eth([6]byte(v.Host.MAC), [6]byte(v.Peer.MAC), 0, 0x0800,
				corpus.ICMPv4(v.Peer.IPv4.Addr(), veth.Our4.Addr(), 8000))
			before := d.Verdicts()
			raw := v.Peer.Raw(t)
			raw.Send(f)
			f[len(f)-1]++
			raw.Send(f)
			await.Until(t, "an answer and a refusal", func() bool {
				s := d.Verdicts()
				return s[fastpath.AnsweredICMPv4] == before[fastpath.AnsweredICMPv4]+1 &&
					s[fastpath.RefusedChecksum] == before[fastpath.RefusedChecksum]+1
			})
		})
	}
}

// A VLAN tag in a frame's metadata counts, and the reply has it; if the program cannot read it, a note says that the
// frame counts as untagged.
func TestHiddenTag(t *testing.T) {
	for name, own := range map[string]xdp.Options{"xdp-drv": {}, "xdp-generic": {Generic: true}} {
		t.Run(name, func(t *testing.T) {
			v := pair(t)
			v.HideTags(t)
			d := open(t, &v.Host, v.Config(), own)
			raw := v.Peer.Raw(t)
			reply := func(tags ...[4]byte) []byte {
				t.Helper()
				sent := v.Echo(veth.Our4.Addr(), 7, tags...)
				raw.Send(sent)
				return raw.Recv(func(f []byte) bool {
					return len(f) >= len(sent) &&
						string(f[:6]) == string(v.Peer.MAC)
				})
			}
			got, notes := reply(), strings.Join(d.Info().Notes, " ")
			tagged := len(got) == len(v.Echo(veth.Our4.Addr(), 7))+4 && string(got[12:16]) == string(veth.HiddenTag[:])
			if told := strings.Contains(notes, "counts as none"); !tagged || told != own.Generic {
				t.Errorf("reply to a frame with a hidden tag: tagged %v, and the notes are %q", tagged, notes)
			}
			must.Close(t, d)
			if own.Generic {
				return
			}
			c := v.Config()
			c.VLANs = []uint16{7}
			d = open(t, &v.Host, c, own)
			check.Equal(t, string(reply()[12:16]), string(veth.HiddenTag[:]), "reply with tag % x")
			must.Close(t, d)
			c.VLANs = []uint16{8}
			d = serve(t, &v.Host, c, own)
			raw.Send(v.Echo(veth.Our4.Addr(), 8))
			await.Until(t, "a refusal", func() bool { return d.Verdicts()[fastpath.RefusedVLAN] > 0 })
			check.Equal(t, d.Verdicts()[fastpath.AnsweredICMPv4], 0, "%d frames of another VLAN were answered")
		})
	}
}

// Without an XDP program, the other end of a veth pair would drop every reply, so generic mode is used.
func TestPeerWithoutProgram(t *testing.T) {
	v := veth.New(t)
	d := serve(t, &v.Host, v.Config(), xdp.Options{})
	if i := d.Info(); i.Push != "xdp-generic" || !strings.Contains(strings.Join(i.Notes, " "),
		"its other end has no XDP program") {
		t.Errorf("info %+v", i)
	}
	v.Ping(t, veth.Our4.Addr())
}

func TestLoops(t *testing.T) {
	v := veth.New(t)
	us, they := v.Config(), v.Config()
	us.UDPPorts = []uint16{7001}
	they.UDPPorts, they.Addresses = []uint16{7000}, []netip.Prefix{netip.MustParsePrefix("192.0.2.20/24")}
	a, b := serve(t, &v.Host, us, xdp.Options{}), serve(t, &v.Peer, they, xdp.Options{})
	v.Peer.Raw(t).Send(v.Datagram(they.Addresses[0].Addr(), 7000, veth.Our4.Addr(), 7001))
	count := func(verdict fastpath.Verdict) uint64 { return a.Verdicts()[verdict] + b.Verdicts()[verdict] }
	await.Until(t, "the end of the loop", func() bool { return count(fastpath.RefusedHopLimit) == 1 })
	check.Equal(t, count(fastpath.AnsweredUDPv4), 63, "%d replies to a datagram with TTL 64")
}

// After Close the interface is as before: another program can be attached, and nothing is answered.
func TestClose(t *testing.T) {
	v := pair(t)
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // it would close what Close forgot
	other := v.Config()
	other.Addresses = []netip.Prefix{netip.MustParsePrefix("192.0.2.99/24")}
	files := func() int { return len(must.Get(os.ReadDir("/proc/self/fd"))(t)) }
	before := 0
	for i := range 3 {
		if i == 1 { // the first opens some that remain, such as the runtime's poller
			before = files()
		}
		d := open(t, &v.Host, v.Config(), xdp.Options{})
		v.Host.Do(func() {
			check.Fails(t, "a second one", check.Err(xdp.Open(nic.Options{Device: v.Host.Name, Match: other},
				xdp.Options{})), nic.ErrBusy, "XDP program")
		})
		v.Ping(t, veth.Our4.Addr())
		must.Close(t, d)
	}
	if n := files(); n > before { // fewer, if the garbage collector closes some of before
		t.Errorf("%d files are open, before there were %d", n, before)
	}
}

func TestOpenRefuses(t *testing.T) {
	v := pair(t)
	v.Host.Do(func() {
		for says, c := range map[string]*fastpath.Config{"Match is not set": nil, "no address": {}} {
			check.Fails(t, "Open", check.Err(xdp.Open(nic.Options{Device: v.Host.Name, Match: c}, xdp.Options{})), nil,
				says)
		}
		check.Fails(t, "no such interface", check.Err(xdp.Open(nic.Options{Device: "nosuch0", Match: v.Config()},
			xdp.Options{})), nic.ErrNoDevice)
	})
}
