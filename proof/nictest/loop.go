package nictest

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/rebound-nic/rebound/fastpath"
)

// checkLoop: two devices of the same type, each with a responder on its own port, are joined by a cable. A datagram
// from one port to the other is bounced only until its TTL expires.
func checkLoop(x *rig) {
	y := newRig(x.TB, x.h)
	for _, z := range []*rig{x, y} {
		z.answers.UDPPorts = append(z.answers.UDPPorts, 7000, 7001)
		z.answers.Addresses = append(z.answers.Addresses, netip.PrefixFrom(peer4, 24))
	}
	x.open(1)
	defer x.close()
	y.open(1)
	defer y.close()
	const port, otherPort = 7001, 7000
	x.resp[0], y.resp[0] = x.bouncer(our4, port), x.bouncer(peer4, otherPort)
	f := request(udp4, 98, 0, 1)
	binary.BigEndian.PutUint16(f[34:], otherPort)
	binary.BigEndian.PutUint16(f[36:], port)
	finish(f)
	x.send(f)
	frames := 0
	for moved := true; moved; {
		moved = false
		for _, way := range [][2]*rig{{x, y}, {y, x}} {
			way[0].settle()
			for _, f := range way[0].received() {
				// Both devices have the MAC that the suite requests, so the cable rewrites MACs as a router does.
				way[1].send(slices.Concat(ourMAC[:], peerMAC[:], f[12:]))
				frames++
				moved = true
			}
		}
		if frames > 1000 {
			x.Fatalf("one datagram has bounced %d times", frames)
		}
	}
	a, b := x.resp[0].Stats(), y.resp[0].Stats()
	if n := a[fastpath.AnsweredUDPv4] + b[fastpath.AnsweredUDPv4]; frames != 63 || n != 63 ||
		a.Refused()+b.Refused() != 1 ||
		a[fastpath.RefusedHopLimit]+b[fastpath.RefusedHopLimit] != 1 {
		x.Errorf("a datagram with TTL 64 has bounced %d times, counted %d: %v, %v", frames, n, a, b)
	}
}

// bouncer returns a Responder that answers datagrams to one address and port.
func (x *rig) bouncer(a netip.Addr, port uint16) *fastpath.Responder {
	x.Helper()
	r, err := fastpath.New(fastpath.Config{MAC: ourMAC, Addresses: []netip.Prefix{netip.PrefixFrom(a, 24)},
		UDPPorts: []uint16{port}})
	if err != nil {
		x.Fatal(err)
	}
	return r
}
