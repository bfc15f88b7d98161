package ib

import (
	"encoding/binary"
)

// Headers of a datagram that software builds completely, as for queue pairs 0 and 1 on cards that do not do so
// themselves (IBA vol. 1 §7.7, §9.2, §9.6). The card appends the checksums.
const (
	LRHSize  = 8
	GRHSize  = 40
	BTHSize  = 12
	DETHSize = 8

	opUDSend = 0x64
)

// LIDPermissive addresses the port at the other end of the cable. A port without a LID uses it as its source.
const LIDPermissive = 0xFFFF

// Datagram holds the source and destination of a datagram.
type Datagram struct {
	SLID, DLID  uint16
	SL, VL      uint8 // VL 15 is reserved for management
	PKey        uint16
	SrcQP, DstQ uint32
	QKey        uint32
	PSN         uint32
	Solicited   bool
}

// Headers returns the headers in front of a payload of n bytes, without a GRH: LRH, BTH, DETH.
func (d Datagram) Headers(n int) []byte {
	b := make([]byte, LRHSize+BTHSize+DETHSize)
	pad := -n & 3
	words := (len(b) + n + pad + 4) / 4 // from LRH up to the invariant checksum
	const bthFollows = 2
	b[0], b[1] = d.VL<<4, d.SL<<4|bthFollows
	binary.BigEndian.PutUint16(b[2:], d.DLID)
	binary.BigEndian.PutUint16(b[4:], uint16(words)&0x7FF)
	binary.BigEndian.PutUint16(b[6:], d.SLID)
	t := b[LRHSize:]
	t[0] = opUDSend
	t[1] = 1<<6 | uint8(pad)<<4 // migrated
	if d.Solicited {
		t[1] |= 1 << 7
	}
	binary.BigEndian.PutUint16(t[2:], d.PKey)
	binary.BigEndian.PutUint32(t[4:], d.DstQ&0xFFFFFF)
	binary.BigEndian.PutUint32(t[8:], d.PSN&0xFFFFFF)
	e := t[BTHSize:]
	binary.BigEndian.PutUint32(e, d.QKey)
	binary.BigEndian.PutUint32(e[4:], d.SrcQP&0xFFFFFF)
	return b
}
