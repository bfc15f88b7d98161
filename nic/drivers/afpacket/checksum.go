package afpacket

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/cksum"
)

// complete completes the checksum of a UDP datagram whose sender left it to the device (TP_STATUS_CSUMNOTREADY): the
// datagram is from a kernel on this machine, over veth or a bridge, and was never on a wire. The checksum field
// contains the pseudo-header's sum (linux/skbuff.h, CHECKSUM_PARTIAL), so the sum over the datagram as it is gives the
// checksum. frame may have VLAN tags. Other frames are not changed.
//
//go:noinline
func complete(frame []byte) {
	l3, protocol := 14, 0
	for l3+28 <= len(frame) {
		l4 := 0
		switch binary.BigEndian.Uint16(frame[l3-2:]) {
		case unix.ETH_P_8021Q, unix.ETH_P_8021AD:
			l3 += tagSize
			continue
		case unix.ETH_P_IP:
			if binary.BigEndian.Uint16(frame[l3+6:])&0x3fff != 0 {
				return // a fragment
			}
			l4, protocol = l3+4*int(frame[l3]&0xf), int(frame[l3+9])
		case unix.ETH_P_IPV6:
			l4, protocol = l3+40, int(frame[l3+6])
		}
		if protocol != unix.IPPROTO_UDP || l4 < l3+20 || l4+8 > len(frame) {
			return
		}
		n := int(binary.BigEndian.Uint16(frame[l4+4:]))
		if n < 8 || l4+n > len(frame) {
			return
		}
		binary.BigEndian.PutUint16(frame[l4+6:], cksum.UDP(^cksum.Sum(frame[l4:l4+n], 0)))
		return
	}
}
