package probe

import (
	"errors"
	"fmt"
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
