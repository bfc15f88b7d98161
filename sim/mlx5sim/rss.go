package mlx5sim

import (
	"encoding/binary"

	"github.com/rebound-nic/rebound/sim/parts"
)

// Fields that the hash covers, PRM "RX Hash Field Select".
const (
	hashSrcIP   = 1 << 0
	hashDstIP   = 1 << 1
	hashSrcPort = 1 << 2
	hashDstPort = 1 << 3
	hashSPI     = 1 << 4 // of ESP and AH
)

// rx_hash_fn.
const (
	hashNone     = 0
	hashXOR8     = 1 // INVERTED_XOR8
	hashToeplitz = 2
)

// rssHash is a TIR's receive side scaling.
type rssHash struct {
	fn        uint64 // hashNone, hashXOR8, hashToeplitz
	key       [40]byte
	symmetric bool
	v6, udp   bool // l3_prot_type, l4_prot_type
	fields    uint64
}

func (h *rssHash) read(in msg) *refusal {
	h.fn, h.symmetric, h.v6, h.udp, h.fields = in.U("rx_hash_fn"), in.Is("rx_hash_symmetric"), in.Is("l3_prot_type"),
		in.Is("l4_prot_type"), in.U("selected_fields")
	copy(h.key[:], in.Bytes("toeplitz_key"))
	switch {
	case h.fn > hashToeplitz:
		return refuse(stBadParam, "rx_hash_fn is %d, expected 0 (none), 1 (inverted XOR8) or 2 (Toeplitz)", h.fn)
	case h.fields&^0x1f != 0:
		return refuse(stBadParam, "selected_fields is %#x, the model has addresses, ports and SPI (1fh)", h.fields)
	}
	return nil
}

// sum hashes a frame, and returns the hashed fields in the format of CQEs: rss_hash_type bits 3:2 the addresses, 7:6
// the ports.
func (h *rssHash) sum(f *frame) (hash uint32, kind uint8) {
	if h.fn == hashNone || f.L3 == parts.L3None || h.v6 != (f.L3 == parts.L3IPv6) {
		return 0, 0
	}
	src, dst := f.Src, f.Dst
	sport, dport := f.SPort, f.DPort
	ports := h.fields&(hashSrcPort|hashDstPort) != 0 && (f.L4 == parts.L4UDP && h.udp || f.L4 == parts.L4TCP && !h.udp)
	if h.symmetric {
		if string(src) > string(dst) {
			src, dst = dst, src
		}
		if sport > dport {
			sport, dport = dport, sport
		}
	}
	var in []byte
	if h.fields&hashSrcIP != 0 {
		in = append(in, src...)
	}
	if h.fields&hashDstIP != 0 {
		in = append(in, dst...)
	}
	if kind = 1 << 2; f.L3 == parts.L3IPv6 {
		kind = 2 << 2
	}
	if ports {
		if h.fields&hashSrcPort != 0 {
			in = binary.BigEndian.AppendUint16(in, sport)
		}
		if h.fields&hashDstPort != 0 {
			in = binary.BigEndian.AppendUint16(in, dport)
		}
		if kind |= 1 << 6; f.L4 == parts.L4UDP {
			kind ^= 3 << 6
		}
	}
	if spi := f.SPI(); h.fields&hashSPI != 0 && spi != nil {
		in = append(in, spi...)
		kind |= 3 << 6
	}
	if h.fn == hashXOR8 {
		return uint32(^xor(in)), kind
	}
	return parts.Toeplitz(h.key[:], in), kind
}
