package pci

import (
	"encoding/binary"
	"fmt"

	"github.com/rebound-nic/rebound/nic/bus/mmio"
)

// Registers of the configuration header, type 0 (PCI Local Bus 3.0 §6.1).
const (
	cfgVendor       = 0x00
	cfgCommand      = 0x04 // §6.2.2
	cfgStatus       = 0x06 // §6.2.3
	cfgRevision     = 0x08 // and class code in the upper 24 bits
	cfgSubsystem    = 0x2c
	cfgCapabilities = 0x34 // offset of the first capability, §6.7
	cfgHeader       = 0x40 // end of the header

	cfgSize         = 0x100  // of conventional configuration space
	cfgExtendedSize = 0x1000 // of PCI Express extended configuration space (PCIe 5.0 §7.2)
)

// Command register bits.
const (
	cmdMemory      uint16 = 1 << 1
	cmdBusMaster   uint16 = 1 << 2
	cmdINTxDisable uint16 = 1 << 10
)

const statusCapabilities uint16 = 1 << 4 // Status: there is a capability list

// CapID identifies a capability (PCI Code and ID Assignment §2).
type CapID uint8

// Capabilities that drivers request.
const (
	CapPower   CapID = 0x01
	CapMSI     CapID = 0x05
	CapVendor  CapID = 0x09 // vendor-specific: virtio describes its registers there
	CapExpress CapID = 0x10
	CapMSIX    CapID = 0x11
)

// ExtCapID identifies an extended capability (PCI Code and ID Assignment §3).
type ExtCapID uint16

// Extended capabilities that drivers request.
const (
	ExtCapVendor ExtCapID = 0x000b
	ExtCapAER    ExtCapID = 0x0001
	ExtCapSerial ExtCapID = 0x0003
	ExtCapSRIOV  ExtCapID = 0x0010
)

// Config is access to configuration space, usually of a Function.
type Config interface {
	ReadConfig(off int, p []byte) error
	WriteConfig(off int, p []byte) error
}

// Read8 reads one byte of configuration space.
func Read8(c Config, off int) (uint8, error) {
	var b [1]byte
	err := c.ReadConfig(off, b[:])
	return b[0], err
}

// read16 reads two bytes of configuration space; off is even.
func read16(c Config, off int) (uint16, error) {
	var b [2]byte
	err := c.ReadConfig(off, b[:])
	return binary.LittleEndian.Uint16(b[:]), err
}

// Read32 reads four bytes of configuration space; off is a multiple of 4.
func Read32(c Config, off int) (uint32, error) {
	var b [4]byte
	err := c.ReadConfig(off, b[:])
	return binary.LittleEndian.Uint32(b[:]), err
}

// readID reads the function's identity. It returns ErrGone if the device does not respond.
func readID(c Config) (ID, error) {
	vd, err := Read32(c, cfgVendor)
	if err != nil {
		return ID{}, err
	}
	class, err := Read32(c, cfgRevision)
	if err != nil {
		return ID{}, err
	}
	if vd == ^uint32(0) || class == ^uint32(0) {
		return ID{}, fmt.Errorf("pci: configuration space reads all ones: %w", ErrGone)
	}
	sub, err := Read32(c, cfgSubsystem)
	if err != nil {
		return ID{}, err
	}
	return ID{
		Vendor: uint16(vd), Device: uint16(vd >> 16),
		SubVendor: uint16(sub), SubDevice: uint16(sub >> 16),
		Revision: uint8(class), Class: class >> 8,
	}, nil
}

// Gone reports whether the function does not respond any more: it was pulled, or its link is down. It reads the class
// code and the revision, because vfio-pci emulates vendor and device ID and returns them even if the function does not
// respond (Linux, init_pci_cap_basic_perm).
func Gone(c Config) bool {
	v, err := Read32(c, cfgRevision)
	return err != nil || v == ^uint32(0)
}

// unanswered reports whether a value of the command register means that the device did not respond. vfio-pci emulates
// INTx Disable.
func unanswered(command uint16) bool { return command|cmdINTxDisable == 0xffff }

// Capability returns the offset of the first capability with an ID, or 0 if there is none. Errors are those of
// Capabilities.
func Capability(c Config, id CapID) (int, error) {
	all, err := Capabilities(c, id)
	if len(all) == 0 {
		return 0, err
	}
	return all[0], nil
}

// Capabilities returns the offsets of all capabilities with an ID, in the order of the list. For a list that leaves
// configuration space or forms a circle it returns errConfig, with what it had found.
func Capabilities(c Config, id CapID) (all []int, err error) {
	status, err := read16(c, cfgStatus)
	if err != nil {
		return nil, err
	}
	if status == 0xffff && Gone(c) {
		return nil, fmt.Errorf("pci: capability %#02x: %w", uint8(id), ErrGone)
	}
	if status&statusCapabilities == 0 {
		return nil, nil
	}
	at, err := Read8(c, cfgCapabilities)
	if err != nil {
		return nil, err
	}
	for range (cfgSize - cfgHeader) / 4 {
		off := int(at &^ 3) // the two low bits are reserved
		if off == 0 {
			return all, nil
		}
		if off < cfgHeader {
			return all, fmt.Errorf("pci: a capability at %#x, inside the header: %w", off, errConfig)
		}
		head, err := read16(c, off)
		if err != nil {
			return all, err
		}
		if CapID(head) == id {
			all = append(all, off)
		}
		at = uint8(head >> 8)
	}
	return all, fmt.Errorf("pci: the capability list has a loop: %w", errConfig)
}

// ExtCapability returns the offset of the first extended capability with an ID, or 0 if there is none or the function
// has no extended configuration space.
func ExtCapability(c Config, id ExtCapID) (int, error) {
	off := cfgSize
	for range (cfgExtendedSize - cfgSize) / 4 {
		head, err := Read32(c, off)
		if err != nil && off == cfgSize {
			return 0, nil // conventional functions have no more
		}
		if err != nil {
			return 0, err
		}
		if head == ^uint32(0) {
			return 0, nil // the space is not decoded; an empty list reads 0
		}
		if ExtCapID(head) == id {
			return off, nil
		}
		off = int(head >> 20 &^ 3)
		if off == 0 {
			return 0, nil
		}
		if off < cfgSize {
			return 0, fmt.Errorf("pci: an extended capability at %#x, below 0x100: %w", off, errConfig)
		}
	}
	return 0, fmt.Errorf("pci: the extended capability list has a loop: %w", errConfig)
}

// BusMastering reports whether the function may do DMA. If a driver enabled it and finds it disabled, another process
// reset the function.
func BusMastering(c Config) (bool, error) {
	v, err := read16(c, cfgCommand)
	return err == nil && !unanswered(v) && v&cmdBusMaster != 0, err
}

// setCommand changes bits of the command register and reads it back to check. The completion of that read also flushes
// the function's earlier writes to memory (PCIe 5.0 §2.4.1), so none is in flight once bus mastering is off.
func setCommand(c Config, set, clear uint16) error {
	v, err := read16(c, cfgCommand)
	if err != nil {
		return err
	}
	if unanswered(v) {
		return fmt.Errorf("pci: command register reads all ones: %w", ErrGone)
	}
	want := v&^clear | set
	if want == v {
		return nil
	}
	if err := c.WriteConfig(cfgCommand, binary.LittleEndian.AppendUint16(nil, want)); err != nil {
		return err
	}
	got, err := read16(c, cfgCommand)
	if err != nil {
		return err
	}
	const best = cmdINTxDisable // may be hardwired to 0: vfio-pci emulates the bit in that case, sysfs does not
	if (got^set)&(set|clear)&^best != 0 {
		return fmt.Errorf("pci: command register: wrote %#04x, reads %#04x: %w", want, got, errConfig)
	}
	return nil
}

// Registers returns BAR n of f, or ErrBAR if it has fewer than size bytes.
func Registers(f Function, n int, size uint64) (*mmio.Window, error) {
	w, err := f.BAR(n)
	if err != nil {
		return nil, err
	}
	if w.Size() < size {
		return nil, fmt.Errorf("pci: %s: BAR %d has %#x bytes, the device's registers need %#x: %w", f.Name(), n,
			w.Size(), size, ErrBAR)
	}
	return w, nil
}

// SplitWC maps BAR n write-combining from an offset on (a whole number of pages) and uncached below, because a page
// cannot have both types. Call it before the first use of the BAR. BAR then ends at that offset, and BARWC begins
// there, with offsets still relative to the start of the BAR. If write-combining is not available, BARWC is uncached,
// and WriteCombining reports it. It does nothing for models.
func SplitWC(f Function, n int, from uint64) error {
	if s, ok := unwrap(f).(interface{ SplitWC(int, uint64) error }); ok {
		return s.SplitWC(n, from)
	}
	return nil
}

// WriteReal writes to the device's own configuration space where WriteConfig may not: vfio-pci emulates the payload and
// read request sizes of Device Control (Linux, init_pci_cap_exp_perm). With other buses WriteConfig reaches the device,
// and this does nothing. If the process gives rights up later, its first call has to be before.
func WriteReal(f Function, off int, p []byte) error {
	if s, ok := unwrap(f).(interface{ WriteReal(int, []byte) error }); ok {
		return s.WriteReal(off, p)
	}
	return nil
}

// Translated reports whether an IOMMU translates the device's addresses. If not, they are physical.
func Translated(f Function) bool {
	t, ok := unwrap(f).(interface{ Translated() bool })
	return ok && t.Translated()
}

// Notes lists unusual conditions of f for Info.Notes: no IOMMU, for example.
func Notes(f Function) []string {
	if n, ok := unwrap(f).(interface{ Notes() []string }); ok {
		return n.Notes()
	}
	return nil
}

// unwrap returns the bus's own function from inside its wrappers.
func unwrap(f Function) Function {
	for {
		w, ok := f.(interface{ Unwrap() Function })
		if !ok {
			return f
		}
		f = w.Unwrap()
	}
}
