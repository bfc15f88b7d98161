package ib

import (
	"encoding/binary"
	"fmt"
)

// A datagram to subnet administration: header, RMPP header (zero for a datagram in one part), key, attribute offset and
// component mask, and 200 bytes of record from byte 56 on (IBA vol. 1 §15.2.1).
const (
	saVersion = 2
	saMask    = 48
	saData    = 56
)

// Well-known numbers of the SA. It receives on queue pair 1 at the subnet manager's LID.
const (
	GSIQP   = 1
	GSIQKey = 0x80010000
)

func saRequest(h header, mask uint64) []byte {
	b := make([]byte, MADSize)
	h.put(b)
	binary.BigEndian.PutUint64(b[saMask:], mask)
	return b
}

// saAnswer checks an answer and returns its record.
func saAnswer(h header, b []byte) ([]byte, error) {
	if err := h.answers(b); err != nil {
		return nil, err
	}
	const active = 1 // RMPP: one of several segments
	if b[26]&active != 0 {
		return nil, fmt.Errorf("%w: the answer comes in parts (RMPP), which was not asked for", errMAD)
	}
	return b[saData:], nil
}

// Components of an MCMemberRecord: bits of the mask.
const (
	mcMGID      = 1 << 0
	mcPortGID   = 1 << 1
	mcQKey      = 1 << 2
	mcMTUSel    = 1 << 4
	mcMTU       = 1 << 5
	mcTClass    = 1 << 6
	mcPKey      = 1 << 7
	mcRateSel   = 1 << 8
	mcRate      = 1 << 9
	mcSL        = 1 << 12
	mcFlow      = 1 << 13
	mcHop       = 1 << 14
	mcJoinState = 1 << 16

	selectExactly = 2

	// Join states.
	fullMember = 1
	sendOnly   = 4
)

// Group is a multicast group with the parameters needed to send to it (MCMemberRecord, IBA vol. 1 §15.2.5.17).
type Group struct {
	MGID         GID
	QKey         uint32
	MLID         uint16
	MTU          int // bytes of payload
	TrafficClass uint8
	PKey         uint16
	Rate         uint8
	SL           uint8
	FlowLabel    uint32
	HopLimit     uint8
	Scope        uint8
}

func joinHeader(m Method, tid uint64) header {
	return header{Class: ClassSA, Version: saVersion, Method: m, TID: tid, Attribute: AttrMCMemberRecord}
}

// join returns the request that makes a port a full member of an existing group, as the broadcast group of IPoIB must
// be (RFC 4391 §5).
func join(mgid, port GID, pkey uint16, tid uint64) []byte {
	return membership(Set, Group{MGID: mgid, PKey: pkey}, port, mcMGID|mcPortGID|mcPKey|mcJoinState, fullMember, tid)
}

// joinToSend returns the request that lets a port send to an existing group without receiving from it.
func joinToSend(mgid, port GID, pkey uint16, tid uint64) []byte {
	return membership(Set, Group{MGID: mgid, PKey: pkey}, port, mcMGID|mcPortGID|mcPKey|mcJoinState, sendOnly, tid)
}

// joinOrCreate is like join, but creates the group, with the parameters of like, if it does not exist. like is the
// broadcast group; this is for all other groups of IPoIB (RFC 4391 §4).
func joinOrCreate(mgid, port GID, like Group, tid uint64) []byte {
	like.MGID = mgid
	return membership(Set, like, port, mcMGID|mcPortGID|mcQKey|mcMTUSel|mcMTU|mcTClass|mcPKey|mcRateSel|mcRate|mcSL|
		mcFlow|mcHop|mcJoinState, fullMember, tid)
}

// leave returns the request that ends a full membership.
func leave(mgid, port GID, tid uint64) []byte {
	return membership(Delete, Group{MGID: mgid}, port, mcMGID|mcPortGID|mcJoinState, fullMember, tid)
}

// membership returns an MCMemberRecord request to subnet administration, with the fields that mask selects.
func membership(m Method, g Group, port GID, mask uint64, state uint8, tid uint64) []byte {
	b := saRequest(joinHeader(m, tid), mask)
	d := b[saData:]
	copy(d, g.MGID[:])
	copy(d[16:], port[:])
	binary.BigEndian.PutUint32(d[32:], g.QKey)
	if mask&mcMTU != 0 {
		d[38] = selectExactly<<6 | MTUCode(g.MTU)
		d[42] = selectExactly<<6 | g.Rate&0x3F
	}
	d[39] = g.TrafficClass
	binary.BigEndian.PutUint16(d[40:], g.PKey)
	binary.BigEndian.PutUint32(d[44:], uint32(g.SL)<<28|g.FlowLabel&0xFFFFF<<8|uint32(g.HopLimit))
	d[48] = g.Scope<<4 | state
	return b
}

// parseJoin parses the answer to join or joinOrCreate.
func parseJoin(b []byte, tid uint64) (Group, error) {
	d, err := saAnswer(joinHeader(Set, tid), b)
	if err != nil {
		return Group{}, err
	}
	w := binary.BigEndian.Uint32(d[44:])
	g := Group{
		MGID: GID(d[:16]), QKey: binary.BigEndian.Uint32(d[32:]), MLID: binary.BigEndian.Uint16(d[36:]),
		MTU:          MTU(d[38] & 0x3F),
		TrafficClass: d[39], PKey: binary.BigEndian.Uint16(d[40:]), Rate: d[42] & 0x3F,
		SL: uint8(w >> 28), FlowLabel: w >> 8 & 0xFFFFF, HopLimit: uint8(w), Scope: d[48] >> 4,
	}
	switch {
	case g.MLID < 0xC000 || g.MLID == 0xFFFF:
		return g, fmt.Errorf("%w: the group has LID %#04x, expected a multicast LID", errMAD, g.MLID)
	case g.MTU == 0:
		return g, fmt.Errorf("%w: the group has MTU code %d, expected 1 to 5", errMAD, d[38]&0x3F)
	}
	return g, nil
}

// parseLeave checks the answer to leave.
func parseLeave(b []byte, tid uint64) error {
	_, err := saAnswer(joinHeader(Delete, tid), b)
	return err
}

// Components of a PathRecord.
const (
	pathDGID       = 1 << 2
	pathSGID       = 1 << 3
	pathReversible = 1 << 11
	pathNumber     = 1 << 12
	pathPKey       = 1 << 13
)

// Path holds the parameters needed to reach a port (PathRecord, IBA vol. 1 §15.2.5.16).
type Path struct {
	DGID, SGID GID
	DLID, SLID uint16
	FlowLabel  uint32
	HopLimit   uint8 // above 1: the path leaves the subnet and needs a GRH
	PKey       uint16
	SL         uint8
	MTU        int // bytes of payload
	Rate       uint8
}

func pathHeader(tid uint64) header {
	return header{Class: ClassSA, Version: saVersion, Method: Get, TID: tid, Attribute: AttrPathRecord}
}

// findPath returns the request for one reversible path between two ports of a partition.
func findPath(from, to GID, pkey uint16, tid uint64) []byte {
	b := saRequest(pathHeader(tid), pathDGID|pathSGID|pathReversible|pathNumber|pathPKey)
	d := b[saData:]
	copy(d[8:], to[:])
	copy(d[24:], from[:])
	d[49] = 1<<7 | 1 // reversible; one path
	binary.BigEndian.PutUint16(d[50:], pkey)
	return b
}

// parsePath parses the answer to findPath.
func parsePath(b []byte, tid uint64) (Path, error) {
	d, err := saAnswer(pathHeader(tid), b)
	if err != nil {
		return Path{}, err
	}
	w := binary.BigEndian.Uint32(d[44:])
	p := Path{
		DGID: GID(d[8:24]), SGID: GID(d[24:40]), DLID: binary.BigEndian.Uint16(d[40:]),
		SLID:      binary.BigEndian.Uint16(d[42:]),
		FlowLabel: w >> 8 & 0xFFFFF, HopLimit: uint8(w), PKey: binary.BigEndian.Uint16(d[50:]), SL: d[53] & 15,
		MTU: MTU(d[54] & 0x3F), Rate: d[55] & 0x3F,
	}
	if p.DLID == 0 || p.DLID >= 0xC000 {
		return p, fmt.Errorf("%w: the path leads to LID %#04x, expected 0x0001 to 0xbfff", errMAD, p.DLID)
	}
	return p, nil
}
