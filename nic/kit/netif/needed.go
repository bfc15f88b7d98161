package netif

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
)

// Needed returns the interfaces of the calling thread's network namespace that carry a default route or an ssh session,
// with the reason: taking one from the kernel would cut its user off.
func Needed() (map[string]string, error) {
	needed := map[string]string{}
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	name := map[int]string{}
	for _, l := range links {
		name[l.Attrs().Index] = l.Attrs().Name
	}
	routes, err := netlink.RouteList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		if r.Dst != nil {
			if ones, _ := r.Dst.Mask.Size(); ones != 0 {
				continue
			}
		}
		needed[name[r.LinkIndex]] = "carries the default route"
		for _, hop := range r.MultiPath {
			needed[name[hop.LinkIndex]] = "carries the default route"
		}
	}
	for _, peer := range sshPeers() {
		// The way back to the peer, which need not be the default route.
		routes, err := netlink.RouteGet(net.IP(peer.AsSlice()))
		if err != nil {
			continue // no way there: a session of another network namespace
		}
		for _, r := range routes {
			needed[name[r.LinkIndex]] = fmt.Sprintf("carries the ssh session from %s", peer)
		}
	}
	delete(needed, "") // unreachable and blackhole routes have no interface
	return needed, nil
}

// sshPeers returns the remote addresses of ssh sessions: that of this shell, and those of all connections that an ssh
// server here accepted (sudo hides the variable).
func sshPeers() []netip.Addr {
	var peers []netip.Addr
	if from, _, ok := strings.Cut(os.Getenv("SSH_CONNECTION"), " "); ok {
		if a, err := netip.ParseAddr(from); err == nil {
			peers = append(peers, a.WithZone(""))
		}
	}
	for _, file := range []string{"/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"} {
		table, err := os.ReadFile(file)
		if err == nil {
			peers = append(peers, establishedPeers(table, 22)...)
		}
	}
	slices.SortFunc(peers, netip.Addr.Compare)
	return slices.DeleteFunc(slices.Compact(peers), func(a netip.Addr) bool { return a.IsLoopback() })
}

// establishedPeers returns the remote addresses of a /proc/net/tcp table's connections to a local port (proc(5)):
// addresses are 32-bit words in the processor's byte order, in hexadecimal.
func establishedPeers(table []byte, port int) []netip.Addr {
	const established = "01"
	var peers []netip.Addr
	for line := range bytes.Lines(table) {
		f := strings.Fields(string(line))
		if len(f) < 4 || f[3] != established || !strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) {
			continue
		}
		word, _, _ := strings.Cut(f[2], ":")
		b, err := hex.DecodeString(word)
		if err != nil || len(b)%4 != 0 {
			continue
		}
		for i := 0; i < len(b); i += 4 {
			slices.Reverse(b[i : i+4]) // both architectures are little endian
		}
		if a, ok := netip.AddrFromSlice(b); ok {
			peers = append(peers, a.Unmap())
		}
	}
	return peers
}
