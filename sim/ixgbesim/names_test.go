package ixgbesim

import "testing"

func TestRegisterNames(t *testing.T) {
	m := New(Options{})
	for off, want := range map[uint64]string{0x01028 + 0x40: "RXDCTL[1]", 0x02104: "SRRCTL[1]", 0x05818: "MRQC", 0x042a0: "AUTOC", 0x00004: "CTRL alias",
		0x1fffc: "", 0x20000: ""} {
		if n, _ := m.RegisterName(0, off); n != want {
			t.Errorf("%#x is called %q, want %q", off, n, want)
		}
	}
}
