package mlx4sim

import (
	"github.com/rebound-nic/rebound/sim/parts"
)

// RSS parameters are in the QP context from byte 24h of the primary path on, over the alternative path.
const rssAt = 0x18 + 0x24

// Fields that the hash covers.
const (
	rssUDPv6 = 1 << 0
	rssUDPv4 = 1 << 1
	rssTCPv6 = 1 << 2
	rssIPv6  = 1 << 3
	rssTCPv4 = 1 << 4
	rssIPv4  = 1 << 5

	hashXOR      = 0
	hashToeplitz = 1
)

// rss is a QP that spreads frames over a range of QPs.
type rss struct {
	on       bool
	log      uint32 // QPs in the range
	base     uint32
	fallback uint32 // of frames that have no hash
	baseUDP  uint32
	fn       uint8
	fields   uint8
	key      [40]byte
}

func (m *Model) newRSS(q *qp, in msg) *refusal {
	b := in.B[rssAt:]
	r := rss{on: true, log: uint32(b[0]), base: be.Uint32(b) & 0xffffff, fallback: be.Uint32(b[4:]) & 0xffffff,
		fn: b[10], fields: b[11], baseUDP: be.Uint32(b[52:]) & 0xffffff}
	copy(r.key[:], b[12:])
	switch {
	case q.st != serviceMLX:
		return refuse(stBadParam, "RSS with st %d: offered for 7 (MLX)", q.st)
	case r.log > logRSS:
		return refuse(stLimit, "a range of 2^%d QPs, the capability is 2^%d", r.log, logRSS)
	case r.base&(1<<r.log-1) != 0:
		return refuse(stBadParam, "base QP %#x is not aligned to the range of 2^%d", r.base, r.log)
	case r.fn > hashToeplitz:
		return refuse(stBadParam, "hash function %d, expected 0 (XOR) or 1 (Toeplitz)", r.fn)
	case r.fields>>6 != 0:
		return refuse(stBadParam, "RSS of inner headers: tunnels are not offered")
	case r.fields&(rssTCPv4|rssUDPv4) != 0 && r.fields&rssIPv4 == 0, r.fields&(rssTCPv6|rssUDPv6) != 0 &&
		r.fields&rssIPv6 == 0:
		m.host.Warnf("RST2INIT_QP: %v: the hash covers ports without addresses (%02xh)", q, r.fields)
	}
	if at := in.U("mtt_base_addr_h")<<32 | in.U("mtt_base_addr_l")<<3; at < 8<<logReservedMTTs {
		m.host.Warnf("RST2INIT_QP: %v: mtt_base_addr is %#x: the first 2^%d entries are the firmware's", q, at,
			logReservedMTTs)
	}
	for i := range uint32(1) << r.log {
		if m.findQP(r.base+i) == nil {
			return refuse(stBadRes, "QP %#x of the range is in RST", r.base+i)
		}
	}
	q.rss = r
	return nil
}

// spread picks the QP for a frame, and returns the hash, as reported in the CQE.
func (m *Model) spread(q *qp, f *parts.Frame) (*qp, uint32) {
	r := &q.rss
	hash, ok := r.sum(f)
	if !ok {
		return m.findQP(r.fallback), 0
	}
	return m.findQP(r.base + hash&(1<<r.log-1)), hash
}

func (r *rss) sum(f *parts.Frame) (hash uint32, ok bool) {
	var ip, tcp, udp uint8
	switch f.L3 {
	case parts.L3IPv4:
		ip, tcp, udp = rssIPv4, rssTCPv4, rssUDPv4
	case parts.L3IPv6:
		ip, tcp, udp = rssIPv6, rssTCPv6, rssUDPv6
	}
	ports := f.L4 == parts.L4TCP && r.fields&tcp != 0 || f.L4 == parts.L4UDP && r.fields&udp != 0
	if ip == 0 || r.fields&ip == 0 && !ports {
		return 0, false
	}
	in := append(append([]byte(nil), f.Src...), f.Dst...)
	if ports {
		in = be.AppendUint16(be.AppendUint16(in, f.SPort), f.DPort)
	}
	if r.fn == hashXOR {
		for ; len(in) >= 4; in = in[4:] {
			hash ^= be.Uint32(in)
		}
		hash ^= hash >> 16
		hash ^= hash >> 8
		return hash & 0xff, true
	}
	return parts.Toeplitz(r.key[:], in), true
}
