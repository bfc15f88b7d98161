package campaign

import (
	"slices"

	product "github.com/rebound-nic/rebound/internal/cards"
	"github.com/rebound-nic/rebound/proof/catalogue"
)

// kinds are all devices and interfaces that the responder runs on: the cards with a driver, and kernel interfaces. The
// tags are all for every kind, model for device models, frames for Ethernet models, kernel for kernel interfaces, and
// the driver's name.
var kinds = slices.Concat(modelled(), []kind{
	{"mlx4 InfiniBand", []string{"all", "model", "infiniband", "mellanox"}, openInfiniBand},
	{"afpacket", []string{"all", "kernel"}, openVeth("afpacket", false)},
	{"afxdp", []string{"all", "kernel"}, openVeth("afxdp", false)},
	{"xdp", []string{"all", "kernel", "xdp"}, openVeth("xdp", false)},
	{"xdp pinned", []string{"all", "kernel", "xdp", "pinned"}, openVeth("xdp", true)},
})

// modelled are the cards with a driver.
func modelled() (all []kind) {
	for i := range catalogue.All {
		c := &catalogue.All[i]
		if c.Driver == "" {
			continue
		}
		k := kind{c.Name, []string{"all", "model", "frames", c.Name}, openCard(c)}
		if product.CarriesMessages(c.Driver) {
			k = kind{c.Name, []string{"all", "model", c.Name}, openEFA}
		}
		k.tags = append(k.tags, c.Faults...)
		all = append(all, k)
	}
	return all
}
