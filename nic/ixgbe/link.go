package ixgbe

import (
	"fmt"
	"time"

	"rebound/nic"
)

// startLink sets the link up for the medium that the EEPROM chose (§4.6.4, §3.7.4). Flow control is off: a paused port is
// a late port.
func (d *Device) startLink() error {
	d.write(regFCCFG, 0)
	d.clear(regMFLCN, mflcnRFCE|mflcnRPFCE)
	if d.family == x540 {
		return nil // its PHY negotiates under firmware
	}
	if err := d.lockMAC(); err != nil {
		return err
	}
	defer d.unlockMAC()
	autoc := d.read(regAUTOC)
	if autoc&autocLMSMask>>autocLMSLSB == lmsSFI {
		d.clear(regESDP, esdpSDP3) // SFP+: laser on
	}
	// Without auto-negotiation (SFI, KX4 fixed) the restart bit restarts the link itself; with it, clause 73.
	d.write(regAUTOC, autoc|autocRestart)
	return nil
}

func (d *Device) linkMode() string {
	if d.family == x540 {
		return "10GBASE-T by PHY firmware"
	}
	switch lms := d.read(regAUTOC) & autocLMSMask >> autocLMSLSB; {
	case lms == lmsSFI:
		return "SFI 10 Gb/s serial"
	case lms >= lmsKX:
		return "KX/KX4/KR with auto-negotiation"
	default:
		return fmt.Sprintf("AUTOC.LMS %d without auto-negotiation at 10 Gb/s or 1 Gb/s", lms)
	}
}

// Link reads LINKS.
func (d *Device) Link() (nic.Link, error) {
	v := d.read(regLINKS)
	if v == ^uint32(0) && d.gone() {
		return nic.Link{}, fmt.Errorf("ixgbe %s: %w: LINKS reads all ones", d.fn.Name(), nic.ErrGone)
	}
	if v&linksUp == 0 {
		return nic.Link{}, nil
	}
	return nic.Link{Up: true, Speed: [4]int{0, 100, 1000, 10000}[v>>linksSpeedLSB&3]}, nil
}

// lockMAC takes AUTOC from the other port's driver and from manageability firmware (§10.5.4). An owner that does not let
// go within a second is taken for dead, as the datasheet advises.
func (d *Device) lockMAC() error {
	for end := time.Now().Add(time.Second); ; time.Sleep(100 * time.Microsecond) {
		if err := d.lockSync(); err != nil {
			return err
		}
		v := d.read(regSWFWSYNC)
		late := time.Now().After(end)
		if v&(syncSWMAC|syncFWMAC) == 0 || late {
			d.write(regSWFWSYNC, v&^syncFWMAC|syncSWMAC)
			d.unlockSync()
			return nil
		}
		d.unlockSync()
	}
}

func (d *Device) unlockMAC() {
	if d.lockSync() == nil {
		d.clear(regSWFWSYNC, syncSWMAC)
		d.unlockSync()
	}
}

// lockSync guards SW_FW_SYNC itself (§10.5.4): SMBI between drivers, SWESMBI against firmware.
func (d *Device) lockSync() error {
	// Reading SMBI as zero takes it. One that nobody gives back is stale from a driver that died: take it over.
	if d.wait("SWSM", regSWSM, swsmSMBI, 0, 10*time.Millisecond) != nil {
		d.clear(regSWSM, swsmSMBI)
	}
	for end := time.Now().Add(100 * time.Millisecond); ; time.Sleep(20 * time.Microsecond) {
		d.set(regSWSM, swsmSWESMBI)
		if v := d.read(regSWSM); v&swsmSWESMBI != 0 && v != ^uint32(0) {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("ixgbe %s: %w: SWSM.SWESMBI (%#05x): firmware does not give the semaphore", d.fn.Name(),
				nic.ErrTimeout, uint32(regSWSM))
		}
	}
}

func (d *Device) unlockSync() { d.clear(regSWSM, swsmSMBI|swsmSWESMBI) }
