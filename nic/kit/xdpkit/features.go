package xdpkit

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic/kit/netif"
)

// Features are the features that an interface's driver announces in the netdev family of generic netlink
// (Documentation/netlink/specs/netdev.yaml; Linux 6.3 and later). Without an answer nothing is known.
type Features struct {
	Known    bool
	XDP      uint64 // Basic and its neighbours
	Metadata uint64 // Timestamp and its neighbours
}

// Bits of Features.XDP (enum netdev_xdp_act).
const (
	Basic    = 1 << 0 // the driver runs programs
	Redirect = 1 << 1
	Transmit = 1 << 2 // it transmits frames that other interfaces redirect to it
	ZeroCopy = 1 << 3 // AF_XDP sockets share memory with it
	Offload  = 1 << 4 // the card runs programs
	Frags    = 1 << 5 // it hands over frames that are in several buffers
)

// Bits of Features.Metadata (enum netdev_xdp_rx_metadata).
const (
	Timestamp = 1 << 0
	VLANTag   = 1 << 2
)

const (
	devGet, version                                 = 1, 1 // NETDEV_CMD_DEV_GET, NETDEV_FAMILY_VERSION
	attributeIfindex, attributeXDP, attributeRxMeta = 1, 3, 5
)

// genericHeader is struct genlmsghdr: command, version, and two bytes that this family requires to be zero. (netlink's
// own Genlmsg leaves them undefined.)
type genericHeader [4]byte

func (h genericHeader) Len() int          { return len(h) }
func (h genericHeader) Serialize() []byte { return h[:] }

// AskFeatures requests the interface's features, in the calling thread's network namespace.
func AskFeatures(ifindex int) (f Features) {
	family, err := netlink.GenlFamilyGet("netdev")
	if err != nil {
		return f
	}
	r := nl.NewNetlinkRequest(int(family.ID), 0)
	r.AddData(genericHeader{devGet, version})
	r.AddData(nl.NewRtAttr(attributeIfindex, nl.Uint32Attr(uint32(ifindex))))
	answers, err := r.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil {
		return f
	}
	for _, a := range answers {
		if len(a) < len(genericHeader{}) {
			continue
		}
		attributes, err := nl.ParseRouteAttr(a[len(genericHeader{}):])
		if err != nil {
			continue
		}
		f.Known = true
		for _, at := range attributes {
			if len(at.Value) < 8 {
				continue
			}
			switch v := binary.NativeEndian.Uint64(at.Value); at.Attr.Type & nl.NLA_TYPE_MASK {
			case attributeXDP:
				f.XDP = v
			case attributeRxMeta:
				f.Metadata = v
			}
		}
	}
	return f
}

// Has reports whether the driver announces all of the bits.
func (f Features) Has(bits uint64) bool { return f.Known && f.XDP&bits == bits }

// Tells reports whether a program may request the metadata in bits from the driver.
func (f Features) Tells(bits uint64) bool { return f.Known && f.Metadata&bits == bits }

// String lists the features in the words of the kernel's specification.
func (f Features) String() string {
	if !f.Known {
		return "unknown"
	}
	var s []string
	for i, name := range []string{"basic", "redirect", "ndo-xmit", "xsk-zerocopy", "hw-offload", "rx-sg",
		"ndo-xmit-sg"} {
		if f.XDP>>i&1 != 0 {
			s = append(s, name)
		}
	}
	for i, name := range []string{"timestamp", "hash", "vlan-tag"} {
		if f.Metadata>>i&1 != 0 {
			s = append(s, "rx-"+name)
		}
	}
	if s == nil {
		return "none"
	}
	return strings.Join(s, " ")
}

// Missing returns the common reason why an interface's driver rejects a program, if it applies here, with the command
// that fixes it; otherwise "".
func (f Features) Missing(i *netif.Interface) string {
	var s []string
	if f.Known && f.XDP&Basic == 0 && len(s) == 0 {
		s = append(s, fmt.Sprintf("driver %s reports that it does not support XDP in its current configuration",
			i.Driver))
	}
	if used, most := i.Channels(); most > 0 && used > most/2 {
		switch i.Driver {
		case "ena", "virtio_net", "mlx4_en": // its own send queue for each channel, or for each CPU
			s = append(s, fmt.Sprintf(
				"%s needs send queues for XDP, and %d of its %d channels are in use (ethtool -L %s combined %d)",
				i.Driver, used, most, i.Name, max(1, most/2)))
		}
	}
	if i.LRO() {
		s = append(s, fmt.Sprintf("large receive offload is on (ethtool -K %s lro off)", i.Name))
	}
	if i.MTU > 1500 && f.Known && f.XDP&Frags == 0 {
		s = append(s, fmt.Sprintf(
			"MTU %d may exceed one receive buffer of %s, which passes only one to XDP (ip link set %s mtu 1500)", i.MTU,
			i.Driver, i.Name))
	}
	return strings.Join(s, "; ")
}
