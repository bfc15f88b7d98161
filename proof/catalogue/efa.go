package catalogue

import (
	"fmt"
	"slices"

	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/efasim"
)

var efa = Card{
	Name: "efa", Driver: "efa", Benchmark: true,
	Profiles: efaProfiles(efasim.Profiles()),
	Faults:   []string{"amazon"},
	Lab:      &Lab{Module: "efa"}, // it has no network interface
}

// efaProfiles starts with the model's default, efa1.
func efaProfiles(known []efasim.Profile) (all []Profile) {
	for _, p := range known {
		all = append(all, Profile{Name: p.Name, Alias: p.Name, Doc: fmt.Sprintf("1d0f:%04x", p.Device),
			New: func(mac [6]byte) sim.Model {
				return efasim.New(efasim.Options{MAC: mac, Profile: p})
			}})
	}
	i := slices.IndexFunc(all, func(p Profile) bool { return p.Name == efasim.EFA1.Name })
	return slices.Concat(all[i:i+1], all[:i], all[i+1:])
}
