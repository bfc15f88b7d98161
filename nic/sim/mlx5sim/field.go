package mlx5sim

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
)

var be = binary.BigEndian

// bits is a field as the manual writes it: a dword at a byte offset, and the bits hi to lo in it. A wide field is n whole
// dwords.
type bits struct {
	off    int
	hi, lo int
	n      int // dwords of a wide field; 0 for one inside a dword
}

// layout is a command's, a context's or a register's structure: what is not named is reserved and must be zero.
type layout struct {
	size   int
	fields map[string]bits
	known  []byte // a one for each bit that is not reserved
}

// lay reads a layout in the manual's notation. Each field is an offset and a name: "08.23:0 cqn" bits 23 to 0 of the dword at
// 08h, "0c.31 pg_access" one bit, "38*2 dbr_addr" two dwords at 38h.
func lay(size int, text string) *layout {
	l := &layout{size: size, fields: map[string]bits{}, known: make([]byte, size)}
	f := strings.Fields(text)
	for i := 0; i+1 < len(f); i += 2 {
		l.add(f[i+1], parseBits(f[i]))
	}
	return l
}

// with places another layout at an offset.
func (l *layout) with(off int, sub *layout) *layout {
	for name, b := range sub.fields {
		b.off += off
		l.add(name, b)
	}
	return l
}

func (l *layout) add(name string, b bits) {
	if _, twice := l.fields[name]; twice || b.off+4*max(b.n, 1) > l.size {
		panic("mlx5sim: layout of " + name)
	}
	l.fields[name] = b
	for k := range max(b.n, 1) {
		mask := uint32(0xffffffff)
		if b.n == 0 {
			mask = b.mask()
		}
		p := l.known[b.off+4*k:]
		be.PutUint32(p, be.Uint32(p)|mask)
	}
}

func parseBits(s string) bits {
	num := func(s string, base int) int {
		n, err := strconv.ParseInt(s, base, 32)
		if err != nil {
			panic("mlx5sim: field at " + s)
		}
		return int(n)
	}
	if off, n, ok := strings.Cut(s, "*"); ok {
		return bits{off: num(off, 16), n: num(n, 10)}
	}
	off, rest, _ := strings.Cut(s, ".")
	hi, lo, ok := strings.Cut(rest, ":")
	if !ok {
		lo = hi
	}
	return bits{off: num(off, 16), hi: num(hi, 10), lo: num(lo, 10)}
}

// end is where the last field ends.
func (l *layout) end() (n int) {
	for _, f := range l.fields {
		n = max(n, f.off+4*max(f.n, 1))
	}
	return n
}

// stray returns the first dword with a reserved bit set.
func (l *layout) stray(b []byte) (off int, set uint32, found bool) {
	for off = 0; off+4 <= min(len(b), l.size); off += 4 {
		if set = be.Uint32(b[off:]) &^ be.Uint32(l.known[off:]); set != 0 {
			return off, set, true
		}
	}
	return 0, 0, false
}

// msg is bytes with their layout. Fields beyond its end read zero, and are lost when written.
type msg struct {
	b []byte
	*layout
}

func (m msg) field(name string) bits {
	f, ok := m.fields[name]
	if !ok {
		panic("mlx5sim: no field " + name)
	}
	return f
}

// u returns a field of up to 64 bits.
func (m msg) u(name string) uint64 {
	f := m.field(name)
	if f.off+4*max(f.n, 1) > len(m.b) {
		return 0
	}
	switch f.n {
	case 0:
		return uint64(be.Uint32(m.b[f.off:])) >> f.lo & (1<<(f.hi-f.lo+1) - 1)
	case 2:
		return be.Uint64(m.b[f.off:])
	}
	panic("mlx5sim: wide field " + name)
}

func (m msg) u32(name string) uint32 { return uint32(m.u(name)) }
func (m msg) i(name string) int      { return int(m.u(name)) }
func (m msg) is(name string) bool    { return m.u(name) != 0 }

// bytes is a wide field.
func (m msg) bytes(name string) []byte {
	f := m.field(name)
	return m.b[min(f.off, len(m.b)):min(f.off+4*f.n, len(m.b))]
}

func (m msg) set(name string, v uint64) {
	f := m.field(name)
	if f.off+4*max(f.n, 1) > len(m.b) {
		return
	}
	if f.n == 2 {
		be.PutUint64(m.b[f.off:], v)
		return
	}
	mask := f.mask()
	be.PutUint32(m.b[f.off:], be.Uint32(m.b[f.off:])&^mask|uint32(v)<<f.lo&mask)
}

// mask is the field's bits in its dword.
func (b bits) mask() uint32 { return uint32(1<<(b.hi-b.lo+1)-1) << b.lo }

func (b bits) String() string {
	if b.n > 0 {
		return fmt.Sprintf("%02xh", b.off)
	}
	return fmt.Sprintf("%02xh.%d:%d", b.off, b.hi, b.lo)
}
