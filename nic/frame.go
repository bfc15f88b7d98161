package nic

import "fmt"

// CheckFrame returns ErrFrameSize, with the sizes, for a frame that is shorter than an Ethernet header or whose packet
// is longer than mtu. Up to two VLAN tags (802.1Q, 802.1ad) do not count towards the MTU.
func CheckFrame(frame []byte, mtu int) error {
	header := 14
	for range 2 {
		if len(frame) < header {
			break
		}
		if t := uint16(frame[header-2])<<8 | uint16(frame[header-1]); t != 0x8100 && t != 0x88A8 {
			break
		}
		header += 4
	}
	if len(frame) < 14 || len(frame) > header+mtu {
		return fmt.Errorf("%w: %d bytes, the MTU of %d allows %d to %d", ErrFrameSize, len(frame), mtu, 14, header+mtu)
	}
	return nil
}
