package sim

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/golden"
)

// The initial configuration space of functions with all kinds of capabilities, the bits that writes change and clear,
// and configurations that no card has.
func TestConfigurationSpaceBits(t *testing.T) {
	var b strings.Builder
	full := Config{Vendor: 0x1234, Device: 0x5678, SubVendor: 0x9abc, SubDevice: 0xdef0, Revision: 0x12,
		Class:       0x020000,
		BARs:        [6]BAR{{Size: 1 << 33, Is64: true, Prefetchable: true}, {}, {Size: 1 << 16}, {}, {Size: 16}},
		MSIXVectors: 2048, MSIXBAR: 2, MSIXTable: 8, MSIXPBA: 0x8008, PCIeDevCap: devCapFLR | 5, LinkSpeed: 3,
		LinkWidth:    8,
		SerialNumber: 0x0102030405060708, MultiFunction: true, InterruptPin: 3, MSI: true, VPD: VPD(0x5678,
			[6]byte{1, 2, 3, 4, 5, 6}),
		AER: 2, ARI: true, NextFunction: 3, VendorSize: 0x18}
	change := func(f func(*Config)) Config {
		c := full
		f(&c)
		return c
	}
	parts := Config{LinkSpeed: 2, LinkWidth: 32, VendorParts: [][]byte{{1, 2, 3}, {4}}, PMC: 0xc822, PMCSR: 1 << 13,
		VendorSize: 8,
		ARI:        true, NextFunction: 1}
	for i, c := range []Config{full, parts, {NoPM: true, LinkSpeed: 17, LinkWidth: 64},
		change(func(c *Config) { c.BARs[0].Size-- }), change(func(c *Config) { c.BARs[4].Size = 8 }),
		change(func(c *Config) { c.BARs[1].Size = 16 }), change(func(c *Config) {
			c.BARs[5] = BAR{Size: 16,
				Is64: true}
		}),
		change(func(c *Config) { c.BARs[4].Size = 1 << 32 }), change(func(c *Config) { c.BARs[4].Size = 1 << 31 }),
		change(func(c *Config) { c.MSIXVectors++ }), change(func(c *Config) { c.MSIXBAR = 6 }),
		change(func(c *Config) { c.MSIXBAR = -1 }), change(func(c *Config) { c.MSIXBAR = 5 }),
		change(func(c *Config) { c.MSIXTable = 4 }), change(func(c *Config) { c.MSIXPBA = 4 }),
		change(func(c *Config) { c.MSIXTable = 0x8000 }), change(func(c *Config) { c.MSIXTable = 0x8008 }),
		change(func(c *Config) { c.MSIXPBA = 1 << 16 }), change(func(c *Config) { c.MSIXPBA = 1<<16 - 8 }),
		change(func(c *Config) { c.VendorSize = 0x19 }),
		change(func(c *Config) { c.VendorParts = parts.VendorParts }),
		change(func(c *Config) { c.VendorParts, c.MSI = parts.VendorParts, false }),
		change(func(c *Config) { c.VendorParts, c.MSIXVectors = parts.VendorParts, 0 }),
		{VendorParts: [][]byte{make([]byte, 79)}}, {VendorParts: [][]byte{make([]byte, 78)}},
	} {
		s, err := newSpace(c)
		fmt.Fprintf(&b, "configuration %d: %v\n", i, err)
		for off := 0; err == nil && i < 3 && off < spaceSize; off += 4 {
			v, w, k := word(s.init[:], off), word(s.write1[:], off), word(s.clear1[:], off)
			if v|w|k != 0 {
				fmt.Fprintf(&b, "%03x %08x writable %08x cleared %08x\n", off, v, w, k)
			}
		}
	}
	s, _ := newSpace(full)
	for _, step := range []struct {
		off  int
		data []byte
	}{{offCommand, []byte{0xff, 0xff}}, {offStatus, []byte{0, 0x80}}, {offPM + 4, []byte{3}}, {offPM + 4, []byte{0}},
		{offPCIe + 8, []byte{0, 0x80}}, {offVPD, []byte{0, 0, 4, 0}}, {offVPD + 2, []byte{4, 0}}, {offVPD + 2,
			[]byte{0, 0x7f}},
		{offVPD + 2, []byte{8}}, {offVPD + 3, []byte{0x80}}, {offVPD + 4, []byte{1, 2, 3, 4}}, {offAER + 8,
			[]byte{0xff, 0xff, 0xff, 0xff}},
		{offAER + 4, []byte{0xff}}} {
		reset := s.write(step.off, step.data)
		fmt.Fprintf(&b, "write %03x %x: %08x, VPD %08x %08x, reset %t, decodes %t\n", step.off, step.data,
			word(s.reg[:], step.off&^3), word(s.reg[:], offVPD), word(s.reg[:], offVPD+4), reset, s.decodes())
	}
	s.setCommand(cmdBusMaster, false)
	fmt.Fprintf(&b, "command %04x", s.command())
	s.setCommand(cmdBusMaster, true)
	fmt.Fprintf(&b, " and %04x", s.command())
	s.reset()
	fmt.Fprintf(&b, ", after a reset %04x, AER %08x %08x\n", s.command(), word(s.reg[:], offAER), word(s.reg[:],
		offAER+8))
	s, _ = newSpace(parts)
	s.write(offPM+4, []byte{3})
	fmt.Fprintf(&b, "asleep it decodes %t, waking resets %t\n", s.decodes(), s.write(offPM+4, []byte{0}))
	s.reg[offAER] = 1
	s.reset()
	fmt.Fprintf(&b, "without AER %08x\n%x\n", word(s.reg[:], offAER), VPD(0x1f, [6]byte{5: 9}, [2]string{"EC", "A1"}))
	for _, c := range [][2]int{{0, 1}, {0, 2}, {0, 4}, {0, 3}, {0, 8}, {2, 4}, {-4, 4}, {spaceSize - 4, 4},
		{spaceSize, 4}} {
		fmt.Fprintf(&b, "%d bytes at %d: %v\n", c[1], c[0], checkConfig(c[0], c[1]))
	}
	golden.Equal(t, "testdata/config.txt", b.String())
}

func word(b []byte, off int) uint32 { return binary.LittleEndian.Uint32(b[off:]) }
