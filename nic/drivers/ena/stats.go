package ena

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/kit"
	"github.com/rebound-nic/rebound/nic/kit/amazonadmin"
)

// allowances are EC2's traffic shaping limits: frames beyond an allowance are queued or dropped, which often causes the
// latency tail there. The order is that of the ENI statistics and of the customer metrics.
var allowances = [allowanceNumber]string{"bw_in_allowance_exceeded", "bw_out_allowance_exceeded",
	"pps_allowance_exceeded",
	"conntrack_allowance_exceeded", "linklocal_allowance_exceeded"}

// basic reads the device's counters since its last reset.
func (d *Device) basic() (s nic.Stats, err error) {
	c := getStats{Header: amazonadmin.Header{Opcode: opGetStats}, kind: statsBasic, scope: statsScopeEth,
		device: statsMyDevice}
	var r gotStats
	if err := amazonadmin.Exec(d.aq, "get basic statistics", &c, &r); err != nil {
		return s, err
	}
	var overruns uint64
	for i, p := range []*uint64{&s.TxBytes, &s.TxFrames, &s.RxBytes, &s.RxFrames, &s.RxDropped, &s.TxErrors,
		&overruns} {
		*p = binary.LittleEndian.Uint64(r.data[8*i:])
	}
	s.Extra = map[string]uint64{"rx_drops": s.RxDropped, "rx_overruns": overruns}
	s.RxDropped += overruns // where a frame without a buffer is counted depends on the device (DPDK adds them, too)
	return s, nil
}

// count reads the device's counters. A reset clears the basic ones; those of the allowances are the instance's.
func (d *Device) count() (nic.Stats, error) {
	now, err := d.basic()
	if err != nil {
		return now, err
	}
	exceeded, have, err := d.allowanceCounts()
	if have {
		for i, name := range allowances {
			now.Extra[name] = exceeded[i]
		}
	}
	return now, err
}

// allowanceCounts reads the allowance counters from customer metrics or ENI statistics, whichever the device has.
func (d *Device) allowanceCounts() (out [allowanceNumber]uint64, ok bool, err error) {
	c := getStats{Header: amazonadmin.Header{Opcode: opGetStats}, scope: statsScopeEth, device: statsMyDevice}
	from := func(b []byte) {
		for i := range out {
			out[i] = binary.LittleEndian.Uint64(b[8*i:])
		}
	}
	switch {
	case d.attr.capabilities&capMetrics != 0:
		kit.Hold(d.controlMu.TryLock)
		defer d.controlMu.Unlock()
		clear(d.control.Bytes)
		c.kind, c.requested = statsMetrics, 1<<allowanceNumber-1
		c.length, c.addr = 8*allowanceNumber, amazonadmin.PutAddr(d.control.IOVA)
		err = amazonadmin.Exec(d.aq, "get customer metrics", &c, &gotStats{})
		from(d.control.Bytes)
	case d.attr.capabilities&capENIStats != 0:
		c.kind = statsENI
		var r gotStats
		err = amazonadmin.Exec(d.aq, "get ENI statistics", &c, &r)
		from(r.data[:])
	default:
		return out, false, nil
	}
	var refused *amazonadmin.CommandError
	if errors.As(err, &refused) { // not every instance type keeps them
		return out, false, nil
	}
	return out, err == nil, err
}

// ReadStats implements nic.Device.
func (d *Device) ReadStats(out *nic.Stats) error { return d.card.ReadStats(out) }

// stats reads the device's counters and adds those of the queues.
func (d *Device) stats(out *nic.Stats) error {
	if d.regs.Gone() {
		return d.card.Gone("VERSION")
	}
	var err error
	if *out, err = d.card.Stats(); err != nil {
		return err
	}
	out.Extra["unknown_events"] = d.unknown.Load()
	for i, q := range d.queues {
		out.TxDropped += q.txFull.Load()
		out.TxErrors += q.txErrors.Load()
		out.RxErrors += q.badRx.Load()
		out.Extra[fmt.Sprintf("queue_%d_rx_l3_checksum_errors", i)] = q.l3Errors.Load()
		out.Extra[fmt.Sprintf("queue_%d_rx_l4_checksum_errors", i)] = q.l4Errors.Load()
	}
	return nil
}
