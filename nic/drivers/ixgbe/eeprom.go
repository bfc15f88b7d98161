package ixgbe

import (
	"errors"
	"time"
)

// ErrEEPROM means that the EEPROM's checksum is wrong: the values that it configured (link mode, address) cannot be
// trusted.
var ErrEEPROM = errors.New("EEPROM checksum is wrong")

const (
	eepromChecksumWord = 0x3F
	eepromSum          = 0xBABA // sum of words 0 to 3Fh and the sections that they point to (§6.3.2.9)
	eepromFirstPointer = 0x03   // words 3 to 0Eh point to hardware sections
	eepromPHYPointer   = 0x04
	eepromROMPointer   = 0x05
	eepromFWPointer    = 0x0F
	eepromDeviceCaps   = 0x2C
	eepromSFPPointer   = 0x2B // to the list of settings by kind of module
)

func (d *Device) eeprom(word uint16) (uint16, error) {
	d.write(regEERD, uint32(word)<<eerdAddrLSB|eerdStart)
	if err := d.wait("EERD", regEERD, eerdDone, eerdDone, 100*time.Millisecond); err != nil {
		return 0, err
	}
	return uint16(d.read(regEERD) >> eerdDataLSB), nil
}

// checkEEPROM adds up the words that configure the hardware (§6.3.2.9). The X540 keeps them in a shadow of its flash,
// protected by a semaphore, and excludes the PHY and option ROM sections from the sum.
func (d *Device) checkEEPROM() error {
	eec := d.read(regEEC)
	if eec&eecPresent == 0 {
		return d.card.Errorf("EEC (%#05x) says that no EEPROM is present", uint32(regEEC))
	}
	words := uint32(1) << 14 // range of EERD
	if d.family == x540 {
		words = 1 << (eec>>eecSizeLSB&0xF + 6)
		if err := d.acquireSync(syncNVM); err != nil {
			return err
		}
		defer d.releaseSync(syncNVM)
	}
	var sum uint16
	add := func(from, n uint16) error {
		for w := from; w < from+n; w++ {
			v, err := d.eeprom(w)
			if err != nil {
				return err
			}
			sum += v
		}
		return nil
	}
	if err := add(0, eepromChecksumWord); err != nil {
		return err
	}
	for p := uint16(eepromFirstPointer); p < eepromFWPointer; p++ {
		if d.family == x540 && (p == eepromPHYPointer || p == eepromROMPointer) {
			continue
		}
		at, err := d.eeprom(p)
		if err != nil {
			return err
		}
		if at == 0 || uint32(at) >= words {
			continue
		}
		n, err := d.eeprom(at)
		if err != nil {
			return err
		}
		if n == 0 || uint32(at)+uint32(n) >= words {
			continue
		}
		if err := add(at+1, n); err != nil {
			return err
		}
	}
	have, err := d.eeprom(eepromChecksumWord)
	if err != nil {
		return err
	}
	if want := eepromSum - sum; have != want && d.own.SkipEEPROM {
		d.card.FallBack("a verified EEPROM", "one with a wrong checksum",
			"word 3Fh is %#04x, its contents ask for %#04x, and the check is switched off", have, want)
	} else if have != want {
		return d.card.Errorf("%w: word 3Fh is %#04x, its contents ask for %#04x", ErrEEPROM, have, want)
	}
	return nil
}
