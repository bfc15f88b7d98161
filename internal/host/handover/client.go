package handover

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/rebound-nic/rebound/nic"
)

// Exchange sends the address of our queue pair to the server at a, and returns the address of the server's. The server
// does not send its Q_Key; it is assumed to equal ours.
func Exchange(a netip.AddrPort, own nic.Address) (nic.Address, error) {
	fail := func(err error) (nic.Address, error) {
		return nic.Address{}, fmt.Errorf("hand-over with %v: %w", a, err)
	}
	c, err := net.DialTimeout("tcp", a.String(), firstWait)
	if err != nil {
		return fail(err)
	}
	defer c.Close()
	if err := write(c, appendPingpong(nil, dest{qpn: uint64(own.QPN), gid: own.GID})); err != nil {
		return fail(err)
	}
	b := make([]byte, pingpongSize)
	if err := read(c, b, firstWait); err != nil {
		return fail(err)
	}
	peer, err := parsePingpong(b)
	if err != nil {
		return fail(err)
	}
	if err := write(c, []byte("done\x00")); err != nil {
		return fail(err)
	}
	return nic.Address{GID: peer.gid, QPN: uint32(peer.qpn), QKey: own.QKey}, nil
}
