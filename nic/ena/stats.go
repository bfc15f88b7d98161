package ena

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"

	"rebound/nic"
	"rebound/nic/kit/amazonadmin"
)

// totals are counts that a reset clears or makes anew.
type totals struct {
	rxFrames, rxBytes, txFrames, txBytes, rxDrops, txDrops uint64
	rxNoted, txNoted                                       uint64 // drops as the last keep-alive told
	unknownEvents                                          uint64
}

// allowances are what EC2 shapes by: frames over each allowance are queued or dropped, which is most of the tail that
// people see there. The order is that of the ENI statistics and of the customer metrics.
var allowances = [allowanceNumber]string{"bw_in_allowance_exceeded", "bw_out_allowance_exceeded", "pps_allowance_exceeded",
	"conntrack_allowance_exceeded", "linklocal_allowance_exceeded"}

func (d *Device) noteDrops(rx, tx uint64) {
	d.statsMu.Lock()
	defer d.statsMu.Unlock()
	d.base.rxNoted, d.base.txNoted = rx, tx
}

func (d *Device) countUnknownEvent() {
	d.statsMu.Lock()
	defer d.statsMu.Unlock()
	d.base.unknownEvents++
}

// basic asks the device for its own counts since its last reset.
func (d *Device) basic() (t totals, err error) {
	c := getStats{Header: amazonadmin.Header{Opcode: opGetStats}, kind: statsBasic, scope: statsScopeEth, device: statsMyDevice}
	var r gotStats
	if err := amazonadmin.Exec(d.aq, "get basic statistics", &c, &r); err != nil {
		return t, err
	}
	for i, p := range []*uint64{&t.txBytes, &t.txFrames, &t.rxBytes, &t.rxFrames, &t.rxDrops, &t.txDrops} {
		*p = binary.LittleEndian.Uint64(r.data[8*i:])
	}
	return t, nil
}

// keepTotals adds what the device counted to the base before a reset clears it. A device that does not answer any more has
// lost its counts.
func (d *Device) keepTotals() {
	t, err := d.basic()
	if err != nil {
		return
	}
	d.statsMu.Lock()
	defer d.statsMu.Unlock()
	d.base.add(t)
}

func (t *totals) add(o totals) {
	t.rxFrames += o.rxFrames
	t.rxBytes += o.rxBytes
	t.txFrames += o.txFrames
	t.txBytes += o.txBytes
	t.rxDrops += o.rxDrops
	t.txDrops += o.txDrops
}

// allowanceCounts reads the allowance counters by whichever way the device has: customer metrics, or ENI statistics.
func (d *Device) allowanceCounts() (out [allowanceNumber]uint64, ok bool, err error) {
	c := getStats{Header: amazonadmin.Header{Opcode: opGetStats}, scope: statsScopeEth, device: statsMyDevice}
	from := func(b []byte) {
		for i := range out {
			out[i] = binary.LittleEndian.Uint64(b[8*i:])
		}
	}
	switch {
	case d.attr.capabilities&capMetrics != 0:
		d.controlMu.Lock()
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

// ReadStats asks the device and adds the queues' own counts.
func (d *Device) ReadStats(out *nic.Stats) error {
	d.life.RLock()
	defer d.life.RUnlock()
	if err := d.gate.Err(); err != nil {
		return err
	}
	if d.regs.Gone() {
		return fmt.Errorf("ena %s: %w: VERSION reads all ones", d.fn.Name(), nic.ErrGone)
	}
	now, err := d.basic()
	if err != nil {
		return err
	}
	exceeded, have, err := d.allowanceCounts()
	if err != nil {
		return err
	}
	d.statsMu.Lock()
	defer d.statsMu.Unlock()
	now.add(d.base)
	*out = nic.Stats{
		RxFrames: now.rxFrames, RxBytes: now.rxBytes, TxFrames: now.txFrames, TxBytes: now.txBytes,
		RxDropped: now.rxDrops, TxErrors: now.txDrops, Extra: map[string]uint64{"unknown_events": d.base.unknownEvents},
	}
	if have {
		for i, name := range allowances {
			out.Extra[name] = exceeded[i]
		}
	}
	for i, n := range d.resets {
		out.Resets += n
		if n > 0 {
			out.Extra["resets_"+reasonNames[i]] = n
		}
	}
	for i, q := range d.queues {
		l3, l4 := atomic.LoadUint64(&q.l3Errors), atomic.LoadUint64(&q.l4Errors)
		out.TxDropped += atomic.LoadUint64(&q.txFull)
		out.TxErrors += atomic.LoadUint64(&q.txErrors)
		out.RxErrors += atomic.LoadUint64(&q.badRx)
		out.Extra[fmt.Sprintf("queue_%d_rx_l3_checksum_errors", i)] = l3
		out.Extra[fmt.Sprintf("queue_%d_rx_l4_checksum_errors", i)] = l4
	}
	return nil
}
