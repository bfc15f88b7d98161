package lab

import (
	"fmt"

	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/enasim"
)

// enaCard pushes frames (LLQ); other, a card of a kind before LLQ, does not.
var enaCard = card{
	name: "ena", module: "ena", jumbo: 9000,
	model: func(mac [6]byte) sim.Model { return newENA(enasim.Options{MAC: mac}) },
	other: func(mac [6]byte) sim.Model {
		return newENA(enasim.Options{MAC: mac, Device: 0x0ec2, NoLLQ: true, NoMemBAR: true, BasicQueues: true, NoMetrics: true})
	},
	agree: enaAgree,
}

var enaAllowance = enasim.Allowance{BandwidthIn: 11, BandwidthOut: 12, Packets: 13, Conntrack: 14, LinkLocal: 15, ConntrackAvailable: 16}

func newENA(o enasim.Options) *enasim.Model {
	m := enasim.New(o)
	m.SetAllowance(enaAllowance)
	return m
}

// enaAgree compares per queue. Linux counts received bytes without the Ethernet header.
func enaAgree(m sim.Model, shown map[string]uint64, _ bool) []string {
	k := m.(*enasim.Model).Counters()
	a := enaAllowance
	want := map[string]uint64{"wd_expired": 0, "tx_timeout": 0, "bw_in_allowance_exceeded": a.BandwidthIn,
		"bw_out_allowance_exceeded": a.BandwidthOut, "pps_allowance_exceeded": a.Packets,
		"conntrack_allowance_exceeded": a.Conntrack, "linklocal_allowance_exceeded": a.LinkLocal}
	sum := map[string]uint64{}
	for q := range 2 {
		want[fmt.Sprintf("queue_%d_rx_cnt", q)] = k.RxQueue[q]
		want[fmt.Sprintf("queue_%d_tx_cnt", q)] = k.TxQueue[q]
		for _, bad := range []string{"tx_bad_req_id", "tx_missed_tx", "rx_bad_req_id", "rx_bad_desc_num", "rx_csum_bad"} {
			want[fmt.Sprintf("queue_%d_%s", q, bad)] = 0
		}
		sum["rx"] += shown[fmt.Sprintf("queue_%d_rx_bytes", q)]
		sum["tx"] += shown[fmt.Sprintf("queue_%d_tx_bytes", q)]
	}
	return append(differ(shown, want), differ(sum, map[string]uint64{"rx": k.RxBytes - 14*k.RxFrames, "tx": k.TxBytes})...)
}
