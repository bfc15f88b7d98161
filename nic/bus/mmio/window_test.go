package mmio

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/rebound-nic/rebound/proof/check"
)

// traps records each access and answers a read with the bytes of its offset.
type traps struct {
	seen []string
	fail bool
}

func (t *traps) ReadBAR(off uint64, p []byte) error {
	t.seen = append(t.seen, fmt.Sprintf("R%d %#x", len(p), off))
	if t.fail {
		return errors.New("gone")
	}
	for i := range p {
		p[i] = byte(off) + byte(i)
	}
	return nil
}

func (t *traps) WriteBAR(off uint64, p []byte) error {
	t.seen = append(t.seen, fmt.Sprintf("W%d %#x=%x", len(p), off, p))
	if t.fail {
		return errors.New("gone")
	}
	return nil
}

func TestMapped(t *testing.T) {
	mem := arena(t, 4096)
	w := Mapped(mem, true)
	if w.Size() != 4096 || !w.WriteCombining() {
		t.Errorf("size %#x, write-combining %v", w.Size(), w.WriteCombining())
	}
	var seen []string
	w.Observe(func(write bool, off uint64, width int, v uint64) {
		seen = append(seen, fmt.Sprintf("%t %#x %d %#x", write, off, width, v))
	})
	w.Write32(0x10, 0x11223344)
	w.Write64(0x18, 0x5566778899aabbcc)
	if mem[0x10] != 0x44 || w.Read32(0x10) != 0x11223344 || w.Read32(0x18) != 0x99aabbcc ||
		w.Read32(0x1c) != 0x55667788 {
		t.Errorf("registers read back %#x and %#x", w.Read32(0x10), w.Read32(0x18))
	}
	w.Write8(0x30, 0x81)
	w.Write16(0x32, 0x8283)
	if mem[0x30] != 0x81 || mem[0x31] != 0 || w.Read8(0x30) != 0x81 || w.Read16(0x32) != 0x8283 ||
		w.Read8(0x33) != 0x82 {
		t.Errorf("narrow registers read back %#x and %#x: % x", w.Read8(0x30), w.Read16(0x32), mem[0x30:0x34])
	}
	check.Equal(t, strings.Join(seen, ", "), "true 0x10 4 0x11223344, true 0x18 8 0x5566778899aabbcc, "+
		"false 0x10 4 0x11223344, false 0x18 4 0x99aabbcc, false 0x1c 4 0x55667788, "+
		"true 0x30 1 0x81, true 0x32 2 0x8283, false 0x30 1 0x81, false 0x32 2 0x8283, false 0x33 1 0x82", "seen: %s")
	if p, err := w.Pointer(0x20, 64); err != nil || p != unsafe.Pointer(&mem[0x20]) {
		t.Errorf("Pointer = %v, %v", p, err)
	}
	w.Retire()
	w.Write32(0x10, 1)
	if mem[0x10] != 0x44 || w.Read32(0x10) != ^uint32(0) {
		t.Error("a retired window still reaches the registers")
	}
	check.Fails(t, "a retired window gives pointers", check.Err(w.Pointer(0x20, 8)), nil)
}

func TestTrapped(t *testing.T) {
	var tr traps
	shadow := arena(t, 4096)
	w := Trapped(0x1000, &tr, shadow, func(off, n uint64) bool { return off >= 0x800 && off+n <= 0x900 })
	w.Write32(0x804, 0x01020304)
	w.Write64(8, 0x0102030405060708)
	check.Equal(t, w.Read32(4), 0x07060504, "Read32 = %#x")
	check.Equal(t, w.Read32(8), 0x0b0a0908, "Read32 = %#x")
	w.Write8(5, 0x11)
	w.Write16(6, 0x1122)
	if got8, got16 := w.Read8(7), w.Read16(6); got8 != 7 || got16 != 0x0706 {
		t.Errorf("Read8 = %#x, Read16 = %#x", got8, got16)
	}
	if want := []string{"W4 0x804=04030201", "W8 0x8=0807060504030201", "R4 0x4", "R4 0x8",
		"W1 0x5=11", "W2 0x6=2211", "R1 0x7", "R2 0x6"}; !slices.Equal(tr.seen, want) {
		t.Errorf("the trap saw %q, want %q", tr.seen, want)
	}
	if p, err := w.Pointer(0x800, 0x100); err != nil || p != unsafe.Pointer(&shadow[0x800]) {
		t.Errorf("Pointer to a polled range = %v, %v", p, err)
	}
	for _, r := range [][2]uint64{{0, 4}, {0x7f8, 16}, {0x8f8, 16}} {
		check.Fails(t, fmt.Sprintf("Pointer(%#x, %d), which the device does not poll", r[0], r[1]),
			check.Err(w.Pointer(r[0], r[1])), nil)
	}
	tr.fail = true
	check.Equal(t, w.Read8(0), 0xff, "a failing read of a byte is %#x")
	check.Equal(t, w.Read16(0), 0xffff, "a failing read of two bytes is %#x")
	check.Equal(t, w.Read32(0), ^uint32(0), "a failing read of four bytes is %#x")
	w.Write32(0, 1)
}

func TestWrongAccessPanics(t *testing.T) {
	w := Mapped(arena(t, 4096), false)
	for name, access := range map[string]func(){
		"unaligned":    func() { w.Read32(2) },
		"unaligned 8":  func() { w.Write64(4, 0) },
		"at the end":   func() { w.Read32(4096) },
		"across":       func() { w.Pointer(4088, 16) },
		"overflow":     func() { w.Write64(^uint64(0)-7, 0) },
		"empty":        func() { w.Pointer(0, 0) },
		"outside of 0": func() { Mapped(nil, false).Read32(0) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			access()
		}()
	}
}
