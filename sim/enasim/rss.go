package enasim

import (
	"slices"

	"github.com/rebound-nic/rebound/sim/parts"
)

// Protocols of the hash input, ena_admin_flow_hash_proto.
const (
	protoTCP4   = 0
	protoUDP4   = 1
	protoTCP6   = 2
	protoUDP6   = 3
	protoIP4    = 4
	protoIP6    = 5
	protoFrag4  = 6
	protoOther  = 7
	protoTCP6EX = 8
	protoIP6EX  = 9
)

// Hash input, ena_admin_flow_hash_fields.
const (
	fieldL2 = 1<<0 | 1<<1
	fieldL3 = 1<<2 | 1<<3
	fieldL4 = 1<<4 | 1<<5
)

// supportedFields returns the hashable fields of a protocol.
func supportedFields(proto int) uint16 {
	switch proto {
	case protoTCP4, protoUDP4, protoTCP6, protoUDP6, protoTCP6EX:
		return fieldL3 | fieldL4
	case protoIP4, protoIP6, protoFrag4, protoIP6EX:
		return fieldL3
	case protoOther:
		return fieldL2
	}
	return 0
}

// input returns a frame's selected hash fields, source before destination.
func (m *Model) input(p *parsed) []byte {
	sel := m.feat.fields[p.proto]
	var in []byte
	add := func(bit uint16, b []byte) {
		if sel&bit != 0 {
			in = append(in, b...)
		}
	}
	if p.proto == protoOther {
		add(1<<1, p.f[6:12])
		add(1<<0, p.f[0:6])
		return in
	}
	add(1<<3, p.src)
	add(1<<2, p.dst)
	if p.l4 > 0 {
		add(1<<5, p.f[p.l4:p.l4+2])
		add(1<<4, p.f[p.l4+2:p.l4+4])
	}
	return in
}

func (m *Model) hash(p *parsed) uint32 {
	in := m.input(p)
	if len(in) == 0 {
		return 0
	}
	switch m.feat.hash {
	case hashToeplitz:
		return m.feat.hashInit ^ m.feat.toeplitz(in)
	case hashCRC32:
		return crc32(m.feat.hashInit, in)
	}
	return 0
}

// toeplitz is the hash without its start. The device stores the key with its bytes reversed, as DPDK's driver shows
// (drivers/net/ena/ena_rss.c).
func (f *features) toeplitz(in []byte) uint32 {
	key := f.key
	slices.Reverse(key[:])
	return parts.Toeplitz(key[:], in)
}

// crc32 is the reflected polynomial of IEEE 802.3, without a final inversion.
func crc32(h uint32, in []byte) uint32 {
	for _, b := range in {
		h ^= uint32(b)
		for range 8 {
			h = h>>1 ^ 0xedb88320&-(h&1)
		}
	}
	return h
}

// steer returns a frame's receive queue: from the indirection table, otherwise the first existing one; -1 for none.
func (m *Model) steer(p *parsed) int {
	if t := m.feat.table; t != nil {
		if q := int(t[m.hash(p)%uint32(len(t))]); m.rx[q].live {
			return q
		}
	}
	for i := range m.rx {
		if m.rx[i].live {
			return i
		}
	}
	return -1
}
