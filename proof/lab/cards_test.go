package lab

import (
	"fmt"

	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/ixgbesim"
)

var cards = []card{{
	name: "ixgbe", module: "ixgbe", jumbo: 9000,
	model: func(mac [6]byte) sim.Model { return ixgbesim.New(ixgbesim.Options{MAC: mac}) },
	other: func(mac [6]byte) sim.Model { return ixgbesim.New(ixgbesim.Options{MAC: mac, Kind: ixgbesim.KX4}) },
	agree: ixgbeAgree,
}, enaCard, mlx5Card}

func ixgbeAgree(m sim.Model, shown map[string]uint64, all bool) []string {
	k := m.(*ixgbesim.Model).Counters()
	want := map[string]uint64{
		"rx_packets": k.RxFrames, "tx_packets": k.TxFrames, "rx_bytes": k.RxBytes, "tx_bytes": k.TxBytes - k.TxPadding,
		"rx_errors": 0, "tx_errors": 0, "rx_dropped": 0, "tx_dropped": 0, "rx_csum_offload_errors": 0, "tx_timeout_count": 0,
		"rx_missed_errors": k.RxMissed, "rx_no_dma_resources": k.RxNoDesc, "rx_length_errors": 0,
	}
	for q := range 2 {
		want[fmt.Sprintf("rx_queue_%d_packets", q)] = k.RxQueue[q]
		want[fmt.Sprintf("tx_queue_%d_packets", q)] = k.TxQueue[q]
	}
	if all { // kept by the device; with FCS
		want["rx_pkts_nic"], want["tx_pkts_nic"] = k.RxFrames, k.TxFrames
		want["rx_bytes_nic"], want["tx_bytes_nic"] = k.RxBytes+4*k.RxFrames, k.TxBytes+4*k.TxFrames
		want["broadcast"], want["multicast"] = k.RxBroadcast, k.RxMulticast
	}
	return append(differ(shown, want), differ(map[string]uint64{"missed": k.RxMissed, "no descriptor": k.RxNoDesc}, map[string]uint64{"missed": 0, "no descriptor": 0})...)
}
