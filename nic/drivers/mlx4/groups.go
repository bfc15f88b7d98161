package mlx4

import (
	"bytes"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/ib"
)

// Multicast groups of an InfiniBand port are entries of a table: the first one is found by a hash of the GID, further
// ones with the same hash are chained to it in the other half of the table (Linux, mcg.c: mlx4_mgm, find_entry).
const (
	mcgNext    = 0x00 // index of the next entry of the chain 31:6
	mcgMembers = 0x04 // how many 23:0, protocol 31:30, which is 0 for InfiniBand
	mcgGID     = 0x10
	mcgQPs     = 0x20

	mcgCount    = 0xFFFFFF
	mcgNoEcho   = 1 << 30 // of a QP: it does not receive what it sends to the group
	mcgNextAt   = 6
	mcgMostHops = 64 // a chain is not followed for longer
)

// hashed returns the number of entries of the table that are found by hash. The rest is for chains.
func (m *icm) hashed() uint32 { return uint32(m.tables[resMCG].entries / 2) }

// attach subscribes a QP to a group. Closing the device undoes it.
func (d *Device) attach(group ib.GID, qpn uint32) error {
	_, hash, err := d.commands.exec(command{op: opMGIDHash, in: mailbox(group[:])})
	if err != nil {
		return err
	}
	index, prev := uint32(hash&0xFFFF), ^uint32(0)
	var entry mailbox
	for hop := 0; ; hop++ {
		if index >= uint32(d.icm.tables[resMCG].entries) || hop == mcgMostHops {
			return d.card.Errorf("%w: %v says entry %#x for group %x, the table has %d", nic.ErrHardware, opMGIDHash,
				index, group, d.icm.tables[resMCG].entries)
		}
		if entry, err = d.commands.query(opReadMCG, index); err != nil {
			return err
		}
		n := entry.u32(mcgMembers) & mcgCount
		if n == 0 {
			break // free
		}
		if bytes.Equal(entry[mcgGID:][:16], group[:]) {
			return d.card.Errorf("%w: group %x has members already", nic.ErrHardware, group)
		}
		prev = index
		if index = entry.u32(mcgNext) >> mcgNextAt; index == 0 {
			index = d.icm.hashed() + d.chained
			d.chained++
			break
		}
	}
	size := 1 << d.icm.groupLog
	entry = make(mailbox, size)
	entry.set32(mcgMembers, 1)
	copy(entry[mcgGID:], group[:])
	entry.set32(mcgQPs, qpn|mcgNoEcho)
	if err := d.commands.run(command{op: opWriteMCG, modifier: index, in: entry}); err != nil {
		return err
	}
	if prev == ^uint32(0) {
		d.steps.Done(opWriteMCG.String(), func() error {
			return d.commands.run(command{op: opWriteMCG, modifier: index, in: make(mailbox, size)})
		})
		return nil
	}
	link := func(to uint32) error {
		before, err := d.commands.query(opReadMCG, prev)
		if err != nil {
			return err
		}
		before.set32(mcgNext, to<<mcgNextAt)
		return d.commands.run(command{op: opWriteMCG, modifier: prev, in: before[:size]})
	}
	d.steps.Done(opWriteMCG.String(), func() error {
		if err := link(0); err != nil { // undo runs in reverse order: the last entry of the chain first
			return err
		}
		return d.commands.run(command{op: opWriteMCG, modifier: index, in: make(mailbox, size)})
	})
	return link(index)
}
