package efa

import (
	"fmt"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/kit/amazonadmin"
)

// statGroup is one answer of the device's statistics (efa_admin_get_stats_type), with its counters by their names there.
type statGroup struct {
	name   string
	kind   uint8
	needs  uint32 // capability without which the device is not asked
	values []string
}

var statGroups = []statGroup{
	{"basic", 0, 0, []string{"tx_bytes", "tx_pkts", "rx_bytes", "rx_pkts", "rx_drops", "qkey_viol"}},
	{"message", 1, 0, []string{"send_bytes", "send_wrs", "recv_bytes", "recv_wrs"}},
	{"RDMA read", 2, capRDMARead, []string{"rdma_read_wrs", "rdma_read_bytes", "rdma_read_wr_err", "rdma_read_resp_bytes"}},
	{"RDMA write", 3, capRDMAWrite, []string{"rdma_write_wrs", "rdma_write_bytes", "rdma_write_wr_err", "rdma_write_recv_bytes"}},
	{"network", 4, 0, []string{"retrans_bytes", "retrans_pkts", "retrans_timeout_events", "unresponsive_remote_events", "impaired_remote_conn_events"}},
}

// count asks the device for its own counts since it was last started: whether a reset clears them is not public. Older devices
// know only some of the groups.
func (d *Device) count() (s nic.Stats, err error) {
	s.Extra = map[string]uint64{}
	for _, g := range statGroups {
		if g.needs != 0 && d.attr.caps&g.needs == 0 {
			continue
		}
		c := getStats{Header: amazonadmin.Header{Opcode: opGetStats}, kind: g.kind}
		var r gotStats
		if err := amazonadmin.Exec(d.aq, "get "+g.name+" statistics", &c, &r); err != nil {
			if g.kind != 0 && refused(err) {
				continue
			}
			return s, err
		}
		for i, name := range g.values {
			s.Extra[name] = r.value[i] - d.counted[name]
		}
	}
	for name, p := range map[string]*uint64{"tx_bytes": &s.TxBytes, "tx_pkts": &s.TxFrames, "rx_bytes": &s.RxBytes, "rx_pkts": &s.RxFrames,
		"rx_drops": &s.RxDropped} {
		*p = s.Extra[name]
		delete(s.Extra, name)
	}
	return s, nil
}

// ReadStats asks the device and adds the queues' own counts.
func (d *Device) ReadStats(out *nic.Stats) error {
	return d.card.Ask(func() error {
		if d.regs.Gone() {
			return d.card.Gone("VERSION")
		}
		now, err := d.count()
		if err != nil {
			return err
		}
		*out = d.card.Totals.Read(now)
		out.Extra["unknown_events"] = d.unknown.Load()
		out.Extra["keep_alives"] = d.keepAlives.Load()
		out.Extra["abandoned_messages"] = d.abandoned.Load()
		for _, q := range d.queues {
			out.TxDropped += q.txFull.Load()
			out.RxErrors += q.badRx.Load()
			for status := range q.failed {
				n := q.failed[status].Load()
				if n == 0 {
					continue
				}
				out.TxErrors += n
				name := fmt.Sprintf("status_%d", status)
				switch {
				case status == statuses:
					name = "unknown_status"
				case statusNames[status] != "":
					name = statusNames[status]
				}
				out.Extra["send_"+name] += n
			}
		}
		return nil
	})
}
