package efa

import (
	"net/netip"
	"time"

	"github.com/rebound-nic/rebound/nic/kit"
)

// Gate synchronises the loops and the watchdog.
func (d *Device) Gate() *kit.Gate { return &d.card.Gate }

// A model allows one second for a command, during which a busy machine may not run the model's thread.
func init() { leastAdmin = 3 * time.Second }

const NoHandle = noHandle

func (d *Device) Unknown(gid netip.Addr) error {
	return d.card.Ask(func() error {
		d.peers.mu.Lock()
		defer d.peers.mu.Unlock()
		_, err := d.reach(gid, false)
		return err
	})
}

func (d *Device) Handle(gid netip.Addr) uint32 {
	d.peers.mu.Lock()
	defer d.peers.mu.Unlock()
	if h := d.peers.byGID[gid]; h != nil {
		return h.number.Load()
	}
	return noHandle
}
