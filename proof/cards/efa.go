package cards

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/efasim"
)

var efa = Card{
	Name: "efa", Driver: "efa", Benchmark: true,
	Profiles: efaProfiles(efasim.Profiles()),
	Random: func(mac [6]byte, r *rand.Rand, _ *Firmware) sim.Model {
		all := efasim.Profiles()
		return efasim.New(efasim.Options{MAC: mac, Profile: all[r.IntN(len(all))], Seed: r.Uint64(),
			AdminDelay: time.Duration(r.IntN(2)) * time.Millisecond, AdminOutOfOrder: r.IntN(2) == 1})
	},
	Faults: []string{"amazon"},
	Lab:    &Lab{Module: "efa"}, // it has no network interface
}

// efaProfiles begins with the model's default, efa1.
func efaProfiles(known []efasim.Profile) (all []Profile) {
	for _, p := range known {
		all = append(all, Profile{Name: p.Name, Alias: p.Name, Doc: fmt.Sprintf("1d0f:%04x", p.Device), New: func(mac [6]byte) sim.Model {
			return efasim.New(efasim.Options{MAC: mac, Profile: p})
		}})
	}
	i := slices.IndexFunc(all, func(p Profile) bool { return p.Name == efasim.EFA1.Name })
	return slices.Concat(all[i:i+1], all[:i], all[i+1:])
}
