package probe

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// sum adds b to a ones'-complement sum in 64 bits (RFC 1071 §2: the word size does not matter with end-around carry).
func sum(s uint64, b []byte) uint64 {
	var carry uint64
	for len(b) >= 8 {
		s, carry = bits.Add64(s, binary.BigEndian.Uint64(b), 0)
		s += carry
		b = b[8:]
	}
	if len(b) > 0 {
		var last [8]byte
		copy(last[:], b)
		s, carry = bits.Add64(s, binary.BigEndian.Uint64(last[:]), 0)
		s += carry
	}
	return s
}

// fold reduces a sum to 16 bits.
func fold(s uint64) uint16 {
	for s>>16 != 0 {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

// pseudo is the sum of the pseudo-header of UDP (RFC 768) or of IPv6 (RFC 8200 §8.1).
func pseudo(src, dst netip.Addr, next uint8, length int) uint64 {
	s := uint64(next) + uint64(length)
	if src.Is4() {
		a, b := src.As4(), dst.As4()
		return sum(sum(s, a[:]), b[:])
	}
	a, b := src.As16(), dst.As16()
	return sum(sum(s, a[:]), b[:])
}
