package ixgbe

import (
	"bytes"
	"fmt"
	"strconv"
	"time"

	"github.com/rebound-nic/rebound/nic"
)

// vetoed reports whether management firmware keeps the link for itself (MMNGC.MNG_VETO), as on a port that a management
// controller shares. It is left as it is then: a change would end the controller's session, and firmware may undo it
// (Linux and DPDK, ixgbe_check_reset_blocked).
func (d *Device) vetoed() bool { return d.read(regMMNGC)&mmngcVeto != 0 }

// startLink sets the link up for the medium that the EEPROM chose (§4.6.4, §3.7.4). Flow control is off: a paused port
// is a late port.
func (d *Device) startLink() error {
	d.write(regFCCFG, 0)
	d.clear(regMFLCN, mflcnRFCE|mflcnRPFCE)
	veto := d.vetoed()
	if veto {
		d.card.Log.Warn("management firmware forbids changes of the link: a management controller uses this port, and link settings stay as they are")
	}
	if d.family == x540 {
		d.medium = "10GBASE-T, 1000BASE-T or 100BASE-TX, negotiated by the PHY"
		if veto {
			return nil
		}
		return d.startPHY()
	}
	autoc := d.read(regAUTOC)
	if d.cage != none && !veto { // whatever the EEPROM selects, like Snabb and ixy; Linux selects by the module
		autoc = autoc&^autocLMSMask | lmsSFI<<autocLMSLSB
	}
	if mode, err := strconv.ParseUint(d.own.LinkMode, 10, 3); err == nil && !veto {
		autoc = autoc&^autocLMSMask | uint32(mode)<<autocLMSLSB
	}
	lms := autoc & autocLMSMask >> autocLMSLSB
	d.medium = medium(lms)
	if d.cage == sfp {
		if err := d.findModule(4); err != nil {
			return err
		}
		// Boards whose empty cages show a link, by crosstalk, have this bit clear (Linux,
		// IXGBE_DEVICE_CAPS_NO_CROSSTALK_WR).
		caps, err := d.eeprom(eepromDeviceCaps)
		if err != nil {
			return err
		}
		d.full = caps>>7&1 == 0
	}
	if veto {
		return nil
	}
	return d.configureLink(autoc)
}

// configureLink writes the link mode and, for a module, its settings, and starts the link.
func (d *Device) configureLink(autoc uint32) error {
	lms := autoc & autocLMSMask >> autocLMSLSB
	if err := d.acquireSync(syncMAC); err != nil {
		return err
	}
	defer d.releaseSync(syncMAC)
	if d.cage != none {
		d.write(regAUTOC2, d.read(regAUTOC2)&^(autoc2SerialMask|autoc2Disable)|autoc2SFI)
	}
	if d.cage == sfp {
		// Linux drives the rate select for modules of two rates and cables. Other modules do not use it, and one may be
		// plugged in later.
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
	d.resetPipeline(autoc)
	return nil
}

// resetPipeline restarts the link with AUTOC, and with it the receive and transmit pipeline, which has to be reset
// after AUTOC was written: first with bit 2 of the link mode inverted, until the arbitration has left its first state,
// and then as asked for (Linux and DPDK, ixgbe_reset_pipeline_82599). The restart bit restarts clause 73, and without
// auto-negotiation (SFI, KX4 fixed) the link itself.
func (d *Device) resetPipeline(autoc uint32) {
	d.write(regAUTOC, autoc^4<<autocLMSLSB|autocRestart)
	for range 10 {
		if time.Sleep(4 * time.Millisecond); d.read(regANLP1)&anlp1State != 0 {
			break // otherwise the link may still come up: Snabb and ixy omit all of this
		}
	}
	d.write(regAUTOC, autoc|autocRestart)
}

// retryAfter is how many checks of the watch a link of an SFP+ port stays down before the module is looked at again:
// two seconds.
const retryAfter = 20

// retryLink configures the port for a module that was plugged in after the start, and starts a link again that does not
// come up. It does nothing while firmware forbids it.
func (d *Device) retryLink() error {
	if d.vetoed() {
		return nil
	}
	if _, err := d.newModule(1); err != nil || d.module == nil {
		return err
	}
	return d.configureLink(d.read(regAUTOC) &^ autocRestart)
}

// followModule configures the port again if the link came up with another module than the one that it was configured
// for: modules may be exchanged while retryLink is at work, and the second then has the settings of the first.
func (d *Device) followModule() error {
	if d.vetoed() {
		return nil
	}
	if changed, err := d.newModule(4); err != nil || !changed || d.module == nil {
		return err
	}
	return d.configureLink(d.read(regAUTOC) &^ autocRestart)
}

// newModule reads the module, and reports whether it is another one than before.
func (d *Device) newModule(tries int) (changed bool, err error) {
	before := d.module
	d.infoMutex.Lock()
	err = d.findModule(tries)
	d.infoMutex.Unlock()
	if changed = !bytes.Equal(before, d.module); changed && d.module != nil {
		d.card.Log.Info("a module was plugged in", "module", d.module.String())
	}
	return changed, err
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
