package mlx4

import (
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/ib"
	"github.com/rebound-nic/rebound/nic/kit"
)

// Settings of SET_PORT, in bits 15:8 of the input modifier, with the port below. Its opcode modifier is 1 for Ethernet.
const (
	setEthernet = 1

	setGeneral  = 0 << 8
	setRQPCalc  = 1 << 8
	setMACTable = 2 << 8
)

const (
	macEntries = 128
	macValid   = uint64(1) << 63

	filterOff = 1 // of SET_MCAST_FLTR
)

// learnPort reads the port's type and capabilities.
func (d *Device) learnPort() error {
	m, err := d.commands.query(opQueryPort, d.port)
	if err != nil {
		return err
	}
	c := &d.caps
	c.portTypes, c.mtu, c.logMACs = m.u8(0x00)&3, uint32(m.u16(0x02)), m.u8(0x0A)&15
	c.mac = [6]byte(m[0x12:])
	switch {
	case c.portTypes == 0:
		return d.card.Errorf("%w: port %d is set to neither Ethernet nor InfiniBand (`mstconfig -d %s query`, LINK_TYPE_P%d)", nic.ErrHardware, d.port,
			d.card.Fn.Name(), d.port)
	case c.portTypes&portEth == 0:
		c.ibMTU, c.ibWidths = ib.MTU(m.u8(0x01)&15), m.u8(0x06)&15
		return d.learnSubnetPort()
	}
	if d.card.MTU > int(c.mtu) {
		return d.card.Errorf("%w: MTU %d is asked for, port %d takes up to %d", nic.ErrFrameSize, d.card.MTU, d.port,
			c.mtu)
	}
	if d.card.MAC = d.card.Options.MAC; d.card.MAC == [6]byte{} {
		d.card.MAC = c.mac
	}
	if err := kit.CheckMAC(d.card.MAC); err != nil {
		return d.card.Errorf("%w", err)
	}
	return nil
}

func (d *Device) setPort(what uint32, in mailbox) error {
	return d.commands.run(command{op: opSetPort, opMod: setEthernet, modifier: what | d.port, in: in})
}

// startPort sets the port's address, frame size and filters, and enables it. The link comes up later, or not at all.
func (d *Device) startPort() error {
	if d.subnet != nil {
		return d.startSubnetPort()
	}
	table := make(mailbox, 8*macEntries)
	copy(table[2:], d.card.MAC[:])
	table.set64(0, table.u64(0)|macValid)
	if err := d.setPort(setMACTable, table); err != nil {
		return err
	}
	general := make(mailbox, 0x40)
	general.set8(3, 7) // the frame size and both kinds of pause are given
	general.set16(6, uint16(d.card.MaxFrame()+4))
	if err := d.setPort(setGeneral, general); err != nil { // no pause frames: they would delay replies
		return err
	}
	if !d.icm.managed {
		const toDefault = 2 << 30 // multicast
		calc := make(mailbox, 0x40)
		calc.set32(0x00, d.deflt)
		calc.set8(0x05, d.caps.logMACs)
		calc.set8(0x0F, 1) // index for a VLAN that is not in the table; 0 for none
		calc.set32(0x14, d.deflt)
		calc.set32(0x18, toDefault|d.deflt)
		if err := d.setPort(setRQPCalc, calc); err != nil {
			return err
		}
	}
	vlans := make(mailbox, 512) // a bit for each
	for i := range vlans {
		vlans[i] = 0xFF
	}
	if err := d.optional("frames of VLANs may be kept out", d.commands.run(
		command{op: opSetVLANFltr, modifier: d.port, in: vlans})); err != nil {
		return err
	}
	off := command{op: opSetMCastFltr, opMod: filterOff, modifier: d.port}
	if err := d.optional("multicast frames may be kept out", d.commands.run(off)); err != nil {
		return err
	}
	return d.initPort()
}

// initPort switches the port on.
func (d *Device) initPort() error {
	if err := d.commands.run(command{op: opInitPort, modifier: d.port}); err != nil {
		return err
	}
	d.steps.Done(opClosePort.String(), func() error {
		return d.commands.run(
			command{op: opClosePort, modifier: d.port})
	})
	return nil
}

// Link requests the port's state and speed.
func (d *Device) Link() (l nic.Link, err error) {
	err = d.card.Ask(func() error {
		if pci.Gone(d.card.Fn) {
			return d.card.Gone("configuration space")
		}
		l, err = d.ctl.link()
		return err
	})
	return l, err
}

func (d *Device) link() (nic.Link, error) {
	if d.subnet != nil {
		return d.subnet.link()
	}
	m, err := d.commands.query(opQueryPort, d.port)
	if err != nil || m.u8(0)&portUp == 0 {
		return nic.Link{}, err
	}
	return nic.Link{Up: true, Speed: speeds[m.u8(5)&0x6F]}, nil
}

// speeds are the codes of a link's speed (Linux, en_port.h), in Mbit/s.
var speeds = map[uint8]int{0x00: 10000, 0x01: 10000, 0x02: 1000, 0x04: 100, 0x08: 20000, 0x20: 56000, 0x40: 40000}
