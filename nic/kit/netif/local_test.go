package netif

import "testing"

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
