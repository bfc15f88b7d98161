package pci

import (
	"bytes"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Our device models carry a Vendor-Specific Extended Capability (PCI Express Base 6.0 §7.9.5) that other drivers
// ignore. So even behind QEMU's or a kernel's emulation of a function, a model's time is never mistaken for a card's.
const (
	ModelVSEC = 0x5242 // VSEC ID, revision 1
	ModelMark = "rebound model\x00\x00\x00"
)

// IsModel reports whether a function is one of our device models. It returns false if configuration space cannot be
// read.
func IsModel(c Config) bool {
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

// InterfaceIsModel reports whether a network interface, in the calling thread's network namespace, is the kernel's
// driver on one of our device models, so that its timestamps are the model's. Without the right to read the whole
// configuration space (CAP_SYS_ADMIN) it returns false.
func InterfaceIsModel(name string) bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	info, err := unix.IoctlGetEthtoolDrvinfo(fd, name)
	if err != nil {
		return false
	}
	addr := unix.ByteSliceToString(info.Bus_info[:])
	if addr == "" || filepath.Base(addr) != addr { // of a device that is not on a bus
		return false
	}
	config, err := os.Open(filepath.Join("/sys/bus/pci/devices", addr, "config"))
	if err != nil {
		return false
	}
	defer config.Close()
	return IsModel(readOnly{config})
}

// readOnly is the configuration space of a function that belongs to another process.
type readOnly struct{ *os.File }

func (r readOnly) ReadConfig(off int, p []byte) error {
	_, err := r.ReadAt(p, int64(off))
	return err
}

func (r readOnly) WriteConfig(int, []byte) error { return os.ErrPermission }
