package netif

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/check"
)

// A datagram of the kernel is about the interface if one of its messages is: an address of any interface, or this link.
func TestConcerned(t *testing.T) {
	const own = 7
	message := func(size, kind, family, index int) []byte {
		b := make([]byte, 32)
		binary.NativeEndian.PutUint32(b, uint32(size))
		binary.NativeEndian.PutUint16(b[4:], uint16(kind))
		b[16] = byte(family)
		binary.NativeEndian.PutUint32(b[20:], uint32(index))
		return b
	}
	w := &Watch{i: &Interface{Index: own}}
	other := message(32, unix.RTM_NEWLINK, 0, 8)
	for i, c := range []struct {
		b    []byte
		want bool
	}{
		{nil, false}, {other, false}, {message(32, unix.RTM_NEWLINK, 0, own), true}, {message(32, unix.RTM_DELLINK, 0, own), true},
		{message(32, unix.RTM_NEWLINK, unix.AF_BRIDGE, own), true},  // a bridge's port
		{message(32, unix.RTM_DELLINK, unix.AF_BRIDGE, own), false}, // it left the bridge
		{message(31, unix.RTM_NEWLINK, 0, own), false},              // cut short
		{message(15, unix.RTM_NEWADDR, 0, 0)[:16], false}, {message(33, unix.RTM_NEWADDR, 0, 0), false},
		{message(16, unix.RTM_NEWADDR, 0, 0)[:16], true}, {message(32, unix.RTM_DELADDR, 0, 8), true}, {message(32, unix.RTM_NEWROUTE, 0, own), false},
		{slices.Concat(other, message(32, unix.RTM_NEWLINK, 0, own)), true},
		{slices.Concat(message(29, unix.RTM_NEWROUTE, 0, 0), message(32, unix.RTM_NEWLINK, 0, own)), true}, // padded to 32
		{message(32, unix.RTM_NEWADDR, 0, 0)[:15], false},
	} {
		check.Equal(t, w.concerned(c.b), c.want, fmt.Sprintf("datagram %d: %%t", i))
	}
}

// Frames of a card's own driver were on a wire, and those between kernels of one machine were not.
func TestLocal(t *testing.T) {
	for driver, want := range map[string]bool{
		"": true, "veth": true, "netkit": true, "bridge": true, "macvlan": true, "ipvlan": true, "tun": true,
		"virtio_net":   true,
		"xen_netfront": true, "vif": true, "ixgbe": false, "mlx5_core": false, "ena": false, "vmxnet3": false,
		"hv_netvsc": false,
	} {
		if got := (&Interface{Driver: driver}).Local(); got != want {
			t.Errorf("driver %q: local is %v", driver, got)
		}
	}
}
