package ixgbe

import (
	"fmt"
	"strconv"

	"github.com/rebound-nic/rebound/nic"
)

// startLink sets the link up for the medium that the EEPROM chose (§4.6.4, §3.7.4). Flow control is off: a paused port is
// a late port.
func (d *Device) startLink() error {
	d.write(regFCCFG, 0)
	d.clear(regMFLCN, mflcnRFCE|mflcnRPFCE)
	if d.family == x540 {
		d.medium = "10GBASE-T, 1000BASE-T or 100BASE-TX, negotiated by the PHY"
		return d.startPHY()
	}
	autoc := d.read(regAUTOC)
	if d.cage != none { // whatever the EEPROM selects, like Snabb and ixy; Linux selects by the module
		autoc = autoc&^autocLMSMask | lmsSFI<<autocLMSLSB
	}
	if mode, err := strconv.ParseUint(d.own.LinkMode, 10, 3); err == nil {
		autoc = autoc&^autocLMSMask | uint32(mode)<<autocLMSLSB
	}
	lms := autoc & autocLMSMask >> autocLMSLSB
	d.medium = medium(lms)
	if d.cage == sfp {
		if err := d.findModule(); err != nil {
			return err
		}
		// Boards whose empty cages show a link, by crosstalk, have this bit clear (Linux, IXGBE_DEVICE_CAPS_NO_CROSSTALK_WR).
		caps, err := d.eeprom(eepromDeviceCaps)
		if err != nil {
			return err
		}
		d.full = caps>>7&1 == 0
	}
	if err := d.take(syncMAC); err != nil {
		return err
	}
	defer d.give(syncMAC)
	if d.cage != none {
		d.write(regAUTOC2, d.read(regAUTOC2)&^(autoc2SerialMask|autoc2Disable)|autoc2SFI)
	}
	if d.cage == sfp {
		// Linux drives the rate select for modules of two rates and cables. Other modules do not use it, and one may be plugged in later.
		esdp := d.read(regESDP)&^esdpSDP5 | esdpSDP5IO
		if lms == lmsSFI {
			esdp |= esdpSDP5
		}
		d.write(regESDP, esdp)
		if err := d.startModule(); err != nil {
			return err
		}
	}
	if lms == lmsSFI || d.cage == sfp {
		d.clear(regESDP, esdpSDP3) // SFP+: laser on
	}
	// Without auto-negotiation (SFI, KX4 fixed) the restart bit restarts the link itself; with it, clause 73.
	d.write(regAUTOC, autoc|autocRestart)
	return nil
}

// medium returns the name of a Link Mode Select value.
func medium(lms uint32) string {
	switch {
	case lms == lmsSFI:
		return "SFI 10 Gb/s serial"
	case lms == lmsParallel:
		return "10 Gb/s over four lanes (XAUI, KX4 or CX4) without auto-negotiation"
	case lms == lmsSGMII:
		return "SGMII 1 Gb/s or 100 Mb/s"
	case lms >= lmsKX:
		return "KX/KX4/KR with auto-negotiation"
	default:
		return fmt.Sprintf("1 Gb/s (AUTOC.LMS %d)", lms)
	}
}

// Link reads LINKS.
func (d *Device) Link() (l nic.Link, err error) {
	err = d.card.Ask(func() error {
		l, err = d.link()
		return err
	})
	return l, err
}

func (d *Device) link() (nic.Link, error) {
	v := d.read(regLINKS)
	if v == ^uint32(0) && d.gone() {
		return nic.Link{}, d.card.Gone("LINKS")
	}
	if v&linksUp == 0 || d.full && d.read(regESDP)&esdpSDP2 == 0 {
		return nic.Link{}, nil
	}
	return nic.Link{Up: true, Speed: [4]int{0, 100, 1000, 10000}[v>>linksSpeedLSB&3]}, nil
}
