package catalogue

import (
	"fmt"
	"math/rand/v2"

	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/mlx4sim"
)

var mlx4 = Card{
	Name: "mlx4", Driver: "mlx4", Benchmark: true,
	Profiles: []Profile{
		mlx4Profile("cx3", "15b3:1003, an Ethernet port", mlx4sim.Options{}),
		mlx4Profile("cx3pro", "15b3:1007, an Ethernet port", mlx4sim.Options{Profile: mlx4sim.ConnectX3Pro}),
		mlx4Profile("cx3-ib", "15b3:1003, an InfiniBand port: its far end is another, and a driver's host runs a subnet manager", mlx4sim.Options{Link: mlx4sim.InfiniBand}),
		mlx4Profile("cx3pro-ib", "15b3:1007, an InfiniBand port",
			mlx4sim.Options{Profile: mlx4sim.ConnectX3Pro, Link: mlx4sim.InfiniBand}),
	},
	Random: func(mac [6]byte, r *rand.Rand, f *Firmware) sim.Model { return RandomMlx4(mac, mlx4sim.Ethernet, r, f) },
	Faults: []string{"mellanox"},
	// Linux steers by MAC table in its default configuration.
	Lab: &Lab{Module: "mlx4_en", Scenarios: []string{F2, F2Pair, F3, Smoke, IPXE}, Jumbo: 9000, Physical: true,
		Agree: mlx4Agree,
		Other: func(mac [6]byte) sim.Model {
			return mlx4sim.New(mlx4sim.Options{MAC: mac, Profile: mlx4sim.ConnectX3Pro, Steering: mlx4sim.MACTable})
		}},
}

func mlx4Profile(name, doc string, o mlx4sim.Options) Profile {
	p := Profile{Name: name, Doc: doc, New: func(mac [6]byte) sim.Model { o.MAC = mac; return mlx4sim.New(o) }}
	if o.Link == mlx4sim.InfiniBand {
		p.Link = sim.LinkInfiniBand
	}
	if name == "cx3pro" {
		p.Alias = "mlx4pro"
	}
	return p
}

// RandomMlx4 creates a model of a random type with a port of the given link layer.
func RandomMlx4(mac [6]byte, link mlx4sim.Link, r *rand.Rand, f *Firmware) sim.Model {
	return mlx4sim.New(mlx4sim.Options{MAC: mac, Link: link,
		Profile:  []mlx4sim.Profile{mlx4sim.ConnectX3, mlx4sim.ConnectX3Pro}[r.IntN(2)],
		Withhold: func(uint16) bool { return f.Withhold.Load() }, Status: func(uint16) uint8 { return f.Status() }})
}

// mlx4Agree compares the driver's own counts, and the port's (with FCS), which the device keeps.
func mlx4Agree(m sim.Model, shown map[string]uint64, all bool) []string {
	k := m.(*mlx4sim.Model).Counters()
	want := map[string]uint64{
		"rx_packets_phy": k.RxFrames, "tx_packets_phy": k.TxFrames, "rx_bytes_phy": k.RxBytes + 4*k.RxFrames,
		"tx_bytes_phy":         k.TxBytes + 4*k.TxFrames,
		"rx_broadcast_packets": k.RxBroadcast, "tx_broadcast_packets": k.TxBroadcast,
		"rx_multicast_packets": k.RxMulticast, "tx_multicast_packets": k.TxMulticast,
		"rx_novlan_packets": k.RxFrames, "tx_novlan_packets": k.TxFrames, "rx_dropped": k.Overflow, "tx_dropped": 0,
		"rx_length_errors": 0, "rx_over_errors": 0,
		"rx_crc_errors": 0, "rx_jabbers": 0,
	}
	d := Differ(shown, want)
	if all {
		for name, queues := range map[string]map[uint32]uint64{"rx": k.Received, "tx": k.Sent} {
			for ch := range 2 {
				if n := shown[fmt.Sprintf("%s%d_packets", name, ch)]; n != 0 {
					d = append(d, channelCount(shown, queues, fmt.Sprintf("%s%d_packets", name, ch))...)
				}
			}
		}
		d = append(d, Differ(shown, map[string]uint64{"rx_packets": k.RxFrames, "tx_packets": k.TxFrames})...)
	}
	d = append(d, few("overflow", k.Overflow, k.RxFrames)...)
	return append(d, Differ(map[string]uint64{"filtered": k.Filtered, "giants": k.Giants},
		map[string]uint64{"filtered": 0, "giants": 0})...)
}
