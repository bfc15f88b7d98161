package probe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Proto is the protocol of a probe.
type Proto uint8

const (
	ICMP  Proto = iota // ICMP or ICMPv6 echo
	UDP                // UDP echo
	STAMP              // STAMP or TWAMP-Light test packets
)

func (p Proto) String() string { return [...]string{"icmp", "udp", "stamp"}[p] }

// IP returns its number in the IP header.
func (p Proto) IP(v6 bool) uint8 {
	switch {
	case p != ICMP:
		return unix.IPPROTO_UDP
	case v6:
		return unix.IPPROTO_ICMPV6
	}
	return unix.IPPROTO_ICMP
}

// ParseProto is the inverse of String.
func ParseProto(s string) (Proto, error) {
	for p := ICMP; p <= STAMP; p++ {
		if p.String() == s {
			return p, nil
		}
	}
	return 0, fmt.Errorf("protocol %q: want icmp, udp or stamp", s)
}

// Layer is the layer at which a transport starts: it determines which headers are ours to build and to check.
type Layer uint8

const (
	Frame    Layer = iota // the whole Ethernet frame
	Message               // an ICMP message: a ping socket
	Datagram              // a UDP payload: a UDP socket
)

// Flow is one stream of probes from Src to Dst and of replies back.
type Flow struct {
	Proto            Proto
	Layer            Layer
	SrcMAC, DstMAC   [6]byte // DstMAC is the next hop's
	Routed           bool    // there is a router in between: replies may come from a MAC other than DstMAC
	Src, Dst         netip.Addr
	SrcPort, DstPort uint16 // UDP and STAMP
	// source ports used in rotation by sequence number, including SrcPort; nil for SrcPort only
	SrcPorts []uint16
	// source ports of other flows from Src: replies to these are not ours
	OtherPorts []uint16
	TOS        uint8  // DSCP and ECN, as in IPv4's TOS or IPv6's traffic class (RFC 2474, RFC 3168)
	TTL        uint8  // or hop limit; 0 is 64
	ID         uint16 // ICMP echo identifier
	Run        uint32 // distinguishes this run's replies from those of other runs
	Size       int    // bytes of the Ethernet frame without FCS
	Test       TestPacket
}

// Sizes in bytes.
const (
	ethernet   = 14
	ipv4       = 20
	ipv6       = 40
	icmp       = 8
	udp        = 8
	marker     = 8  // run and sequence
	stampBase  = 44 // RFC 8762 §4.2.1
	tlvHeader  = 4  // RFC 8972 §4
	shortest   = 60 // an Ethernet frame without FCS
	hopLimit   = 64
	typeIPv4   = 0x0800
	typeIPv6   = 0x86dd
	nextICMP   = 1
	nextUDP    = 17
	nextICMPv6 = 58
)

// errSize means that a frame size is too small for a probe, or exceeds the MTU.
var errSize = errors.New("frame size is out of range")

// HopLimit returns the TTL or hop limit of the probes.
func (f *Flow) HopLimit() uint8 {
	if f.TTL == 0 {
		return hopLimit
	}
	return f.TTL
}

// MinSize returns the smallest frame, in bytes without FCS, that fits a probe.
func MinSize(p Proto, v6 bool) int {
	n := ethernet + ipv4 + udp
	if v6 {
		n = ethernet + ipv6 + udp
	}
	if p == STAMP {
		n += stampBase
	} else {
		n += marker
	}
	return max(n, shortest)
}

// ptpHeader is the header of a PTP message, in bytes (IEEE 1588-2008 §13.3).
const ptpHeader = 34

// LikePTP makes the payload of a UDP flow's probes start like a PTP event message (Sync, version 2), because some cards
// timestamp no other frames. Its first byte has the message's type in the lower half, the second one the version.
func (f *Flow) LikePTP() { f.Run = f.Run&^0x0f0f0000 | 2<<16 }

// MinPTPSize returns the smallest frame of UDP that fits a PTP message's header, in bytes without FCS.
func MinPTPSize(v6 bool) int {
	if v6 {
		return ethernet + ipv6 + udp + ptpHeader
	}
	return ethernet + ipv4 + udp + ptpHeader
}

// CheckSize returns errSize with the limits as text if size is not possible for an interface with this MTU. more is by
// how much a probe is longer than its protocol's minimum.
func CheckSize(p Proto, v6 bool, size, more, mtu int) error {
	low, high := MinSize(p, v6)+more, ethernet+mtu
	if size < low || size > high {
		family := "IPv4"
		if v6 {
			family = "IPv6"
		}
		return fmt.Errorf("%w: %d bytes; probes of %v over %s have %d to %d here (Ethernet frame without FCS, MTU %d)",
			errSize, size, p, family, low, high, mtu)
	}
	return nil
}

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

// sum adds b to a ones'-complement sum in 64 bits (RFC 1071 §2: the word size does not matter with end-around carry).
func sum(s uint64, b []byte) uint64 {
	var carry uint64
	for len(b) >= 8 {
		s, carry = bits.Add64(s, binary.BigEndian.Uint64(b), 0)
		s += carry
		b = b[8:]
	}
	if len(b) > 0 {
		var last [8]byte
		copy(last[:], b)
		s, carry = bits.Add64(s, binary.BigEndian.Uint64(last[:]), 0)
		s += carry
	}
	return s
}

// fold reduces a sum to 16 bits.
func fold(s uint64) uint16 {
	for s>>16 != 0 {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

// pseudo is the sum of the pseudo-header of UDP (RFC 768) or of IPv6 (RFC 8200 §8.1).
func pseudo(src, dst netip.Addr, next uint8, length int) uint64 {
	s := uint64(next) + uint64(length)
	if src.Is4() {
		a, b := src.As4(), dst.As4()
		return sum(sum(s, a[:]), b[:])
	}
	a, b := src.As16(), dst.As16()
	return sum(sum(s, a[:]), b[:])
}
