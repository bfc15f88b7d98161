package netif

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic"
)

// Interface is a snapshot of a network interface. Its methods ask the kernel again; they work from any thread, in the
// network namespace in which Lookup was called.
type Interface struct {
	Name     string
	Index    int
	MAC      [6]byte
	MTU      int    // bytes of layer 3
	Driver   string // name of the kernel driver, "" if unknown
	RxQueues int    // receive queues in use

	XDP     uint32 // identifier of the XDP program that is attached, 0 if none
	XDPHook uint8  // attachment point: XDP_ATTACHED_DRV (1), _SKB (2) and so on of linux/if_link.h

	namespace uint64 // inode number of its network namespace
	nl        *netlink.Handle
	ioctl     int
}

// Lookup returns the interface of that name in the calling thread's network namespace. It returns nic.ErrNoDevice if
// there is none and nic.ErrDown if it is not up. Close releases its resources.
func Lookup(name string) (*Interface, error) {
	nl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		nl.Close()
		return nil, fmt.Errorf("socket for ethtool: %w", err)
	}
	i := &Interface{Name: name, nl: nl, ioctl: fd}
	var ns unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &ns); err == nil {
		i.namespace = ns.Ino
	}
	if err := i.read(); err != nil {
		i.Close()
		return nil, err
	}
	return i, nil
}

// read fills in the interface's addresses, queues, driver and XDP program. An interface that does not exist or is
// down is an error.
func (i *Interface) read() error {
	l, err := i.nl.LinkByName(i.Name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return fmt.Errorf("interface %s: %w in this network namespace", i.Name, nic.ErrNoDevice)
	} else if err != nil {
		return fmt.Errorf("interface %s: %w", i.Name, err)
	}
	a := l.Attrs()
	if a.Flags&net.FlagUp == 0 {
		return fmt.Errorf("interface %s: %w: set it up first (ip link set %s up)", i.Name, nic.ErrDown, i.Name)
	}
	i.Index, i.MTU = a.Index, a.MTU
	copy(i.MAC[:], a.HardwareAddr)
	i.RxQueues = i.countQueues()
	if a.Xdp != nil && a.Xdp.Attached {
		i.XDP, i.XDPHook = a.Xdp.ProgId, uint8(a.Xdp.AttachMode)
	}
	if d, err := unix.IoctlGetEthtoolDrvinfo(i.ioctl, i.Name); err == nil {
		i.Driver = unix.ByteSliceToString(d.Driver[:])
	}
	return nil
}

// NoEthernet returns the error for an interface without an Ethernet address.
func NoEthernet(name string) error {
	return fmt.Errorf("interface %s has no Ethernet address: loopback interfaces and tunnels carry no Ethernet frames (rebound-responder nics lists usable interfaces; "+
		"for tests on lo: nic.driver = \"afpacket\" and nic.mac = \"02:00:00:00:00:01\")", name)
}

// Close releases what Lookup opened.
func (i *Interface) Close() {
	i.nl.Close()
	unix.Close(i.ioctl)
}

// Link returns the state of the port, or nic.ErrGone if the interface no longer exists.
func (i *Interface) Link() (nic.Link, error) {
	l, err := i.nl.LinkByIndex(i.Index)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nic.Link{}, fmt.Errorf("interface %s: %w", i.Name, nic.ErrGone)
	} else if err != nil {
		return nic.Link{}, fmt.Errorf("interface %s: %w", i.Name, err)
	}
	const running = unix.IFF_UP | unix.IFF_RUNNING
	return nic.Link{Up: l.Attrs().RawFlags&running == running, Speed: i.speed()}, nil
}

// Drops returns the kernel's counters of frames that the interface or the kernel dropped, of all traffic since the
// interface was made.
func (i *Interface) Drops() (map[string]uint64, error) {
	l, err := i.nl.LinkByIndex(i.Index)
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", i.Name, err)
	}
	s := l.Attrs().Statistics
	if s == nil {
		return nil, fmt.Errorf("interface %s has no counters", i.Name)
	}
	return map[string]uint64{"interface_rx_dropped": s.RxDropped, "interface_rx_missed_errors": s.RxMissedErrors,
		"interface_rx_fifo_errors": s.RxFifoErrors,
		"interface_rx_over_errors": s.RxOverErrors, "interface_tx_dropped": s.TxDropped,
		"interface_tx_errors": s.TxErrors, "interface_tx_fifo_errors": s.TxFifoErrors}, nil
}

// speed returns Mbit/s, or 0 if the interface does not report it.
func (i *Interface) speed() int {
	var s struct { // struct ethtool_cmd of linux/ethtool.h, up to the fields used here
		cmd, supported, advertising uint32
		speed                       uint16
		_                           [14]byte
		speedHigh                   uint16
		_                           [14]byte
	}
	s.cmd = unix.ETHTOOL_GSET
	if i.ethtool(unsafe.Pointer(&s)) != nil {
		return 0
	}
	v := uint32(s.speedHigh)<<16 | uint32(s.speed)
	if v == ^uint32(0) || v == 0xffff {
		return 0
	}
	return int(v)
}

// channels is struct ethtool_channels.
type channels struct {
	cmd, maxRx, maxTx, maxOther, maxCombined uint32
	rx, tx, other, combined                  uint32
}

func (i *Interface) channels() (c channels, err error) {
	c.cmd = unix.ETHTOOL_GCHANNELS
	err = i.ethtool(unsafe.Pointer(&c))
	return c, err
}

// countQueues returns the number of receive queues in use, or 1 if the interface does not report it.
func (i *Interface) countQueues() int {
	c, err := i.channels()
	if err != nil {
		return 1
	}
	return max(1, int(c.rx+c.combined))
}

// Channels returns the number of channels (a receive and a send queue each) in use, and the maximum; 0 if the interface
// does not report it.
func (i *Interface) Channels() (used, most int) {
	c, err := i.channels()
	if err != nil {
		return 0, 0
	}
	return int(c.combined), int(c.maxCombined)
}

// flag reports whether one of the flags of ETHTOOL_GFLAGS is set.
func (i *Interface) flag(bit int) bool {
	v := struct{ cmd, data uint32 }{cmd: unix.ETHTOOL_GFLAGS}
	return i.ethtool(unsafe.Pointer(&v)) == nil && v.data>>bit&1 != 0
}

// StripsVLAN reports whether the interface takes the VLAN tag out of received frames before an XDP program sees them
// ("rx-vlan-offload" of ethtool -k).
func (i *Interface) StripsVLAN() bool { return i.flag(8) } // ETH_FLAG_RXVLAN

// LRO reports whether the interface puts received segments together (large receive offload).
func (i *Interface) LRO() bool { return i.flag(15) } // ETH_FLAG_LRO

// local are the kernel drivers whose received frames may never have been on a wire: their sender, a kernel or a
// hypervisor's guest on this machine, may leave the UDP checksum to a device that does not exist (linux/skbuff.h,
// CHECKSUM_PARTIAL).
//
//	veth, netkit            another network namespace, a container
//	bridge, macvlan, ipvlan whatever local interface is below or beside it
//	tun                     a process: a virtual machine, a tunnel
//	virtio_net              another guest of the host (VIRTIO_NET_HDR_F_NEEDS_CSUM)
//	xen_netfront, vif       another domain, seen from the guest and from the host (XEN_NETRXF_csum_blank)
//	"" (reports none)       not a card's driver, because all of those report a name; it may be any of the above
var local = []string{"veth", "netkit", "bridge", "macvlan", "ipvlan", "tun", "virtio_net", "xen_netfront", "vif", ""}

// Local reports whether frames can come from a kernel on this machine, with checksums that were left to a device.
func (i *Interface) Local() bool { return slices.Contains(local, i.Driver) }

// BusyPolls reports whether the administrator deferred the interface's interrupts, so that an application's busy
// polling takes their place (Documentation/networking/napi.rst).
func (i *Interface) BusyPolls() bool {
	for _, f := range []string{"napi_defer_hard_irqs", "gro_flush_timeout"} {
		b, err := os.ReadFile("/sys/class/net/" + i.Name + "/" + f)
		if err != nil || strings.TrimSpace(string(b)) == "0" {
			return false
		}
	}
	return true
}

func (i *Interface) ethtool(p unsafe.Pointer) error {
	return ioctl(i.ioctl, unix.SIOCETHTOOL, i.Name, p)
}

// ioctl makes an interface request whose argument is a pointer (SIOCETHTOOL, SIOCSHWTSTAMP) on a socket.
func ioctl(fd int, request uintptr, name string, p unsafe.Pointer) error {
	var ifr struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	copy(ifr.name[:unix.IFNAMSIZ-1], name)
	ifr.data = p
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(&ifr))); e != 0 {
		return e
	}
	return nil
}

// Owner returns the name of the interface on which the kernel owns address, or "" if there is none. Linux answers for
// an address on any interface on which a request for it arrives.
func (i *Interface) Owner(address netip.Addr) (string, error) { return owner(i.nl, address) }

// Owner is Interface.Owner in the network namespace of the calling thread.
func Owner(address netip.Addr) (string, error) { return owner(&netlink.Handle{}, address) }

func owner(nl *netlink.Handle, address netip.Addr) (string, error) {
	addrs, err := nl.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return "", fmt.Errorf("addresses of the kernel: %w", err)
	}
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP); ok && ip.Unmap() == address.Unmap() {
			l, err := nl.LinkByIndex(a.LinkIndex)
			if err != nil {
				return fmt.Sprint("interface ", a.LinkIndex), nil
			}
			return l.Attrs().Name, nil
		}
	}
	return "", nil
}
