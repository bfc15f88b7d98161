package cksum_test

import (
	"encoding/binary"
	"fmt"

	"github.com/rebound-nic/rebound/cksum"
)

// An IPv4 header whose checksum, bytes 10 and 11, is not filled in yet.
func header() []byte {
	return []byte{0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 64, 17, 0, 0, 192, 168, 0, 1, 192, 168, 0, 199}
}

func ExampleSum() {
	h := header()
	binary.BigEndian.PutUint16(h[10:], ^cksum.Sum(h, 0))
	fmt.Printf("checksum %#04x\n", binary.BigEndian.Uint16(h[10:]))
	fmt.Println("right:", cksum.Sum(h, 0) == 0xffff) // the sum over all of a right header

	// Output:
	// checksum 0xb861
	// right: true
}

// A sum is made in pieces: each continues with what the one before returned. Only the last may have an odd length.
func ExampleSum_pieces() {
	h := header()
	sum := cksum.Sum(h[12:], cksum.Sum(h[:12], 0))
	fmt.Println(sum == cksum.Sum(h, 0))

	// Output: true
}

// A router that decrements the TTL does not sum the header again.
func ExampleUpdate16() {
	h := header()
	binary.BigEndian.PutUint16(h[10:], ^cksum.Sum(h, 0))

	before := binary.BigEndian.Uint16(h[8:]) // TTL and protocol
	h[8]--
	after := binary.BigEndian.Uint16(h[8:])
	sum := cksum.Update16(binary.BigEndian.Uint16(h[10:]), before, after)
	binary.BigEndian.PutUint16(h[10:], sum)
	fmt.Printf("TTL %d, checksum %#04x, right: %v\n", h[8], sum, cksum.Sum(h, 0) == 0xffff)

	// Output: TTL 63, checksum 0xb961, right: true
}

// In UDP's header, zero stands for no checksum: a checksum that is zero is sent as all ones (RFC 768).
func ExampleUDP() {
	fmt.Printf("%#04x %#04x\n", cksum.UDP(0), cksum.UDP(0x1234))

	// Output: 0xffff 0x1234
}
