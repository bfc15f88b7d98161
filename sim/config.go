package sim

import (
	"cmp"
	"encoding/binary"
	"fmt"

	"github.com/rebound-nic/rebound/nic/bus/pci"
)

// Configuration space, PCI Express Base 6.0 §7.5. Capabilities have the same offsets as on an 82599.
const (
	spaceSize = 4096

	offCommand  = 0x04 // Command                §7.5.1.1.3
	offStatus   = 0x06 // Status                 §7.5.1.1.4
	offHeader   = 0x0e // Header Type            §7.5.1.1.9
	offBAR0     = 0x10 // Base Address Registers §7.5.1.2.1
	offSubsys   = 0x2c
	offCapPtr   = 0x34
	offIntLine  = 0x3c
	offIntPin   = 0x3d
	offPM       = 0x40  // Power Management       §7.5.2
	offMSI      = 0x50  // MSI                    §7.7.1
	offMSIX     = 0x70  // MSI-X                  §7.7.2
	offPCIe     = 0xa0  // PCI Express            §7.5.3
	offVPD      = 0xe0  // Vital Product Data     §7.9.18
	offVendor   = 0xe8  // Vendor-Specific        §7.9.4
	offExtended = 0x100 // start of the extended capabilities
	offAER      = 0x100 // Advanced Error Reporting    §7.8.4
	offSerial   = 0x140 // Device Serial Number        §7.9.3
	offARI      = 0x150 // Alternative Routing-ID      §7.8.8
	offMark     = 0x180 // Vendor-Specific, pci.ModelMark

	cmdMemory    = 1 << 1
	cmdBusMaster = 1 << 2
	cmdWritable  = 1<<1 | 1<<2 | 1<<6 | 1<<8 | 1<<10 // parity error response, SERR#, interrupt disable

	msiEnable   = 1 << 0
	msi64       = 1 << 7 // the address has 64 bits
	msiMaskable = 1 << 8
	msixEnable  = 1 << 15

	vpdFlag = 1 << 15 // a read is complete; a write starts

	aerSize = 0x48
	// uncorrectable errors that a function reports: data link protocol, and poisoned TLP to unsupported request
	aerUncorrectable = 0x001ff010
	aerFatal         = 0x00062010
	aerCorrectable   = 0x000031c1
	aerAdvisory      = 1 << 13

	pmNoSoftReset = 1 << 3 // leaving D3hot keeps the function's state

	devCtlFLR = 1 << 15 // Initiate Function Level Reset
	devCapFLR = 1 << 28
)

// space is configuration space: its bytes, the bits that a write changes, and the bits that a write of 1 clears.
type space struct {
	reg, init  [spaceSize]byte
	write1     [spaceSize]byte // writable bits
	clear1     [spaceSize]byte // bits that a write of 1 clears
	flrCapable bool
	aer        bool
	vpd        []byte // Vital Product Data; nil for none
}

func newSpace(c Config) (space, error) {
	s := space{vpd: c.VPD, aer: c.AER > 0, flrCapable: c.PCIeDevCap&devCapFLR != 0}
	s.header(&c)
	if err := s.bars(&c); err != nil {
		return s, err
	}
	if err := s.capabilities(&c); err != nil {
		return s, err
	}
	s.extendedCapabilities(&c)
	s.reg = s.init
	return s, nil
}

// put16 and put32 set a register's initial value, and which of its bits can be written.
func (s *space) put16(off int, v, writable uint16) {
	binary.LittleEndian.PutUint16(s.init[off:], v)
	binary.LittleEndian.PutUint16(s.write1[off:], writable)
}

func (s *space) put32(off int, v, writable uint32) {
	binary.LittleEndian.PutUint32(s.init[off:], v)
	binary.LittleEndian.PutUint32(s.write1[off:], writable)
}

// header is the common part of the first 64 bytes, but for the BARs.
func (s *space) header(c *Config) {
	s.put16(0x00, c.Vendor, 0)
	s.put16(0x02, c.Device, 0)
	s.put16(offCommand, 0, cmdWritable)
	s.put16(offStatus, 1<<4, 0) // capabilities list
	binary.LittleEndian.PutUint16(s.clear1[offStatus:], 0xf900)
	s.put32(0x08, uint32(c.Revision)|c.Class<<8, 0)
	s.write1[0x0c] = 0xff // Cache Line Size
	s.put16(offSubsys, c.SubVendor, 0)
	s.put16(offSubsys+2, c.SubDevice, 0)
	s.write1[offIntLine] = 0xff
	s.init[offIntPin] = max(c.InterruptPin, 1)
	if c.MultiFunction {
		s.init[offHeader] = 0x80
	}
}

func (s *space) bars(c *Config) error {
	for i := 0; i < 6; i++ {
		b := c.BARs[i]
		if b.Size == 0 {
			continue
		}
		if b.Size < 16 || b.Size&(b.Size-1) != 0 || b.Is64 && (i == 5 || c.BARs[i+1].Size != 0) || !b.Is64 &&
			b.Size > 1<<31 {
			return fmt.Errorf("impossible BAR %d: %+v", i, b)
		}
		flags, mask := uint32(0), ^(b.Size - 1)
		if b.Prefetchable {
			flags |= 1 << 3
		}
		if b.Is64 {
			flags |= 2 << 1
			s.put32(offBAR0+4*i+4, 0, uint32(mask>>32))
		}
		s.put32(offBAR0+4*i, flags, uint32(mask))
	}
	return nil
}

// capabilities is the list that begins in the header.
func (s *space) capabilities(c *Config) error {
	link := offCapPtr // offset of the pointer to the next capability
	capability := func(at int, id byte) {
		s.init[link] = byte(at)
		s.init[at], link = id, at+1
	}
	if !c.NoPM {
		capability(offPM, 0x01)
		s.put16(offPM+2, cmp.Or(c.PMC, 3), 0)                    // version 3, D0 and D3
		s.put16(offPM+4, cmp.Or(c.PMCSR, pmNoSoftReset), 3|1<<8) // power state, PME enable
		s.clear1[offPM+5] = 1 << 7                               // PME status
	}
	if c.MSI {
		capability(offMSI, 0x05)
		s.put16(offMSI+2, msi64|msiMaskable, msiEnable) // one message
		s.put32(offMSI+4, 0, 0xfffffffc)
		s.put32(offMSI+8, 0, 0xffffffff)
		s.put16(offMSI+0xc, 0, 0xffff)
		s.put32(offMSI+0x10, 0, 1) // mask
	}
	if c.MSIXVectors > 0 {
		if c.MSIXVectors > 2048 || c.MSIXBAR < 0 || c.MSIXBAR > 5 || c.MSIXTable&7 != 0 || c.MSIXPBA&7 != 0 ||
			uint64(c.MSIXTable)+16*uint64(c.MSIXVectors) > c.BARs[c.MSIXBAR].Size ||
			uint64(c.MSIXPBA) >= c.BARs[c.MSIXBAR].Size {
			return fmt.Errorf("impossible MSI-X table: %d vectors in BAR %d at %#x, pending bits at %#x",
				c.MSIXVectors, c.MSIXBAR, c.MSIXTable, c.MSIXPBA)
		}
		capability(offMSIX, 0x11)
		s.put16(offMSIX+2, uint16(c.MSIXVectors-1), msixEnable|1<<14) // function mask
		s.put32(offMSIX+4, c.MSIXTable|uint32(c.MSIXBAR), 0)
		s.put32(offMSIX+8, c.MSIXPBA|uint32(c.MSIXBAR), 0)
	}
	if at := offMSI; len(c.VendorParts) > 0 {
		for _, p := range c.VendorParts {
			if c.MSI || c.MSIXVectors > 0 || at+2+len(p) > offPCIe {
				return fmt.Errorf("vendor-specific capability of %d bytes at %#x: they lie where MSI and MSI-X would, and end before %#x", len(p)+2, at, offPCIe)
			}
			capability(at, 0x09)
			copy(s.init[at+2:], p)
			at += (len(p) + 2 + 3) &^ 3
		}
	}
	capability(offPCIe, 0x10)
	s.express(c)
	if len(c.VPD) > 0 {
		capability(offVPD, 0x03)
		s.put16(offVPD+2, 0, 0xffff)
		s.put32(offVPD+4, 0, 0xffffffff)
	}
	if c.VendorSize > 0 {
		if offVendor+c.VendorSize > offExtended {
			return fmt.Errorf("vendor-specific capability of %d bytes at %#x", c.VendorSize, offVendor)
		}
		capability(offVendor, 0x09)
		s.init[offVendor+2] = byte(c.VendorSize)
	}
	return nil
}

// express is the PCI Express capability (§7.5.3).
func (s *space) express(c *Config) {
	s.put16(offPCIe+2, 2, 0) // version 2, endpoint
	s.put32(offPCIe+4, c.PCIeDevCap, 0)
	s.put16(offPCIe+8, 0x2810, 0x7fff) // relaxed ordering, no snoop, read requests of 512 bytes
	s.clear1[offPCIe+10] = 0x0f
	lanes := uint32(c.LinkSpeed&15 | c.LinkWidth&63<<4)
	s.put32(offPCIe+0x0c, lanes, 0)
	s.put16(offPCIe+0x10, 0, 0x01cb)              // ASPM, RCB, common clock, extended synch, clock power management
	s.put16(offPCIe+0x12, uint16(lanes)|1<<12, 0) // slot clock configuration
	s.put32(offPCIe+0x24, 0x1f, 0)                // completion timeout ranges A to D, and disable
	s.put16(offPCIe+0x28, 0, 0x1f)                // completion timeout value and disable
	if c.LinkSpeed > 2 {                          // PCIe 2.0 devices have no link speeds vector
		s.put32(offPCIe+0x2c, 1<<(c.LinkSpeed&15+1)-2, 0) // all speeds up to LinkSpeed
	}
	s.put16(offPCIe+0x30, uint16(c.LinkSpeed&15), 0x0f)
}

// extendedCapabilities is the list behind the first 256 bytes.
func (s *space) extendedCapabilities(c *Config) {
	le := binary.LittleEndian
	last := -1
	extended := func(at int, id, version uint32) {
		if last < 0 {
			at = offExtended // the first one must be here
		} else {
			le.PutUint32(s.init[last:], le.Uint32(s.init[last:])|uint32(at)<<20)
		}
		s.put32(at, id|version<<16, 0)
		last = at
	}
	if s.aer {
		extended(offAER, 0x0001, uint32(c.AER))
		s.putClear32(offAER+4, aerUncorrectable)          // status
		s.put32(offAER+8, 0, aerUncorrectable)            // mask
		s.put32(offAER+0xc, aerFatal, aerUncorrectable)   // severity
		s.putClear32(offAER+0x10, aerCorrectable)         // status
		s.put32(offAER+0x14, aerAdvisory, aerCorrectable) // mask
		s.put32(offAER+0x18, 1<<5|1<<7, 1<<6|1<<8)        // ECRC can be generated and checked
	}
	if c.SerialNumber != 0 {
		extended(offSerial, 0x0003, 1)
		s.put32(last+4, uint32(c.SerialNumber), 0)
		s.put32(last+8, uint32(c.SerialNumber>>32), 0)
	}
	if c.ARI {
		extended(offARI, 0x000e, 1)
		s.put16(last+4, uint16(c.NextFunction)<<8, 0)
	}
	extended(offMark, 0x000b, 1)
	s.put32(last+4, pci.ModelVSEC|1<<16|uint32(8+len(pci.ModelMark))<<20, 0)
	copy(s.init[last+8:], pci.ModelMark)
}

// putClear32 marks bits as cleared by a write of 1.
func (s *space) putClear32(off int, bits uint32) { binary.LittleEndian.PutUint32(s.clear1[off:], bits) }

// reset performs a function-level reset. It keeps the sticky bits: settings and status of error reporting (§7.4).
func (s *space) reset() {
	sticky := s.reg[offAER : offAER+aerSize]
	if !s.aer {
		sticky = nil
	}
	kept := append([]byte(nil), sticky...)
	s.reg = s.init
	copy(s.reg[offAER:], kept)
}

func (s *space) command() uint16 { return binary.LittleEndian.Uint16(s.reg[offCommand:]) }

func (s *space) setCommand(bits uint16, on bool) {
	v := s.command() &^ bits
	if on {
		v |= bits
	}
	binary.LittleEndian.PutUint16(s.reg[offCommand:], v)
}

// decodes reports whether the function responds to accesses to its BARs: memory space is enabled and the power state is
// D0.
func (s *space) decodes() bool { return s.command()&cmdMemory != 0 && s.reg[offPM+4]&3 == 0 }

// write changes the writable bits and reports whether the write resets the function: the driver requested a
// function-level reset, or the function leaves D3hot without No_Soft_Reset (§7.5.2.2).
func (s *space) write(off int, p []byte) (reset bool) {
	asleep := s.reg[offPM+4]&3 == 3
	for i, v := range p {
		w, c, r := s.write1[off+i], s.clear1[off+i], &s.reg[off+i]
		*r = (*r&^w | v&w) &^ (v & c)
		reset = reset || s.flrCapable && off+i == offPCIe+9 && v&(devCtlFLR>>8) != 0
	}
	if s.vpd != nil && off <= offVPD+3 && off+len(p) > offVPD+3 {
		s.transferVPD()
	}
	return reset || asleep && s.reg[offPM+4]&3 == 0 && s.reg[offPM+4]&pmNoSoftReset == 0
}

// transferVPD handles a write to the high byte of VPD Address. With F = 0 it reads four bytes into VPD Data and sets F
// at once. With F = 1 a card would write the bytes; the model's are read-only, so it only clears F.
func (s *space) transferVPD() {
	le := binary.LittleEndian
	at := le.Uint16(s.reg[offVPD+2:])
	if at&vpdFlag == 0 {
		data := []byte{0xff, 0xff, 0xff, 0xff} // past the end
		copy(data, s.vpd[min(int(at), len(s.vpd)):])
		copy(s.reg[offVPD+4:], data)
	}
	le.PutUint16(s.reg[offVPD+2:], at^vpdFlag)
}

// VPD returns the Vital Product Data of a model (§6.27): the product name, the part number (PN), the serial number (SN,
// derived from the MAC address), more read-only fields by keyword, and a checksum. Name and part number state that it
// is a model.
func VPD(device uint16, mac [6]byte, more ...[2]string) []byte {
	const name = "device model of the Rebound project"
	b := append([]byte{0x82, byte(len(name)), byte(len(name) >> 8)}, name...)
	var r []byte
	for _, f := range append([][2]string{{"PN", fmt.Sprintf("model-%04x", device)}, {"SN", fmt.Sprintf("%x", mac)}},
		more...) {
		r = append(append(r, f[0][0], f[0][1], byte(len(f[1]))), f[1]...)
	}
	b = append(b, 0x90, byte(len(r)+4), byte((len(r)+4)>>8))
	b = append(append(b, r...), 'R', 'V', 1)
	var sum byte
	for _, v := range b {
		sum += v
	}
	return append(b, -sum, 0x78)
}

func checkConfig(off, n int) error {
	if n != 1 && n != 2 && n != 4 || off < 0 || off%n != 0 || off+n > spaceSize {
		return fmt.Errorf("sim: access of %d bytes at %#x of configuration space", n, off)
	}
	return nil
}
