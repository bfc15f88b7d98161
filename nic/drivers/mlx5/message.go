package mlx5

import (
	"encoding/binary"
	"fmt"
)

// message is the input or output of a command, big-endian. A field is identified by the offset of its dword and its
// bits in it, as in the manual.
type message []byte

// command returns the input of a command, size bytes long, with its header set.
func command(op opcode, opMod uint32, size int) message {
	return make(message, size).
		set("opcode", 0x00, 31, 16, uint32(op)).
		set("op_mod", 0x04, 15, 0, opMod)
}

func (m message) opcode() opcode { return opcode(m.get(0x00, 31, 16)) }
func (m message) opMod() uint32  { return m.get(0x04, 15, 0) }

// get returns bits hi to lo of the dword at off.
func (m message) get(off, hi, lo int) uint32 {
	return binary.BigEndian.Uint32(m[off:]) << (31 - hi) >> (31 - hi + lo)
}

// set writes bits hi to lo of the dword at off. It panics if v does not fit.
func (m message) set(name string, off, hi, lo int, v uint32) message {
	mask := ^uint32(0) >> (31 - hi + lo)
	if v&^mask != 0 {
		panic(fmt.Sprintf("mlx5: %s = %#x does not fit bits %d:%d", name, v, hi, lo))
	}
	w := binary.BigEndian.Uint32(m[off:])
	binary.BigEndian.PutUint32(m[off:], w&^(mask<<lo)|v<<lo)
	return m
}

func (m message) get64(off int) uint64 { return binary.BigEndian.Uint64(m[off:]) }

func (m message) set64(off int, v uint64) message {
	binary.BigEndian.PutUint64(m[off:], v)
	return m
}

// at returns the structure at off.
func (m message) at(off int) message { return m[off:] }

// mac writes an address in mac_address_layout: 47:32 in the first dword, 31:0 in the second.
func (m message) mac(off int, mac [6]byte) message {
	copy(m[off+2:], mac[:])
	return m
}

// pages appends the addresses of the 4 KiB pages of n bytes from iova: the pas list of a queue.
func (m message) pages(iova uint64, n int) message {
	for off := 0; off < n; off += 4096 {
		m = binary.BigEndian.AppendUint64(m, iova+uint64(off))
	}
	return m
}
