package netif

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/cksum"
	"github.com/rebound-nic/rebound/fastpath"
)

// Announce tells the neighbours of the addresses in c that they have this MAC now, through the packet socket fd: a
// gratuitous ARP request for each IPv4 address (RFC 5227 §2.3) and an unsolicited neighbour advertisement for each IPv6
// address (RFC 4861 §7.2.6), in each VLAN that c lists. A frame that cannot be sent is left out: the neighbours then
// learn the MAC when they ask.
func (i *Interface) Announce(fd int, mac [6]byte, c *fastpath.Config) {
	vlans := c.VLANs
	if vlans == nil {
		vlans = []uint16{0}
	}
	to := unix.SockaddrLinklayer{Ifindex: i.Index, Protocol: NetworkOrder(unix.ETH_P_ALL)}
	for _, p := range c.Addresses {
		frame := announcement(mac, p.Addr())
		for _, id := range vlans {
			f := frame
			if id != 0 {
				f = slices.Concat(frame[:12], []byte{0x81, 0, byte(id >> 8), byte(id)}, frame[12:])
			}
			unix.Sendto(fd, f, unix.MSG_DONTWAIT, &to)
		}
	}
}

// announcement is the frame for one address.
func announcement(mac [6]byte, a netip.Addr) []byte {
	if a.Is4() {
		b := a.AsSlice()
		return slices.Concat([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, mac[:], []byte{8, 6, 0, 1, 8, 0, 6, 4, 0, 1},
			mac[:], b, make([]byte, 6), b, make([]byte, 18))
	}
	hosts := slices.Concat(a.AsSlice(), []byte{0xff, 2, 15: 1})
	m := slices.Concat([]byte{136, 0, 0, 0, 0x20, 0, 0, 0}, a.AsSlice(), []byte{2, 1}, mac[:]) // flag: override
	binary.BigEndian.PutUint16(m[2:], ^cksum.Sum(m, cksum.Sum(
		slices.Concat(hosts, []byte{0, 0, 0, byte(len(m)), 0, 0, 0, 58}), 0)))
	return slices.Concat([]byte{0x33, 0x33, 0, 0, 0, 1}, mac[:],
		[]byte{0x86, 0xdd, 0x60, 0, 0, 0, 0, byte(len(m)), 58, 255}, hosts, m)
}
