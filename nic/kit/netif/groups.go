package netif

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic"
)

// Receive makes the interface receive frames for mac, where that is not its own address, and the neighbour
// solicitations for addresses, while the packet socket fd is open.
func (i *Interface) Receive(fd int, mac [6]byte, addresses []netip.Prefix) error {
	add := func(kind uint16, mac [6]byte) error {
		m := unix.PacketMreq{Ifindex: int32(i.Index), Type: kind, Alen: 6}
		copy(m.Address[:], mac[:])
		if err := unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &m); err != nil {
			return fmt.Errorf("interface %s: receive frames for %x: PACKET_ADD_MEMBERSHIP: %w", i.Name, mac, err)
		}
		return nil
	}
	if mac != [6]byte{} && mac != i.MAC {
		if err := add(unix.PACKET_MR_UNICAST, mac); err != nil {
			return err
		}
	}
	for _, p := range addresses {
		if a := p.Addr(); a.Is6() {
			if err := add(unix.PACKET_MR_MULTICAST, SolicitedNode(a)); err != nil {
				return err
			}
		}
	}
	return nil
}

// SolicitedNode returns the Ethernet address of the IPv6 address's solicited-node group (RFC 4291 §2.7.1, RFC 2464 §7).
func SolicitedNode(a netip.Addr) [6]byte {
	b := a.As16()
	return [6]byte{0x33, 0x33, 0xff, b[13], b[14], b[15]}
}

// Groups returns the multicast groups that a device must receive for the addresses in o: their solicited-node groups,
// or all groups if the addresses are unknown.
func Groups(o nic.Options) (groups [][6]byte, all bool) {
	var addresses []netip.Addr
	switch {
	case o.Match != nil:
		for _, p := range o.Match.Addresses {
			addresses = append(addresses, p.Addr())
		}
	case o.Steer != nil:
		addresses = append(append(addresses, o.Steer.Local), o.Steer.Also...)
	default:
		return nil, true
	}
	for _, a := range addresses {
		if a.Is6() {
			groups = append(groups, SolicitedNode(a))
		}
	}
	return groups, false
}

// PacketSocket opens a packet socket that receives nothing until it is bound to a protocol.
func PacketSocket() (int, error) {
	return unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
}

// NetworkOrder returns v with its bytes as the wire has them.
func NetworkOrder(v uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], v)
	return binary.NativeEndian.Uint16(b[:])
}
