package cards

import (
	"github.com/rebound-nic/rebound/nic"
)

// Heir returns a port as one that another process can take over, nil if that is not possible.
func Heir(port nic.Port) nic.Heritable {
	switch p := port.(type) {
	case *card:
		return p.heir(p.Device)
	case *messenger:
		return p.heir(p.Messenger)
	case nic.Heritable:
		return p
	}
	return nil
}

func (c *modelled) heir(port nic.Port) nic.Heritable {
	d, ok := port.(interface{ Heritable() nic.Heritable })
	if !ok {
		return nil
	}
	h := d.Heritable()
	if can, ok := h.(interface{ CanBequeath() bool }); !ok || !can.CanBequeath() {
		return nil
	}
	return &heir{h, port, c}
}

// heir keeps the device's last counts for the summary, because the other process reads them from then on.
type heir struct {
	nic.Heritable
	port nic.Port
	card *modelled
}

// Position implements nic.Heritable.
func (h *heir) Position() ([]byte, error) {
	h.keep()
	return h.Heritable.Position()
}

// Yield implements nic.Yielder.
func (h *heir) Yield() error {
	h.keep()
	return h.Heritable.(nic.Yielder).Yield()
}

func (h *heir) keep() {
	var s nic.Stats
	if h.port.ReadStats(&s) == nil {
		h.card.last.Store(&s)
	}
}
