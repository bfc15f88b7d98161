package responder

import (
	"fmt"
	"net"

	"github.com/rebound-nic/rebound/internal/host/succession"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/kit/netif"
)

// heritable is a port that another process can take over. The claims of its addresses show that process where to find
// it.
type heritable interface {
	nic.Heritable
	ClaimFiles() []int
}

// inherit gets the sockets of the responder that runs, if the settings request it and there is one.
func (a *answering) inherit() error {
	s := a.settings
	if !s.nic.TakeOver {
		return nil
	}
	i, err := net.InterfaceByName(s.nic.Device)
	if err != nil {
		return fmt.Errorf("nic.take_over: interface %s: %w", s.nic.Device, err)
	}
	for _, p := range a.match.Addresses {
		if a.before, err = succession.Find(netif.ClaimName(i.Index, p.Addr())); err != nil {
			return fmt.Errorf("nic.take_over: %w", err)
		}
		if a.before != nil {
			s.nic.Inherited = &a.before.Inheritance
			a.later(a.before.Close)
			return nil
		}
	}
	a.log.Info("nothing to take over: no responder answers for the addresses")
	return nil
}

// takeOver has the responder that runs stop, once this one is ready to poll.
func (a *answering) takeOver() error {
	if a.before == nil {
		return nil
	}
	position, err := a.before.Take()
	if err != nil {
		return err
	}
	return a.dev.(nic.Heritable).Continue(position)
}

// offerSockets lets another responder take this one's place. stop ends the loops.
func (a *answering) offerSockets(stop func()) (err error) {
	if h, ok := a.dev.(heritable); ok {
		a.offer, err = succession.Listen(h.ClaimFiles(), h, a.user, stop, a.log)
		a.later(func() { a.offer.Close() })
	}
	return err
}
