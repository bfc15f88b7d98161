package nictest

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
)

var (
	ourMAC  = [6]byte{0x02, 0x52, 0x62, 0, 0, 0x01}
	peerMAC = [6]byte{0x02, 0x52, 0x62, 0, 0, 0x02}
	our4    = netip.MustParseAddr("192.0.2.1")
	our6    = netip.MustParseAddr("2001:db8::1")
	peer4   = netip.MustParseAddr("192.0.2.2") // of flow 0
)

const (
	echoPort  = 7007
	minFrame  = 60 // without FCS
	minFrame6 = 14 + 40 + 8 + 8
)

type proto int

const (
	icmp4 proto = iota
	udp4
	icmp6
	udp6
	protos
)

// request builds an echo request of size bytes (raised to the protocol's minimum) whose payload starts with number and
// is unique. The peer's address and port are derived from flow, so that RSS spreads the flows.
func request(p proto, size int, flow uint8, number uint64) []byte {
	if p >= icmp6 {
		size = max(size, minFrame6)
	}
	f := make([]byte, max(size, minFrame))
	copy(f, ourMAC[:])
	copy(f[6:], peerMAC[:])
	l3 := f[14:]
	var l4 []byte
	if p < icmp6 {
		binary.BigEndian.PutUint16(f[12:], 0x0800)
		l3[0], l3[8], l3[9] = 0x45, 64, []byte{1, 17}[p]
		binary.BigEndian.PutUint16(l3[2:], uint16(len(l3)))
		binary.BigEndian.PutUint16(l3[4:], uint16(number))
		copy(l3[12:], []byte{192, 0, 2, 2 + flow%200})
		copy(l3[16:], our4.AsSlice())
		l4 = l3[20:]
	} else {
		binary.BigEndian.PutUint16(f[12:], 0x86dd)
		l3[0], l3[6], l3[7] = 0x60, []byte{58, 17}[p-icmp6], 64
		binary.BigEndian.PutUint16(l3[4:], uint16(len(l3)-40))
		copy(l3[8:], netip.MustParseAddr("2001:db8::2").AsSlice())
		l3[23] = 2 + flow%200
		copy(l3[24:], our6.AsSlice())
		l4 = l3[40:]
	}
	switch p {
	case icmp4, icmp6:
		l4[0] = []byte{icmp4: 8, icmp6: 128}[p]
		binary.BigEndian.PutUint16(l4[4:], uint16(flow))
		binary.BigEndian.PutUint16(l4[6:], uint16(number))
	default:
		binary.BigEndian.PutUint16(l4[0:], 40000+uint16(flow))
		binary.BigEndian.PutUint16(l4[2:], echoPort)
		binary.BigEndian.PutUint16(l4[4:], uint16(len(l4)))
	}
	binary.BigEndian.PutUint64(l4[8:], number)
	rng := rand.NewPCG(number, 3)
	for i := 16; i < len(l4); i++ {
		if i%8 == 0 && i+8 <= len(l4) {
			binary.LittleEndian.PutUint64(l4[i:], rng.Uint64())
		}
	}
	finish(f)
	return f
}

// reply is the expected reply to a request, computed independently, including all checksums.
func reply(req []byte) []byte {
	f := append([]byte(nil), req...)
	copy(f[0:], req[6:12])
	copy(f[6:], req[0:6])
	l4, hops := 34, &f[22] // 64, as in the request
	if f[12] == 0x08 {
		copy(f[26:], req[30:34])
		copy(f[30:], req[26:30])
	} else {
		l4, hops = 54, &f[21]
		copy(f[22:], req[38:54])
		copy(f[38:], req[22:38])
	}
	switch f[l4] {
	case 8:
		f[l4] = 0
	case 128:
		f[l4] = 129
	default:
		copy(f[l4:], req[l4+2:l4+4])
		copy(f[l4+2:], req[l4:l4+2])
		*hops-- // so that datagrams do not bounce forever
	}
	finish(f)
	return f
}

func finish(f []byte) {
	l3 := f[14:]
	if f[12] == 0x08 {
		binary.BigEndian.PutUint16(l3[10:], 0)
		binary.BigEndian.PutUint16(l3[10:], ^fold(sum(l3[:20])))
		if l3[9] == 1 {
			binary.BigEndian.PutUint16(l3[22:], 0)
			binary.BigEndian.PutUint16(l3[22:], ^fold(sum(l3[20:])))
		} else {
			binary.BigEndian.PutUint16(l3[26:], 0)
			binary.BigEndian.PutUint16(l3[26:], never0(^fold(sum(l3[12:])+17+uint32(len(l3)-20))))
		}
		return
	}
	at := map[byte]int{58: 42, 17: 46}[l3[6]]
	binary.BigEndian.PutUint16(l3[at:], 0)
	v := ^fold(sum(l3[8:]) + uint32(l3[6]) + uint32(len(l3)-40))
	if l3[6] == 17 {
		v = never0(v)
	}
	binary.BigEndian.PutUint16(l3[at:], v)
}

// never0 is for UDP, where 0 means that there is no checksum.
func never0(v uint16) uint16 {
	if v == 0 {
		return 0xffff
	}
	return v
}

func sum(b []byte) uint32 {
	s := uint32(0)
	for i := 0; i+1 < len(b); i += 2 {
		s += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	if len(b)%2 == 1 {
		s += uint32(b[len(b)-1]) << 8
	}
	return s
}

func fold(s uint32) uint16 {
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

// flow identifies the frames that a device keeps in order: addresses, protocol and ports.
func flow(req []byte) string {
	if req[12] == 0x08 {
		if req[23] == 1 {
			return string(req[26:30])
		}
		return string(req[26:30]) + string(req[34:36])
	}
	if req[20] == 58 {
		return string(req[20:54])
	}
	return string(req[20:58])
}

// requests returns n requests of size bytes each, of all protocols and many flows, four in a row of each flow.
func (x *rig) requests(n, size int) [][]byte {
	reqs := make([][]byte, n)
	for i := range reqs {
		reqs[i] = request(proto(x.next%uint64(x.protos())), size, uint8(x.next/16), x.next)
		x.next++
	}
	return reqs
}

// protos returns how many of the protocols the device receives.
func (x *rig) protos() proto {
	if x.h.IPv4 {
		return icmp6
	}
	return protos
}

// outgoing returns the next frame of size bytes from us to the peer. A frame to our own address may never leave the
// device.
func (x *rig) outgoing(size int) []byte { return reply(x.requests(1, size)[0]) }
