package responder

import (
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/cards"
	"github.com/rebound-nic/rebound/latency/sanitize"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/bus/verbs"
)

// nicsCommand lists the interfaces of this network namespace and the network functions on the PCI bus, each with what
// would drive it or why nothing does, and the kernels that each driver needs.
func nicsCommand(args []string, stdout, _ io.Writer) error {
	if len(args) > 0 {
		return usageError(fmt.Sprintf("unexpected argument %q", args[0]))
	}
	w := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	if err := listInterfaces(w); err != nil {
		return err
	}
	w.Flush() // the second table has its own columns
	if err := listFunctions(w); err != nil {
		return err
	}
	w.Flush()
	if err := listPorts(w, os.DirFS("/sys")); err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return err
	}
	fmt.Fprintln(stdout)
	return cards.ListKernels(stdout, sanitize.Text(unix.ByteSliceToString(u.Release[:])))
}

func listInterfaces(w io.Writer) error {
	links, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("interfaces: %w", err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket for ethtool: %w", err)
	}
	defer unix.Close(fd)
	fmt.Fprintln(w, "INTERFACE\tKERNEL DRIVER\tLINK\tMTU\tMAC\tDRIVEN BY")
	for _, l := range links {
		a := l.Attrs()
		driver := "-"
		if d, err := unix.IoctlGetEthtoolDrvinfo(fd, a.Name); err == nil {
			driver = unix.ByteSliceToString(d.Driver[:])
		}
		state := "down"
		if a.RawFlags&unix.IFF_RUNNING != 0 {
			state = "up"
		}
		row(w, a.Name, driver, state, strconv.Itoa(a.MTU), a.HardwareAddr.String(), drivable(a))
	}
	return nil
}

// drivable names the drivers for an interface, or the reason if there is none.
func drivable(a *netlink.LinkAttrs) string {
	switch {
	case a.Flags&net.FlagLoopback != 0:
		return "none: loopback"
	case a.EncapType == "infiniband":
		return "none: IPoIB (mlx4 supports it, bound to the PCI function)"
	case a.EncapType != "ether":
		return "none: not Ethernet (" + a.EncapType + ")"
	case a.Flags&net.FlagUp == 0:
		return "none: down (ip link set " + a.Name + " up)"
	case a.MasterIndex != 0:
		return "none: its frames go to the bridge or bond that it belongs to"
	case a.Xdp != nil && a.Xdp.Attached:
		return fmt.Sprintf("afpacket (XDP program %d is attached, which blocks xdp and afxdp)", a.Xdp.ProgId)
	}
	return "xdp, afxdp, afpacket"
}

// listFunctions lists the functions of PCI class 02h, network controllers.
func listFunctions(w io.Writer) error {
	found, err := pci.List()
	if err != nil || len(found) == 0 {
		return err
	}
	fmt.Fprintln(w, "PCI FUNCTION\tID\tKERNEL DRIVER\tINTERFACE\tIOMMU GROUP\tDRIVEN BY")
	for _, f := range found {
		row(w, f.Address, f.ID.String(), dash(f.Driver), dash(join(f.Interfaces)), dash(f.Group), mover(f))
	}
	return nil
}

// mover names the driver for a function, and what must be done before it can use it.
func mover(f pci.Found) string {
	driver := cards.DriverFor(f.ID)
	bind := "`rebound-responder bind " + f.Address + "`"
	if cards.SharesDevices(driver) && f.Driver != "" && f.Driver != "vfio-pci" {
		how := ""
		rdma, err := verbs.Find(f.Address)
		if err == nil {
			_, how, err = cards.BesideKernel(f.Address)
		} else {
			err = fmt.Errorf("no RDMA device (%s)", cards.Modprobe(driver))
		}
		if err != nil {
			return fmt.Sprintf("%s, after %s; not beside %s: %v", driver, bind, f.Driver, err)
		}
		if how != "" {
			how = " " + how
		}
		return fmt.Sprintf("%s, beside %s as %s%s; or after %s", driver, f.Driver, rdma.Name, how, bind)
	}
	switch {
	case driver == "" && cards.NotSupported(f.ID) != nil:
		return "none: " + cards.NotSupported(f.ID).Error()
	case driver == "":
		return "none: no driver for this ID"
	case f.Driver == "vfio-pci":
		return driver
	case f.Group == "":
		return driver + ", without an IOMMU (nic.unsafe_no_iommu)"
	}
	return driver + ", after " + bind
}

// row writes a line of a table. Names from the kernel and sysfs are sanitized, because their bytes could be commands to
// the tabwriter.
func row(w io.Writer, columns ...string) {
	for i := range columns {
		columns[i] = sanitize.Text(columns[i])
	}
	fmt.Fprintln(w, strings.Join(columns, "\t"))
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
