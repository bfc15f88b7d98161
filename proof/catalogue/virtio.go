package catalogue

import (
	"math/rand/v2"

	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/virtiosim"
)

// The lab uses QEMU's own virtio device instead of the model.
var virtio = Card{
	Name: "virtio", Driver: "virtio", Benchmark: true,
	Profiles: []Profile{
		virtioProfile("split", "1af4:1041, split rings", virtiosim.Options{}),
		virtioProfile("packed", "1af4:1041, packed rings", virtiosim.Options{Packed: true}),
	},
	Random: func(mac [6]byte, r *rand.Rand, _ *Firmware) sim.Model {
		return virtiosim.New(virtiosim.Options{MAC: mac, Packed: r.IntN(2) == 1, NotificationData: r.IntN(2) == 1,
			Limit: 64 << r.IntN(3),
			Lacks: []uint64{0, virtiosim.Bits(16, 63), virtiosim.Bits(3, 18, 22)}[r.IntN(3)]})
	},
}

func virtioProfile(name, doc string, o virtiosim.Options) Profile {
	return Profile{Name: name, Doc: doc, New: func(mac [6]byte) sim.Model { o.MAC = mac; return virtiosim.New(o) }}
}
