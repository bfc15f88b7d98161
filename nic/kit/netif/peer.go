package netif

import (
	"fmt"
	"math"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// attachedByDriver is XDP_ATTACHED_DRV of linux/if_link.h.
const attachedByDriver = 1

// PeerReceivesXDP reports whether the other end of a veth pair receives what an XDP program on this one sends: its
// driver must run a program itself, otherwise the kernel drops the frames. It queries the network namespace of the
// other end, for which the process must have rights there too; otherwise the error says so.
func (i *Interface) PeerReceivesXDP() (bool, error) {
	l, err := i.nl.LinkByIndex(i.Index)
	if err != nil {
		return false, fmt.Errorf("interface %s: %w", i.Name, err)
	}
	a := l.Attrs()
	if a.ParentIndex == 0 {
		return false, fmt.Errorf("interface %s: its peer is unknown", i.Name)
	}
	r := nl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
	m := nl.NewIfInfomsg(unix.AF_UNSPEC)
	m.Index = int32(a.ParentIndex)
	r.AddData(m)
	if a.NetNsID >= 0 && a.NetNsID <= math.MaxInt32 { // else it is in this namespace, or in one without a number
		r.AddData(nl.NewRtAttr(unix.IFLA_TARGET_NETNSID, nl.Uint32Attr(uint32(a.NetNsID))))
	}
	answers, err := r.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err != nil {
		return false, fmt.Errorf("interface %s: query its peer: %w", i.Name, err)
	}
	for _, b := range answers {
		peer, err := netlink.LinkDeserialize(nil, b)
		if err != nil {
			return false, fmt.Errorf("interface %s: its peer: %w", i.Name, err)
		}
		x := peer.Attrs().Xdp
		return x != nil && x.Attached && x.AttachMode == attachedByDriver, nil
	}
	return false, fmt.Errorf("interface %s: query its peer: no answer", i.Name)
}
