package catalogue

import (
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/toysim"
)

// toy is the template. The product has no driver for it.
var toy = Card{
	Name: "toy",
	Profiles: []Profile{{Name: "toy", Doc: "a device without a datasheet, for tests",
		New: func(mac [6]byte) sim.Model { return toysim.New(mac) }}},
}
