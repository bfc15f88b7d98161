package virtio

import (
	"errors"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/nic/bus/pci"
)

// structure is the part of a window that one capability describes.
type structure struct {
	bar  *mmio.Window
	at   uint64
	size uint64
}

// layout contains the locations of the device's registers (§4.1.4).
type layout struct {
	common, notify, config structure
	multiplier             uint64 // notify_off_multiplier
}

// find reads the capabilities. It uses the first usable one of each type; some may be in I/O ports.
func (d *Device) find() (l layout, err error) {
	fn := d.card.Fn
	at, err := pci.Capabilities(fn, pci.CapVendor)
	if err != nil {
		return l, err
	}
	for _, at := range at {
		kind, err := pci.Read8(fn, at+capType)
		if err != nil {
			return l, err
		}
		var to *structure
		least, align := uint64(0), uint64(4)
		switch kind {
		case cfgCommon:
			to, least = &l.common, commonSize
		case cfgNotify:
			to, least, align = &l.notify, 2, 2
		case cfgDevice:
			to, least = &l.config, confStatus
		default:
			continue
		}
		if to.bar != nil {
			continue
		}
		s, err := d.structureAt(at, least, align)
		switch {
		case errors.Is(err, pci.ErrBAR):
			continue
		case err != nil:
			return l, err
		}
		if kind == cfgNotify {
			m, err := pci.Read32(fn, at+capMult)
			if err != nil {
				return l, err
			}
			if m&(m-1) != 0 || m == 1 {
				return l, d.card.Errorf("%w: notify_off_multiplier %d is no even power of two", nic.ErrHardware, m)
			}
			l.multiplier = uint64(m)
		}
		*to = s
	}
	for _, s := range []struct {
		name string
		structure
	}{{"common configuration", l.common}, {"notification", l.notify}, {"device configuration", l.config}} {
		if s.bar == nil && pci.Gone(fn) {
			return l, d.card.Gone("configuration space")
		}
		if s.bar == nil {
			return l, d.card.Errorf(
				"%w: no capability tells of a %s structure in a memory BAR: a legacy device, or one with "+
					"disable-modern=on", nic.ErrNoDevice, s.name)
		}
	}
	return l, nil
}

// structureAt reads the capability at an offset. Its structure must be aligned and have at least least bytes.
func (d *Device) structureAt(at int, least, align uint64) (s structure, err error) {
	fn := d.card.Fn
	var off, length uint32
	bar, err := pci.Read8(fn, at+capBAR)
	if err == nil {
		off, err = pci.Read32(fn, at+capOffset)
	}
	if err == nil {
		length, err = pci.Read32(fn, at+capLength)
	}
	if err != nil {
		return s, err
	}
	if bar > 5 {
		return s, d.card.Errorf("capability at %#x: BAR %d: %w", at, bar, pci.ErrBAR)
	}
	s = structure{at: uint64(off), size: uint64(length)}
	if s.bar, err = fn.BAR(int(bar)); err != nil {
		return s, err
	}
	if s.size < least || s.at%align != 0 || s.at+s.size > s.bar.Size() {
		return s, d.card.Errorf(
			"%w: capability at %#x: %#x bytes at %#x of BAR %d, which has %#x: expected %#x or more, aligned to %d",
			nic.ErrHardware, at, s.size, s.at, bar, s.bar.Size(), least, align)
	}
	return s, nil
}
