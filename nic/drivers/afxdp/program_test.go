package afxdp

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/kit/xdpkit"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/corpus"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/nictest"
)

// Verdicts of linux/bpf.h.
const (
	pass     = 2
	redirect = 4
)

var (
	all     = [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	ours4   = corpus.Our4
	ours6   = corpus.Our6
	theirs4 = corpus.Their4
	theirs6 = corpus.Their6
	third4  = netip.MustParseAddr("10.1.2.10")
	third6  = netip.MustParseAddr("2001:db8:1::10")
)

// frame is an Ethernet frame with an IPv4, IPv6 or ARP packet.
func frame(to [6]byte, tags int, packet []byte) []byte {
	return corpus.Pad(corpus.Eth(to, corpus.TheirMAC, tags, map[byte]uint16{4: 0x0800, 6: 0x86dd,
		0: 0x0806}[packet[0]>>4], packet), 60)
}

func ours(packet []byte) []byte { return frame(corpus.OurMAC, 0, packet) }

func ip6(from, to netip.Addr, next byte, payload []byte) []byte {
	return slices.Concat([]byte{0x60, 1, 2, 3, 0, byte(len(payload)), next, 255}, from.AsSlice(), to.AsSlice(), payload)
}

func udp(to uint16) []byte { return []byte{0x30, 0x39, byte(to >> 8), byte(to), 0, 8, 0, 0} }

func icmp(kind byte, id uint16) []byte { return []byte{kind, 0, 0, 0, byte(id >> 8), byte(id), 0, 1} }

func neighbour(kind byte, target netip.Addr) []byte {
	return append([]byte{kind, 0, 0, 0, 0, 0, 0, 0}, target.AsSlice()...)
}

func arp(op byte, from, to netip.Addr) []byte {
	return slices.Concat([]byte{0, 1, 8, 0, 6, 4, 0, op}, corpus.TheirMAC[:], from.AsSlice(), make([]byte, 6),
		to.AsSlice())
}

// load returns f's program with a map whose queue 0 has a socket, as the kernel's test run has it.
func load(t *testing.T, o nic.Options) *ebpf.Program {
	t.Helper()
	f := must.Get(newFilter(&o, corpus.OurMAC))(t)
	q, err := openQueue(64, 64, 2048)
	if err != nil {
		t.Skip("AF_XDP takes root: ", err)
	}
	t.Cleanup(q.close)
	m := must.Get(ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.XSKMap, KeySize: 4, ValueSize: 4, MaxEntries: 4}))(t)
	t.Cleanup(func() { m.Close() })
	for i := range uint32(4) {
		must.OK(t, m.Put(i, uint32(q.fd)))
	}
	p, err := f.load(new(xdpkit.Types), m, 0)
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(func() { p.Close() })
	return p.Program
}

type verdict struct {
	name  string
	frame []byte
	want  uint32
}

func judge(t *testing.T, p *ebpf.Program, cases []verdict) {
	t.Helper()
	for _, c := range cases {
		out := make([]byte, len(c.frame)+64)
		run := &ebpf.RunOptions{Data: c.frame, DataOut: out}
		got := must.Get(p.Run(run))(t)
		check.Equal(t, got, c.want, c.name+": verdict %d")
		if !bytes.Equal(run.DataOut, c.frame) {
			t.Errorf("%s: the frame was changed", c.name)
		}
	}
}

// TestMatch: every request that the responder answers is redirected. Cut short or for another MAC address it is not,
// nor is anything else.
func TestMatch(t *testing.T) {
	p := load(t, nic.Options{Match: &fastpath.Config{Addresses: corpus.Addresses, UDPPorts: corpus.UDPPorts,
		STAMPPorts: corpus.STAMPPorts}})
	needed := map[string]int{"arp": 42, "nd": 78, "icmpv4": 42, "udpv4": 42, "stampv4": 42, "icmpv6": 62, "udpv6": 62,
		"stampv6": 62}
	for tags := range 3 {
		for _, c := range corpus.Requests(tags) {
			judge(t, p, []verdict{{c.Name, c.Frame, redirect}})
			if tags == 1 {
				c.Frame[12], c.Frame[13] = 0x88, 0xa8
				judge(t, p, []verdict{{c.Name + " behind a service tag", c.Frame, redirect}})
			}
			for n := 14; n < needed[c.Kind]+4*tags; n++ {
				judge(t, p, []verdict{{c.Name + " cut", c.Frame[:n], pass}})
			}
			copy(c.Frame, []byte{2, 9, 9, 9, 9, 9})
			judge(t, p, []verdict{{c.Name + " to another MAC", c.Frame, pass}})
		}
	}
	options := corpus.IPv4(theirs4, ours4, 1, icmp(8, 9))
	options[0] = 0x46
	fragment := corpus.IPv4(theirs4, ours4, 1, icmp(8, 9))
	fragment[6] = 0x20
	offset := corpus.IPv4(theirs4, ours4, 17, udp(7))
	offset[7] = 1
	hops := ip6(theirs6, ours6, 58, neighbour(135, ours6))
	hops[7] = 254
	judge(t, p, []verdict{
		{"ssh", ours(corpus.IPv4(theirs4, ours4, 6, []byte{0, 1, 0, 22, 0, 0, 0, 0})), pass},
		{"ssh over IPv6", ours(ip6(theirs6, ours6, 6, []byte{0, 1, 0, 22, 0, 0, 0, 0})), pass},
		{"TCP to an echo port", ours(corpus.IPv4(theirs4, ours4, 6, udp(7))), pass},
		{"UDP to another port", ours(corpus.IPv4(theirs4, ours4, 17, udp(53))), pass},
		{"UDP from an echo port", ours(corpus.IPv4(theirs4, ours4, 17, []byte{0, 7, 0, 53, 0, 8, 0, 0})), pass},
		{"echo reply", ours(corpus.IPv4(theirs4, ours4, 1, icmp(0, 9))), pass},
		{"ICMP unreachable", ours(corpus.IPv4(theirs4, ours4, 1, icmp(3, 9))), pass},
		{"echo to another address", ours(corpus.IPv4(theirs4, third4, 1, icmp(8, 9))), pass},
		{"echo broadcast", frame(all, 0, corpus.IPv4(theirs4, ours4, 1, icmp(8, 9))), pass},
		{"IPv4 options", ours(options), pass},
		{"first fragment", ours(fragment), pass},
		{"later fragment", ours(offset), pass},
		{"ICMPv6 echo reply", ours(ip6(theirs6, ours6, 58, icmp(129, 9))), pass},
		{"echo to another address", ours(ip6(theirs6, third6, 58, icmp(128, 9))), pass},
		{"echo to half an address", ours(ip6(theirs6, netip.MustParseAddr("2001:db8::1:0:0:11"), 58, icmp(128, 9))), pass},
		{"router solicitation", ours(ip6(theirs6, ours6, 58, icmp(133, 9))), pass},
		{"NS for another address", frame([6]byte{0x33, 0x33, 0xff, 2, 0, 3}, 0, ip6(theirs6, ours6, 58, neighbour(135, third6))), pass},
		{"NS from beyond a router", ours(hops), pass},
		{"NA", ours(ip6(theirs6, ours6, 58, neighbour(136, ours6))), pass},
		{"ARP for another address", frame(all, 0, arp(1, theirs4, third4)), pass},
		{"ARP reply", ours(arp(2, theirs4, ours4)), pass},
		{"three tags", slices.Insert(frame(corpus.OurMAC, 2, corpus.IPv4(theirs4, ours4, 1, icmp(8, 9))), 12, 0x81, 0, 0, 7), pass},
		{"LLDP", corpus.Eth([6]byte{1, 0x80, 0xc2, 0, 0, 0xe}, corpus.TheirMAC, 0, 0x88cc, []byte{1, 2, 3}), pass},
	})
}

func TestMatchOneFamily(t *testing.T) {
	for _, c := range []struct {
		o      fastpath.Config
		v4, v6 uint32
	}{
		{fastpath.Config{Addresses: []netip.Prefix{netip.PrefixFrom(ours4, 24)}}, redirect, pass},
		{fastpath.Config{Addresses: []netip.Prefix{netip.PrefixFrom(ours6, 64)}}, pass, redirect},
		{fastpath.Config{Mode: fastpath.Open, UDPPorts: []uint16{7}}, redirect, redirect},
	} {
		judge(t, load(t, nic.Options{Match: &c.o}), []verdict{
			{"echo", ours(corpus.IPv4(theirs4, ours4, 1, icmp(8, 9))), c.v4},
			{"echo over IPv6", ours(ip6(theirs6, ours6, 58, icmp(128, 9))), c.v6},
			{"TCP", ours(corpus.IPv4(theirs4, ours4, 6, udp(7))), pass},
		})
	}
}

// TestSteer leaves all frames with the kernel that are no replies to the bench.
func TestSteer(t *testing.T) {
	for _, neighbours := range []bool{false, true} {
		found := uint32(pass)
		if neighbours {
			found = redirect
		}
		p4 := load(t, nic.Options{Steer: &nic.Steer{Local: ours4, Remote: theirs4, EchoIDs: []uint16{9, 10},
			UDPPorts: []uint16{50000}, Neighbours: neighbours}})
		judge(t, p4, []verdict{
			{"reply", ours(corpus.IPv4(theirs4, ours4, 1, icmp(0, 10))), redirect},
			{"reply tagged", frame(corpus.OurMAC, 1, corpus.IPv4(theirs4, ours4, 1, icmp(0, 9))), redirect},
			{"datagram", ours(corpus.IPv4(theirs4, ours4, 17, udp(50000))), redirect},
			{"reply to the user's ping", ours(corpus.IPv4(theirs4, ours4, 1, icmp(0, 11))), pass},
			{"reply from another", ours(corpus.IPv4(third4, ours4, 1, icmp(0, 9))), pass},
			{"reply to another", ours(corpus.IPv4(theirs4, third4, 1, icmp(0, 9))), pass},
			{"request", ours(corpus.IPv4(theirs4, ours4, 1, icmp(8, 9))), pass},
			{"TCP", ours(corpus.IPv4(theirs4, ours4, 6, udp(50000))), pass},
			{"other datagram", ours(corpus.IPv4(theirs4, ours4, 17, udp(50001))), pass},
			{"IPv6", ours(ip6(theirs6, ours6, 58, icmp(129, 9))), pass},
			{"ARP reply", ours(arp(2, theirs4, ours4)), found},
			{"ARP request", frame(all, 0, arp(1, theirs4, ours4)), found},
			{"ARP reply of another", ours(arp(2, third4, ours4)), pass},
			{"ARP request of another", frame(all, 0, arp(1, third4, ours4)), pass},
		})
		p6 := load(t, nic.Options{Steer: &nic.Steer{Local: ours6, Remote: theirs6, EchoIDs: []uint16{9},
			Neighbours: neighbours}})
		judge(t, p6, []verdict{
			{"reply", ours(ip6(theirs6, ours6, 58, icmp(129, 9))), redirect},
			{"reply to the user's ping", ours(ip6(theirs6, ours6, 58, icmp(129, 8))), pass},
			{"reply from another", ours(ip6(third6, ours6, 58, icmp(129, 9))), pass},
			{"NA", ours(ip6(theirs6, ours6, 58, neighbour(136, theirs6))), found},
			{"NA of another", ours(ip6(theirs6, ours6, 58, neighbour(136, third6))), pass},
			{"NS", ours(ip6(theirs6, ours6, 58, neighbour(135, ours6))), found},
			{"NS of another", ours(ip6(third6, ours6, 58, neighbour(135, ours6))), pass},
		})
	}
}

func TestTakeAll(t *testing.T) {
	judge(t, load(t, nic.Options{}), []verdict{{"anything", corpus.Eth(all, corpus.TheirMAC, 0, 0x1234, []byte{1}),
		redirect}})
}

// TestLargest loads a program with the largest number of addresses and all ports, and refuses one address more.
func TestLargest(t *testing.T) {
	c := &fastpath.Config{}
	for i := range fastpath.MaxAddresses {
		a := ours6.As16()
		a[14], a[15] = byte(i>>8), byte(i)
		c.Addresses = append(c.Addresses, netip.PrefixFrom(netip.AddrFrom16(a), 64),
			netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 24))
	}
	for port := range 1 << 16 {
		c.UDPPorts = append(c.UDPPorts, uint16(port))
	}
	p := load(t, nic.Options{Match: c})
	last4, last6 := c.Addresses[2*fastpath.MaxAddresses-1].Addr(), c.Addresses[2*fastpath.MaxAddresses-2].Addr()
	for _, port := range []uint16{0, 1, 20000, 65535} {
		judge(t, p, []verdict{
			{"last over IPv6", ours(ip6(theirs6, last6, 17, udp(port))), redirect},
			{"last over IPv4", ours(corpus.IPv4(theirs4, last4, 17, udp(port))), redirect},
		})
	}
	c.Addresses = append(c.Addresses, netip.PrefixFrom(ours6, 64))
	check.Fails(t, "one address too many was taken", check.Err(newFilter(&nic.Options{Match: c}, corpus.OurMAC)), nil)
}

// The committed object is what the compiler produces from the source, if it is the compiler version that produced it.
func TestObject(t *testing.T) {
	nictest.BPFObject(t, "pick.c", "pick_bpfel.o", compiler)
}
