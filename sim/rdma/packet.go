package rdma

import (
	"encoding/binary"
	"hash/crc32"
)

var be = binary.BigEndian

// Opcodes of the base transport header (volume 1, 9.2.1): the high three bits are the service.
const (
	ServiceRC = 0
	ServiceUD = 3

	SendFirst    = 0x00
	SendMiddle   = 0x01
	SendLast     = 0x02
	SendLastImm  = 0x03
	SendOnly     = 0x04
	SendOnlyImm  = 0x05
	WriteFirst   = 0x06
	WriteMiddle  = 0x07
	WriteLast    = 0x08
	WriteLastImm = 0x09
	WriteOnly    = 0x0a
	WriteOnlyImm = 0x0b
	ReadRequest  = 0x0c
	ReadFirst    = 0x0d // of the response
	ReadMiddle   = 0x0e
	ReadLast     = 0x0f
	ReadOnly     = 0x10
	Ack          = 0x11

	UDSend    = ServiceUD<<5 | SendOnly
	UDSendImm = ServiceUD<<5 | SendOnlyImm
)

// Sizes of headers, bytes.
const (
	LRHSize  = 8
	GRHSize  = 40
	UDPSize  = 8
	BTHSize  = 12
	DETHSize = 8
	RETHSize = 16
	AETHSize = 4
	ICRCSize = 4
)

// Packet is the base transport header and the rest of the packet.
type Packet struct {
	Op         uint8
	Solicited  bool
	AckRequest bool
	PKey       uint16
	QPN, PSN   uint32 // 24 bits
	Body       []byte // extended headers and payload, without padding
}

// Append appends the packet, without the checksum, to f.
func (p *Packet) Append(f []byte) []byte {
	pad := -len(p.Body) & 3
	flags, psn := 1<<6|byte(pad<<4), p.PSN // migrated: there is only one path
	if p.Solicited {
		flags |= 1 << 7
	}
	if p.AckRequest {
		psn |= 1 << 31
	}
	f = append(f, p.Op, flags)
	f = be.AppendUint16(f, p.PKey)
	f = be.AppendUint32(f, p.QPN&0xffffff)
	f = be.AppendUint32(f, psn)
	f = append(f, p.Body...)
	return append(f, make([]byte, pad)...)
}

// Parse parses a packet that starts with the base transport header and ends before the checksum. The body is a part of
// b.
func Parse(b []byte) (p Packet, ok bool) {
	if len(b) < BTHSize {
		return p, false
	}
	pad := int(b[1] >> 4 & 3)
	if len(b) < BTHSize+pad {
		return p, false
	}
	return Packet{Op: b[0], Solicited: b[1]>>7 != 0, PKey: be.Uint16(b[2:]), QPN: be.Uint32(b[4:]) & 0xffffff,
		PSN:        be.Uint32(b[8:]) & 0xffffff,
		AckRequest: b[8]>>7 != 0, Body: b[BTHSize : len(b)-pad]}, true
}

// ICRC returns the invariant checksum, four bytes, of a packet that starts with its local route header (InfiniBand) or,
// if local is false, with its layer 3 header (RoCE), and ends before the checksum. Fields that a switch or a router may
// change count as ones (7.8.1, A17.3.3), and over Ethernet the missing local route header counts as ones too.
func ICRC(b []byte, local bool) []byte {
	h := append([]byte(nil), b[:min(len(b), LRHSize+GRHSize+UDPSize+BTHSize)]...)
	ones := func(at int, mask byte) {
		if at < len(h) {
			h[at] |= mask
		}
	}
	c, at, global := uint32(0), 0, true
	if local {
		ones(0, 0xf0) // virtual lane
		at, global = LRHSize, len(h) > 1 && h[1]&3 == 3
	} else {
		c = crc32.ChecksumIEEE([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	}
	udp := false
	switch {
	case !global || at >= len(h):
	case h[at]>>4 == 4 && !local:
		for _, i := range []int{1, 8, 10, 11} { // type of service, time to live, checksum
			ones(at+i, 0xff)
		}
		udp = len(h) > at+9 && h[at+9] == 17
		at += 20
	default:
		ones(at, 0x0f) // traffic class, flow label, hop limit
		for _, i := range []int{1, 2, 3, 7} {
			ones(at+i, 0xff)
		}
		udp = !local && len(h) > at+6 && h[at+6] == 17
		at += GRHSize
	}
	if udp {
		ones(at+6, 0xff) // checksum
		ones(at+7, 0xff)
		at += UDPSize
	}
	ones(at+4, 0xff) // of the base transport header
	c = crc32.Update(c, crc32.IEEETable, h)
	return binary.LittleEndian.AppendUint32(nil, crc32.Update(c, crc32.IEEETable, b[len(h):]))
}

// appendRETH appends the address, key and length of an RDMA operation.
func appendRETH(b []byte, at uint64, key uint32, n int) []byte {
	return be.AppendUint32(be.AppendUint32(be.AppendUint64(b, at), key), uint32(n))
}

// after returns the signed distance between two packet sequence numbers.
func after(a, b uint32) int { return int(int32((a-b)<<8) >> 8) }

func psn(n uint32) uint32 { return n & 0xffffff }
