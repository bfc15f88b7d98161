package ixgbesim

import "github.com/rebound-nic/rebound/sim/parts"

// RSS types in the receive descriptor, §7.1.6.2.
const (
	hashTCP4 = 1
	hashIP4  = 2
	hashTCP6 = 3
	hashIP6  = 5
	hashUDP4 = 7
	hashUDP6 = 8
)

// hash returns the RSS hash of a frame and its type, 0 for a frame that is not hashed (§7.1.2.8.1).
func (m *Model) hash(f []byte, p *packet) (h, kind uint32) {
	mrqc := m.val[regMRQC/4]
	if mrqc&0xf != mrqcRSS || p.ip == 0 {
		return 0, 0
	}
	addrs, tcp, udp, ip := f[p.ip+12:p.ip+20], uint32(rssTCP4), uint32(rssUDP4), uint32(rssIP4)
	types := [3]uint32{hashTCP4, hashUDP4, hashIP4}
	if p.v6 {
		addrs, tcp, udp, ip = f[p.ip+8:p.ip+40], rssTCP6, rssUDP6, rssIP6
		types = [3]uint32{hashTCP6, hashUDP6, hashIP6}
	}
	var in [36]byte
	n := copy(in[:], addrs)
	switch {
	case !p.fragment && p.proto == protoTCP && mrqc&tcp != 0:
		n += copy(in[n:], f[p.l4:p.l4+4])
		kind = types[0]
	case !p.fragment && p.proto == protoUDP && mrqc&udp != 0:
		n += copy(in[n:], f[p.l4:p.l4+4])
		kind = types[1]
	case mrqc&ip != 0:
		kind = types[2]
	default:
		return 0, 0
	}
	var key [40]byte
	for i := range 10 {
		le.PutUint32(key[4*i:], m.val[regRSSRK/4+reg(i)])
	}
	return parts.Toeplitz(key[:], in[:n]), kind
}

// redirect returns the queue of a hash, from the RETA entry that its seven low bits select.
func (m *Model) redirect(h uint32) int {
	i := h & 0x7f
	return int(m.val[regRETA/4+reg(i/4)] >> (8 * (i % 4)) & 0xf)
}
