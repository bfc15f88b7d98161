package measure

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/internal/bench/route"
	"github.com/rebound-nic/rebound/internal/cards"
	"github.com/rebound-nic/rebound/internal/host/handover"
	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/nic"
)

// messageHeaders is the size of the headers that a probe's codec assumes for a payload over IPv6, and that a message
// does not have.
var messageHeaders = probe.MinSize(probe.STAMP, true) - leastMessage(probe.STAMP)

// leastMessage is the shortest message of a protocol, in bytes.
func leastMessage(p probe.Proto) int {
	if p == probe.STAMP {
		return 44 // RFC 8762 §4.2.1
	}
	return 8 // run and sequence number
}

// findMessage fills in what is known about messages before the device is open.
func (s *Series) findMessage() error {
	least := leastMessage(s.Proto) + s.flow.Test.Extra()
	size := s.Sizes[0]
	if size == 0 {
		size = least
	}
	if most := 1<<16 - 1 - messageHeaders; size < least || size > most {
		return process.Usagef("-size %d: messages of %v have %d to %d bytes", size, s.Service, least, most)
	}
	s.flow.Layer, s.flow.Size = probe.Datagram, messageHeaders+size
	s.path = route.Path{Interface: s.Iface, Next: s.Target}
	return nil
}

// message returns the size of a message in bytes.
func (s *Series) message() int { return s.flow.Size - messageHeaders }

// messages sends a series' probes from a queue pair to its peer.
type messages struct {
	nic.Messenger
	from nic.Service
	to   nic.Peer
}

func (m *messages) Send(b []byte) error { return m.Messenger.Send(m.from, m.to, b) }

// FromTarget implements engine.Origin: a queue pair receives the messages of any sender that knows its key.
func (m *messages) FromTarget() bool { return m.Messenger.From(m.to) }

// openMessages opens a device that carries messages, with a queue pair for each service that its series use, and gets
// the addresses of the targets' queue pairs.
func (p *port) openMessages(do cards.Config) error {
	do.Services = nil
	for _, s := range p.series {
		if !slices.Contains(do.Services, s.Service) {
			do.Services = append(do.Services, s.Service)
		}
	}
	m, err := do.OpenMessenger()
	if errors.Is(err, nic.ErrNoDevice) {
		return process.Usagef("%w", err)
	} else if err != nil {
		return err
	}
	p.device = m
	info := m.Info()
	for _, s := range p.series {
		if s.message() > info.MTU {
			return process.Usagef("-size %d: %s takes messages of up to %d bytes", s.message(), info.Device, info.MTU)
		}
		own := endpoint(m, s.Service)
		peer, err := handover.Exchange(netip.AddrPortFrom(s.Target, s.Port), own)
		if err != nil {
			return fmt.Errorf("%w (the responder's address is in its respond.handover; the ports are for UD, SRD, STAMP over UD, STAMP over SRD)", err)
		}
		to, err := m.Resolve(peer)
		if err != nil {
			return err
		}
		s.flow.Src, s.flow.Dst = own.GID, peer.GID
		s.wire = &messages{m, s.Service, to}
	}
	return nil
}

// endpoint returns the address of queue 0's queue pair for a service.
func endpoint(m nic.Messenger, s nic.Service) nic.Address {
	for _, e := range m.Endpoints() {
		if e.Queue == 0 && e.Service == s {
			return e.Address
		}
	}
	return nic.Address{}
}
