// Package parts contains what device models share: tables of registers, by which every access is checked and named, and
// layouts of commands, contexts and descriptors, by which they are decoded, checked and named.
//
// A model declares its registers once (NewTable), looks up each access (Table.Read, Table.Write), and then implements
// the register's effect. Messages in memory are declared by Lay and read through Msg.
package parts

import (
	"fmt"

	"github.com/rebound-nic/rebound/sim"
)

// Access is what a read and a write of a register do by default. The model implements further effects.
type Access uint8

const (
	RW  Access = iota // keeps what is written
	RO                // a write is refused
	WO                // a read is refused
	RC                // a counter that a read clears; a write is lost
	Eff               // written for its effect: the model defines what a read returns
)

// Register declares one 32-bit register, or an array of equal ones.
type Register[R ~uint32] struct {
	Base   R
	N      int // registers in the array
	Stride R   // bytes from one to the next; ignored if N is 1
	Name   string
	Access Access
	Bits   uint32 // writable bits; the others are reserved and keep their value
	Reset  uint32
	Idle   uint32 // writable bits that the model keeps and does not act on, although a card does
}

// Without declares bits that a card acts on and the model does not. Setting one is a warning.
func (e Register[R]) Without(bits uint32) Register[R] {
	e.Idle = bits
	return e
}

// One declares a register.
func One[R ~uint32](at R, name string, a Access, bits, reset uint32) Register[R] {
	return Register[R]{Base: at, N: 1, Name: name, Access: a, Bits: bits, Reset: reset}
}

// Row declares an array of n registers, stride bytes apart.
func Row[R ~uint32](at R, n int, stride R, name string, a Access, bits, reset uint32) Register[R] {
	return Register[R]{Base: at, N: n, Stride: stride, Name: name, Access: a, Bits: bits, Reset: reset}
}

// Index returns the index of r in the array.
func (e *Register[R]) Index(r R) int {
	if e.N == 1 {
		return 0
	}
	return int((r - e.Base) / e.Stride)
}

// Table contains all registers of a BAR, indexed by offset.
type Table[R ~uint32] struct {
	regs []Register[R]
	at   []uint16 // index into regs plus 1, by offset/4
	doc  string
}

// NewTable indexes registers below size bytes. doc is what violations cite: "82599 §8.2". It panics if two registers
// overlap or one is beyond size.
func NewTable[R ~uint32](size uint32, doc string, regs []Register[R]) *Table[R] {
	t := &Table[R]{regs: regs, at: make([]uint16, size/4), doc: doc}
	for i := range regs {
		e := &regs[i]
		for k := range e.N {
			r := e.Base + R(k)*e.Stride
			if r%4 != 0 || uint32(r) >= size || t.at[r/4] != 0 {
				panic(fmt.Sprintf("parts: %s at %05xh overlaps another register, or the end at %05xh", e.Name,
					uint32(r), size))
			}
			t.at[r/4] = uint16(i + 1)
		}
	}
	return t
}

// Lookup returns the declaration of the register at r, or nil.
func (t *Table[R]) Lookup(r R) *Register[R] {
	if r%4 != 0 || int(r/4) >= len(t.at) || t.at[r/4] == 0 {
		return nil
	}
	return &t.regs[t.at[r/4]-1]
}

// Bits returns the writable bits of the register at r.
func (t *Table[R]) Bits(r R) uint32 {
	if e := t.Lookup(r); e != nil {
		return e.Bits
	}
	return 0
}

// Name returns the register's name, with its index in an array, or "" if there is no register.
func (t *Table[R]) Name(r R) string {
	e := t.Lookup(r)
	switch {
	case e == nil:
		return ""
	case e.N > 1:
		return fmt.Sprintf("%s[%d]", e.Name, e.Index(r))
	}
	return e.Name
}

// Label returns the name and the offset, for messages: "RDT[3] (010d8h)".
func (t *Table[R]) Label(r R) string {
	if n := t.Name(r); n != "" {
		return fmt.Sprintf("%s (%05xh)", n, uint32(r))
	}
	return fmt.Sprintf("%05xh", uint32(r))
}

// Reset writes each register's reset value to val, which has one word for every four bytes of the BAR.
func (t *Table[R]) Reset(val []uint32) {
	for i := range t.regs {
		e := &t.regs[i]
		for k := range e.N {
			val[(e.Base+R(k)*e.Stride)/4] = e.Reset
		}
	}
}

// Read returns the register of a read. An error refuses the read; the host adds the register's name to it.
func (t *Table[R]) Read(r R) (*Register[R], error) {
	switch e := t.Lookup(r); {
	case e == nil:
		return nil, fmt.Errorf("no such register (%s)", t.doc)
	case e.Access == WO:
		return nil, fmt.Errorf("register is write only (%s)", t.doc)
	default:
		return e, nil
	}
}

// Write returns the register's next value after a write of v to old: the writable bits change, the others stay.
// Reserved bits that are set in v but not in shown, the value that a read returns, are reported to h. An error refuses
// the write. lost is true for a counter, which ignores writes.
func (t *Table[R]) Write(h sim.Host, r R, v, old, bits, shown uint32) (next uint32, lost bool, err error) {
	switch e := t.Lookup(r); {
	case e == nil:
		return old, false, fmt.Errorf("no such register (%s)", t.doc)
	case e.Access == RO:
		return old, false, fmt.Errorf("register is read only (%s)", t.doc)
	case e.Access == RC:
		return old, true, nil
	}
	if bad := v &^ bits &^ shown; bad != 0 {
		h.Warnf("write of %08x to %s sets reserved bits %08x (%s)", v, t.Label(r), bad, t.doc)
	}
	if e := t.Lookup(r); v&^e.Reset&e.Idle != 0 { // one text for all values, so that it is reported once
		h.Warnf("%s is kept and has no effect in this model", t.Label(r))
	}
	return v&bits | old&^bits, false, nil
}
