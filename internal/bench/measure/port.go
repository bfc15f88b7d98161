package measure

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/bench/engine"
	"github.com/rebound-nic/rebound/internal/bench/observe"
	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/internal/bench/route"
	"github.com/rebound-nic/rebound/internal/bench/socket"
	"github.com/rebound-nic/rebound/internal/cards"
	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/kit/netif"
)

// Options define how the devices of a Set are opened.
type Options struct {
	NIC        cards.Config // except for driver and device, which are settings of each variant
	Timestamps bool         // also record the kernel's and the card's timestamps
	Log        *slog.Logger
}

// Set has all series of one command, and the devices that they share.
type Set struct {
	Series []*Series
	ports  []*port
	claims map[claimed]error // of sources that the kernel does not have: why another process keeps one
	held   netif.Claims
}

// claimed is a source address on an interface.
type claimed struct {
	iface  string
	source netip.Addr
}

// port is an open device or socket. Series on the same device share it.
type port struct {
	engine.Port
	device  nic.Port // raw
	socket  *socket.Port
	stamper *engine.Stamper
	stamps  nic.Timestamping
	ptp     nic.PTPTimestamper // a card that timestamps PTP messages to one port
	series  []*Series
	mixed   bool  // the ring also has the host's other traffic
	holds   []int // kernel sockets on our UDP ports, which prevent the kernel's "port unreachable"
}

// Open opens everything that the variants need, and resolves their next hops. The result must be closed, even with an
// error.
func Open(o Options, variants []Settings) (*Set, error) {
	set := &Set{claims: map[claimed]error{}}
	byDevice := map[string]*port{}
	for _, v := range variants {
		s := &Series{Settings: v}
		if err := s.find(); err != nil {
			return set, err
		}
		if s.Responder != "" {
			if _, _, err := observe.ReadResponder(s.Responder); err != nil {
				return set, fmt.Errorf("-responder-metrics: %w", err)
			}
		}
		set.Series = append(set.Series, s)
		if s.Transport == "socket" {
			if err := set.openSocket(o, s); err != nil {
				return set, err
			}
			continue
		}
		if err := set.claim(s); err != nil {
			return set, err
		}
		key := fmt.Sprint(s.Driver, " ", s.path.Interface, " ", s.Qdisc)
		p := byDevice[key]
		if p == nil {
			p = &port{}
			byDevice[key] = p
			set.ports = append(set.ports, p)
		}
		p.series = append(p.series, s)
		s.port = p
		if err := s.address(p); err != nil {
			return set, err
		}
	}
	for _, p := range set.ports {
		if p.socket == nil {
			if err := p.open(o); err != nil {
				return set, err
			}
		}
	}
	return set, nil
}

// find fills in the path to the target, and makes the checks that are possible without opening anything.
func (s *Series) find() error {
	if s.Target.Is6() && s.Target.IsLinkLocalUnicast() && s.Target.Zone() == "" && s.Iface != "" {
		s.Target = s.Target.WithZone(s.Iface)
	}
	s.flow = probe.Flow{Proto: s.Proto, Dst: s.Target.WithZone(""), DstPort: s.Port, Run: rand.Uint32(),
		Size: s.Sizes[0],
		TOS:  s.TOS(), TTL: s.TTL}
	if s.Proto == probe.STAMP {
		s.flow.Test = s.STAMP.Packet()
	}
	if s.flow.Size == 0 {
		s.flow.Size = probe.MinSize(s.Proto, s.Target.Is6()) + s.flow.Test.Extra()
	}
	if s.Message {
		return s.findMessage()
	}
	if s.Transport == "raw" && !onKernel(s.Iface) {
		if !s.Source.IsValid() {
			return process.Usagef("%s is not a kernel interface, so it has no routes: set -source, and -gateway if the target is behind a router", s.Iface)
		}
		s.path = route.Path{Interface: s.Iface, Source: s.Source, Next: s.Target}
		if s.Gateway.IsValid() {
			s.path.Next = s.Gateway
		}
		return nil
	}
	var err error
	s.path, err = route.Find(s.Target, route.Constraints{Interface: s.Iface, Source: s.Source, Gateway: s.Gateway,
		TOS:      s.TOS(),
		Protocol: s.Proto.IP(s.Target.Is6()), Port: s.flow.DstPort})
	switch {
	case errors.Is(err, route.ErrNoInterface), errors.Is(err, route.ErrNoSource), errors.Is(err, route.ErrNoRoute):
		return process.Usagef("%w", err)
	case err != nil:
		return err
	case s.Transport == "raw" && s.path.NoFrames(s.Target) != nil:
		return process.Usagef("%w", s.path.NoFrames(s.Target))
	case s.Transport == "socket" && s.Source.IsValid() && !s.path.Owned:
		return process.Usagef("source %v is not an address of this host: a socket needs one, -transport raw does not",
			s.Source)
	}
	return s.checkSize(s.path.MTU)
}

func (s *Series) checkSize(mtu int) error {
	if err := probe.CheckSize(s.Proto, s.Target.Is6(), s.flow.Size, s.flow.Test.Extra(), mtu); err != nil {
		return process.Usagef("%w", err)
	}
	return nil
}

// claim reserves the source of a series that the kernel does not have: of two programs that answer for one address,
// either may receive the other's replies. Packet sockets each have a copy, so that they work unless the other program
// is not one.
func (set *Set) claim(s *Series) error {
	if s.path.Owned || s.path.Index == 0 {
		return nil
	}
	key := claimed{s.path.Interface, s.path.Source.WithZone("")}
	if _, done := set.claims[key]; !done {
		i, err := netif.Lookup(key.iface)
		if err != nil {
			return err
		}
		held, err := i.Claim([]netip.Prefix{netip.PrefixFrom(key.source, key.source.BitLen())}, nil)
		i.Close()
		set.held, set.claims[key] = append(set.held, held...), err
	}
	if s.taken = set.claims[key]; s.taken != nil && s.Driver != "afpacket" {
		return process.Usagef("-source: %w", s.taken)
	}
	return nil
}

// address chooses the source of a raw flow, before the device is open.
func (s *Series) address(p *port) error {
	s.flow.Src = s.path.Source.WithZone("")
	s.flow.ID = uint16(1 + rand.IntN(0xffff))
	if s.Proto == probe.ICMP || s.Message {
		return nil
	}
	count := max(s.Ports, 1)
	if !s.path.Owned {
		const first, dynamic = 49152, 16384 // RFC 6335 §6
		at := rand.IntN(dynamic)
		for i := range count {
			s.flow.SrcPorts = append(s.flow.SrcPorts, uint16(first+(at+i)%dynamic))
		}
	} else {
		for range count {
			fd, own, err := socket.Hold(s.flow.Src, s.path.Index)
			if err != nil {
				return err
			}
			p.holds = append(p.holds, fd)
			s.flow.SrcPorts = append(s.flow.SrcPorts, own)
		}
	}
	s.flow.SrcPort = s.flow.SrcPorts[0]
	return nil
}

// Close closes all devices.
func (set *Set) Close() (err error) {
	defer set.held.Close()
	for _, p := range set.ports {
		err = errors.Join(err, p.close())
	}
	return err
}

func (p *port) close() error {
	for _, fd := range p.holds {
		unix.Close(fd)
	}
	switch {
	case p.device != nil:
		return p.device.Close()
	case p.socket != nil:
		return p.socket.Close()
	}
	return nil // an earlier step failed before this device was opened
}

func (set *Set) openSocket(o Options, s *Series) (err error) {
	p := &port{series: []*Series{s}}
	if s.Proto == probe.ICMP {
		s.flow.Layer = probe.Message
		p.socket, err = socket.Ping(s.Target, s.Source, s.Iface)
	} else {
		s.flow.Layer = probe.Datagram
		p.socket, err = socket.UDP(netip.AddrPortFrom(s.Target, s.flow.DstPort), s.Source, s.Iface)
	}
	if err != nil {
		return err
	}
	p.Port, s.port, s.wire = p.socket, p, p.socket
	set.ports = append(set.ports, p)
	p.socket.Interface = s.path.Interface
	if err := p.socket.Mark(s.TOS(), s.TTL); err != nil {
		return process.Usagef("%w", err)
	}
	own := p.socket.Local()
	s.flow.Src, s.flow.SrcPort, s.flow.ID = own.Addr().WithZone(""), own.Port(), own.Port()
	return p.enableStamps(o, p.socket)
}

// open opens a device for raw frames.
func (p *port) open(o Options) (err error) {
	first := p.series[0]
	do := o.NIC
	do.Driver, do.Device, do.Log, do.Qdisc = first.Driver, first.path.Interface, o.Log, first.Qdisc
	if first.Message {
		if err := p.openMessages(do); err != nil {
			return err
		}
		return p.enableStamps(o, nil)
	}
	for _, s := range p.series {
		if err := s.known(); err != nil {
			return err
		}
	}
	if do.Beside() {
		do.Steer, err = p.beside()
	} else {
		do.Steer, err = p.steer()
	}
	if err != nil {
		return err
	}
	if do.Driver == "afpacket" {
		if do.Filter, err = p.filter(); err != nil {
			return err
		}
		p.mixed = do.Filter == nil
	}
	do.Shared = first.path.Owned || do.Steer == nil || o.Timestamps // AF_XDP has no timestamps
	d, err := open(do)
	if errors.Is(err, nic.ErrNoDevice) {
		return process.Usagef("%w", err)
	} else if err != nil {
		return err
	}
	p.device, p.Port = d, d
	info := d.Info()
	for _, s := range p.series {
		mac, err := parseMAC(info.MAC)
		if err != nil {
			return fmt.Errorf("%s: %w", info.Device, err)
		}
		s.flow.SrcMAC = mac
		if s.wire = d; s.VLAN != 0 {
			s.wire = newTagged(d, s.VLAN)
		}
		if err := s.checkSize(info.MTU); err != nil {
			return err
		}
		if err := s.resolve(); err != nil {
			if s.taken != nil {
				err = fmt.Errorf("-source: %w (%w)", s.taken, err)
			}
			return err
		}
		s.hop = s.newNextHop()
		s.Warnings = append(s.Warnings, s.path.Bypassed(s.Qdisc)...)
	}
	return p.enableStamps(o, cards.Timestamper(d))
}

// known sets the next hop's MAC if it is configured or the kernel knows it or finds it.
func (s *Series) known() error {
	s.flow.Routed = s.path.Routed(s.Target)
	s.flow.DstMAC = s.MAC
	if s.MAC != [6]byte{} {
		return nil
	}
	if onKernel(s.Iface) && s.path.KernelResolves() && s.VLAN == 0 {
		if e, ok := s.path.Known(); ok {
			s.flow.DstMAC = e.MAC
			return nil
		}
		if s.path.AskKernel() == nil {
			for range 300 {
				time.Sleep(10 * time.Millisecond)
				if e, ok := s.path.Known(); ok {
					s.flow.DstMAC = e.MAC
					return nil
				}
			}
			return fmt.Errorf("%w: the kernel found no MAC for %v on %s", route.ErrNoAnswer, s.path.Next,
				s.path.Interface)
		}
	}
	return nil
}

// resolve asks for the next hop's MAC if it is not known.
func (s *Series) resolve() error {
	if s.flow.DstMAC != [6]byte{} {
		return nil
	}
	tries := route.Tries
	if !onKernel(s.Iface) {
		// Opening the NIC has just brought its link up. A switch with spanning tree forwards 30 s later (IEEE
		// 802.1D-2004 §17.14: two Forward Delays), and a peer on InfiniBand waits until the subnet manager has detected
		// the link.
		tries = 40
	}
	mac, err := s.path.Asker(s.flow.SrcMAC).Resolve(s.wire, s.path.Next, tries, time.Second)
	s.flow.DstMAC = mac
	return err
}

func (p *port) enableStamps(o Options, t nic.Timestamper) (err error) {
	if !o.Timestamps {
		return nil
	}
	if t == nil {
		return process.Usagef("-timestamps: driver %s has none", p.device.Info().Driver)
	}
	if p.stamps, err = t.EnableTimestamps(true); err != nil {
		return err
	}
	if p.stamps.RxPTP {
		p.ptp = t.(nic.PTPTimestamper)
		if err := p.likePTP(); err != nil {
			return err
		}
	}
	p.stamper = engine.NewStamper(t, p.stamps)
	return nil
}

// likePTP makes the replies of all series PTP messages.
func (p *port) likePTP() error {
	for _, s := range p.series {
		f := &s.flow
		if f.Proto != probe.UDP || len(f.SrcPorts) > 1 {
			return process.Usagef("-timestamps: this card timestamps only PTP messages to one port, which takes -proto udp and one source port")
		}
		least := probe.MinPTPSize(s.Target.Is6())
		if s.Sizes[0] == 0 {
			f.Size = max(f.Size, least)
		}
		if f.Size < least {
			return process.Usagef("-timestamps: this card timestamps only PTP messages, so that probes have %d bytes or more (-size is %d)", least, f.Size)
		}
		f.LikePTP()
	}
	return nil
}

// otherPorts returns the source ports of the other series.
func (p *port) otherPorts(than *Series) (ports []uint16) {
	for _, s := range p.series {
		if s != than && s.flow.Proto != probe.ICMP {
			ports = append(append(ports, s.flow.SrcPort), s.flow.SrcPorts...)
		}
	}
	return ports
}

// steer returns the traffic that a device has to receive for its series, nil for everything.
func (p *port) steer() (*nic.Steer, error) {
	first := p.series[0]
	out := &nic.Steer{Local: first.flow.Src, Remote: first.flow.Dst, Neighbours: !first.path.Owned}
	for _, s := range p.series {
		if s.flow.Src != out.Local || s.flow.Dst != out.Remote || s.path.Next != first.path.Next ||
			s.path.Routed(s.Target) && out.Neighbours || s.VLAN != 0 {
			for _, s := range p.series {
				if s.path.Owned && s.Driver == "afxdp" {
					return nil, process.Usagef(
						"afxdp would intercept all frames of %s, which the host uses too: with several targets, a VLAN or a router, use -driver afpacket",
						s.path.Interface)
				}
			}
			return nil, nil
		}
		if s.Proto == probe.ICMP {
			out.EchoIDs = append(out.EchoIDs, s.flow.ID)
		} else {
			out.UDPPorts = append(out.UDPPorts, s.flow.SrcPorts...)
		}
	}
	return out, nil
}

// beside returns the traffic to receive on a card that the kernel keeps, whose rules take any number of targets.
func (p *port) beside() (*nic.Steer, error) {
	out := &nic.Steer{Remote: p.series[0].flow.Dst}
	for _, s := range p.series {
		switch src := s.flow.Src; {
		case !s.path.Owned:
			return nil, process.Usagef(
				"-source %v: beside the kernel's driver the source has to be an address of the interface, because the kernel answers ARP for it "+
					"(ip address add %[1]v; -iface has the interface's name)", src)
		case s.VLAN != 0 && s.MAC == [6]byte{}:
			return nil, process.Usagef(
				"-vlan: beside the kernel's driver the target's MAC cannot be resolved on a VLAN: use -driver afpacket")
		case !out.Local.IsValid():
			out.Local = src
		case src != out.Local && !slices.Contains(out.Also, src):
			out.Also = append(out.Also, src)
		}
		if s.flow.Dst != out.Remote {
			out.Remote = netip.Addr{}
		}
		if s.Proto == probe.ICMP {
			out.EchoIDs = append(out.EchoIDs, s.flow.ID)
		} else {
			out.UDPPorts = append(out.UDPPorts, s.flow.SrcPorts...)
		}
	}
	return out, nil
}

// filter returns a program that accepts only what the port's series read, nil if it would be too long.
func (p *port) filter() ([]bpf.RawInstruction, error) {
	var flows []probe.Flow
	neighbours := false
	for _, s := range p.series {
		flows = append(flows, s.flow)
		neighbours = neighbours || s.flow.DstMAC == [6]byte{} || !s.path.Owned
	}
	f, err := probe.Filter(flows, neighbours)
	if errors.Is(err, probe.ErrFilter) {
		return nil, nil
	}
	return f, err
}

func parseMAC(s string) (mac [6]byte, err error) {
	if n, err := fmt.Sscanf(s, "%02x:%02x:%02x:%02x:%02x:%02x", &mac[0], &mac[1], &mac[2], &mac[3], &mac[4],
		&mac[5]); n != 6 {
		return mac, fmt.Errorf("MAC %q: %w", s, err)
	}
	return mac, nil
}

const (
	macs    = 12 // bytes before the EtherType
	tagSize = 4
	dot1q   = 0x8100
)

// tagged adds an 802.1Q tag to frames, and removes the tag of frames in the same VLAN. It allocates nothing while it
// sends and receives.
type tagged struct {
	engine.Port
	vid uint16
	out []byte
}

func newTagged(p engine.Port, vid uint16) *tagged {
	return &tagged{Port: p, vid: vid, out: make([]byte, 1<<16+64)}
}

// Send implements engine.Port.
func (t *tagged) Send(frame []byte) error {
	copy(t.out, frame[:macs])
	binary.BigEndian.PutUint16(t.out[macs:], dot1q)
	binary.BigEndian.PutUint16(t.out[macs+2:], t.vid)
	n := copy(t.out[macs+tagSize:], frame[macs:])
	return t.Port.Send(t.out[:macs+tagSize+n])
}

// Recv implements engine.Port. Frames of another VLAN, or without one, are ignored.
func (t *tagged) Recv(buf []byte) (n int, at int64, err error) {
	n, at, err = t.Port.Recv(buf)
	if n < macs+tagSize || err != nil || binary.BigEndian.Uint16(buf[macs:]) != dot1q ||
		binary.BigEndian.Uint16(buf[macs+2:])&0xfff != t.vid {
		return 0, 0, err
	}
	copy(buf[macs:], buf[macs+tagSize:n])
	return n - tagSize, at, nil
}

// onKernel reports whether an interface belongs to the kernel. A driver for the device itself detaches it from the
// kernel, which then has no interface, address or route for it.
func onKernel(iface string) bool { return !cards.IsPCIDevice(iface) }

// open opens a device, and waits for its link if the kernel does not drive it.
func open(c cards.Config) (nic.Device, error) {
	if err := cards.Fits(c.Driver, c.Device); err != nil {
		return nil, process.Usagef("-driver, -iface: %w", err)
	}
	d, err := c.Open()
	if err != nil || onKernel(c.Device) {
		return d, err
	}
	return awaitLink(d)
}

// linkPatience is how long a card may take to bring its link up: negotiation takes seconds.
const linkPatience = 15 * time.Second

// awaitLink waits for the link of a card that was just started.
func awaitLink(d nic.Device) (nic.Device, error) {
	for end := time.Now().Add(linkPatience); ; time.Sleep(10 * time.Millisecond) {
		l, err := d.Link()
		if err == nil && l.Up {
			return d, nil
		}
		if err == nil && time.Now().After(end) {
			why := "is the cable plugged in, and the other end up?"
			if l.Waits != "" {
				why = l.Waits
			}
			err = fmt.Errorf("%s: %w: no link in %v: %s", d.Info().Device, nic.ErrDown, linkPatience, why)
		}
		if err != nil {
			return nil, errors.Join(err, d.Close())
		}
	}
}
