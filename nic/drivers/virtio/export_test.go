package virtio

import "github.com/rebound-nic/rebound/nic/kit"

// Gate is where the polling loop parks.
func (d *Device) Gate() *kit.Gate { return &d.card.Gate }
