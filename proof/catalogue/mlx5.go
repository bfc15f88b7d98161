package catalogue

import (
	"fmt"
	"math/rand/v2"

	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/mlx5sim"
)

var mlx5 = Card{
	Name: "mlx5", Driver: "mlx5", Benchmark: true,
	Profiles: mlx5Profiles(mlx5sim.Profiles()),
	Random: func(mac [6]byte, r *rand.Rand, f *Firmware) sim.Model {
		all := mlx5sim.Profiles()
		return mlx5sim.New(mlx5sim.Options{MAC: mac, Profile: all[r.IntN(len(all))],
			Withhold: func(uint16) bool { return f.Withhold.Load() },
			Status:   func(uint16) (uint8, uint32) { return f.Status(), 0x77 }})
	},
	Faults: []string{"mellanox"},
	// The first is the recorded ConnectX-4; the other, a ConnectX-5, needs no inline headers in its WQEs.
	Lab: &Lab{Module: "mlx5_core", Scenarios: []string{F2, F2Pair, F3, Smoke, XDP, AFXDP}, Jumbo: 9000,
		Agree: mlx5Agree,
		Other: func(mac [6]byte) sim.Model {
			return mlx5sim.New(mlx5sim.Options{MAC: mac, Profile: mlx5sim.ConnectX5})
		}},
}

func mlx5Profiles(known []mlx5sim.Profile) (all []Profile) {
	for _, p := range known {
		doc := fmt.Sprintf("15b3:%04x", p.Device())
		if p.Virtual() {
			doc += ", a virtual function"
		}
		all = append(all, Profile{Name: p.Name(), Doc: doc, New: func(mac [6]byte) sim.Model {
			return mlx5sim.New(mlx5sim.Options{MAC: mac, Profile: p})
		}})
	}
	return all
}

// mlx5Agree compares the driver's own counts, the vport's and the port's (with FCS), and, before the queues are created
// again, each channel's.
func mlx5Agree(m sim.Model, shown map[string]uint64, all bool) []string {
	k := m.(*mlx5sim.Model).Counters()
	want := map[string]uint64{
		"rx_packets": k.Taken, "tx_packets": k.TxFrames, "rx_bytes": k.TakenBytes, "tx_bytes": k.TxBytes,
		"rx_packets_phy": k.WireRxFrames, "tx_packets_phy": k.TxFrames,
		"rx_bytes_phy": k.WireRxBytes + 4*k.WireRxFrames,
		"tx_bytes_phy": k.TxBytes + 4*k.TxFrames, "tx_broadcast_phy": k.TxBroadcast, "tx_multicast_phy": k.TxMulticast,
		"rx_vport_broadcast_packets": k.RxBroadcast, "rx_vport_multicast_packets": k.RxMulticast,
		"tx_vport_broadcast_packets": k.TxBroadcast, "tx_vport_multicast_packets": k.TxMulticast,
		"rx_vport_unicast_packets": k.RxFrames - k.RxBroadcast - k.RxMulticast,
		"tx_vport_unicast_packets": k.TxFrames - k.TxBroadcast - k.TxMulticast,
		"rx_out_of_buffer":         k.OutOfBuffer, "rx_wqe_err": 0, "tx_cqe_err": 0, "tx_queue_dropped": 0,
		"tx_recover": 0, "rx_discards_phy": 0, "tx_discards_phy": 0, "tx_errors_phy": 0, "link_down_events_phy": 0,
		"ch_eq_rearm": 0,
	}
	d := Differ(shown, want)
	if all {
		for ch := range 2 {
			d = append(d, channelCount(shown, k.RQPackets, fmt.Sprintf("rx%d_packets", ch))...)
			d = append(d, channelCount(shown, k.SQPackets, fmt.Sprintf("tx%d_packets", ch))...)
		}
	}
	return append(d, Differ(map[string]uint64{"missed": k.Missed, "oversize": k.Oversize},
		map[string]uint64{"missed": 0, "oversize": 0})...)
}

// channelCount finds the queue that a channel's counter belongs to.
func channelCount(shown map[string]uint64, queues map[uint32]uint64, name string) []string {
	for _, n := range queues {
		if shown[name] == n {
			return nil
		}
	}
	return []string{fmt.Sprintf("%s is %d, the model's queues have %v", name, shown[name], queues)}
}
