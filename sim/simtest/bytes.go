package simtest

import "encoding/binary"

// Words returns n bytes: zeros but for big-endian words, each given by its offset and value.
func Words(n int, w ...uint32) []byte {
	b := make([]byte, n)
	for i := 0; i < len(w); i += 2 {
		binary.BigEndian.PutUint32(b[w[i]:], w[i+1])
	}
	return b
}

// Word reads a big-endian word.
func Word(b []byte, off int) uint32 { return binary.BigEndian.Uint32(b[off:]) }

// MAC is the address of the device under test.
var MAC = [6]byte{2, 0, 0, 0, 0, 1}

// Frame returns a frame of n bytes from a peer to MAC, with a different byte at each place.
func Frame(n int) []byte {
	f := make([]byte, n)
	copy(f, []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0xee, 1, 0x88, 0xb5})
	for i := 14; i < n; i++ {
		f[i] = byte(i)
	}
	return f
}

// ToPeer is Frame in the other direction.
func ToPeer(n int) []byte {
	f := Frame(n)
	copy(f, []byte{2, 0, 0, 0, 0xee, 1, 2, 0, 0, 0, 0, 1})
	return f
}

// ReadBE reads a big-endian register.
func (r *Rig) ReadBE(bar int, off uint64) uint32 {
	r.Helper()
	var b [4]byte
	r.Must(r.Port.ReadBAR(bar, off, b[:]))
	return Word(b[:], 0)
}

// WriteBE writes a big-endian register.
func (r *Rig) WriteBE(bar int, off uint64, v uint32) {
	r.Helper()
	r.Must(r.Port.WriteBAR(bar, off, Words(4, 0, v)))
}
