package catalogue

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/ixgbesim"
)

var ixgbe = Card{
	Name: "ixgbe", Driver: "ixgbe", Benchmark: true,
	Profiles: []Profile{
		ixgbeProfile("82599", "8086:10fb, SFP+", ixgbesim.Options{}),
		ixgbeProfile("82599-dual", "one of two functions, BAR 0 of 4 MB, prefetchable",
			ixgbesim.Options{Dual: true, BAR0: 4 << 20, Pref: true}),
		ixgbeProfile("82599-lom", "shared with a management controller: CFG_DONE never sets; BAR 0 of 128 KB",
			ixgbesim.Options{SharedLOM: true, BAR0: 128 << 10}),
		ixgbeProfile("82599-kx4", "8086:10f7, backplane", ixgbesim.Options{Kind: ixgbesim.KX4}),
		ixgbeProfile("82599-combined", "8086:10f8, backplane", ixgbesim.Options{Kind: ixgbesim.Combined}),
		ixgbeProfile("82599-xaui", "8086:10fc", ixgbesim.Options{Kind: ixgbesim.XAUI}),
		ixgbeProfile("x540", "8086:1528, 10GBASE-T", ixgbesim.Options{Kind: ixgbesim.X540}),
	},
	Random: func(mac [6]byte, r *rand.Rand, _ *Firmware) sim.Model {
		return ixgbesim.New(ixgbesim.Options{MAC: mac, Kind: []ixgbesim.Kind{ixgbesim.SFP, ixgbesim.X540,
			ixgbesim.KX4}[r.IntN(3)]})
	},
	Lab: &Lab{Module: "ixgbe", Scenarios: []string{F2, F2Pair, F3, Smoke, IPXE, XDP, AFXDP}, Jumbo: 9000,
		Agree: ixgbeAgree,
		Other: func(mac [6]byte) sim.Model { return ixgbesim.New(ixgbesim.Options{MAC: mac, Kind: ixgbesim.KX4}) }},
}

func ixgbeProfile(name, doc string, o ixgbesim.Options) Profile {
	return Profile{Name: name, Doc: doc, New: func(mac [6]byte) sim.Model { o.MAC = mac; return ixgbesim.New(o) }}
}

func ixgbeAgree(m sim.Model, shown map[string]uint64, all bool) []string {
	k := m.(*ixgbesim.Model).Counters()
	want := map[string]uint64{
		"rx_packets": k.RxFrames, "tx_packets": k.TxFrames, "rx_bytes": k.RxBytes, "tx_bytes": k.TxBytes - k.TxPadding,
		"rx_errors": 0, "tx_errors": 0, "rx_dropped": 0, "tx_dropped": 0, "rx_csum_offload_errors": 0,
		"tx_timeout_count": 0,
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
	return slices.Concat(Differ(shown, want), few("missed", k.RxMissed, k.RxFrames),
		few("no descriptor", k.RxNoDesc, k.RxFrames))
}
