package measure

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/internal/bench/route"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/golden"
	"github.com/rebound-nic/rebound/proof/must"
)

var ip = netip.MustParseAddr

// What the series of one device have it receive: alone, beside the kernel's driver, and from a packet socket. Each case
// changes two series of the host's own address.
func TestSteer(t *testing.T) {
	var b strings.Builder
	for _, c := range []struct {
		name   string
		change func(udp, ping *Series)
	}{
		{"the same path", func(udp, ping *Series) {}},
		{"the bench's own address", func(udp, ping *Series) { udp.path.Owned, ping.path.Owned = false, false }},
		{"the second has the bench's own address", func(_, ping *Series) { ping.path.Owned = false }},
		{"a router", func(udp, ping *Series) { udp.path.Next, ping.path.Next = ip("10.0.0.9"), ip("10.0.0.9") }},
		{"a router and the bench's own address", func(udp, ping *Series) {
			udp.path = route.Path{Next: ip("10.0.0.9")}
			ping.path = udp.path
		}},
		{"another router", func(_, ping *Series) { ping.path.Next = ip("10.0.0.9") }},
		{"another source", func(_, ping *Series) { ping.flow.Src = ip("10.0.0.3") }},
		{"another target", func(_, ping *Series) { ping.flow.Dst = ip("10.0.0.3") }},
		{"a VLAN", func(udp, _ *Series) { udp.VLAN = 5 }},
		{"a VLAN and a MAC", func(_, ping *Series) { ping.VLAN, ping.MAC = 5, farMAC }},
		{"a VLAN by afxdp", func(_, ping *Series) { ping.VLAN, ping.Driver, ping.path.Interface = 5, "afxdp", "eth0" }},
		{"the same path by afxdp", func(udp, ping *Series) { udp.Driver, ping.Driver = "afxdp", "afxdp" }},
		{"an unknown MAC", func(udp, _ *Series) { udp.flow.DstMAC = [6]byte{} }},
		{"more series than a filter has room for", func(udp, _ *Series) {
			for i := range 300 {
				s := udpSeries(udp.port, uint16(i))
				s.Proto, s.flow.Src, s.path = probe.UDP, ip("10.0.0.3"), udp.path
			}
		}},
	} {
		p := &port{}
		udp, ping := udpSeries(p, 50000, 50001), udpSeries(p, 50002)
		ping.Proto, ping.flow.Proto, ping.flow.ID, ping.flow.SrcPorts = probe.ICMP, probe.ICMP, 77, nil
		udp.Proto = probe.UDP
		for _, s := range p.series {
			s.path = route.Path{Owned: true, Next: s.Target}
		}
		c.change(udp, ping)
		show := func(how string, s *nic.Steer, err error) {
			if s != nil && len(s.UDPPorts) > 2 {
				s.UDPPorts = s.UDPPorts[:2]
			}
			fmt.Fprintf(&b, "\t%s: %+v %v\n", how, s, err)
		}
		fmt.Fprintln(&b, c.name)
		s, err := p.steer()
		show("alone", s, err)
		s, err = p.beside()
		show("beside", s, err)
		f, err := p.filter()
		fmt.Fprintf(&b, "\tfilter: %d instructions %v\n", len(f), err)
		if c.name == "the same path" {
			fmt.Fprintf(&b, "\tother ports: of udp %v, of ping %v\n", p.otherPorts(udp), p.otherPorts(ping))
		}
	}
	golden.Equal(t, "testdata/steer.txt", b.String())
}

// Source ports are of the dynamic range, each once, if the address is the bench's own. Of the kernel's address they are
// held until the end, so that the kernel does not refuse the replies.
func TestAddress(t *testing.T) {
	const first, dynamic = 49152, 16384
	all := &Series{Settings: Settings{Proto: probe.UDP, Ports: dynamic}, path: route.Path{Source: ip("fe80::1%eth0")}}
	must.OK(t, all.address(&port{}))
	check.Equal(t, all.flow.SrcPort, all.flow.SrcPorts[0], "the first port is %d")
	slices.Sort(all.flow.SrcPorts)
	for i, n := range all.flow.SrcPorts {
		must.Equal(t, n, uint16(first+i), "port %d")
	}
	check.Equal(t, all.flow.Src, ip("fe80::1"), "source %v")
	for _, v := range []Settings{{Proto: probe.ICMP}, {Proto: probe.UDP, Message: true}} {
		s := &Series{Settings: v}
		must.OK(t, s.address(&port{}))
		check.Equal(t, len(s.flow.SrcPorts), 0, "%d ports")
	}

	p := &port{}
	held := &Series{Settings: Settings{Proto: probe.STAMP, Ports: 2},
		path: route.Path{Source: ip("127.0.0.1"), Index: must.Get(net.InterfaceByName("lo"))(t).Index, Owned: true}}
	must.OK(t, held.address(p))
	one := &Series{Settings: Settings{Proto: probe.UDP}, path: held.path}
	must.OK(t, one.address(p))
	check.Equal(t, fmt.Sprint(len(held.flow.SrcPorts), len(one.flow.SrcPorts), len(p.holds)), "2 1 3", "%s ports")
	bind := func() error {
		c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(held.flow.SrcPorts[1])})
		if err == nil {
			c.Close()
		}
		return err
	}
	check.Fails(t, "a port that is held", bind(), nil, "address already in use")
	check.OK(t, p.close())
	check.OK(t, bind())
}

// What is known of a path before a device is open, and settings that cannot work.
func TestFind(t *testing.T) {
	const raw = "iface=vfio-user:/x,transport=raw,"
	var b strings.Builder
	for _, list := range []string{
		raw + "source=10.0.0.1,target=10.0.0.2",
		raw + "source=10.0.0.1,target=10.0.0.2,gateway=10.0.0.9,proto=udp,port=9,dscp=46,ecn=1,ttl=9,size=100",
		raw + "source=fe80::1,target=fe80::2,proto=stamp,port=862",
		raw + "source=fe80::1,target=fe80::2,proto=stamp,port=862,stamp-ssid=7,stamp-tlv=time+followup",
		raw + "source=fd00::1,target=fd00::2",
		raw + "target=10.0.0.2",
		raw + "target=10.0.0.2,proto=ud,port=18515",
		raw + "target=10.0.0.2,proto=stamp-srd,port=18518",
		raw + "target=10.0.0.2,proto=srd,port=18516,size=8",
		raw + "target=10.0.0.2,proto=srd,port=18516,size=7",
		raw + "target=10.0.0.2,proto=stamp-ud,port=18517,size=43",
		raw + "target=10.0.0.2,proto=stamp-ud,port=18517,size=65473",
		raw + "target=10.0.0.2,proto=stamp-ud,port=18517,size=65474",
		"target=127.0.0.1,transport=socket,proto=udp,port=9",
		"target=127.0.0.1,transport=socket,proto=udp,port=9,source=127.0.0.1",
	} {
		s := &Series{Settings: varied(t, list)}
		err := s.find()
		f := &s.flow
		fmt.Fprintf(&b, "%s\n\t%v by %q from %v, owned %t, to %v\n\t%d bytes, port %d, TOS %d, TTL %d, SSID %d, %v\n",
			list, s.Target, s.path.Interface, s.path.Source, s.path.Owned, s.path.Next,
			f.Size, f.DstPort, f.TOS, f.TTL, f.Test.SSID, err)
	}
	golden.Equal(t, "testdata/find.txt", b.String())
}

// Another process that answers for the source stops every driver but packet sockets, each of which has a copy.
func TestClaimed(t *testing.T) {
	taken := errors.New("another bench has it")
	path := route.Path{Interface: "eth0", Index: 1, Source: ip("fe80::1%eth0")}
	owned, card := path, path
	owned.Owned, card.Index = true, 0
	for _, c := range []struct {
		driver string
		path   route.Path
		taken  error
		fails  bool
	}{{"afxdp", path, taken, true}, {"afpacket", path, taken, false}, {"afxdp", owned, nil, false},
		{"afxdp", card, nil, false}} {
		set := &Set{claims: map[claimed]error{{"eth0", ip("fe80::1")}: taken}}
		s := &Series{Settings: Settings{Driver: c.driver}, path: c.path}
		err := set.claim(s)
		check.Equal(t, s.taken, c.taken, c.driver+": taken %v")
		if c.fails {
			check.Fails(t, c.driver, err, taken, "-source: another bench has it")
		} else {
			check.OK(t, err)
		}
	}
}

// The next hop's MAC is the one that is set, and is not asked for then.
func TestKnownNextHop(t *testing.T) {
	for _, c := range []struct{ set, want [6]byte }{{farMAC, farMAC}, {}} {
		s := &Series{Settings: Settings{Target: ip("10.0.0.2"), Iface: "vfio-user:/x", MAC: c.set},
			path: route.Path{Next: ip("10.0.0.9"), Owned: true}}
		must.OK(t, s.known())
		check.Equal(t, s.flow.DstMAC, c.want, "MAC %x")
		check.Equal(t, s.flow.Routed, true, "routed %t")
		if c.set != [6]byte{} {
			check.OK(t, s.resolve())
		}
	}
	for text, want := range map[string][6]byte{"02:52:62:00:00:01": nearMAC, "02:52": {}, "": {}} {
		mac, err := parseMAC(text)
		check.Equal(t, err == nil, want == nearMAC, text+" is a MAC: %t")
		if err == nil {
			check.Equal(t, mac, want, "%x")
		}
	}
}

// linked is a card whose link has these states, the last one until the end.
type linked struct {
	nic.Device
	links  []nic.Link
	err    error
	looks  int
	closed bool
}

func (l *linked) Info() nic.Info { return nic.Info{Device: "card"} }
func (l *linked) Close() error   { l.closed = true; return nil }

func (l *linked) Link() (nic.Link, error) {
	l.looks++
	return l.links[min(l.looks, len(l.links))-1], l.err
}

// A card's link is awaited, and a card without one is closed.
func TestAwaitLink(t *testing.T) {
	const late = linkPatience + 10*time.Millisecond
	down, up, broken := nic.Link{}, nic.Link{Up: true}, errors.New("broken")
	for _, c := range []struct {
		links []nic.Link
		err   error
		fails error
		says  string
		took  time.Duration
	}{
		{[]nic.Link{up}, nil, nil, "", 0},
		{[]nic.Link{down, down, up}, nil, nil, "", 20 * time.Millisecond},
		{[]nic.Link{down}, nil, nic.ErrDown, "card: interface is down: no link in 15s: is the cable plugged in", late},
		{[]nic.Link{{Waits: "for the subnet manager"}}, nil, nic.ErrDown, "15s: for the subnet manager", late},
		{[]nic.Link{up}, broken, broken, "broken", 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			d, start := &linked{links: c.links, err: c.err}, time.Now()
			got, err := awaitLink(d)
			check.Equal(t, time.Since(start), c.took, "by the test's clock it took %v")
			check.Equal(t, d.closed, c.fails != nil, "closed %t")
			if c.fails != nil {
				check.Fails(t, c.says, err, c.fails, c.says)
				return
			}
			check.OK(t, err)
			check.Equal(t, got == nic.Device(d), true, "the device: %t")
		})
	}
}
