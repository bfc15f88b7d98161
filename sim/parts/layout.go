package parts

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/rebound-nic/rebound/sim"
)

// Field is a field in the notation of the manuals: a dword at a byte offset, and its bits Hi to Lo. A wide field is N
// whole dwords.
type Field struct {
	Off    int
	Hi, Lo int
	N      int // dwords of a wide field; 0 for one inside a dword
}

// Mask returns the field's bits in its dword.
func (f Field) Mask() uint32 { return uint32(1<<(f.Hi-f.Lo+1)-1) << f.Lo }

// end returns the offset of the field's end.
func (f Field) end() int { return f.Off + 4*max(f.N, 1) }

func (f Field) String() string {
	if f.N > 0 {
		return fmt.Sprintf("%02xh", f.Off)
	}
	return fmt.Sprintf("%02xh.%d:%d", f.Off, f.Hi, f.Lo)
}

// Layout is the structure of a command, a context or a descriptor. Bits outside of its fields are reserved and must be
// zero.
type Layout struct {
	Order  binary.ByteOrder // of dwords, and of the two dwords of a 64-bit field
	Size   int
	fields map[string]Field
	known  []uint32 // by dword: the bits that are not reserved
	idle   []string // fields that a card acts on and the model does not
}

// Lay parses a layout. Each field is an offset and a name: "08.23:0 cqn" is bits 23 to 0 of the dword at 08h, "0c.31
// pg_access" one bit, "38*2 dbr_addr" two dwords at 38h. It panics on two fields with the same name, and on a field
// beyond size.
func Lay(order binary.ByteOrder, size int, text string) *Layout {
	l := &Layout{Order: order, Size: size, fields: map[string]Field{}, known: make([]uint32, (size+3)/4)}
	f := strings.Fields(text)
	for i := 0; i+1 < len(f); i += 2 {
		l.add(f[i+1], parseField(f[i]))
	}
	return l
}

// With adds another layout at an offset and returns l.
func (l *Layout) With(off int, sub *Layout) *Layout {
	for name, f := range sub.fields {
		f.Off += off
		l.add(name, f)
	}
	return l
}

// Without declares fields that a card acts on and the model does not, and returns l. See Msg.WarnIdle.
func (l *Layout) Without(names ...string) *Layout {
	for _, name := range names {
		if !l.Has(name) {
			panic("parts: no field " + name)
		}
	}
	l.idle = append(l.idle, names...)
	return l
}

func (l *Layout) add(name string, f Field) {
	if _, twice := l.fields[name]; twice || f.end() > l.Size {
		panic("parts: layout of " + name)
	}
	l.fields[name] = f
	for k := range max(f.N, 1) {
		mask := ^uint32(0)
		if f.N == 0 {
			mask = f.Mask()
		}
		l.known[f.Off/4+k] |= mask
	}
}

func parseField(s string) Field {
	num := func(s string, base int) int {
		n, err := strconv.ParseInt(s, base, 32)
		if err != nil {
			panic("parts: field at " + s)
		}
		return int(n)
	}
	if off, n, ok := strings.Cut(s, "*"); ok {
		return Field{Off: num(off, 16), N: num(n, 10)}
	}
	off, rest, _ := strings.Cut(s, ".")
	hi, lo, ok := strings.Cut(rest, ":")
	if !ok {
		lo = hi
	}
	return Field{Off: num(off, 16), Hi: num(hi, 10), Lo: num(lo, 10)}
}

// Fields returns a copy of the fields, by name.
func (l *Layout) Fields() map[string]Field { return maps.Clone(l.fields) }

// Has reports whether the layout has a field of that name.
func (l *Layout) Has(name string) bool { _, ok := l.fields[name]; return ok }

// End returns the end of the last field.
func (l *Layout) End() (n int) {
	for _, f := range l.fields {
		n = max(n, f.end())
	}
	return n
}

// Stray returns the first dword of b with a reserved bit set, and those bits.
func (l *Layout) Stray(b []byte) (off int, set uint32, found bool) {
	for off = 0; off+4 <= min(len(b), l.Size); off += 4 {
		if set = l.Order.Uint32(b[off:]) &^ l.known[off/4]; set != 0 {
			return off, set, true
		}
	}
	return 0, 0, false
}

// Msg is bytes with their layout. Fields beyond the end read as zero, and writes to them are lost. A name that the
// layout lacks is a bug of the model and panics.
type Msg struct {
	B []byte
	*Layout
}

func (m Msg) field(name string) Field {
	f, ok := m.fields[name]
	if !ok {
		panic("parts: no field " + name)
	}
	return f
}

// U returns the value of a field of up to 64 bits.
func (m Msg) U(name string) uint64 {
	f := m.field(name)
	if f.end() > len(m.B) {
		return 0
	}
	switch f.N {
	case 0:
		return uint64(m.Order.Uint32(m.B[f.Off:])) >> f.Lo & (1<<(f.Hi-f.Lo+1) - 1)
	case 2:
		return m.Order.Uint64(m.B[f.Off:])
	}
	panic("parts: wide field " + name)
}

// U32, I and Is return U as a uint32, as an int, and whether it is not zero.
func (m Msg) U32(name string) uint32 { return uint32(m.U(name)) }
func (m Msg) I(name string) int      { return int(m.U(name)) }
func (m Msg) Is(name string) bool    { return m.U(name) != 0 }

// Bytes returns the bytes of a wide field.
func (m Msg) Bytes(name string) []byte {
	f := m.field(name)
	return m.B[min(f.Off, len(m.B)):min(f.Off+4*f.N, len(m.B))]
}

// Set sets a field of up to 64 bits.
func (m Msg) Set(name string, v uint64) {
	f := m.field(name)
	if f.end() > len(m.B) {
		return
	}
	if f.N == 2 {
		m.Order.PutUint64(m.B[f.Off:], v)
		return
	}
	m.Order.PutUint32(m.B[f.Off:], m.Order.Uint32(m.B[f.Off:])&^f.Mask()|uint32(v)<<f.Lo&f.Mask())
}

// WarnIdle warns of each field that is set and that the model does not act on. what names the command or structure.
func (m Msg) WarnIdle(h sim.Host, what string) {
	for _, name := range m.idle {
		wide := slices.ContainsFunc(m.Bytes(name), func(b byte) bool { return b != 0 })
		if wide || m.field(name).N == 0 && m.U(name) != 0 { // one text for all values, so that it is reported once
			h.Warnf("%s: %s is accepted and has no effect in this model", what, name)
		}
	}
}

// Each yields each field in order of position, high bits first, for sim.Host.Command. A field wider than 64 bits is
// yielded as its dwords that are not zero.
func (m Msg) Each(yield func(string, uint64) bool) {
	type named struct {
		name string
		Field
	}
	var all []named
	for name, f := range m.fields {
		all = append(all, named{name, f})
	}
	slices.SortFunc(all, func(a, b named) int { return cmp.Or(cmp.Compare(a.Off, b.Off), cmp.Compare(b.Lo, a.Lo)) })
	for _, f := range all {
		if f.N == 0 || f.N == 2 {
			if !yield(f.name, m.U(f.name)) {
				return
			}
			continue
		}
		for i, b := 0, m.Bytes(f.name); i+4 <= len(b); i += 4 {
			if v := m.Order.Uint32(b[i:]); v != 0 && !yield(fmt.Sprintf("%s[%d]", f.name, i/4), uint64(v)) {
				return
			}
		}
	}
}
