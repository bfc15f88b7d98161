package sim

import (
	"encoding/binary"
)

// ReadConfig reads 1, 2 or 4 bytes of configuration space.
func (p *Port) ReadConfig(off int, b []byte) error {
	if err := checkConfig(off, len(b)); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.present() {
		ones(b)
		return nil
	}
	copy(b, p.space.reg[off:])
	if v, at := p.vendor(off); v != nil {
		var word [4]byte
		binary.LittleEndian.PutUint32(word[:], v.ReadVendor(at))
		copy(b, word[off&3:])
	}
	return nil
}

// vendor returns the model and the dword index if off is in a Vendor-Specific capability that the model keeps.
func (p *Port) vendor(off int) (v vendorConfig, at int) {
	if at = off&^3 - offVendor; at >= 4 && at < p.conf.VendorSize {
		v, _ = p.model.(vendorConfig)
	}
	return v, at
}

// WriteConfig writes 1, 2 or 4 bytes of configuration space. Read-only bits keep their value. Initiate Function Level
// Reset takes effect before it returns.
func (p *Port) WriteConfig(off int, b []byte) error {
	if err := checkConfig(off, len(b)); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.present() {
		return nil
	}
	if v, at := p.vendor(off); v != nil {
		var word [4]byte
		binary.LittleEndian.PutUint32(word[:], v.ReadVendor(at))
		copy(word[off&3:], b)
		v.WriteVendor(at, binary.LittleEndian.Uint32(word[:]))
		return nil
	}
	was := p.space.command()
	reset := p.space.write(off, b)
	switch is := p.space.command(); {
	case is&cmdBusMaster != 0:
		p.cut = false
	case was&cmdBusMaster != 0:
		p.cut = true
	}
	if p.space.vpd != nil && off == offVPD+2 && b[0]&3 != 0 {
		p.violation(Warning, "VPD Address is %#x, not a multiple of 4", b[0])
	}
	if p.rec != nil {
		p.configured(off, b, was)
	}
	if reset {
		p.reset()
	}
	return nil
}
