package afxdp

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/kit/xdpkit"
)

//go:generate go tool bpf2go -go-package afxdp -target bpfel -cflags "-O2 -Wall -Werror -mcpu=v3" pick pick.c

// compiler is the version of clang that made the committed object.
const compiler = "14.0.6"

// filter contains the constants of the program: what it selects.
type filter struct {
	mac            [6]byte
	own4           []uint32
	own6           [][2]uint64
	taken          pickTaken
	ports, echoIDs [1 << 16 / 64]uint64
}

// newFilter returns the filter for the options.
func newFilter(o *nic.Options, mac [6]byte) (f filter, err error) {
	f.mac = mac
	switch {
	case o.Match != nil && o.Steer != nil:
		return f, errors.New("both Match and Steer are set: want one of them at most")
	case o.Match != nil:
		c := o.Match
		for _, p := range c.Addresses {
			f.own(p.Addr().Unmap().AsSlice())
		}
		open := bit(c.Mode == fastpath.Open)
		f.taken.AnyMac, f.taken.AnyAddress, f.taken.Requests, f.taken.Neighbours = open, open, 1, 1
		add(&f.ports, c.Ports())
	case o.Steer != nil:
		s := o.Steer
		local, remote := s.Local.Unmap(), s.Remote.Unmap()
		if anyone := !remote.IsValid(); !anyone && (local.BitLen() != remote.BitLen() || len(s.Also) > 0) || anyone &&
			!local.IsValid() {
			return f, fmt.Errorf("steer %v to %v: want two addresses of one family", s.Remote, s.Local)
		}
		if len(s.UDPPorts)+len(s.EchoIDs) == 0 && !s.Neighbours {
			return f, errors.New("nothing to take: Steer has no echo identifier, no port and no neighbours")
		}
		f.own(local.AsSlice())
		for _, a := range s.Also {
			f.own(a.Unmap().AsSlice())
		}
		switch b := remote.AsSlice(); len(b) {
		case 4:
			f.taken.Remote, f.taken.RemoteLo = 4, uint64(binary.LittleEndian.Uint32(b))
		case 16:
			f.taken.Remote, f.taken.RemoteHi, f.taken.RemoteLo = 6, binary.LittleEndian.Uint64(b),
				binary.LittleEndian.Uint64(b[8:])
		}
		f.taken.Replies = bit(len(s.EchoIDs) > 0)
		f.taken.Neighbours, f.taken.NeighbourReplies = bit(s.Neighbours), bit(s.Neighbours)
		add(&f.ports, s.UDPPorts)
		add(&f.echoIDs, s.EchoIDs)
	default:
		f.taken.All = 1
	}
	if f.taken.All == 0 && f.taken.AnyAddress == 0 && len(f.own4)+len(f.own6) == 0 {
		return f, errors.New("nothing to take: Match or Steer has no address")
	}
	if n := max(len(f.own4), len(f.own6)); n > fastpath.MaxAddresses {
		return f, fmt.Errorf("%d addresses of one IP version: the XDP program takes %d at most", n,
			fastpath.MaxAddresses)
	}
	return f, nil
}

// own adds one of our addresses.
func (f *filter) own(a []byte) {
	if len(a) == 4 {
		f.own4 = append(f.own4, binary.LittleEndian.Uint32(a))
	} else {
		f.own6 = append(f.own6, [2]uint64{binary.LittleEndian.Uint64(a), binary.LittleEndian.Uint64(a[8:])})
	}
}

// add adds ports or identifiers to a set, as a little-endian machine loads them.
func add(set *[1 << 16 / 64]uint64, ports []uint16) {
	for _, p := range ports {
		p = p<<8 | p>>8
		set[p>>6] |= 1 << (p & 63)
	}
}

func bit(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

// load loads the program, which redirects frames to sockets. With an ifindex the program is for that interface only,
// and requests the VLAN tag that the driver removed from a frame.
func (f *filter) load(types *xdpkit.Types, sockets *ebpf.Map, ifindex int) (*xdpkit.Program, error) {
	spec, err := loadPick()
	if err != nil {
		return nil, err
	}
	us, own4, own6 := xdpkit.Identity(f.own4, f.own6)
	if err := xdpkit.Set(spec, map[string]any{
		pickVarOurMac: xdpkit.MAC(f.mac), pickVarUs: us, pickVarOwn4: own4, pickVarOwn6: own6, pickVarTaken: f.taken,
		pickVarPorts: f.ports, pickVarEchoIds: f.echoIDs,
	}); err != nil {
		return nil, err
	}
	spec.Maps[pickMapSockets].MaxEntries = sockets.MaxEntries()
	name := pickProgReboundPick
	if ifindex != 0 {
		name = pickProgReboundPickTag
		xdpkit.Bind(spec.Programs[name], ifindex)
	}
	return types.Load(spec, name, map[string]*ebpf.Map{pickMapSockets: sockets})
}
