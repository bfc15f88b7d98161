package measure

import (
	"bytes"
	"testing"

	"github.com/rebound-nic/rebound/proof/must"
)

// loop returns what was sent, changed by the test.
type loop struct {
	frame  []byte
	change func([]byte) []byte
}

func (l *loop) Send(b []byte) error { l.frame = l.change(bytes.Clone(b)); return nil }
func (l *loop) Recv(buf []byte) (int, int64, error) {
	n := copy(buf, l.frame)
	l.frame = nil
	return n, 7, nil
}

func TestTagged(t *testing.T) {
	frame := make([]byte, 60)
	for i := range frame {
		frame[i] = byte(i + 1)
	}
	for name, c := range map[string]struct {
		change func([]byte) []byte
		passes bool
	}{
		"as it was":     {func(b []byte) []byte { return b }, true},
		"a priority":    {func(b []byte) []byte { b[14] |= 0xe0; return b }, true},
		"another VLAN":  {func(b []byte) []byte { b[15] ^= 1; return b }, false},
		"a service tag": {func(b []byte) []byte { b[12], b[13] = 0x88, 0xa8; return b }, false},
		"no tag":        {func(b []byte) []byte { return append(b[:12:12], b[16:]...) }, false},
		"nothing":       {func(b []byte) []byte { return nil }, false},
	} {
		l := &loop{change: c.change}
		p := newTagged(l, 0x123)
		must.OK(t, p.Send(frame))
		if name == "as it was" && (len(l.frame) != 64 || !bytes.Equal(l.frame[12:16], []byte{0x81, 0, 0x01, 0x23})) {
			t.Errorf("sent % x", l.frame)
		}
		buf := make([]byte, 100)
		n, at, err := p.Recv(buf)
		if got := bytes.Equal(buf[:n], frame) && at == 7; err != nil || got != c.passes || !c.passes && n != 0 {
			t.Errorf("%s: %d bytes, %v", name, n, err)
		}
	}
	p := newTagged(&loop{change: func(b []byte) []byte { return nil }}, 1)
	if a := testing.AllocsPerRun(100, func() { copy(p.out, frame); _, _, _ = p.Recv(p.out) }); a != 0 {
		t.Errorf("%v allocations", a)
	}
}
