package cards

import (
	"fmt"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/pci"
)

const (
	intel    = 0x8086
	mellanox = 0x15b3

	// kernelWay is the end of every refusal: the kernel driver's interface can be used.
	kernelWay = "leave it to the kernel's driver and set nic.device to its interface, with nic.driver auto, xdp or afxdp"
)

// refused lists functions that look like supported ones: their names, by PCI ID (Linux ixgbe_type.h, mlx4 and mlx5
// main.c), and the reason.
var refused = []struct {
	vendor  uint16
	reason  string
	devices map[uint16]string
}{
	{intel, "driver ixgbe is for the 82599 and X540, and the X550 family has another PHY and reset", map[uint16]string{
		0x1563: "X550-T2", 0x15D1: "X550-T1", 0x15AA: "X552 KX4", 0x15AB: "X552 KR", 0x15AC: "X552 SFP+",
		0x15AD: "X552/X557 10GBASE-T",
		0x15AE: "X552 1000BASE-T", 0x15B0: "X552 XFI", 0x15C2: "X553 KR", 0x15C3: "X553 KR", 0x15C4: "X553 SFP+ (N)",
		0x15C6: "X553 SGMII",
		0x15C7: "X553 SGMII", 0x15C8: "X553/X557 10GBASE-T", 0x15CE: "X553 SFP+", 0x15E4: "X553 1000BASE-T",
		0x15E5: "X553 1000BASE-T"}},
	{intel, "driver ixgbe needs the physical function: a virtual one has other registers, and a mailbox",
		map[uint16]string{
			0x10ED: "82599 virtual function", 0x1515: "X540 virtual function", 0x1565: "X550 virtual function",
			0x15A8: "X552 virtual function",
			0x15C5: "X553 virtual function"}},
	{intel, "driver ixgbe cannot set up its link: it has no driver for the PHY or module", map[uint16]string{
		0x151C: "82599 10GBASE-T", 0x154F: "82599 LS"}},
	{intel, "driver ixgbe is for the 82599 and X540, which have other registers", map[uint16]string{
		0x10B6: "82598", 0x10C6: "82598AF", 0x10C7: "82598AF", 0x10C8: "82598AT", 0x10DB: "82598EB SFP+",
		0x10DD: "82598EB CX4", 0x10E1: "82598 SR",
		0x10EC: "82598 CX4", 0x10F1: "82598 DA", 0x10F4: "82598EB XF LR", 0x1508: "82598 BX", 0x150B: "82598AT2"}},
	{mellanox, "driver mlx4 needs the physical function: a virtual one has a command channel instead of registers",
		map[uint16]string{
			0x1004: "ConnectX-3 virtual function"}},
	{mellanox, "driver mlx4 is for ConnectX-3", map[uint16]string{
		0x1002: "ConnectX-2 virtual function", 0x6340: "ConnectX (MT25408)", 0x634A: "ConnectX (MT25418)",
		0x6368: "ConnectX EN (MT25448)", 0x6372: "ConnectX EN (MT25458)", 0x6732: "ConnectX (MT26418)",
		0x673C: "ConnectX-2 (MT26428)",
		0x6746: "ConnectX-2 (MT26438)", 0x6750: "ConnectX EN (MT26448)", 0x675A: "ConnectX EN (MT26458)",
		0x6764: "ConnectX EN (MT26468)",
		0x676E: "ConnectX EN (MT26478)", 0x6778: "ConnectX-2 (MT26488)"}},
	{mellanox, "driver mlx5 needs Ethernet, and Connect-IB has InfiniBand only", map[uint16]string{
		0x1011: "Connect-IB", 0x1012: "Connect-IB virtual function"}},
	{mellanox, "driver mlx5 was written and tested for ConnectX-4 to ConnectX-7 and BlueField to BlueField-3",
		map[uint16]string{
			0x1023: "ConnectX-8", 0x1025: "ConnectX-9", 0x1027: "ConnectX-10", 0x2101: "ConnectX-10 NVLink-C2C",
			0xA2DF: "BlueField-4"}},
}

// NotSupported returns why no driver here supports a function of a known family, and what to use instead; nil for any
// other function.
func NotSupported(id pci.ID) error {
	for _, r := range refused {
		if name := r.devices[id.Device]; name != "" && id.Vendor == r.vendor {
			return fmt.Errorf("%w: %s (%04x:%04x) is not supported: %s (%s)", nic.ErrNoDevice, name, id.Vendor,
				id.Device, r.reason, kernelWay)
		}
	}
	return nil
}
