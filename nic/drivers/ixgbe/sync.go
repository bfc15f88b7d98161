package ixgbe

import (
	"errors"
	"time"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/kit"
)

// acquireSync acquires resources that the driver of the other port and the device's firmware use as well: bits of
// SW_FW_SYNC (§10.5.4). An owner that does not release them within a second counts as dead, as the datasheet advises.
func (d *Device) acquireSync(own uint32) error {
	others := own | own<<syncFirmware
	if own&syncNVM != 0 && d.family == x540 {
		others |= syncFlash
	}
	for end := kit.NewDeadline(time.Second, leastLooks); ; time.Sleep(100 * time.Microsecond) {
		if err := d.lockSync(); err != nil {
			return err
		}
		late := end.Over()
		if v := d.read(regSWFWSYNC); v&others == 0 || late {
			d.write(regSWFWSYNC, v&^others|own)
			d.unlockSync()
			return nil
		}
		d.unlockSync()
	}
}

func (d *Device) releaseSync(own uint32) {
	if d.lockSync() == nil {
		d.clear(regSWFWSYNC, own)
		d.unlockSync()
	}
}

// phySync is the bit of this port's PHY.
func (d *Device) phySync() uint32 { return syncPHY0 << (d.read(regSTATUS) >> statusLANLSB & 1) }

// lockSync guards SW_FW_SYNC itself: SMBI between drivers; against firmware SWSM.SWESMBI (§10.5.4), on the X540 the
// register's own REGSMP.
func (d *Device) lockSync() error {
	// Reading SMBI as zero acquires it. If it is never released, a dead driver left it: take it over.
	if d.wait("SWSM", regSWSM, swsmSMBI, 0, 10*time.Millisecond) != nil {
		d.clear(regSWSM, swsmSMBI)
	}
	if d.family == x540 {
		err := d.wait("SW_FW_SYNC", regSWFWSYNC, syncREGSMP, 0, 100*time.Millisecond) // read as zero: taken, too
		if err == nil || errors.Is(err, nic.ErrGone) {
			return err
		}
		d.clear(regSWFWSYNC, syncREGSMP) // stale
		return d.wait("SW_FW_SYNC", regSWFWSYNC, syncREGSMP, 0, 100*time.Millisecond)
	}
	for end := kit.NewDeadline(100*time.Millisecond, leastLooks); ; time.Sleep(20 * time.Microsecond) {
		late := end.Over()
		d.set(regSWSM, swsmSWESMBI)
		if v := d.read(regSWSM); v&swsmSWESMBI != 0 && v != ^uint32(0) {
			return nil
		}
		if late {
			if d.gone() {
				return d.card.Gone("SWSM")
			}
			return d.card.Errorf("%w: SWSM.SWESMBI (%#05x): firmware does not give the semaphore", nic.ErrTimeout,
				uint32(regSWSM))
		}
	}
}

func (d *Device) unlockSync() {
	if d.family == x540 {
		d.clear(regSWFWSYNC, syncREGSMP)
	}
	d.clear(regSWSM, swsmSMBI|swsmSWESMBI)
}
