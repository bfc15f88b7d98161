package ib

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
)

// IP over InfiniBand in datagram mode (RFC 4391): a four-byte header in front of each packet gives its type. The
// hardware address of an interface is 20 bytes: a byte of flags, its queue pair number, and the GID of its port.

const (
	EncapSize   = 4
	AddressSize = 20

	EtherTypeIPv4 = 0x0800
	EtherTypeARP  = 0x0806
	EtherTypeIPv6 = 0x86DD
)

// errIPoIB reports bytes that are not a packet, or not the expected one.
var errIPoIB = errors.New("IPoIB")

// MTUOf returns the length of the longest IP packet that fits into payload bytes.
func MTUOf(payload int) int { return payload - EncapSize }

// Encapsulate writes the header for a packet with this EtherType.
func Encapsulate(b []byte, etherType uint16) {
	binary.BigEndian.PutUint16(b, etherType)
	binary.BigEndian.PutUint16(b[2:], 0)
}

// Address is the hardware address of an IPoIB interface. The flags in its first byte are for connected mode: we set
// none and ignore those of others.
type Address [AddressSize]byte

// NewAddress returns the address of a queue pair on a port.
func NewAddress(qpn uint32, gid GID) (a Address) {
	binary.BigEndian.PutUint32(a[:], qpn&0xFFFFFF)
	copy(a[4:], gid[:])
	return a
}

func (a Address) QPN() uint32 { return binary.BigEndian.Uint32(a[:]) & 0xFFFFFF }
func (a Address) GID() GID    { return GID(a[4:]) }

// IPoIB groups (RFC 4391 §4): 0xff, flags and scope, a signature for IPv4 or IPv6, the partition key with its
// membership bit set, and the low bits of the IP group.
const (
	signature4 = 0x401B
	signature6 = 0x601B

	ScopeLink = 2
)

func group(scope uint8, signature, pkey uint16) (g GID) {
	g[0], g[1] = 0xFF, 0x10|scope&15
	binary.BigEndian.PutUint16(g[2:], signature)
	binary.BigEndian.PutUint16(g[4:], pkey|0x8000)
	return g
}

// BroadcastGroup returns the group that every interface of a partition joins.
func BroadcastGroup(scope uint8, pkey uint16) GID {
	g := group(scope, signature4, pkey)
	binary.BigEndian.PutUint32(g[12:], 0xFFFFFFFF)
	return g
}

// MulticastGroup returns the group for an IP multicast address.
func MulticastGroup(scope uint8, pkey uint16, a netip.Addr) (GID, error) {
	switch {
	case !a.IsMulticast():
		return GID{}, fmt.Errorf("%w: %v is not a multicast address", errIPoIB, a)
	case a.Is4() || a.Is4In6():
		g, b := group(scope, signature4, pkey), a.As4()
		binary.BigEndian.PutUint32(g[12:], binary.BigEndian.Uint32(b[:])&0x0FFFFFFF)
		return g, nil
	}
	g, b := group(scope, signature6, pkey), a.As16()
	copy(g[6:], b[6:])
	return g, nil
}
