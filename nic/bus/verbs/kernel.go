package verbs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic/bus"
	"github.com/rebound-nic/rebound/nic/bus/verbs/abi"
)

// Kernel is an open uverbs device. Tests replace it.
type Kernel interface {
	// Call calls a method of an object. It sets Value of each attribute for a new handle or file.
	Call(object, method uint16, attrs []Attr) error
	// Map maps the size bytes for key.
	Map(key uint64, size int, write bool) ([]byte, error)
	Unmap([]byte) error
	// Close destroys everything that calls created.
	Close() error
}

// Kind is the type of an attribute.
type Kind uint8

// Kinds of attributes.
const (
	In     Kind = iota // Data is passed to the kernel
	Out                // the kernel fills Data
	Handle             // Value is an object's handle
	Create             // Value becomes a new object
	NewFD              // Value becomes a new file
	FD                 // Value is a file descriptor
	Const              // Value is a 64-bit number
	Enum               // Value selects an alternative, to which Data belongs
)

// Attr is one attribute of a call.
type Attr struct {
	ID    uint16
	Kind  Kind
	Data  []byte
	Value int64
}

// Bytes returns v's memory. v has no pointers.
func Bytes[T any](v *T) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v)) }

// device is a Kernel that uses the device's file.
type device struct {
	file   *os.File
	driver uint32
}

// open opens a uverbs device. Its driver has a number in the interface.
func open(node string, driver uint32) (*device, error) {
	f, err := os.OpenFile(node, os.O_RDWR|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.EPERM): // not EACCES
		return nil, fmt.Errorf("%w: %w: the device belongs to another network namespace (rdma system show)",
			bus.ErrRights, err)
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("%w: %w%s", bus.ErrRights, err, selinux("/sys"))
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%w: %w (in a container, give it the device)", bus.ErrNoDevice, err)
	case err != nil:
		return nil, err
	}
	return &device{f, driver}, nil
}

const inline = 8 // input of up to 8 bytes is stored in the attribute

// message encodes the header and the attributes for the kernel. It pins their data, because they contain its addresses.
func message(driver uint32, object, method uint16, attrs []Attr, pins *runtime.Pinner) ([]uint64, []abi.Attr) {
	const header = int(unsafe.Sizeof(abi.IoctlHdr{}) / 8)
	words := make([]uint64, header+len(attrs)*int(unsafe.Sizeof(abi.Attr{}))/8)
	*(*abi.IoctlHdr)(unsafe.Pointer(&words[0])) = abi.IoctlHdr{Length: uint16(8 * len(words)), ObjectID: object,
		MethodID: method, NumAttrs: uint16(len(attrs)), DriverID: driver}
	list := unsafe.Slice((*abi.Attr)(unsafe.Pointer(unsafe.SliceData(words[header:]))), len(attrs))
	for i := range attrs {
		a := &attrs[i]
		list[i] = abi.Attr{AttrID: a.ID, Len: uint16(len(a.Data)), Flags: abi.AttrFMandatory, Data: uint64(a.Value)}
		switch {
		case a.Kind == Const:
			list[i].Len = 8
		case a.Kind == Enum:
			list[i].AttrData = uint16(a.Value)
			fallthrough
		case a.Kind == In && len(a.Data) <= inline:
			list[i].Data = 0
			copy(Bytes(&list[i].Data), a.Data)
		case a.Kind == In || a.Kind == Out:
			pins.Pin(&a.Data[0])
			list[i].Data = uint64(uintptr(unsafe.Pointer(&a.Data[0])))
		}
	}
	return words, list
}

func (d *device) Call(object, method uint16, attrs []Attr) error {
	var pins runtime.Pinner
	defer pins.Unpin()
	words, list := message(d.driver, object, method, attrs, &pins)
	_, _, e := unix.Syscall(unix.SYS_IOCTL, d.file.Fd(), abi.VerbsIoctl, uintptr(unsafe.Pointer(&words[0])))
	if e != 0 {
		return e
	}
	for i := range attrs {
		if k := attrs[i].Kind; k == Create || k == NewFD {
			attrs[i].Value = int64(list[i].Data)
		}
	}
	return nil
}

func (d *device) Map(key uint64, size int, write bool) ([]byte, error) {
	protection := unix.PROT_READ
	if write {
		protection |= unix.PROT_WRITE
	}
	return unix.Mmap(int(d.file.Fd()), int64(key), size, protection, unix.MAP_SHARED)
}

func (d *device) Unmap(b []byte) error { return unix.Munmap(b) }

func (d *device) Close() error { return d.file.Close() }
