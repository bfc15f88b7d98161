package fastpath

import (
	"encoding/binary"
	"net/netip"
	"testing"
)

func BenchmarkEcho4(b *testing.B) {
	r, _ := New(Config{MAC: [6]byte{2, 0, 0, 0, 0, 1}, Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}})
	req := make([]byte, 98)
	copy(req, []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, 0, 84, 1, 2, 0x40, 0, 64, 1, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1, 8, 0, 0x12, 0x34, 0, 1, 0, 1})
	s := 0
	for i := 14; i < 34; i += 2 {
		s += int(binary.BigEndian.Uint16(req[i:]))
	}
	s = s&0xffff + s>>16
	binary.BigEndian.PutUint16(req[24:], ^uint16(s))
	frame := make([]byte, 98)
	for b.Loop() {
		copy(frame[:64], req)
		if poll(r, frame) != 98 {
			b.Fatal("refused")
		}
	}
	if r.stats[AnsweredICMPv4] < 10 {
		b.Fatal("slow")
	}
}
