package ixgbe

import (
	"errors"
	"time"
)

// ErrNoPHY means that the X540's own 10GBASE-T PHY does not answer.
var ErrNoPHY = errors.New("no PHY answers on MDIO")

// phyReg is a register of the PHY: device (MMD) 20:16, address 15:0, as in MSCA (IEEE 802.3 clause 45).
type phyReg uint32

const (
	phyID       phyReg = 0x1_0002  // PMA device identifier, high half      802.3 §45.2.1.3
	phyAN       phyReg = 0x7_0000  // auto-negotiation control              802.3 §45.2.7.1
	phyAdvert   phyReg = 0x7_0010  // auto-negotiation advertisement        802.3 §45.2.7.6
	phyAdvert10 phyReg = 0x7_0020  // 10GBASE-T auto-negotiation control    802.3 §45.2.7.10
	phyAdvert1  phyReg = 0x7_C400  // vendor provisioning of 1000BASE-T     Linux, ixgbe_setup_phy_link_generic
	phyPower    phyReg = 0x1E_0000 // global control of the vendor's MMD   Linux, ixgbe_set_copper_phy_power
)

const (
	phyANEnable  = 1 << 12
	phyANRestart = 1 << 9

	phyAdvert100   = 1 << 8 // 100BASE-TX full duplex
	phyAdvertPause = 3 << 10
	phyAdvert10G   = 1 << 12
	phyAdvert1G    = 1 << 15

	phyLowPower = 1 << 11
)

// startPHY brings the X540's link up as its Linux driver does: out of the low power that this driver leaves it in,
// offering 10 Gb/s, 1 Gb/s and 100 Mb/s without pause frames. If it does already, a link that is up stays up:
// training takes seconds.
func (d *Device) startPHY() error {
	own := d.phySync()
	if err := d.acquireSync(own); err != nil {
		return err
	}
	defer d.releaseSync(own)
	if err := d.findPHY(); err != nil {
		return err
	}
	changed := false
	for _, want := range []struct {
		reg        phyReg
		clear, set uint16
	}{
		{phyPower, phyLowPower, 0}, {phyAdvert10, 0, phyAdvert10G}, {phyAdvert1, 0, phyAdvert1G}, {phyAdvert, phyAdvertPause, phyAdvert100},
	} {
		v, err := d.readPHY(want.reg)
		if err != nil {
			return err
		}
		if to := v&^want.clear | want.set; to != v {
			changed = true
			if err := d.writePHY(want.reg, to); err != nil {
				return err
			}
		}
	}
	if !changed && d.read(regLINKS)&linksUp != 0 {
		return nil
	}
	v, err := d.readPHY(phyAN)
	if err != nil {
		return err
	}
	return d.writePHY(phyAN, v|phyANEnable|phyANRestart)
}

// findPHY searches for the address that answers, like Linux: 0 on all known cards.
func (d *Device) findPHY() error {
	for d.phy = range uint32(32) {
		id, err := d.readPHY(phyID)
		if err != nil {
			return err
		}
		if id != 0 && id != 0xFFFF {
			return nil
		}
	}
	return d.card.Errorf("%w", ErrNoPHY)
}

// mdio runs one cycle (§3.7.7): the address first, then the access.
func (d *Device) mdio(r phyReg, op uint32) error {
	for _, o := range []uint32{mscaAddress, op} {
		d.write(regMSCA, uint32(r)|d.phy<<mscaPHYLSB|o|mscaCommand)
		if err := d.wait("MSCA", regMSCA, mscaCommand, 0, time.Second); err != nil {
			return err
		}
	}
	return nil
}

func (d *Device) readPHY(r phyReg) (uint16, error) {
	if err := d.mdio(r, mscaRead); err != nil {
		return 0, err
	}
	v := d.read(regMSRWD)
	if v == ^uint32(0) && d.gone() {
		return 0, d.card.Gone("MSRWD")
	}
	return uint16(v >> msrwdReadLSB), nil
}

func (d *Device) writePHY(r phyReg, v uint16) error {
	d.write(regMSRWD, uint32(v))
	return d.mdio(r, mscaWrite)
}
