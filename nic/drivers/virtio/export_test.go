package virtio

import "github.com/rebound-nic/rebound/nic/kit"

func (d *Device) Gate() *kit.Gate { return &d.card.Gate }
