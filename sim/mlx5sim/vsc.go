package mlx5sim

// The Vendor-Specific capability of a physical function's configuration space is a gateway to address spaces of the
// device (Linux, pci_vsc.c), for tools and crash dumps. A user acquires its semaphore with a number from the counter.
// The model has only the semaphore space; the register space, which crash dumps read, is reported as absent.
const (
	vscSize = 0x18

	vscControl   = 0x04 // bits 15:0 the space, 31:29 whether it exists
	vscCounter   = 0x08
	vscSemaphore = 0x0c
	vscAddress   = 0x10 // bit 31: set to start a write, set when a read has ended; bit 30: the access failed
	vscData      = 0x14

	vscThere  = 1 << 29
	vscFailed = 1 << 30
	vscFlag   = 1 << 31

	spaceSemaphores = 0xa
	vscSemaphores   = 0x80 // number of words of that space
)

type gateway struct {
	space, counter, owner, address, data uint32
	semaphores                           [vscSemaphores]uint32
}

// ReadVendor reads a dword of the capability.
func (m *Model) ReadVendor(off int) uint32 {
	g := &m.gateway
	switch off {
	case vscControl:
		if g.space == spaceSemaphores {
			return g.space | vscThere
		}
		return g.space
	case vscCounter:
		g.counter++
		return g.counter
	case vscSemaphore:
		return g.owner
	case vscAddress:
		return g.address
	case vscData:
		return g.data
	}
	return 0
}

// WriteVendor writes a dword of the capability.
func (m *Model) WriteVendor(off int, v uint32) {
	g := &m.gateway
	if off != vscSemaphore && g.owner == 0 {
		m.host.Warnf("vendor-specific capability: write of %02xh = %08xh without the semaphore", off, v)
	}
	switch off {
	case vscControl:
		g.space = v & 0xffff
	case vscSemaphore:
		take(&g.owner, v)
	case vscData:
		g.data = v
	case vscAddress:
		at, write := v&(vscFailed-1), v&vscFlag != 0
		g.address = v &^ vscFailed &^ vscFlag
		switch {
		case g.space != spaceSemaphores || at >= vscSemaphores:
			g.address |= vscFailed
		case write:
			take(&g.semaphores[at], g.data)
		default:
			g.data = g.semaphores[at]
		}
		if !write {
			g.address |= vscFlag
		}
	}
}

// take writes a semaphore: the first writer owns it until it writes zero.
func take(s *uint32, v uint32) {
	if *s == 0 || v == 0 {
		*s = v
	}
}
