package fastpath

import "encoding/binary"

// Loads are little-endian on every machine. A ones' complement sum of byte-swapped words is the byte-swapped sum (RFC
// 1071 §2 B), so sums need no swapping.
var le, be = binary.LittleEndian, binary.BigEndian

// setHops4 sets the TTL and updates the header checksum (RFC 1624 eqn. 3).
func setHops4(h *[64]byte, ttl uint8) {
	s := uint32(^le.Uint16(h[24:])) + 0xffff - uint32(h[22]) + uint32(ttl)
	s = s&0xffff + s>>16
	h[22] = ttl
	le.PutUint16(h[24:], ^uint16(s+s>>16)) // the first fold can carry again
}

// Message reports whether a message is to be sent back: it is not a reply of a responder, and its sender is within its
// rate, to which the reply is charged. A sender is a number that the driver derives from the device's information; its
// lowest bits should differ most. imm is the message's immediate data, 0 if there is none. A message that Message turns
// down goes to Unsettled.
func (r *Responder) Message(sender uint64, imm uint32) bool {
	return imm != ReplyMark && r.limit.allowAtHome(r.Loop.Start, sender*messageHash)
}

// Returned counts a message that is sent back.
func (r *Responder) Returned() { r.stats[AnsweredMessage].Add(1) }
