package parts

import "encoding/binary"

// Toeplitz is the hash of Microsoft's RSS specification: the exclusive or, for each set bit of in, of the 32 bits of
// the key that start at that bit. A key that is too short continues with zeros.
func Toeplitz(key, in []byte) (hash uint32) {
	window := binary.BigEndian.Uint64(key)
	for i, b := range in {
		for bit := range 8 {
			if b&(0x80>>bit) != 0 {
				hash ^= uint32(window >> 32)
			}
			window <<= 1
		}
		if next := 8 + i; next < len(key) {
			window |= uint64(key[next])
		}
	}
	return hash
}
