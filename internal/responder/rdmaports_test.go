package responder

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/vishvananda/netlink"

	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// What drives an interface or a function, or why nothing does.
func TestDrivenBy(t *testing.T) {
	var got []string
	for _, a := range []netlink.LinkAttrs{
		{EncapType: "ether", Flags: net.FlagUp}, {EncapType: "loopback", Flags: net.FlagUp | net.FlagLoopback},
		{EncapType: "infiniband", Flags: net.FlagUp}, {EncapType: "ppp", Flags: net.FlagUp}, {Name: "eth1", EncapType: "ether"},
		{EncapType: "ether", Flags: net.FlagUp, MasterIndex: 3},
		{EncapType: "ether", Flags: net.FlagUp, Xdp: &netlink.LinkXdp{Attached: true, ProgId: 7}},
		{EncapType: "ether", Flags: net.FlagUp, Xdp: &netlink.LinkXdp{ProgId: 7}},
	} {
		got = append(got, drivable(&a))
	}
	for _, f := range []pci.Found{
		{ID: pci.ID{Vendor: 0x8086, Device: 0x10fb}, Driver: "ixgbe", Group: "7"}, {ID: pci.ID{Vendor: 0x8086, Device: 0x10fb}, Group: "7"},
		{ID: pci.ID{Vendor: 0x8086, Device: 0x10fb}, Driver: "vfio-pci", Group: "7"},
		{ID: pci.ID{Vendor: 0x8086, Device: 0x10fb}, Driver: "ixgbe"}, {ID: pci.ID{Vendor: 0x8086, Device: 1}},
		{ID: pci.ID{Vendor: 0x15b3, Device: 0x1013}, Driver: "mlx5_core", Group: "7"},
		{ID: pci.ID{Vendor: 0x15b3, Device: 0x1013}, Driver: "vfio-pci", Group: "7"}, {ID: pci.ID{Vendor: 0x15b3, Device: 0x1013}, Group: "7"},
	} {
		f.Address = "00ff:1f:1f.7"
		got = append(got, mover(f))
	}
	const after = "after `rebound-responder bind 00ff:1f:1f.7`"
	check.Equal(t, strings.Join(got, "\n"), `xdp, afxdp, afpacket
none: loopback
none: IPoIB (mlx4 supports it, bound to the PCI function)
none: not Ethernet (ppp)
none: down (ip link set eth1 up)
none: its frames go to the bridge or bond that it belongs to
afpacket (XDP program 7 is attached, which blocks xdp and afxdp)
xdp, afxdp, afpacket
ixgbe, `+after+`
ixgbe, `+after+`
ixgbe
ixgbe, without an IOMMU (nic.unsafe_no_iommu)
none: no driver for this ID
mlx5, `+after+`; not beside mlx5_core: no RDMA device (modprobe -a mlx5_ib ib_uverbs)
mlx5
mlx5, `+after, "%s")
	check.Contains(t, mover(pci.Found{ID: pci.ID{Vendor: 0x8086, Device: 0x1563}}), "none: no such device: X550-T2")
	var b strings.Builder
	row(&b, "a\tb", dash(""), dash("x"), fmt.Sprint(7))
	check.Equal(t, b.String(), "a\\tb\t-\tx\t7\n", "%q")
}

func TestListPorts(t *testing.T) {
	sys := fstest.MapFS{}
	for name, text := range map[string]string{
		"mlx4_0/ports/1/link_layer": "InfiniBand\n", "mlx4_0/ports/1/state": "4: ACTIVE\n",
		"mlx4_0/ports/1/lid":    "0x2\n",
		"mlx4_0/ports/1/sm_lid": "0x1\n", "mlx4_0/ports/1/rate": "40 Gb/sec (4X QDR)\n",
		"mlx4_0/ports/2/link_layer": "Ethernet\n",
	} {
		sys["class/infiniband/"+name] = &fstest.MapFile{Data: []byte(text)}
	}
	var b strings.Builder
	must.OK(t, listPorts(&b, sys))
	want := "mlx4_0 1\tInfiniBand\t4: ACTIVE\t0x2\t0x1\t40 Gb/sec (4X QDR)\nmlx4_0 2\tEthernet\t-\t-\t-\t-\n"
	if head, rest, _ := strings.Cut(b.String(), "\n"); rest != want || !strings.HasPrefix(head, "RDMA PORT\t") {
		t.Errorf("%s", b.String())
	}
	b.Reset()
	if err := listPorts(&b, fstest.MapFS{}); err != nil || b.Len() > 0 {
		t.Errorf("%q, %v without such devices", b.String(), err)
	}
}
