package ib

import (
	"encoding/binary"
	"fmt"
)

// A subnet management datagram as a port accepts it from its own host: header, M_Key, and 64 bytes of attribute from
// byte 64 on.
const smpData = 64

// Directed routes of subnet management datagrams: hop by hop, by port numbers (IBA vol. 1 §14.2.2).
const (
	smpStatus     = 4 // the highest bit marks a datagram that is returning
	smpHop        = 6
	smpHops       = 7
	smpToLID      = 34 // end of the directed part: permissive for the end of the path
	smpReturnPath = 192
	mostHops      = 63

	directionBack = 0x80

	reregister = 51 // in PortInfo: bit 7
)

// SubnetRequest reports whether a datagram is a request for the agent of this port. If the request came by a directed
// route, it must end here, and SubnetRequest writes the return route into it. port is the number of the port that
// received it.
func SubnetRequest(b []byte, port uint8) bool {
	h, err := parseHeader(b)
	if err != nil || h.Method != Get && h.Method != Set {
		return false
	}
	if h.Class == ClassSubnetDirected {
		hop := b[smpHop]
		if b[smpStatus]&directionBack != 0 || hop != b[smpHops] || hop > mostHops ||
			binary.BigEndian.Uint16(b[smpToLID:]) != LIDPermissive {
			return false
		}
		if hop > 0 {
			b[smpReturnPath+int(hop)] = port
		}
		b[smpHop]++ // past the last hop: the form that an agent receives (C14-9:4)
		return true
	}
	return h.Class == ClassSubnet
}

// SubnetAnswer turns the agent's answer to a request into the datagram to send. It reports false if answer is not an
// answer to it.
func SubnetAnswer(answer, request []byte) bool {
	a, err := parseHeader(answer)
	q, _ := parseHeader(request)
	if err != nil || a.Method != GetResp || a.Class != q.Class || a.TID != q.TID || a.Attribute != q.Attribute {
		return false
	}
	if a.Class == ClassSubnetDirected {
		answer[smpStatus] |= directionBack
		answer[smpHop], answer[smpHops] = request[smpHops], request[smpHops] // returning (C14-13:1)
		copy(answer[smpReturnPath:], request[smpReturnPath:])
	}
	return true
}

// Reregisters reports whether a request asks the port's host to renew its memberships and registrations.
func Reregisters(request []byte) bool {
	h, err := parseHeader(request)
	return err == nil && h.Method == Set && h.Attribute == AttrPortInfo && request[smpData+reregister]&0x80 != 0
}

// Query returns a subnet management datagram that requests an attribute of the port itself. modifier is the port number
// or the block of a table.
func Query(a Attribute, modifier uint32, tid uint64) []byte {
	b := make([]byte, MADSize)
	queryHeader(a, modifier, tid).put(b)
	return b
}

func queryHeader(a Attribute, modifier uint32, tid uint64) header {
	return header{Class: ClassSubnet, Version: 1, Method: Get, TID: tid, Attribute: a, Modifier: modifier}
}

// PortState is the logical state of a port's link.
type PortState uint8

const (
	PortDown   PortState = 1
	PortInit   PortState = 2 // physical link up, not yet configured by the subnet manager
	PortArmed  PortState = 3
	PortActive PortState = 4
)

func (s PortState) String() string {
	switch s {
	case PortDown:
		return "down"
	case PortInit:
		return "initialized: no subnet manager has configured the port"
	case PortArmed:
		return "armed"
	case PortActive:
		return "active"
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// PortInfo describes a port and its subnet manager (IBA vol. 1 §14.2.5.6).
type PortInfo struct {
	GIDPrefix uint64
	LID       uint16
	LMC       uint8 // number of low LID bits that the port may choose
	SMLID     uint16
	SMSL      uint8
	State     PortState
	MTU       int // bytes of payload, 256 to 4096; 0 if unknown
	Width     int // lanes; 0 if unknown
	LaneSpeed int // Mbit/s on the wire; 0 if unknown

	Capabilities uint32
}

// ParsePortInfo parses the answer to Query(AttrPortInfo, port, tid).
func ParsePortInfo(b []byte, port uint32, tid uint64) (PortInfo, error) {
	if err := queryHeader(AttrPortInfo, port, tid).answers(b); err != nil {
		return PortInfo{}, err
	}
	d := b[smpData:]
	p := PortInfo{
		GIDPrefix: binary.BigEndian.Uint64(d[8:]), LID: binary.BigEndian.Uint16(d[16:]),
		SMLID: binary.BigEndian.Uint16(d[18:]),
		State: PortState(d[32] & 15), LMC: d[34] & 7, LaneSpeed: laneSpeed(d[35]>>4, d[62]>>4), MTU: MTU(d[36] >> 4),
		SMSL: d[36] & 15, Capabilities: binary.BigEndian.Uint32(d[20:]),
	}
	switch d[31] {
	case 1:
		p.Width = 1
	case 2:
		p.Width = 4
	case 4:
		p.Width = 8
	case 8:
		p.Width = 12
	}
	return p, nil
}

// laneSpeed decodes a link speed. The extended code takes precedence if set.
func laneSpeed(code, extended uint8) int {
	switch extended {
	case 1:
		return 14062 // FDR
	case 2:
		return 25781 // EDR
	}
	switch code {
	case 1:
		return 2500 // SDR
	case 2:
		return 5000 // DDR
	case 4:
		return 10000 // QDR
	}
	return 0
}

// MTU returns the payload size in bytes for a code, or 0 for an invalid code.
func MTU(code uint8) int {
	if code < 1 || code > 5 {
		return 0
	}
	return 128 << code
}

// MTUCode is the inverse of MTU. It returns 0 if n has no code.
func MTUCode(n int) uint8 {
	for c := uint8(1); c <= 5; c++ {
		if MTU(c) == n {
			return c
		}
	}
	return 0
}

// ParseGUIDs parses the answer to Query(AttrGUIDInfo, block, tid): eight GUIDs of the port. The first is the port's
// own.
func ParseGUIDs(b []byte, block uint32, tid uint64) (guids [8]uint64, err error) {
	if err := queryHeader(AttrGUIDInfo, block, tid).answers(b); err != nil {
		return guids, err
	}
	for i := range guids {
		guids[i] = binary.BigEndian.Uint64(b[smpData+8*i:])
	}
	return guids, nil
}

// ParsePKeys parses the answer to Query(AttrPKeyTable, block, tid): 32 partition keys.
func ParsePKeys(b []byte, block uint32, tid uint64) (keys [32]uint16, err error) {
	if err := queryHeader(AttrPKeyTable, block, tid).answers(b); err != nil {
		return keys, err
	}
	for i := range keys {
		keys[i] = binary.BigEndian.Uint16(b[smpData+2*i:])
	}
	return keys, nil
}

// GID is the address of a port (subnet prefix and GUID) or of a multicast group.
type GID [16]byte

// NewGID returns the GID of a port.
func NewGID(prefix, guid uint64) (g GID) {
	binary.BigEndian.PutUint64(g[:], prefix)
	binary.BigEndian.PutUint64(g[8:], guid)
	return g
}
