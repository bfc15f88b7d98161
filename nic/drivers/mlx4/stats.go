package mlx4

import (
	"fmt"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/kit"
)

// Port counters (DUMP_ETH_STATS; Linux, en_port.h: mlx4_en_stat_out_mbox). Frames and bytes are counted for each of
// eight priorities and for frames without a VLAN tag after them, 24 bytes apart.
const (
	statRxBytes    = 0x3B8
	statRxFrames   = 0x480
	statRxInRange  = 0x578
	statRxOutRange = 0x580
	statRxTooLong  = 0x588
	statRxPCS      = 0x590
	statTxBytes    = 0x9B8
	statTxFrames   = 0xA98
	statRxJabber   = 0xB88 // and from here dwords
	statRxCRC      = 0xB8C
	statRxRunt     = 0xB90
	statRxShort    = 0xB94
	statRxDrop     = 0xB98
	statRxOverflow = 0xB9C
	statTxDrop     = 0xBA8

	priorities = 9
	statStep   = 24
	fcs        = 4
)

// counts reads the port's counters. Bytes include the FCS there.
func (d *Device) counts() (t nic.Stats, err error) {
	if s := d.checkCatas(); s != nil { // it no longer responds
		return t, d.card.Errorf("%w: %s", nic.ErrHardware, s.Why)
	}
	if d.subnet != nil {
		return d.subnetCounts()
	}
	m, err := d.commands.query(opDumpEthStats, d.port)
	if err != nil {
		return t, err
	}
	if d.wide == nil {
		d.wide = map[int]*kit.Wide{}
	}
	narrow := func(off int) uint64 {
		if d.wide[off] == nil {
			d.wide[off] = &kit.Wide{}
		}
		return d.wide[off].Read(m.u32(off))
	}
	sum := func(off int) (n uint64) {
		for i := range priorities {
			n += m.u64(off + i*statStep)
		}
		return n
	}
	t.RxFrames, t.TxFrames = sum(statRxFrames), sum(statTxFrames)
	t.RxBytes, t.TxBytes = sum(statRxBytes)-fcs*t.RxFrames, sum(statTxBytes)-fcs*t.TxFrames
	t.RxErrors = m.u64(statRxPCS) + m.u64(statRxInRange) + m.u64(statRxOutRange)
	for _, off := range []int{statRxJabber, statRxCRC, statRxRunt, statRxShort} {
		t.RxErrors += narrow(off)
	}
	t.RxDropped = narrow(statRxDrop)
	t.TxErrors = narrow(statTxDrop)
	t.Extra = map[string]uint64{
		"rx_crc": narrow(statRxCRC), "rx_fifo_overflow": narrow(statRxOverflow), "rx_too_long": m.u64(statRxTooLong),
	}
	return t, nil
}

// ReadStats implements nic.Device.
func (d *Device) ReadStats(out *nic.Stats) error { return d.card.ReadStats(out) }

// stats reads the device's counters and adds those of the queues.
func (d *Device) stats(out *nic.Stats) error {
	if pci.Gone(d.card.Fn) {
		return d.card.Gone("configuration space")
	}
	var err error
	if *out, err = d.card.Stats(); err != nil {
		return err
	}
	out.Extra["send_queue_resets"] = d.sendRecoveries.Load()
	d.ctl.extra(out)
	for i, q := range d.queues {
		out.TxDropped += q.txFull.Load()
		out.TxErrors += q.failed.Load()
		out.RxErrors += q.badRx.Load()
		out.Extra[fmt.Sprintf("queue_%d_pushed_whole", i)] = q.pushed.Load()
		out.Extra[fmt.Sprintf("queue_%d_pointed", i)] = q.pointed.Load()
	}
	return nil
}
