package afxdp

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/kit/xdpkit"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/nictest"
)

// Verdicts of linux/bpf.h.
const (
	pass     = 2
	redirect = 4
)

var (
	mac     = [6]byte{2, 0, 0, 0, 0, 1}
	other   = [6]byte{2, 0, 0, 0, 0, 2}
	all     = [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	ours4   = netip.MustParseAddr("192.0.2.10")
	ours6   = netip.MustParseAddr("2001:db8::10")
	theirs4 = netip.MustParseAddr("192.0.2.2")
	theirs6 = netip.MustParseAddr("2001:db8::2")
	third4  = netip.MustParseAddr("192.0.2.3")
	third6  = netip.MustParseAddr("2001:db8:1::10")
	q       = []byte{0x81, 0, 0, 7}
	ad      = []byte{0x88, 0xa8, 0, 8}
)

func ethernetFrame(to [6]byte, tags []byte, kind uint16, rest ...byte) []byte {
	f := slices.Concat(to[:], other[:], tags)
	f = append(binary.BigEndian.AppendUint16(f, kind), rest...)
	return append(f, make([]byte, max(0, 60-len(f)))...)
}

func ip4(from, to netip.Addr, protocol byte, payload ...byte) []byte {
	h := []byte{0x45, 0, 0, byte(20 + len(payload)), 0, 0, 0x40, 0, 64, protocol, 0, 0}
	return slices.Concat(h, from.AsSlice(), to.AsSlice(), payload)
}

func ip6(from, to netip.Addr, next byte, payload ...byte) []byte {
	return slices.Concat([]byte{0x60, 1, 2, 3, 0, byte(len(payload)), next, 255}, from.AsSlice(), to.AsSlice(), payload)
}

func udp(to uint16) []byte { return []byte{0x30, 0x39, byte(to >> 8), byte(to), 0, 8, 0, 0} }

func icmp(kind byte, id uint16) []byte { return []byte{kind, 0, 0, 0, byte(id >> 8), byte(id), 0, 1} }

func neighbour(kind byte, target netip.Addr) []byte {
	return append([]byte{kind, 0, 0, 0, 0, 0, 0, 0}, target.AsSlice()...)
}

func arp(op byte, from, to netip.Addr) []byte {
	return slices.Concat([]byte{0, 1, 8, 0, 6, 4, 0, op}, other[:], from.AsSlice(), make([]byte, 6), to.AsSlice())
}

// load returns f's program with a map whose queue 0 has a socket, as the kernel's test run has it.
func load(t *testing.T, o nic.Options) *ebpf.Program {
	t.Helper()
	f := must.Get(newFilter(&o, mac))(t)
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
	return p
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

func TestMatch(t *testing.T) {
	p := load(t, nic.Options{Match: &fastpath.Config{
		Addresses: []netip.Prefix{netip.MustParsePrefix("198.51.100.1/24"), netip.PrefixFrom(ours4, 24),
			netip.MustParsePrefix("2001:db8::1:10/64"), netip.PrefixFrom(ours6, 64)},
		UDPPorts: []uint16{7, 40007}, STAMPPorts: []uint16{862},
	}})
	const v4, v6 = 0x0800, 0x86dd
	solicited := [6]byte{0x33, 0x33, 0xff, 0, 0, 0x10}
	good := []verdict{
		{"ICMP echo request", ethernetFrame(mac, nil, v4, ip4(theirs4, ours4, 1, icmp(8, 9)...)...), redirect},
		{"UDP", ethernetFrame(mac, nil, v4, ip4(theirs4, ours4, 17, udp(40007)...)...), redirect},
		{"STAMP", ethernetFrame(mac, nil, v4, ip4(theirs4, ours4, 17, udp(862)...)...), redirect},
		{"ICMPv6 echo request", ethernetFrame(mac, nil, v6, ip6(theirs6, ours6, 58, icmp(128, 9)...)...), redirect},
		{"UDP over IPv6", ethernetFrame(mac, nil, v6, ip6(theirs6, ours6, 17, udp(7)...)...), redirect},
		{"ARP request", ethernetFrame(all, nil, 0x0806, arp(1, theirs4, ours4)...), redirect},
		{"ARP probe", ethernetFrame(all, nil, 0x0806, arp(1, netip.IPv4Unspecified(), ours4)...), redirect},
		{"ARP unicast", ethernetFrame(mac, nil, 0x0806, arp(1, theirs4, ours4)...), redirect},
		{"NS", ethernetFrame(solicited, nil, v6, ip6(theirs6, netip.MustParseAddr("ff02::1:ff00:10"), 58,
			neighbour(135, ours6)...)...), redirect},
		{"NS, DAD", ethernetFrame(solicited, nil, v6, ip6(netip.IPv6Unspecified(), netip.MustParseAddr("ff02::1:ff00:10"), 58,
			neighbour(135, ours6)...)...), redirect},
		{"NS unicast", ethernetFrame(mac, nil, v6, ip6(theirs6, ours6, 58, neighbour(135, ours6)...)...), redirect},
	}
	judge(t, p, good)
	for _, tags := range [][]byte{q, ad, slices.Concat(ad, q)} {
		for _, c := range good {
			c.frame = slices.Concat(c.frame[:12], tags, c.frame[12:])
			c.name += " tagged"
			judge(t, p, []verdict{c})
		}
	}
	// Of each, every truncation passes, and so does another destination MAC.
	for _, c := range good {
		need := map[string]int{"ARP": 42, "NS": 78}
		for n := 14; n < len(c.frame); n++ {
			if at, ok := need[c.name[:min(3, len(c.name))]]; ok && n >= at || c.name[:2] == "NS" && n >= 78 {
				continue
			}
			if c.frame[12] == 8 && c.frame[13] == 0 && n >= 42 || c.frame[12] == 0x86 && c.name[:2] != "NS" && n >= 62 {
				continue
			}
			judge(t, p, []verdict{{c.name + " cut", c.frame[:n], pass}})
		}
		c.frame = slices.Clone(c.frame)
		copy(c.frame, []byte{2, 9, 9, 9, 9, 9})
		judge(t, p, []verdict{{c.name + " to another MAC", c.frame, pass}})
	}
	options := ip4(theirs4, ours4, 1, icmp(8, 9)...)
	options[0] = 0x46
	fragment := ip4(theirs4, ours4, 1, icmp(8, 9)...)
	fragment[6] = 0x20
	offset := ip4(theirs4, ours4, 17, udp(7)...)
	offset[7] = 1
	hops := ip6(theirs6, ours6, 58, neighbour(135, ours6)...)
	hops[7] = 254
	judge(t, p, []verdict{
		{"ssh", ethernetFrame(mac, nil, v4, ip4(theirs4, ours4, 6, 0, 1, 0, 22, 0, 0, 0, 0)...), pass},
		{"ssh over IPv6", ethernetFrame(mac, nil, v6, ip6(theirs6, ours6, 6, 0, 1, 0, 22, 0, 0, 0, 0)...), pass},
		{"TCP to an echo port", ethernetFrame(mac, nil, v4, ip4(theirs4, ours4, 6, udp(7)...)...), pass},
		{"UDP to another port", ethernetFrame(mac, nil, v4, ip4(theirs4, ours4, 17, udp(53)...)...), pass},
		{"UDP from an echo port", ethernetFrame(mac, nil, v4, ip4(theirs4, ours4, 17, 0, 7, 0, 53, 0, 8, 0, 0)...), pass},
		{"echo reply", ethernetFrame(mac, nil, v4, ip4(theirs4, ours4, 1, icmp(0, 9)...)...), pass},
		{"ICMP unreachable", ethernetFrame(mac, nil, v4, ip4(theirs4, ours4, 1, icmp(3, 9)...)...), pass},
		{"echo to another address", ethernetFrame(mac, nil, v4, ip4(theirs4, third4, 1, icmp(8, 9)...)...), pass},
		{"echo broadcast", ethernetFrame(all, nil, v4, ip4(theirs4, ours4, 1, icmp(8, 9)...)...), pass},
		{"IPv4 options", ethernetFrame(mac, nil, v4, options...), pass},
		{"first fragment", ethernetFrame(mac, nil, v4, fragment...), pass},
		{"later fragment", ethernetFrame(mac, nil, v4, offset...), pass},
		{"ICMPv6 echo reply", ethernetFrame(mac, nil, v6, ip6(theirs6, ours6, 58, icmp(129, 9)...)...), pass},
		{"echo to another address", ethernetFrame(mac, nil, v6, ip6(theirs6, third6, 58, icmp(128, 9)...)...), pass},
		{"echo to half an address", ethernetFrame(mac, nil, v6, ip6(theirs6, netip.MustParseAddr("2001:db8::1:0:0:11"), 58,
			icmp(128, 9)...)...), pass},
		{"router solicitation", ethernetFrame(mac, nil, v6, ip6(theirs6, ours6, 58, icmp(133, 9)...)...), pass},
		{"NS for another address", ethernetFrame(solicited, nil, v6, ip6(theirs6, ours6, 58, neighbour(135, third6)...)...), pass},
		{"NS from beyond a router", ethernetFrame(mac, nil, v6, hops...), pass},
		{"NA", ethernetFrame(mac, nil, v6, ip6(theirs6, ours6, 58, neighbour(136, ours6)...)...), pass},
		{"ARP for another address", ethernetFrame(all, nil, 0x0806, arp(1, theirs4, third4)...), pass},
		{"ARP reply", ethernetFrame(mac, nil, 0x0806, arp(2, theirs4, ours4)...), pass},
		{"three tags", ethernetFrame(mac, slices.Concat(q, q, q), v4, ip4(theirs4, ours4, 1, icmp(8, 9)...)...), pass},
		{"LLDP", ethernetFrame([6]byte{1, 0x80, 0xc2, 0, 0, 0xe}, nil, 0x88cc, 1, 2, 3), pass},
	})
}

func TestMatchOneFamily(t *testing.T) {
	for _, o := range []fastpath.Config{
		{Addresses: []netip.Prefix{netip.PrefixFrom(ours4, 24)}},
		{Addresses: []netip.Prefix{netip.PrefixFrom(ours6, 64)}},
		{Mode: fastpath.Open, UDPPorts: []uint16{7}},
	} {
		p := load(t, nic.Options{Match: &o})
		v4, v6 := uint32(pass), uint32(pass)
		if o.Mode == fastpath.Open || o.Addresses[0].Addr().Is4() {
			v4 = redirect
		}
		if o.Mode == fastpath.Open || o.Addresses[0].Addr().Is6() {
			v6 = redirect
		}
		judge(t, p, []verdict{
			{"echo", ethernetFrame(mac, nil, 0x0800, ip4(theirs4, ours4, 1, icmp(8, 9)...)...), v4},
			{"echo over IPv6", ethernetFrame(mac, nil, 0x86dd, ip6(theirs6, ours6, 58, icmp(128, 9)...)...), v6},
			{"TCP", ethernetFrame(mac, nil, 0x0800, ip4(theirs4, ours4, 6, udp(7)...)...), pass},
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
		const v4, v6 = 0x0800, 0x86dd
		judge(t, p4, []verdict{
			{"reply", ethernetFrame(mac, nil, v4, ip4(theirs4, ours4, 1, icmp(0, 10)...)...), redirect},
			{"reply tagged", ethernetFrame(mac, q, v4, ip4(theirs4, ours4, 1, icmp(0, 9)...)...), redirect},
			{"datagram", ethernetFrame(mac, nil, v4, ip4(theirs4, ours4, 17, udp(50000)...)...), redirect},
			{"reply to the user's ping", ethernetFrame(mac, nil, v4, ip4(theirs4, ours4, 1, icmp(0, 11)...)...), pass},
			{"reply from another", ethernetFrame(mac, nil, v4, ip4(third4, ours4, 1, icmp(0, 9)...)...), pass},
			{"reply to another", ethernetFrame(mac, nil, v4, ip4(theirs4, third4, 1, icmp(0, 9)...)...), pass},
			{"request", ethernetFrame(mac, nil, v4, ip4(theirs4, ours4, 1, icmp(8, 9)...)...), pass},
			{"TCP", ethernetFrame(mac, nil, v4, ip4(theirs4, ours4, 6, udp(50000)...)...), pass},
			{"other datagram", ethernetFrame(mac, nil, v4, ip4(theirs4, ours4, 17, udp(50001)...)...), pass},
			{"IPv6", ethernetFrame(mac, nil, v6, ip6(theirs6, ours6, 58, icmp(129, 9)...)...), pass},
			{"ARP reply", ethernetFrame(mac, nil, 0x0806, arp(2, theirs4, ours4)...), found},
			{"ARP request", ethernetFrame(all, nil, 0x0806, arp(1, theirs4, ours4)...), found},
			{"ARP reply of another", ethernetFrame(mac, nil, 0x0806, arp(2, third4, ours4)...), pass},
			{"ARP request of another", ethernetFrame(all, nil, 0x0806, arp(1, third4, ours4)...), pass},
		})
		p6 := load(t, nic.Options{Steer: &nic.Steer{Local: ours6, Remote: theirs6, EchoIDs: []uint16{9}, Neighbours: neighbours}})
		judge(t, p6, []verdict{
			{"reply", ethernetFrame(mac, nil, v6, ip6(theirs6, ours6, 58, icmp(129, 9)...)...), redirect},
			{"reply to the user's ping", ethernetFrame(mac, nil, v6, ip6(theirs6, ours6, 58, icmp(129, 8)...)...), pass},
			{"reply from another", ethernetFrame(mac, nil, v6, ip6(third6, ours6, 58, icmp(129, 9)...)...), pass},
			{"NA", ethernetFrame(mac, nil, v6, ip6(theirs6, ours6, 58, neighbour(136, theirs6)...)...), found},
			{"NA of another", ethernetFrame(mac, nil, v6, ip6(theirs6, ours6, 58, neighbour(136, third6)...)...), pass},
			{"NS", ethernetFrame(mac, nil, v6, ip6(theirs6, ours6, 58, neighbour(135, ours6)...)...), found},
			{"NS of another", ethernetFrame(mac, nil, v6, ip6(third6, ours6, 58, neighbour(135, ours6)...)...), pass},
		})
	}
}

func TestTakeAll(t *testing.T) {
	judge(t, load(t, nic.Options{}), []verdict{{"anything", ethernetFrame(all, nil, 0x1234, 1), redirect}})
}

// TestLargest loads a program with the largest number of addresses and all ports, and refuses one address more.
func TestLargest(t *testing.T) {
	c := &fastpath.Config{}
	for i := range fastpath.MaxAddresses {
		a := ours6.As16()
		a[14], a[15] = byte(i>>8), byte(i)
		c.Addresses = append(c.Addresses, netip.PrefixFrom(netip.AddrFrom16(a), 64), netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 24))
	}
	for port := range 1 << 16 {
		c.UDPPorts = append(c.UDPPorts, uint16(port))
	}
	p := load(t, nic.Options{Match: c})
	last4, last6 := c.Addresses[2*fastpath.MaxAddresses-1].Addr(), c.Addresses[2*fastpath.MaxAddresses-2].Addr()
	for _, port := range []uint16{0, 1, 20000, 65535} {
		judge(t, p, []verdict{
			{"last over IPv6", ethernetFrame(mac, nil, 0x86dd, ip6(theirs6, last6, 17, udp(port)...)...), redirect},
			{"last over IPv4", ethernetFrame(mac, nil, 0x0800, ip4(theirs4, last4, 17, udp(port)...)...), redirect},
		})
	}
	c.Addresses = append(c.Addresses, netip.PrefixFrom(ours6, 64))
	check.Fails(t, "one address too many was taken", check.Err(newFilter(&nic.Options{Match: c}, mac)), nil)
}

// The committed object is what the compiler produces from the source, if it is the compiler version that produced it.
func TestObject(t *testing.T) {
	nictest.BPFObject(t, "pick.c", "pick_bpfel.o", compiler)
}
