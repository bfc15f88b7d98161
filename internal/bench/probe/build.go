package probe

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

var be = binary.BigEndian

// Codec builds one flow's probes and checks its replies. It allocates nothing after New. One goroutine uses it.
type Codec struct {
	flow           Flow
	v6             bool
	next           uint8 // IP protocol number
	l4, body, skip int   // offsets in the whole frame; skip is where the transport's part starts
	frame          []byte
	src, dst       [16]byte // addresses as in the header; IPv4 uses the first four bytes
	addr           int      // length of an address
	srcAt, dstAt   int      // offsets of the addresses
	fixed          uint64   // sum of the pseudo-header, the same for request and reply; 0 for ICMPv4
	want           []byte   // payload of the reply being checked
	errorEstimate  uint16
	test           *test    // STAMP
	answered       []Answer // memory for Stamped.Answers
	ports, others  portSet  // the source ports, and those of other flows
}

// New returns a Codec for f. The errors are about Size (errSize) and about addresses of different families.
func New(f Flow) (*Codec, error) {
	if f.Src.Is4() != f.Dst.Is4() || !f.Src.IsValid() || !f.Dst.IsValid() {
		return nil, fmt.Errorf("probe from %v to %v: not two addresses of one family", f.Src, f.Dst)
	}
	c := &Codec{flow: f, v6: f.Src.Is6()}
	low := MinSize(f.Proto, c.v6)
	if f.Proto == STAMP {
		if f.Test.Authenticated && len(f.Test.Key) == 0 || f.Test.signs() && len(f.Test.Key) == 0 {
			return nil, fmt.Errorf("probe to %v: HMACs need a key", f.Dst)
		}
		low += f.Test.Extra()
		c.test = newTest(f.Test)
		c.answered = make([]Answer, 0, len(c.test.ask))
	}
	if f.Size < low || f.Size > 0xffff {
		return nil, fmt.Errorf("%w: %d bytes, at least %d", errSize, f.Size, low)
	}
	if more := f.Size - low; f.Proto == STAMP && f.Test.Extra() > 0 && more > 0 && more < tlvHeader {
		return nil, fmt.Errorf("%w: %d bytes leave %d for a padding TLV, which needs at least %d: use %d, or %d or more", errSize, f.Size, more, tlvHeader, low, low+tlvHeader)
	}
	c.addr, c.srcAt, c.dstAt, c.l4 = 4, ethernet+12, ethernet+16, ethernet+ipv4
	copy(c.src[:], f.Src.AsSlice())
	copy(c.dst[:], f.Dst.AsSlice())
	if c.v6 {
		c.addr, c.srcAt, c.dstAt, c.l4 = 16, ethernet+8, ethernet+24, ethernet+ipv6
	}
	c.body = c.l4 + udp // ICMP's header is as long
	c.next = nextUDP
	if f.Proto == ICMP {
		c.next = nextICMP
		if c.v6 {
			c.next = nextICMPv6
		}
	}
	switch f.Layer {
	case Message:
		c.skip = c.l4
	case Datagram:
		c.skip = c.body
	}
	if c.next != nextICMP {
		c.fixed = pseudo(f.Src, f.Dst, c.next, f.Size-c.l4)
	}
	c.frame = make([]byte, f.Size)
	c.want = make([]byte, f.Size-c.body)
	c.ports.add(append(f.SrcPorts, f.SrcPort))
	c.others.add(f.OtherPorts)
	c.headers()
	return c, nil
}

// portSet has a bit for each port.
type portSet [1 << 16 / 64]uint64

func (s *portSet) add(ports []uint16) {
	for _, p := range ports {
		s[p/64] |= 1 << (p % 64)
	}
}

func (s *portSet) has(p uint16) bool { return s[p/64]&(1<<(p%64)) != 0 }

// Flow returns the flow that the Codec was created for.
func (c *Codec) Flow() Flow { return c.flow }

// SetErrorEstimate sets the sender's error estimate of STAMP probes (RFC 4656 §4.1.2); 0 means no estimate.
func (c *Codec) SetErrorEstimate(e uint16) { c.errorEstimate = e }

// SetNextHop changes the MAC address that frames are sent to, and that replies are expected from.
func (c *Codec) SetNextHop(mac [6]byte) {
	c.flow.DstMAC = mac
	copy(c.frame, mac[:])
}

// headers writes the part that is the same in every probe.
func (c *Codec) headers() {
	b, f := c.frame, &c.flow
	copy(b[0:], f.DstMAC[:])
	copy(b[6:], f.SrcMAC[:])
	if c.v6 {
		be.PutUint16(b[12:], typeIPv6)
		b[14], b[15] = 6<<4|f.TOS>>4, f.TOS<<4
		be.PutUint16(b[18:], uint16(f.Size-c.l4))
		b[20] = c.next
		b[21] = f.HopLimit()
	} else {
		be.PutUint16(b[12:], typeIPv4)
		b[14], b[15] = 4<<4|ipv4/4, f.TOS
		be.PutUint16(b[16:], uint16(f.Size-ethernet))
		b[20] = 0x40 // DF: a fragmented probe would measure something else
		b[22] = f.HopLimit()
		b[23] = c.next
	}
	copy(b[c.srcAt:], c.src[:c.addr])
	copy(b[c.dstAt:], c.dst[:c.addr])
	if !c.v6 {
		be.PutUint16(b[24:], ^fold(sum(0, b[ethernet:ethernet+ipv4])))
	}
	l4 := b[c.l4:]
	switch c.next {
	case nextICMP:
		l4[0] = 8
	case nextICMPv6:
		l4[0] = 128
	default:
		be.PutUint16(l4[0:], f.SrcPort)
		be.PutUint16(l4[2:], f.DstPort)
		be.PutUint16(l4[4:], uint16(len(l4)))
		return
	}
	be.PutUint16(l4[4:], f.ID)
}

// Build returns the probe with this sequence number, valid until the next Build. t1 is the transmit timestamp for
// STAMP, in NTP format (seconds since 1900 in 32.32 bits); the other protocols do not carry it.
func (c *Codec) Build(seq uint32, t1 uint64) []byte {
	l4, at := c.frame[c.l4:], 6
	if c.flow.Proto == ICMP {
		be.PutUint16(l4[6:], uint16(seq))
		at = 2
	} else {
		be.PutUint16(l4[0:], c.srcPort(seq))
	}
	body := c.frame[c.body:]
	if c.flow.Proto == STAMP {
		c.stamp(body, seq, t1)
	} else {
		c.payload(body, seq)
	}
	l4[at], l4[at+1] = 0, 0
	check := ^fold(sum(c.fixed, l4))
	if check == 0 && c.flow.Proto != ICMP {
		check = 0xffff // RFC 768: zero means no checksum
	}
	be.PutUint16(l4[at:], check)
	return c.frame[c.skip:]
}

// srcPort returns the port that a probe is sent from.
func (c *Codec) srcPort(seq uint32) uint16 {
	if n := uint32(len(c.flow.SrcPorts)); n > 0 {
		return c.flow.SrcPorts[seq%n]
	}
	return c.flow.SrcPort
}

// payload writes run, sequence and pattern.
func (c *Codec) payload(b []byte, seq uint32) {
	be.PutUint32(b[0:], c.flow.Run)
	be.PutUint32(b[4:], seq)
	fill(b[marker:], c.flow.Run, seq)
}

// fill writes a pattern that is different in every probe and in every eight bytes of it.
func fill(b []byte, run, seq uint32) {
	x := (uint64(run)<<32 | uint64(seq)) * 0x9e3779b97f4a7c15
	for len(b) >= 8 {
		x = bits.RotateLeft64(x, 29)*5 + 0xe6546b64
		binary.LittleEndian.PutUint64(b, x)
		b = b[8:]
	}
	x = bits.RotateLeft64(x, 29)*5 + 0xe6546b64
	for i := range b {
		b[i] = byte(x >> (8 * i))
	}
}
