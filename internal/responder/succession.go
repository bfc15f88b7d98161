package responder

import (
	"crypto/sha256"
	"fmt"
	"net"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/cards"
	"github.com/rebound-nic/rebound/internal/host/succession"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/kit/netif"
)

// heritable is a port that another process can take over. Its claims show that process where to find it.
type heritable interface {
	nic.Heritable
	ClaimFiles() []int
}

// device is a PCI function as a heritable port. Its claim is the last file of what it hands over.
type device struct {
	nic.Heritable
	claim int
}

func (d *device) ClaimFiles() []int { return []int{d.claim} }

// Bequest implements nic.Heritable.
func (d *device) Bequest() (nic.Inheritance, error) {
	in, err := d.Heritable.Bequest()
	in.Files = append(in.Files, d.claim)
	return in, err
}

// Yield implements nic.Yielder.
func (d *device) Yield() error { return d.Heritable.(nic.Yielder).Yield() }

// deviceClaim is the name of the socket with which a responder claims a PCI function.
func deviceClaim(name string) string {
	if a, err := pci.ParseAddress(name); err == nil {
		return "@rebound/drives/" + a
	}
	if path, ok := strings.CutPrefix(name, "vfio-user:"); ok {
		if whole, err := filepath.Abs(path); err == nil {
			name = whole
		}
	}
	return fmt.Sprintf("@rebound/drives/%x", sha256.Sum256([]byte(name))) // a path may be too long
}

// claims are the names by which another responder can be found.
func (a *answering) claims() (names []string, err error) {
	s := a.settings
	switch {
	case s.nic.Beside():
		return nil, nil
	case cards.IsPCIDevice(s.nic.Device):
		return []string{deviceClaim(s.nic.Device)}, nil
	}
	i, err := net.InterfaceByName(s.nic.Device)
	if err != nil {
		return nil, fmt.Errorf("nic.take_over: interface %s: %w", s.nic.Device, err)
	}
	for _, p := range a.match.Addresses {
		names = append(names, netif.ClaimName(i.Index, p.Addr()))
	}
	return names, nil
}

// inherit gets the sockets or the device of the responder that runs, if the settings request it and there is one.
func (a *answering) inherit() error {
	s := a.settings
	if !s.nic.TakeOver {
		return nil
	}
	names, err := a.claims()
	if err != nil {
		return err
	}
	for _, name := range names {
		if a.before, err = succession.Find(name); err != nil {
			return fmt.Errorf("nic.take_over: %w", err)
		}
		if a.before == nil {
			continue
		}
		in := &a.before.Inheritance
		if last := len(in.Files) - 1; last >= 0 && cards.IsPCIDevice(s.nic.Device) {
			a.claim, in.Files = in.Files[last], in.Files[:last]
		}
		s.nic.Inherited = in
		a.later(a.before.Close)
		return nil
	}
	a.log.Info("nothing to take over: no responder answers for the addresses")
	return nil
}

// takeOver has the responder that runs stop, once this one is ready to poll.
func (a *answering) takeOver() error {
	if a.before == nil || a.before.Ended() {
		return nil
	}
	position, err := a.before.Take()
	if err != nil {
		return err
	}
	if err := cards.Heir(a.dev).Continue(position); err != nil {
		return err
	}
	a.view.before, _ = a.view.transactions()
	return nil
}

// claimDevice makes a PCI function's responder known to others, while the process may still open sockets.
func (a *answering) claimDevice() {
	h := cards.Heir(a.dev)
	if _, ok := h.(heritable); h == nil || ok {
		return
	}
	if a.claim < 0 {
		var err error
		if a.claim, err = succession.Claim(deviceClaim(a.settings.nic.Device)); err != nil {
			a.log.Warn("no other responder can take over the device", "error", err)
			return
		}
	}
	a.later(func() { unix.Close(a.claim) })
}

// offerSockets lets another responder take this one's place. stop ends the loops.
func (a *answering) offerSockets(stop func()) (err error) {
	h := cards.Heir(a.dev)
	with, ok := h.(heritable)
	if !ok && a.claim >= 0 && h != nil {
		with = &device{h, a.claim}
	}
	if with == nil {
		return nil
	}
	a.offer, err = succession.Listen(with.ClaimFiles(), with, a.user, stop, a.log)
	a.later(func() { a.offer.Close() })
	return err
}
