package mlx5_test

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/proof/check"
	devrig "github.com/rebound-nic/rebound/proof/nictest/rig"
)

// to6 returns an ICMPv6 message to an address.
func to6(dst netip.Addr, message ...byte) []byte {
	return slices.Concat(ourMAC[:], farMAC[:], []byte{0x86, 0xDD, 0x60, 0, 0, 0, 0, 44, 58, 64},
		netip.MustParseAddr("fd00::1").AsSlice(), dst.AsSlice(),
		append(message, make([]byte, 44-len(message))...))
}

// A bench receives the replies to its probes; everything else, replies to the kernel's own pings included, reaches the
// kernel.
func TestBesideBench(t *testing.T) {
	x := newBesideICMP(t)
	own4, own6 := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::2")
	x.Open(nic.Options{Steer: &nic.Steer{Local: own4, Also: []netip.Addr{own6}, EchoIDs: []uint16{0x1234},
		UDPPorts: []uint16{50000}}})
	reply := to4(2, 1, 0, 0, 0, 0, 0x12, 0x34, 0, 1)
	datagram := to4(2, 17, 0, 7, 0xC3, 0x50)
	x.Expect("ours", map[string][]byte{"our reply": reply, "our datagram": datagram,
		"our reply over IPv6": to6(own6, 129, 0, 0, 0, 0x12, 0x34, 0, 1)})
	x.Expect("kernel", map[string][]byte{
		"the kernel's reply":                              to4(2, 1, 0, 0, 0, 0, 0x12, 0x35, 0, 1),
		"a reply whose sequence number is our identifier": to4(2, 1, 0, 0, 0, 0, 0, 1, 0x12, 0x34),
		"a ping with our identifier":                      to4(2, 1, 8, 0, 0, 0, 0x12, 0x34, 0, 1),
		"an unreachable":                                  to4(2, 1, 3, 3, 0, 0, 0x12, 0x34),
		"another socket's datagram":                       to4(2, 17, 0, 7, 0xC3, 0x51),
		"another address's datagram":                      to4(3, 17, 0, 7, 0xC3, 0x50),
		"the kernel's reply over IPv6":                    to6(own6, 129, 0, 0, 0, 0x12, 0x35, 0, 1),
		"an advertisement":                                to6(own6, 136, 0, 0, 0, 0x12, 0x34, 0, 0),
	})
	x.Sends(to4(3, 17, 0xC3, 0x50, 0, 7))
	x.Close()
	// With one target, the replies of others are not ours.
	x.Open(nic.Options{Steer: &nic.Steer{Local: own4, Remote: netip.MustParseAddr("10.0.0.1"),
		EchoIDs: []uint16{0x1234}, UDPPorts: []uint16{50000}}})
	x.Expect("ours", map[string][]byte{"its reply": reply, "its datagram": datagram})
	for _, f := range [][]byte{reply, datagram} {
		f[29] = 9 // the source's last byte, and the header's checksum
		binary.BigEndian.PutUint16(f[24:], binary.BigEndian.Uint16(f[24:])-8)
	}
	x.Expect("kernel", map[string][]byte{"another host's reply": reply, "another host's datagram": datagram})
	x.Close()
}

// Without a parser for ICMP, a bench can probe with UDP only.
func TestBesideBenchRefuses(t *testing.T) {
	x := newBeside(t, withContexts)
	steer := nic.Steer{Local: netip.MustParseAddr("10.0.0.2"), UDPPorts: []uint16{50000}}
	for says, change := range map[string]func(*nic.Options){
		"probe with UDP or STAMP":        func(o *nic.Options) { o.Steer.EchoIDs = []uint16{1} },
		"an address of the interface":    func(o *nic.Options) { o.Steer.Neighbours = true },
		"both Match and Steer":           func(o *nic.Options) { o.Match = devrig.AnsweredBeside() },
		"chosen frames only":             func(o *nic.Options) { o.Steer = nil },
		"nic.mac is for a function of o": func(o *nic.Options) { o.MAC = farMAC },
	} {
		s := steer
		o := nic.Options{Steer: &s}
		change(&o)
		err := x.TryOpen(o)
		check.Fails(t, says, err, nil, says)
		check.Equal(t, errors.Is(err, errors.ErrUnsupported), o.Match == nil && o.MAC == [6]byte{},
			says+": unsupported is %v")
	}
	x.Open(nic.Options{Steer: &steer})
	x.Expect("ours", map[string][]byte{"a datagram": to4(2, 17, 0, 7, 0xC3, 0x50)})
	x.Close()
}
