package pci

import "bytes"

// A device model of ours marks itself by a Vendor-Specific Extended Capability (PCI Express Base 6.0 §7.9.5), which drivers
// that do not know it leave alone. So even where it stands behind QEMU's or a kernel's own emulation of a function, nobody
// takes its time for a card's.
const (
	ModelVSEC = 0x5242 // VSEC ID, revision 1
	ModelMark = "rebound model\x00\x00\x00"
)

// isModel reports whether a function is a device model of ours. What cannot be read is none.
func isModel(c Config) bool {
	at, err := ExtCapability(c, ExtCapVendor)
	if err != nil || at == 0 {
		return false
	}
	head, err := Read32(c, at+4)
	if err != nil || head != ModelVSEC|1<<16|uint32(8+len(ModelMark))<<20 {
		return false
	}
	mark := make([]byte, 0, len(ModelMark))
	for off := range len(ModelMark) {
		b, err := Read8(c, at+8+off)
		if err != nil {
			return false
		}
		mark = append(mark, b)
	}
	return bytes.Equal(mark, []byte(ModelMark))
}
