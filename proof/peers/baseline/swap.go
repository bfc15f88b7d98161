package baseline

import (
	"fmt"

	"github.com/rebound-nic/rebound/nic/kit/netif"
	"github.com/rebound-nic/rebound/nic/kit/xdpkit"
)

//go:generate go tool bpf2go -go-package baseline -target bpfel -cflags "-O2 -Wall -Werror -mcpu=v3" swap swap.c

// compiler is the version of clang that built the committed object.
const compiler = "14.0.6"

// Swap is the minimal in-kernel responder: an XDP program that swaps addresses and checks nothing.
type Swap struct {
	Iface string
	Hook  string // xdpkit.Driver or xdpkit.Generic

	// Within runs a function on a thread in the interface's network namespace.
	Within func(func() error) error

	at xdpkit.Attached
}

// Start attaches the program.
func (s *Swap) Start() error {
	return s.Within(func() error {
		i, err := netif.Lookup(s.Iface)
		if err != nil {
			return err
		}
		defer i.Close()
		if err := xdpkit.Free(i); err != nil {
			return err
		}
		s.at, err = xdpkit.Attach(i, []xdpkit.Attempt{{Hook: s.Hook, Load: func() (*xdpkit.Program, error) {
			spec, err := loadSwap()
			if err != nil {
				return nil, err
			}
			if err := xdpkit.Set(spec, map[string]any{swapVarOurMac: xdpkit.MAC(i.MAC)}); err != nil {
				return nil, err
			}
			return new(xdpkit.Types).Load(spec, swapProgFloorSwap, nil)
		}}})
		return err
	})
}

// Stop detaches the program.
func (s *Swap) Stop() error {
	if s.at.Link == nil {
		return nil
	}
	err := s.at.Link.Close()
	s.at.Program.Close()
	s.at = xdpkit.Attached{}
	if err != nil {
		return fmt.Errorf("interface %s: the floor's XDP program: %w", s.Iface, err)
	}
	return nil
}
