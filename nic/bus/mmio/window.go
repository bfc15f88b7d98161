package mmio

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"
)

var errGone = errors.New("mmio: the window is closed")

// Trap handles each access to a window that is not mapped: a device model in this process or behind vfio-user. p has 1,
// 2, 4 or 8 bytes, little endian.
type Trap interface {
	ReadBAR(off uint64, p []byte) error
	WriteBAR(off uint64, p []byte) error
}

// Window is a BAR's registers. Its reads and writes are for the control path; the hot loop uses pointers from Pointer.
type Window struct {
	mem    []byte // the mapped registers, or nil
	shadow []byte // trapped windows: memory for the ranges that the device polls
	inside func(off, n uint64) bool
	trap   Trap
	size   uint64
	wc     bool
	seen   func(write bool, off uint64, width int, v uint64) // called for each access, may be nil
}

// Mapped returns a window over mapped registers. wc says that the mapping is write-combining.
func Mapped(mem []byte, wc bool) *Window {
	return &Window{mem: mem, size: uint64(len(mem)), wc: wc}
}

// Trapped returns a window that passes every access to t. Pointers lead into shadow instead, which has the size of the
// window, where inside reports that the device polls the range.
func Trapped(size uint64, t Trap, shadow []byte, inside func(off, n uint64) bool) *Window {
	return &Window{trap: t, size: size, shadow: shadow, inside: inside}
}

// Retire makes every later access read all ones and write nothing, as if the function were gone. The owner of the
// mapping calls it before unmapping. Pointers taken earlier are not covered.
func (w *Window) Retire() { w.mem, w.shadow, w.trap = nil, nil, gone{} }

// gone is the Trap of a retired window.
type gone struct{}

func (gone) ReadBAR(uint64, []byte) error  { return errGone }
func (gone) WriteBAR(uint64, []byte) error { return errGone }

// Observe registers a function that is called after each read and before each write of a register, except through
// pointers. Call it before the window is used.
func (w *Window) Observe(seen func(write bool, off uint64, width int, v uint64)) { w.seen = seen }

// read and wrote call the observer, if there is one.
func (w *Window) read(off uint64, width int, v uint64) {
	if w.seen != nil {
		w.seen(false, off, width, v)
	}
}

func (w *Window) wrote(off uint64, width int, v uint64) {
	if w.seen != nil {
		w.seen(true, off, width, v)
	}
}

// Size returns the length of the window in bytes.
func (w *Window) Size() uint64 { return w.size }

// WriteCombining reports whether the window was mapped write-combining.
func (w *Window) WriteCombining() bool { return w.wc }

// Read32 reads the register at off. A failed read returns all ones, as on PCIe.
func (w *Window) Read32(off uint64) uint32 {
	v := w.load32(off)
	w.read(off, 4, uint64(v))
	return v
}

func (w *Window) load32(off uint64) uint32 {
	w.check(off, 4)
	if w.mem != nil {
		return atomic.LoadUint32((*uint32)(unsafe.Pointer(&w.mem[off])))
	}
	var b [4]byte
	if w.trap.ReadBAR(off, b[:]) != nil {
		return ^uint32(0)
	}
	return binary.LittleEndian.Uint32(b[:])
}

// Write32 writes v to the register at off. Writes stay in program order. A failed write is lost, as on PCIe.
func (w *Window) Write32(off uint64, v uint32) {
	w.check(off, 4)
	w.wrote(off, 4, uint64(v))
	if w.mem != nil {
		Store32((*uint32)(unsafe.Pointer(&w.mem[off])), v)
		return
	}
	_ = w.trap.WriteBAR(off, binary.LittleEndian.AppendUint32(nil, v))
}

// Read8 is Read32 for one byte, with an access of that width.
func (w *Window) Read8(off uint64) uint8 {
	v := w.load8(off)
	w.read(off, 1, uint64(v))
	return v
}

func (w *Window) load8(off uint64) uint8 {
	w.check(off, 1)
	if w.mem != nil {
		return load8(&w.mem[off])
	}
	var b [1]byte
	if w.trap.ReadBAR(off, b[:]) != nil {
		return ^uint8(0)
	}
	return b[0]
}

// Write8 is Write32 for one byte, with an access of that width.
func (w *Window) Write8(off uint64, v uint8) {
	w.check(off, 1)
	w.wrote(off, 1, uint64(v))
	if w.mem != nil {
		Store8(&w.mem[off], v)
		return
	}
	_ = w.trap.WriteBAR(off, []byte{v})
}

// Read16 is Read32 for two bytes, with an access of that width.
func (w *Window) Read16(off uint64) uint16 {
	v := w.load16(off)
	w.read(off, 2, uint64(v))
	return v
}

func (w *Window) load16(off uint64) uint16 {
	w.check(off, 2)
	if w.mem != nil {
		return load16((*uint16)(unsafe.Pointer(&w.mem[off])))
	}
	var b [2]byte
	if w.trap.ReadBAR(off, b[:]) != nil {
		return ^uint16(0)
	}
	return binary.LittleEndian.Uint16(b[:])
}

// Write16 is Write32 for two bytes, with an access of that width.
func (w *Window) Write16(off uint64, v uint16) {
	w.check(off, 2)
	w.wrote(off, 2, uint64(v))
	if w.mem != nil {
		Store16((*uint16)(unsafe.Pointer(&w.mem[off])), v)
		return
	}
	_ = w.trap.WriteBAR(off, binary.LittleEndian.AppendUint16(nil, v))
}

// Package atomic has no loads of one and two bytes. The compiler can neither merge nor repeat loads in functions that
// are not inlined.
//
//go:noinline
func load8(p *uint8) uint8 { return *p }

//go:noinline
func load16(p *uint16) uint16 { return *p }

// Write64 is Write32 for eight bytes in one access.
func (w *Window) Write64(off uint64, v uint64) {
	w.check(off, 8)
	w.wrote(off, 8, uint64(v))
	if w.mem != nil {
		Store64((*uint64)(unsafe.Pointer(&w.mem[off])), v)
		return
	}
	_ = w.trap.WriteBAR(off, binary.LittleEndian.AppendUint64(nil, v))
}

// Pointer returns the address of the n bytes at off, for doorbells and push buffers. On a trapped window it fails for a
// range that the device does not poll. It panics, like Read32, if off is not a multiple of n (of 8 for longer ranges)
// or the range is outside the window.
func (w *Window) Pointer(off, n uint64) (unsafe.Pointer, error) {
	w.check(off, n)
	switch {
	case w.mem != nil:
		return unsafe.Pointer(&w.mem[off]), nil
	case w.shadow != nil && w.inside(off, n):
		return unsafe.Pointer(&w.shadow[off]), nil
	}
	return nil, fmt.Errorf("mmio: registers %#x to %#x are trapped: there is no memory behind them", off, off+n-1)
}

func (w *Window) check(off, n uint64) {
	if n == 0 || off%min(n, 8) != 0 || off+n > w.size || off+n < off {
		panic(fmt.Sprintf("mmio: access of %d bytes at %#x in a window of %#x", n, off, w.size))
	}
}
