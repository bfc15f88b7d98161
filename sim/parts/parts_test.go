package parts

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim"
)

type reg uint32

// listener is a host that only records violations.
type listener struct {
	sim.Host
	told []string
}

func (l *listener) Warnf(format string, args ...any) {
	l.told = append(l.told, fmt.Sprintf(format, args...))
}

func TestTable(t *testing.T) {
	tab := NewTable(0x100, "manual §1", []Register[reg]{
		One[reg](0x00, "STATUS", RO, 0, 7),
		Row[reg](0x10, 4, 8, "TAIL", RW, 0xffff, 0x10000),
		One[reg](0x14, "GO", WO, 1, 0),
		One[reg](0x40, "SEEN", RC, 0, 0),
		One[reg](0x44, "SPEED", RW, 0xffff, 8).Without(0x00ff),
	})
	val := make([]uint32, 0x40)
	tab.Reset(val)
	if val[0] != 7 || val[0x28/4] != 0x10000 || val[0x30/4] != 0 {
		t.Errorf("after a reset: %x", val)
	}
	for r, want := range map[reg]string{0: "STATUS", 0x20: "TAIL[2]", 0x14: "GO", 0x2c: "", 0x41: "", 0x1000: ""} {
		if n := tab.Name(r); n != want {
			t.Errorf("%xh is called %q, want %q", uint32(r), n, want)
		}
	}
	h := &listener{}
	for _, c := range []struct {
		r       reg
		v       uint32
		next    uint32
		err     string
		told    string
		ignored bool
	}{
		{0x18, 0x1234, 0x11234, "", "", false},
		{0x18, 0x20005, 0x10005, "", "write of 00020005 to TAIL[1] (00018h) sets reserved bits 00020000 (manual §1)", false},
		{0x18, 0x10005, 0x10005, "", "", false}, // a value that was read may be written back
		{0x00, 1, 7, "register is read only (manual §1)", "", false},
		{0x30, 1, 0, "no such register (manual §1)", "", false},
		{0x40, 1, 0, "", "", true},
		{0x44, 0x108, 0x108, "", "", false}, // the reset value of what is not modelled
		{0x44, 0x109, 0x109, "", "SPEED (00044h) is kept and has no effect in this model", false},
	} {
		h.told = nil
		next, lost, err := tab.Write(h, c.r, c.v, val[c.r/4], 0xffff, val[c.r/4])
		if fmt.Sprint(err) != c.err && (err != nil || c.err != "") || next != c.next || lost != c.ignored ||
			strings.Join(h.told, ";") != c.told {
			t.Errorf("write of %x to %x: %x, lost %v, %v, told %q", c.v, uint32(c.r), next, lost, err, h.told)
		}
	}
	check.Fails(t, "read of a write-only register", check.Err(tab.Read(0x14)), nil, "write only")
	if e, err := tab.Read(0x28); err != nil || e.Index(0x28) != 3 {
		t.Errorf("read of TAIL[3]: %v", err)
	}
	defer func() {
		if recover() == nil {
			t.Error("two registers at one place are taken")
		}
	}()
	NewTable(0x100, "", []Register[reg]{Row[reg](0, 2, 4, "A", RW, 0, 0), One[reg](4, "B", RW, 0, 0)})
}

func TestLayout(t *testing.T) {
	for _, order := range []binary.ByteOrder{binary.BigEndian, binary.LittleEndian} {
		l := Lay(order, 32, "00.31:16 opcode 04.3 on 08*2 addr 10*3 key").With(0x1c, Lay(order, 4, "00.7:0 tail"))
		m := Msg{make([]byte, 32), l}
		m.Set("opcode", 0x1234)
		m.Set("on", 1)
		m.Set("addr", 0x1122334455667788)
		m.Set("tail", 0xabc) // truncated to the field
		order.PutUint32(m.Bytes("key")[4:], 9)
		if order.Uint32(m.B) != 0x12340000 || order.Uint32(m.B[4:]) != 8 ||
			order.Uint64(m.B[8:]) != 0x1122334455667788 || m.I("tail") != 0xbc {
			t.Errorf("%v: %x", order, m.B)
		}
		var got []string
		m.Each(func(n string, v uint64) bool { got = append(got, fmt.Sprintf("%s=%x", n, v)); return true })
		if want := []string{"opcode=1234", "on=1", "addr=1122334455667788", "key[1]=9", "tail=bc"}; !slices.Equal(got,
			want) {
			t.Errorf("%v: %q", order, got)
		}
		if _, _, found := l.Stray(m.B); found {
			t.Errorf("%v: a bit of a field is taken for a reserved one", order)
		}
		order.PutUint32(m.B[4:], 0x18)
		if off, set, found := l.Stray(m.B); !found || off != 4 || set != 0x10 {
			t.Errorf("%v: reserved bits %x at %x, %v", order, set, off, found)
		}
		short := Msg{m.B[:8], l}
		short.Set("addr", 1)
		check.Equal(t, short.U("addr"), 0, "a field beyond the end reads %d")
		check.Equal(t, len(short.Bytes("key")), 0, "bytes beyond the end: %d")
		check.Equal(t, l.End(), 32, "the layout ends at %d")
		check.Equal(t, l.Has("on"), true, "the layout has on: %v")
		check.Equal(t, l.Has("off"), false, "the layout has off: %v")
	}
}

// The verification suite of Microsoft's RSS documentation.
func TestToeplitz(t *testing.T) {
	key := must.Get(hex.DecodeString(
		"6d5a56da255b0ec24167253d43a38fb0d0ca2bcbae7b30b477cb2da38030f20c6a42b73bbeac01fa"))(t)
	in := []byte{66, 9, 149, 187, 161, 142, 100, 80, 2794 >> 8, 2794 & 255, 1766 >> 8, 1766 & 255}
	check.Equal(t, Toeplitz(key, in), 0x51ccc178, "with ports %#x")
	check.Equal(t, Toeplitz(key, in[:8]), 0x323e8fc2, "addresses only %#x")
}
func FuzzParseFrame(f *testing.F) {
	f.Add([]byte("\x02\x00\x00\x00\x00\x01\x02\x00\x00\x00\x00\x02\x81\x00\x00\x07\x08\x00\x45\x00\x00\x1d\x00\x00\x00\x00\x40\x11\x00\x00\x0a\x00\x00\x01\x0a\x00\x00\x02\x00\x07\x00\x07\x00\x09\x00\x00\x00"))
	f.Add([]byte("\x02\x00\x00\x00\x00\x01\x02\x00\x00\x00\x00\x02\x86\xdd\x60\x00\x00\x00\x00\x08\x32\x40\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x01\x02\x03\x04\x05\x06\x07\x08"))
	f.Fuzz(func(t *testing.T, b []byte) {
		p := ParseFrame(b)
		if p.At > len(b) || p.End > len(b) || p.L4At > p.End || p.L4 != L4None && p.L3 == L3None || p.Tags > 2 {
			t.Errorf("%+v", p)
		}
		if spi := p.SPI(); spi != nil && len(spi) != 4 {
			t.Errorf("SPI % x", spi)
		}
	})
}

func TestIdleFields(t *testing.T) {
	l := Lay(binary.BigEndian, 16, "00.7:0 used 04.31:16 idle 08*2 wide").Without("idle", "wide")
	h := &listener{}
	b := make([]byte, 16)
	b[3] = 1
	Msg{b, l}.WarnIdle(h, "COMMAND")
	check.Same(t, h.told, nil, "without such a field: %q")
	b[4], b[15] = 1, 1
	Msg{b, l}.WarnIdle(h, "COMMAND")
	Msg{b[:8], l}.WarnIdle(h, "SHORT")
	check.Same(t, h.told, []string{"COMMAND: idle is accepted and has no effect in this model",
		"COMMAND: wide is accepted and has no effect in this model",
		"SHORT: idle is accepted and has no effect in this model"}, "%q")
}
