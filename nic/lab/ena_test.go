package lab

import (
	"fmt"

	"rebound/nic/sim"
	"rebound/nic/sim/enasim"
)

// enaCard pushes frames (LLQ); other, a card of a kind before LLQ, does not.
var enaCard = card{
	name: "ena", module: "ena", jumbo: 9000,
	model: func(mac [6]byte) sim.Model { return enasim.New(enasim.Options{MAC: mac}) },
	other: func(mac [6]byte) sim.Model {
		return enasim.New(enasim.Options{MAC: mac, Device: 0x0ec2, NoLLQ: true, NoMemBAR: true})
	},
	agree: enaAgree,
}

func enaAgree(m sim.Model, shown map[string]uint64, _ bool) []string {
	k := m.(*enasim.Model).Counters()
	want := map[string]uint64{"rx_drops": k.RxDrops, "tx_drops": k.TxDrops, "wd_expired": 0, "tx_timeout": 0}
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
	return append(differ(shown, want), differ(sum, map[string]uint64{"rx": k.RxBytes, "tx": k.TxBytes})...)
}
