package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"

	"rebound/cmd/bench/engine"
	"rebound/cmd/bench/probe"
	"rebound/cmd/bench/socket"
	"rebound/latency"
	"rebound/latency/report"
	"rebound/nic"
)

// session is one bench run.
type session struct {
	*env
	*options
	place  *place
	clock  *latency.Clock
	cells  []*cell
	ports  []*port
	id     string
	jitter *latency.Histogram
	stop   atomic.Bool
	before func(*cell) error // called before each slice; nil but in the demo
}

// measure runs o and writes its reports. It runs on a thread of its own, in the caller's network namespace.
func (e *env) measure(o *options, before func(*cell) error) (err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer quiet()()
	s := &session{env: e, options: o, before: before}
	defer onSignal(&s.stop)()
	if s.place, err = choose(o.core); err != nil {
		return err
	}
	defer func() {
		for _, p := range s.ports {
			err = errors.Join(err, p.close())
		}
	}()
	if err := s.open(); err != nil {
		return err
	}
	if s.clock, err = latency.NewClock(); err != nil {
		return err
	}
	for _, note := range s.clock.Info().Notes {
		e.log.Warn("clock", "note", note)
	}
	if err := s.place.take(); err != nil {
		return err
	}
	defer s.place.leave()
	if o.selfTest > 0 {
		s.jitter = latency.SelfTest(s.clock, o.selfTest)
	}
	if o.lossless > 0 {
		return s.search()
	}
	for _, c := range s.cells {
		if err := c.prepare(s.clock, o, c.rates[0]); err != nil {
			return err
		}
	}
	err = s.rounds()
	return errors.Join(err, s.finish())
}

// open opens what the variants need, and resolves their next hops.
func (s *session) open() error {
	byDevice := map[string]*port{}
	for i, v := range s.variants {
		c := &cell{settings: v, dir: s.out}
		if len(s.variants) > 1 {
			name := v.name
			if s.anonymous {
				name = report.Scrub(name)
			}
			c.dir = filepath.Join(s.out, folder(fmt.Sprintf("%02d-%s", i+1, name)))
		}
		if err := c.find(); err != nil {
			return err
		}
		s.cells = append(s.cells, c)
		if c.transport == "socket" {
			if err := s.openSocket(c); err != nil {
				return err
			}
			continue
		}
		key := c.driver + " " + c.path.Interface
		p := byDevice[key]
		if p == nil {
			p = &port{}
			byDevice[key] = p
			s.ports = append(s.ports, p)
		}
		p.cells = append(p.cells, c)
		c.port = p
		if err := c.raw(p); err != nil {
			return err
		}
	}
	for _, p := range s.ports {
		if p.socket == nil {
			if err := s.openRaw(p); err != nil {
				return err
			}
		}
	}
	if s.paired {
		s.id = fmt.Sprintf("%016x", rand.Uint64())
	}
	return nil
}

func (s *session) openSocket(c *cell) (err error) {
	p := &port{cells: []*cell{c}}
	if c.proto == probe.ICMP {
		c.flow.Layer = probe.Message
		p.socket, err = socket.Ping(c.target, c.source, c.iface)
	} else {
		c.flow.Layer = probe.Datagram
		p.socket, err = socket.UDP(netip.AddrPortFrom(c.target, c.flow.DstPort), c.source, c.iface)
	}
	if err != nil {
		return err
	}
	p.Port, c.port = p.socket, p
	s.ports = append(s.ports, p)
	p.socket.Interface = c.path.Interface
	own := p.socket.Local()
	c.flow.Src, c.flow.SrcPort, c.flow.ID = own.Addr().WithZone(""), own.Port(), own.Port()
	return s.enableStamps(p, p.socket)
}

func (s *session) openRaw(p *port) (err error) {
	first := p.cells[0]
	o := s.nic
	o.Driver, o.Device, o.Log = first.driver, first.path.Interface, s.log
	if o.Steer, err = p.steer(); err != nil {
		return err
	}
	o.Shared = first.path.Owned || o.Steer == nil || s.timestamps // which AF_XDP has none of
	d, err := open(o)
	if errors.Is(err, nic.ErrNoDevice) {
		return usage("%w", err)
	} else if err != nil {
		return err
	}
	p.device, p.Port = d, d
	info := d.Info()
	for _, c := range p.cells {
		mac, err := parseMAC(info.MAC)
		if err != nil {
			return fmt.Errorf("%s: %w", info.Device, err)
		}
		c.flow.SrcMAC = mac
		if err := c.checkSize(info.MTU); err != nil {
			return err
		}
		if err := c.resolve(); err != nil {
			return err
		}
	}
	t, _ := d.(nic.Timestamper)
	return s.enableStamps(p, t)
}

func (s *session) enableStamps(p *port, t nic.Timestamper) (err error) {
	if !s.timestamps {
		return nil
	}
	if t == nil {
		return usage("-timestamps: driver %s has none", p.device.Info().Driver)
	}
	if p.stamps, err = t.EnableTimestamps(true); err != nil {
		return err
	}
	p.stamper = engine.NewStamper(t)
	return nil
}

// rounds measures all cells in turn, forwards and backwards, so that what drifts slowly hits them alike.
func (s *session) rounds() error {
	limit := engine.Limit{Warmup: s.warmup, Duration: s.duration, Count: s.count}
	slicesPerRun := 1
	if s.paired && s.slice > 0 {
		limit.Warmup = min(s.warmup, s.slice/10)
		if s.duration > 0 {
			slicesPerRun = int((s.duration + s.slice - 1) / s.slice)
			limit.Duration = s.slice
		} else {
			slicesPerRun = 20
		}
		limit.Count = (s.count + int64(slicesPerRun) - 1) / int64(slicesPerRun)
	}
	total := s.runs * slicesPerRun
	show := s.progress(total*len(s.cells), limit)
	defer show.end()
	for i := range total {
		order := slices.Clone(s.cells)
		if i%2 == 1 {
			slices.Reverse(order)
		}
		for _, c := range order {
			if s.before != nil {
				if err := s.before(c); err != nil {
					return err
				}
			}
			if s.stop.Load() {
				return nil
			}
			runtime.GC() // none while measuring
			show.next(c)
			if err := c.stream.Run(limit, &s.stop); err != nil {
				return fmt.Errorf("%s: %w", c.label(), err)
			}
			if i == 0 && c.silent() {
				return c.noReply()
			}
		}
	}
	return nil
}

// silent reports whether a whole run drew no reply at all.
func (c *cell) silent() bool {
	n := c.stream.Counts()
	return n.Sent > 0 && n.Lost() == n.Sent
}

// errNoReply says that the target was silent.
var errNoReply = errors.New("no reply")

func (c *cell) noReply() error {
	to := c.target.String()
	if c.proto != probe.ICMP {
		to = netip.AddrPortFrom(c.target, c.flow.DstPort).String()
	}
	n := c.stream.Counts()
	refused := ""
	if n.Refused > 0 {
		refused = fmt.Sprintf("; it answered with %d ICMP errors, the last %s", n.Refused, icmpError(c.stream.Error, c.target.Is6()))
	}
	if p := c.port.socket; p != nil && p.Refused > 0 {
		refused = fmt.Sprintf("; the kernel reports: %v", p.LastRefusal)
	}
	return fmt.Errorf("%w from %s by %v: %d probes sent through %s to %v, none answered within %v%s",
		errNoReply, to, c.proto, n.Sent, c.path.Interface, c.path.Next, c.timeout, refused)
}

// icmpError names the errors that a probe usually draws (RFC 792, RFC 4443).
func icmpError(code uint16, v6 bool) string {
	names := map[uint16]string{0x300: "network unreachable", 0x301: "host unreachable", 0x302: "protocol unreachable", 0x303: "port unreachable",
		0x304: "fragmentation needed", 0x30d: "administratively prohibited", 0xb00: "time to live exceeded"}
	if v6 {
		names = map[uint16]string{0x100: "no route", 0x101: "administratively prohibited", 0x103: "address unreachable", 0x104: "port unreachable",
			0x200: "packet too big", 0x300: "hop limit exceeded"}
	}
	if n, ok := names[code]; ok {
		return n
	}
	return fmt.Sprintf("type %d code %d", code>>8, code&0xff)
}

func parseMAC(s string) (mac [6]byte, err error) {
	if n, err := fmt.Sscanf(s, "%02x:%02x:%02x:%02x:%02x:%02x", &mac[0], &mac[1], &mac[2], &mac[3], &mac[4], &mac[5]); n != 6 {
		return mac, fmt.Errorf("MAC %q: %w", s, err)
	}
	return mac, nil
}
