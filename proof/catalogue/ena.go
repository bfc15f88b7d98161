package catalogue

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/enasim"
)

// beforeLLQ is an older device without low-latency queues.
var beforeLLQ = enasim.Options{Device: 0x0ec2, NoLLQ: true, NoMemBAR: true, BasicQueues: true, NoMetrics: true}

var ena = Card{
	Name: "ena", Driver: "ena", Benchmark: true,
	Profiles: []Profile{
		enaProfile("llq", "1d0f:ec20, LLQ entries of 128 and 256 bytes", enasim.Options{}),
		enaProfile("llq-wide", "LLQ entries of 256 bytes are recommended", enasim.Options{PreferWide: true}),
		enaProfile("no-llq", "1d0f:0ec2, neither LLQ nor its BAR", beforeLLQ),
		enaProfile("msix-bar1", "BAR 0 and 1 of 8 KB, MSI-X in BAR 1, as Graviton hosts have it",
			enasim.Options{MSIXBAR: 1}),
		enaProfile("msix-bar4", "MSI-X in BAR 4 of 64 KB", enasim.Options{MSIXBAR: 4}),
		enaProfile("no-rx-checks", "no receive checksums, no hash", enasim.Options{NoRxChecks: true}),
	},
	Random: func(mac [6]byte, r *rand.Rand, _ *Firmware) sim.Model {
		o := enasim.Options{MAC: mac, Seed: r.Uint64(), Hints: enasim.Hints{Watchdog: 1500, MissingTx: 300},
			AdminDelay:      time.Duration(r.IntN(2)) * time.Millisecond,
			AdminOutOfOrder: r.IntN(2) == 1, TxOutOfOrder: r.IntN(2) == 1, RxOutOfOrder: r.IntN(2) == 1}
		switch r.IntN(3) {
		case 1:
			o.NoLLQ, o.NoMemBAR, o.Device = true, true, 0x0ec2
		case 2:
			o.PreferWide = true
		}
		return enasim.New(o)
	},
	Faults: []string{"amazon"},
	Lab: &Lab{Module: "ena", Scenarios: []string{F2, F2Pair, F3, Smoke, IPXE, XDP}, Jumbo: 9000, Agree: enaAgree,
		Model: func(mac [6]byte) sim.Model { return ENAWithAllowance(mac, enasim.Options{}) },
		Other: func(mac [6]byte) sim.Model { return ENAWithAllowance(mac, beforeLLQ) }},
}

func enaProfile(name, doc string, o enasim.Options) Profile {
	return Profile{Name: name, Doc: doc, New: func(mac [6]byte) sim.Model { o.MAC = mac; return enasim.New(o) }}
}

// enaAllowance is what the lab's models report as the allowances that Linux shows.
var enaAllowance = enasim.Allowance{BandwidthIn: 11, BandwidthOut: 12, Packets: 13, Conntrack: 14, LinkLocal: 15,
	ConntrackAvailable: 16}

// ENAWithAllowance creates a model that reports allowances, which the lab checks in Linux.
func ENAWithAllowance(mac [6]byte, o enasim.Options) sim.Model {
	o.MAC = mac
	m := enasim.New(o)
	m.SetAllowance(enaAllowance)
	return m
}

// enaAgree compares the counters per queue. Linux counts received bytes without the Ethernet header.
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
		for _, bad := range []string{"tx_bad_req_id", "tx_missed_tx", "rx_bad_req_id", "rx_bad_desc_num",
			"rx_csum_bad"} {
			want[fmt.Sprintf("queue_%d_%s", q, bad)] = 0
		}
		sum["rx"] += shown[fmt.Sprintf("queue_%d_rx_bytes", q)]
		sum["tx"] += shown[fmt.Sprintf("queue_%d_tx_bytes", q)]
	}
	return append(Differ(shown, want), Differ(sum, map[string]uint64{"rx": k.RxBytes - 14*k.RxFrames,
		"tx": k.TxBytes})...)
}
