// Package kit is what device models share: registers declared as a table, by which every access is checked and named, and the
// layouts of commands, contexts and descriptors, by which they are read, checked and named.
//
// A model declares its registers once (NewTable), looks each access up (Table.Read, Table.Write), and then does what the
// register is for. Messages in memory are declared by Lay and read through Msg.
package kit

import (
	"fmt"

	"github.com/rebound-nic/rebound/sim"
)

// Access says what a read and a write of a register do by themselves. What more they do is the model's.
type Access uint8

const (
	RW  Access = iota // keeps what is written
	RO                // a write is refused
	WO                // a read is refused
	RC                // a counter that a read clears; a write is lost
	Eff               // written for its effect: the model keeps what a read shows
)

// Register declares one 32-bit register, or a row of equal ones.
type Register[R ~uint32] struct {
	Base   R
	N      int // registers in the row
	Stride R   // bytes from one to the next; any where N is 1
	Name   string
	Access Access
	Bits   uint32 // what a driver may write; the others are reserved, and keep their value
	Reset  uint32
}

// One declares a register.
func One[R ~uint32](at R, name string, a Access, bits, reset uint32) Register[R] {
	return Register[R]{Base: at, N: 1, Name: name, Access: a, Bits: bits, Reset: reset}
}

// Row declares n equal ones, stride bytes apart.
func Row[R ~uint32](at R, n int, stride R, name string, a Access, bits, reset uint32) Register[R] {
	return Register[R]{Base: at, N: n, Stride: stride, Name: name, Access: a, Bits: bits, Reset: reset}
}

// Index is the place of r, one of the row, in it.
func (e *Register[R]) Index(r R) int {
	if e.N == 1 {
		return 0
	}
	return int((r - e.Base) / e.Stride)
}

// Table is all registers of a BAR, found by their offset.
type Table[R ~uint32] struct {
	regs []Register[R]
	at   []uint16 // index into regs plus one, by offset/4
	doc  string
}

// NewTable indexes registers below size bytes. Doc is what violations cite: "82599 §8.2". It panics if two registers
// are at one place or one beyond size.
func NewTable[R ~uint32](size uint32, doc string, regs []Register[R]) *Table[R] {
	t := &Table[R]{regs: regs, at: make([]uint16, size/4), doc: doc}
	for i := range regs {
		e := &regs[i]
		for k := range e.N {
			r := e.Base + R(k)*e.Stride
			if r%4 != 0 || uint32(r) >= size || t.at[r/4] != 0 {
				panic(fmt.Sprintf("kit: %s at %05xh overlaps another register, or the end at %05xh", e.Name, uint32(r), size))
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

// Bits is what a driver may write of the register at r.
func (t *Table[R]) Bits(r R) uint32 {
	if e := t.Lookup(r); e != nil {
		return e.Bits
	}
	return 0
}

// Name is the register's name, with its index in a row, and "" where there is none.
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

// Label is the name and the place, for messages: "RDT[3] (010d8h)".
func (t *Table[R]) Label(r R) string {
	if n := t.Name(r); n != "" {
		return fmt.Sprintf("%s (%05xh)", n, uint32(r))
	}
	return fmt.Sprintf("%05xh", uint32(r))
}

// Reset puts each register's reset value into val, which holds one word for each four bytes of the BAR.
func (t *Table[R]) Reset(val []uint32) {
	for i := range t.regs {
		e := &t.regs[i]
		for k := range e.N {
			val[(e.Base+R(k)*e.Stride)/4] = e.Reset
		}
	}
}

// Read finds the register of a read. The error refuses the read; the host puts the register's name before it.
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

// Write returns what a write of v makes of the register's value old: bits, those that a driver may write, change, the
// others stay. Reserved bits that are set and are not in shown, what a read shows of them, are reported to h. The
// error refuses the write. Lost is true for a counter, which ignores it.
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
	return v&bits | old&^bits, false, nil
}
