package evidence

import (
	"encoding/binary"
	"testing"
)

func TestDifferences(t *testing.T) {
	header := func(command, bar uint32) ConfigHex {
		h := make(ConfigHex, 64)
		binary.LittleEndian.PutUint32(h[4:], command)
		binary.LittleEndian.PutUint32(h[0x10:], bar)
		return h
	}
	for _, c := range []struct {
		name          string
		before, after ConfigHex
		want          int
	}{
		{"same", header(6, 0xF000_0000), header(6, 0xF000_0000), 0},
		{"status bits set", header(2, 0), header(0xF900_0002, 0), 0},
		{"decoding enabled by the kernel", header(0, 0), header(2, 0), 0},
		{"decoding disabled", header(2, 0), header(0, 0), 1},
		{"bus mastering left on", header(2, 0), header(6, 0), 1},
		{"bus mastering switched off", header(6, 0), header(2, 0), 0},
		{"bus mastering left on, decoding enabled", header(0, 0), header(6, 0), 1},
		{"BAR and command", header(2, 0xF000_0000), header(0, 0), 2},
	} {
		if got := differences(c.before, c.after); len(got) != c.want {
			t.Errorf("%s: %q, want %d", c.name, got, c.want)
		}
	}
}
