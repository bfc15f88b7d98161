// Package cksum computes the Internet checksum (RFC 1071) and updates it when a field changes (RFC 1624).
//
// A sum is a ones' complement sum of big-endian 16-bit words; a checksum, as in a header, is a sum's complement. Zero
// has two representations: a sum is 0x0000 only if every word is, so a checksum is 0xffff only over zeros.
package cksum

import (
	"encoding/binary"
	"math/bits"
	"unsafe"
)

// Sum adds the 16-bit words of b to the sum acc. An odd last byte counts as the high half of a word, so only the last
// of several pieces may have an odd length. The checksum of a packet whose checksum field is zero is ^Sum(packet, 0); a
// packet with a correct checksum in place sums to 0xffff.
func Sum(b []byte, acc uint16) uint16 {
	s := uint64(bits.ReverseBytes16(acc))
	if vector && len(b) >= vectorBytes {
		n := len(b) &^ 31
		s += sumVector(&b[0], n) // each 8 bytes add less than 2^33, so no carry is lost
		b = b[n:]
	}
	return sumWords(b, s)
}

// Blocks returns the sum of the n bytes at p as little-endian words, n a multiple of 32: a number that is the sum
// modulo 65535, and 0 only over zeros. It is for loops that add the rest themselves.
func Blocks(p *byte, n int) uint64 {
	if vector {
		return sumVector(p, n)
	}
	return blocks(p, n)
}

// blocks returns the ones' complement sum of n bytes at p in 64-bit words, not yet folded. n is a multiple of 32.
func blocks(p *byte, n int) uint64 {
	var s, c uint64
	for ; n > 0; n -= 32 {
		b := (*[4]uint64)(unsafe.Pointer(p))
		s, c = bits.Add64(s, b[0], 0)
		s, c = bits.Add64(s, b[1], c)
		s, c = bits.Add64(s, b[2], c)
		s, c = bits.Add64(s, b[3], c)
		s, _ = bits.Add64(s, 0, c)
		p = (*byte)(unsafe.Add(unsafe.Pointer(p), 32))
	}
	return s
}

// vectorBytes is the shortest piece, in bytes, for which sumVector is worth its start and its fold (BenchmarkSum).
const vectorBytes = 128

// sumWords adds b to s, a sum of byte-swapped words that is not folded yet, and returns the folded sum in network
// order.
func sumWords(b []byte, s uint64) uint16 {
	le := binary.LittleEndian
	// RFC 1071 §2 (B): the sum of byte-swapped words is the byte-swapped sum. 2^64 is 1 modulo 65535, so the carry out
	// of a 64-bit addition is added at the bottom.
	var c uint64
	for ; len(b) >= 32; b = b[32:] {
		s, c = bits.Add64(s, le.Uint64(b), 0)
		s, c = bits.Add64(s, le.Uint64(b[8:]), c)
		s, c = bits.Add64(s, le.Uint64(b[16:]), c)
		s, c = bits.Add64(s, le.Uint64(b[24:]), c)
		s, _ = bits.Add64(s, 0, c) // a sum with a carry is less than 2^64-1
	}
	for ; len(b) >= 8; b = b[8:] {
		s, c = bits.Add64(s, le.Uint64(b), 0)
		s += c
	}
	var t uint64
	if len(b) >= 4 {
		t, b = uint64(le.Uint32(b)), b[4:]
	}
	if len(b) >= 2 {
		t, b = t+uint64(le.Uint16(b)), b[2:]
	}
	if len(b) == 1 {
		t += uint64(b[0])
	}
	s, c = bits.Add64(s, t, 0)
	s += c
	s = s>>32 + s&0xffff_ffff
	s = s>>32 + s&0xffff_ffff
	s = s>>16 + s&0xffff
	s = s>>16 + s&0xffff
	return bits.ReverseBytes16(uint16(s))
}

// Update16 returns the checksum hc after a 16-bit word that it covers changed from m to m2, by RFC 1624 eqn. 3: HC' =
// ~(~HC + ~m + m'). The result equals a full recomputation, except for a packet that became all zeros: its checksum is
// 0xffff, which an update cannot distinguish from 0x0000. An error in hc is preserved.
func Update16(hc, m, m2 uint16) uint16 {
	s := uint32(^hc) + uint32(^m) + uint32(m2)
	s = s>>16 + s&0xffff
	return ^uint16(s>>16 + s)
}

// UDP returns a computed checksum in UDP's encoding: zero means "no checksum", so 0xffff stands for it (RFC 768).
func UDP(hc uint16) uint16 {
	if hc == 0 {
		return 0xffff
	}
	return hc
}
