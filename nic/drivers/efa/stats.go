package efa

import (
	"fmt"

	"github.com/rebound-nic/rebound/nic"
)

// statGroup is one response of the device's statistics (efa_admin_get_stats_type), with its counters by name.
type statGroup struct {
	name   string
	kind   uint8
	needs  uint32 // capability without which the device is not queried
	values []string
}

var statGroups = []statGroup{
	{"basic", 0, 0, []string{"tx_bytes", "tx_pkts", "rx_bytes", "rx_pkts", "rx_drops", "qkey_viol"}},
	{"message", 1, 0, []string{"send_bytes", "send_wrs", "recv_bytes", "recv_wrs"}},
	{"RDMA read", 2, capRDMARead, []string{"rdma_read_wrs", "rdma_read_bytes", "rdma_read_wr_err", "rdma_read_resp_bytes"}},
	{"RDMA write", 3, capRDMAWrite, []string{"rdma_write_wrs", "rdma_write_bytes", "rdma_write_wr_err", "rdma_write_recv_bytes"}},
	{"network", 4, 0, []string{"retrans_bytes", "retrans_pkts", "retrans_timeout_events", "unresponsive_remote_events", "impaired_remote_conn_events"}},
}

// count returns the device's own counts since it was last started, because it is not public whether a reset clears
// them.
func (d *Device) count() (s nic.Stats, err error) {
	if s, err = d.control.count(); err != nil {
		return s, err
	}
	for name := range s.Extra {
		s.Extra[name] -= d.counted[name]
	}
	for name, p := range map[string]*uint64{"tx_bytes": &s.TxBytes, "tx_pkts": &s.TxFrames, "rx_bytes": &s.RxBytes,
		"rx_pkts":  &s.RxFrames,
		"rx_drops": &s.RxDropped} {
		*p = s.Extra[name]
		delete(s.Extra, name)
	}
	return s, nil
}

// ReadStats implements nic.Device.
func (d *Device) ReadStats(out *nic.Stats) error { return d.card.ReadStats(out) }

// stats reads the device's counters and adds those of the queues.
func (d *Device) stats(out *nic.Stats) error {
	if err := d.control.answers(); err != nil {
		return err
	}
	var err error
	if *out, err = d.card.Stats(); err != nil {
		return err
	}
	d.control.events(out.Extra)
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
}
