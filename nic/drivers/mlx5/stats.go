package mlx5

import (
	"fmt"

	"github.com/rebound-nic/rebound/nic"
)

// vportCounts reads the vport's counters (PRM, QUERY_VPORT_COUNTER).
func (d *Device) vportCounts() (t nic.Stats, err error) {
	if !d.caps.vportCounters {
		return t, nil
	}
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
	t.RxErrors, t.TxErrors = packets(0x10), packets(0x20)
	t.RxFrames, t.RxBytes = packets(0x70, 0x90, 0xB0), packets(0x78, 0x98, 0xB8) // broadcast, unicast, multicast
	t.TxFrames, t.TxBytes = packets(0x80, 0xA0, 0xC0), packets(0x88, 0xA8, 0xC8)
	return t, nil
}

// dropped reads how many frames found no buffer (PRM, QUERY_Q_COUNTER).
func (d *Device) dropped() (uint64, error) {
	out, err := d.exec(command(opQueryQCounter, 0, 0x20).set("counter_set_id", 0x1C, 7, 0, d.counterSet), 0x100)
	if err != nil {
		return 0, err
	}
	return d.outOfBuffer.Read(out.get(0x30, 31, 0)), nil
}

// ReadStats implements nic.Device.
func (d *Device) ReadStats(out *nic.Stats) error { return d.card.ReadStats(out) }

// stats reads the device's counters and adds those of the queues.
func (d *Device) stats(out *nic.Stats) error {
	var err error
	if *out, err = d.card.Stats(); err != nil {
		return err
	}
	out.Extra["out_of_buffer"], out.Extra["send_queue_resets"] = out.RxDropped, d.sendRecoveries.Load()
	d.fw.extra(out.Extra)
	for i, q := range d.queues {
		out.TxDropped += q.txFull.Load()
		out.TxErrors += q.failed.Load()
		out.RxErrors += q.badRx.Load()
		out.Extra[fmt.Sprintf("queue_%d_pushed_whole", i)] = q.pushed.Load()
		out.Extra[fmt.Sprintf("queue_%d_pointed", i)] = q.pointed.Load()
	}
	return nil
}

// Link returns the vport's state and the port's speed.
func (d *Device) Link() (l nic.Link, err error) {
	err = d.card.Ask(func() error {
		l, err = d.fw.link()
		return err
	})
	return l, err
}

func (d *Device) up() (bool, error) {
	out, err := d.exec(command(opQueryVport, 0, 0x10), 0x10)
	return err == nil && out.get(0x0C, 3, 0) == 1, err
}

func (d *Device) portLink() (nic.Link, error) {
	if up, err := d.up(); err != nil || !up {
		return nic.Link{}, err
	}
	ptys, err := d.access(regPTYS, accessRead, make(message, 0x40).
		set("local_port", 0x00, 23, 16, 1).set("proto_mask", 0x00, 2, 0, 4))
	if refused(err) { // some firmware refuses this to virtual functions
		return nic.Link{Up: true}, nil
	} else if err != nil {
		return nic.Link{}, err
	}
	return nic.Link{Up: true, Speed: linkSpeed(ptys)}, nil
}

// Link modes by bit in PTYS (PRM, PTYS eth_proto_oper and ext_eth_proto_oper), in Mbit/s.
var (
	protoSpeeds = [32]int{
		0: 1000, 1: 1000, 2: 10000, 3: 10000, 4: 10000, 5: 20000, 6: 40000, 7: 40000, 8: 56000, 12: 10000, 13: 10000,
		14: 10000,
		15: 40000, 16: 40000, 18: 50000, 20: 100000, 21: 100000, 22: 100000, 23: 100000, 24: 100, 25: 1000, 26: 10000,
		27: 25000,
		28: 25000, 29: 25000, 30: 50000, 31: 50000,
	}
	extendedSpeeds = [32]int{
		0: 100, 1: 1000, 3: 5000, 4: 10000, 5: 40000, 6: 25000, 7: 50000, 8: 50000, 9: 100000, 10: 100000, 11: 100000,
		12: 200000,
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
