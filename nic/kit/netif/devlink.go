package netif

import "github.com/vishvananda/netlink"

// Switchdev reports whether devlink says that the card at a PCI address forwards by rules of the kernel (switchdev
// mode), so that its interfaces are ports of a switch. It is false if devlink does not say: no such device in this
// network namespace, or no CAP_NET_ADMIN.
func Switchdev(address string) bool {
	d, err := netlink.DevLinkGetDeviceByName("pci", address)
	return err == nil && d.Attrs.Eswitch.Mode == "switchdev"
}
