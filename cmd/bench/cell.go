package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"rebound/cmd/bench/engine"
	"rebound/cmd/bench/hop"
	"rebound/cmd/bench/probe"
	"rebound/cmd/bench/socket"
	"rebound/latency"
	"rebound/nic"
)

// cell is one series of probes: it ends as one report.
type cell struct {
	settings
	path   hop.Path
	flow   probe.Flow
	port   *port
	rec    *latency.Recorder
	stream *engine.Stream
	dir    string
	notes  []string
}

// port is an open device or socket. Cells on the same device share it.
type port struct {
	engine.Port
	device  nic.Device // raw
	socket  *socket.Port
	stamper *engine.Stamper
	stamps  nic.Timestamping
	cells   []*cell
	holds   []int // kernel sockets that keep our UDP ports from the kernel's "port unreachable"
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
	return nil // something failed before its turn to be opened came
}

// find fills in the way to the target, and checks what can be checked without opening anything.
func (c *cell) find() error {
	if c.target.Is6() && c.target.IsLinkLocalUnicast() && c.target.Zone() == "" && c.iface != "" {
		c.target = c.target.WithZone(c.iface)
	}
	c.flow = probe.Flow{Proto: c.proto, Dst: c.target.WithZone(""), DstPort: c.settings.port, Run: rand.Uint32(), Size: c.sizes[0]}
	if c.flow.Size == 0 {
		c.flow.Size = probe.MinSize(c.proto, c.target.Is6())
	}
	if c.transport == "raw" && !onKernel(c.iface) {
		if !c.source.IsValid() {
			return usage("%s is not the kernel's, which knows no route through it: give -source, and -gateway if the target is behind a router", c.iface)
		}
		c.path = hop.Path{Interface: c.iface, Source: c.source, Next: c.target}
		if c.gateway.IsValid() {
			c.path.Next = c.gateway
		}
		return nil
	}
	var err error
	c.path, err = hop.Find(c.target, hop.Wish{Interface: c.iface, Source: c.source, Gateway: c.gateway})
	switch {
	case errors.Is(err, hop.ErrNoInterface), errors.Is(err, hop.ErrNoSource), errors.Is(err, hop.ErrNoRoute):
		return usage("%w", err)
	case err != nil:
		return err
	case c.path.Loopback && c.transport == "raw":
		return usage("%v is reached through the loopback interface %s, which carries no frames to a peer: take -transport socket, or a veth pair",
			c.target, c.path.Interface)
	case c.transport == "socket" && c.source.IsValid() && !c.path.Owned:
		return usage("source %v is not an address of this host: a socket needs one, -transport raw does not", c.source)
	}
	return c.checkSize(c.path.MTU)
}

func (c *cell) checkSize(mtu int) error {
	if err := probe.CheckSize(c.proto, c.target.Is6(), c.flow.Size, mtu); err != nil {
		return usage("%w", err)
	}
	return nil
}

// raw prepares the part of the flow that a raw frame needs before the device is open.
func (c *cell) raw(p *port) error {
	c.flow.Src = c.path.Source.WithZone("")
	c.flow.ID = uint16(1 + rand.IntN(0xffff))
	if c.proto == probe.ICMP {
		return nil
	}
	if !c.path.Owned {
		c.flow.SrcPort = uint16(49152 + rand.IntN(16384)) // RFC 6335 §6
		return nil
	}
	fd, own, err := hold(c.flow.Src, c.path.Index)
	if err != nil {
		return err
	}
	p.holds = append(p.holds, fd)
	c.flow.SrcPort = own
	return nil
}

// hold takes a UDP port of the kernel's and lets it swallow all that comes: the kernel sees our replies too, and would
// tell the target that the port is unreachable.
func hold(ip netip.Addr, index int) (fd int, port uint16, err error) {
	family, sa := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Addr: [4]byte{}})
	if ip.Is4() {
		sa = &unix.SockaddrInet4{Addr: ip.As4()}
	} else {
		family, sa = unix.AF_INET6, &unix.SockaddrInet6{Addr: ip.As16(), ZoneId: uint32(index)}
	}
	if fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return 0, 0, fmt.Errorf("reserve a UDP port: %w", err)
	}
	drop := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}
	err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &drop})
	if err == nil {
		err = unix.Bind(fd, sa)
	}
	var own unix.Sockaddr
	if err == nil {
		own, err = unix.Getsockname(fd)
	}
	if err != nil {
		unix.Close(fd)
		return 0, 0, fmt.Errorf("reserve a UDP port of %v: %w", ip, err)
	}
	switch a := own.(type) {
	case *unix.SockaddrInet4:
		port = uint16(a.Port)
	case *unix.SockaddrInet6:
		port = uint16(a.Port)
	}
	return fd, port, nil
}

// steer says what a device has to take for its cells, nil for everything.
func (p *port) steer() (*nic.Steer, error) {
	first := p.cells[0]
	s := &nic.Steer{Local: first.flow.Src, Remote: first.flow.Dst, Neighbours: !first.path.Owned}
	for _, c := range p.cells {
		if c.flow.Src != s.Local || c.flow.Dst != s.Remote || c.path.Next != first.path.Next || c.path.Routed(c.target) && s.Neighbours {
			for _, c := range p.cells {
				if c.path.Owned && c.driver == "afxdp" {
					return nil, usage("afxdp would have to take all frames of %s, which the host uses too: for several targets, or a router that is asked for its MAC, take -driver afpacket",
						c.path.Interface)
				}
			}
			return nil, nil
		}
		if c.proto == probe.ICMP {
			s.EchoIDs = append(s.EchoIDs, c.flow.ID)
		} else {
			s.UDPPorts = append(s.UDPPorts, c.flow.SrcPort)
		}
	}
	return s, nil
}

// resolve finds the next hop's MAC.
func (c *cell) resolve() error {
	c.flow.Routed = c.path.Routed(c.target)
	if c.settings.mac != [6]byte{} {
		c.flow.DstMAC = c.settings.mac
		return nil
	}
	if onKernel(c.iface) && c.path.Owned {
		if mac, ok := c.path.Known(); ok {
			c.flow.DstMAC = mac
			return nil
		}
		if c.path.AskKernel() == nil {
			for range 300 {
				time.Sleep(10 * time.Millisecond)
				if mac, ok := c.path.Known(); ok {
					c.flow.DstMAC = mac
					return nil
				}
			}
			return fmt.Errorf("%w: the kernel found no MAC for %v on %s", hop.ErrNoAnswer, c.path.Next, c.path.Interface)
		}
	}
	mac, err := c.neighbour().Resolve(c.port, c.path.Next, time.Second)
	c.flow.DstMAC = mac
	return err
}

func (c *cell) neighbour() *hop.Neighbour { return hop.NewNeighbour(c.flow.Src, c.flow.SrcMAC) }

// prepare makes a new stream and recorder at a rate, for the cell's open port.
func (c *cell) prepare(clock *latency.Clock, o *options, rate float64) error {
	codec, err := probe.New(c.flow)
	if err != nil {
		return usage("%w", err)
	}
	c.rates = []float64{rate}
	ro := latency.RecorderOptions{OpenLoop: rate > 0, Interval: min(max(o.duration/20, 10*time.Millisecond), time.Second)}
	if o.duration == 0 {
		ro.Interval = 100 * time.Millisecond
	}
	if o.raw {
		ro.Raw = 1 << 20
	}
	if c.rec, err = latency.NewRecorder(clock, ro); err != nil {
		return err
	}
	eo := engine.Options{Port: c.port, Codec: codec, Recorder: c.rec, Rate: rate, Timeout: c.timeout, Stamps: c.port.stamper}
	if c.port.device != nil {
		eo.Answer = c.neighbour().Answer
	}
	c.stream, err = engine.New(eo)
	return err
}

// label is what tables call the cell.
func (c *cell) label() string {
	if c.name != "" {
		return c.name
	}
	return c.target.String()
}

// folder turns a name into one path element.
func folder(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= '0' && r <= '9', r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r == '-', r == '.', r == '_':
			return r
		}
		return '-'
	}, strings.TrimLeft(name, "."))
}
