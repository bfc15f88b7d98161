package mlx5

import (
	"errors"
	"fmt"
	"sync/atomic"

	"rebound/nic"
)

// totals are counts of the device's own, which a reset clears. Differences wrap, which adding undoes.
type totals struct {
	rxFrames, rxBytes, txFrames, txBytes uint64
	rxErrors, txErrors                   uint64
	noBuffer                             uint64
}

func (t totals) combine(o totals, f func(a, b uint64) uint64) totals {
	return totals{
		f(t.rxFrames, o.rxFrames), f(t.rxBytes, o.rxBytes), f(t.txFrames, o.txFrames), f(t.txBytes, o.txBytes),
		f(t.rxErrors, o.rxErrors), f(t.txErrors, o.txErrors), f(t.noBuffer, o.noBuffer),
	}
}

func (t totals) plus(o totals) totals { return t.combine(o, func(a, b uint64) uint64 { return a + b }) }
func (t totals) less(o totals) totals { return t.combine(o, func(a, b uint64) uint64 { return a - b }) }

// counts asks the device what the vport received and sent (PRM, QUERY_VPORT_COUNTER), and what found no buffer
// (QUERY_Q_COUNTER, out_of_buffer).
func (d *Device) counts() (t totals, err error) {
	if d.caps.vportCounters {
		out, err := d.exec(command(opQueryVportCounter, 0, 0x20), 0x210)
		if err != nil {
			return t, err
		}
		packets := func(offs ...int) (n uint64) {
			for _, off := range offs {
				n += out.get64(off)
			}
			return n
		}
		t.rxErrors, t.txErrors = packets(0x10), packets(0x20)
		t.rxFrames, t.rxBytes = packets(0x70, 0x90, 0xB0), packets(0x78, 0x98, 0xB8) // broadcast, unicast, multicast
		t.txFrames, t.txBytes = packets(0x80, 0xA0, 0xC0), packets(0x88, 0xA8, 0xC8)
	}
	out, err := d.exec(command(opQueryQCounter, 0, 0x20).set("counter_set_id", 0x1C, 7, 0, d.counterSet), 0x100)
	if err != nil {
		return t, err
	}
	t.noBuffer = uint64(out.get(0x30, 31, 0))
	return t, nil
}

// keepTotals adds what the device counted to the base before a reset clears it: what it counted when it was last asked, if it
// does not answer any more.
func (d *Device) keepTotals() {
	t, err := d.counts()
	d.statsMu.Lock()
	defer d.statsMu.Unlock()
	if err != nil {
		t = d.last
	}
	d.base, d.last = d.base.plus(t), totals{}
}

// notServing returns why the device cannot be asked.
func (d *Device) notServing() error {
	if err := d.alive(); err != nil && d.isGone(err) {
		return err
	}
	return d.gate.Err()
}

func (d *Device) isGone(err error) bool { return errors.Is(err, nic.ErrGone) }

// ReadStats asks the device and adds the queues' own counts.
func (d *Device) ReadStats(out *nic.Stats) error {
	d.life.RLock()
	defer d.life.RUnlock()
	if err := d.notServing(); err != nil {
		return err
	}
	t, err := d.counts()
	if err != nil {
		return err
	}
	d.statsMu.Lock()
	defer d.statsMu.Unlock()
	d.last = t
	t = t.plus(d.base)
	*out = nic.Stats{
		RxFrames: t.rxFrames, RxBytes: t.rxBytes, TxFrames: t.txFrames, TxBytes: t.txBytes,
		RxDropped: t.noBuffer, RxErrors: t.rxErrors, TxErrors: t.txErrors, Resets: d.resets,
		Extra: map[string]uint64{
			"out_of_buffer": t.noBuffer, "send_queue_resets": d.mended,
			"page_requests": d.events.pageRequests.Load(), "page_request_errors": d.events.pageErrors.Load(),
			"port_changes": d.events.portChanges.Load(), "cq_errors": d.events.cqErrors.Load(), "unknown_events": d.events.unknown.Load(),
			"firmware_pages": uint64(d.pages.held()),
		},
	}
	for i, q := range d.queues {
		out.TxDropped += atomic.LoadUint64(&q.txFull)
		out.RxErrors += atomic.LoadUint64(&q.badRx)
		out.Extra[fmt.Sprintf("queue_%d_pushed_whole", i)] = atomic.LoadUint64(&q.pushed)
		out.Extra[fmt.Sprintf("queue_%d_pointed", i)] = atomic.LoadUint64(&q.pointed)
	}
	return nil
}

// Link asks for the vport's state and the port's speed.
func (d *Device) Link() (nic.Link, error) {
	d.life.RLock()
	defer d.life.RUnlock()
	if err := d.notServing(); err != nil {
		return nic.Link{}, err
	}
	out, err := d.exec(command(opQueryVport, 0, 0x10), 0x10)
	if err != nil || out.get(0x0C, 3, 0) != 1 {
		return nic.Link{}, err
	}
	ptys, err := d.access(regPTYS, accessRead, make(message, 0x40).
		set("local_port", 0x00, 23, 16, 1).set("proto_mask", 0x00, 2, 0, 4))
	if err != nil {
		if refused(err) { // virtual functions of some firmware may not ask
			return nic.Link{Up: true}, nil
		}
		return nic.Link{}, err
	}
	return nic.Link{Up: true, Speed: linkSpeed(ptys)}, nil
}

// Link modes by their bits in PTYS (PRM, PTYS eth_proto_oper and ext_eth_proto_oper), in Mbit/s.
var (
	protoSpeeds = [32]int{
		0: 1000, 1: 1000, 2: 10000, 3: 10000, 4: 10000, 5: 20000, 6: 40000, 7: 40000, 8: 56000, 12: 10000, 13: 10000, 14: 10000,
		15: 40000, 16: 40000, 18: 50000, 20: 100000, 21: 100000, 22: 100000, 23: 100000, 24: 100, 25: 1000, 26: 10000, 27: 25000,
		28: 25000, 29: 25000, 30: 50000, 31: 50000,
	}
	extendedSpeeds = [32]int{
		0: 100, 1: 1000, 3: 5000, 4: 10000, 5: 40000, 6: 25000, 7: 50000, 8: 50000, 9: 100000, 10: 100000, 11: 100000, 12: 200000,
		13: 200000, 15: 400000, 16: 400000,
	}
)

func linkSpeed(ptys message) (best int) {
	pick := func(bits uint32, speeds *[32]int) {
		for i, s := range speeds {
			if bits>>i&1 != 0 {
				best = max(best, s)
			}
		}
	}
	pick(ptys.get(0x20, 31, 0), &extendedSpeeds)
	pick(ptys.get(0x24, 31, 0), &protoSpeeds)
	return best
}
