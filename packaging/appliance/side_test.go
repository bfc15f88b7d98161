package appliance

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/server4"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

// managementTap is the test's end of the guest's management interface.
const managementTap = "rbappl0"

// managementSide is the network that a guest is managed from: a network namespace with a tap.
type managementSide struct{ ns netns.NsHandle }

// newSide enters a network namespace for the rest of the test.
func newSide(t *testing.T) *managementSide {
	t.Helper()
	needs.Root(t, "network namespaces")
	runtime.LockOSThread() // the thread's namespace is its own from here on, so it ends with this test
	s := &managementSide{must.Get(netns.New())(t)}
	t.Cleanup(func() { s.ns.Close() })
	tap := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: managementTap}, Mode: netlink.TUNTAP_MODE_TAP,
		Flags: netlink.TUNTAP_NO_PI | netlink.TUNTAP_VNET_HDR, Queues: 1}
	must.OK(t, netlink.LinkAdd(tap))
	for _, f := range tap.Fds { // or QEMU cannot have it
		f.Close()
	}
	return s
}

func (s *managementSide) netdev() string {
	return "tap,id=m,ifname=" + managementTap + ",script=no,downscript=no"
}

// dial connects from the namespace, on whatever thread.
func (s *managementSide) dial(ctx context.Context, network, address string) (c net.Conn, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // it ends with its thread
		if err = netns.Set(s.ns); err == nil {
			c, err = (&net.Dialer{}).DialContext(ctx, network, address)
		}
	}()
	<-done
	return c, err
}

// address gives an interface an address, and brings it up.
func address(t *testing.T, name, prefix string) {
	t.Helper()
	link := must.Get(netlink.LinkByName(name))(t)
	must.OK(t, netlink.AddrReplace(link, must.Get(netlink.ParseAddr(prefix))(t)))
	must.OK(t, netlink.LinkSetUp(link))
}

// lease serves the address 10.77.0.2 by DHCP on an interface, which has 10.77.0.1, also as the NTP server. Firmware
// that asks for a boot file over HTTP is given uri, and firmware that asks for one by PXE nothing.
func lease(t *testing.T, name, uri string) {
	t.Helper()
	own := net.IPv4(10, 77, 0, 1)
	s := must.Get(server4.NewServer(name, &net.UDPAddr{IP: net.IPv4zero, Port: dhcpv4.ServerPort},
		func(conn net.PacketConn, _ net.Addr, m *dhcpv4.DHCPv4) {
			kind := dhcpv4.MessageTypeAck
			if m.MessageType() == dhcpv4.MessageTypeDiscover {
				kind = dhcpv4.MessageTypeOffer
			}
			class := m.ClassIdentifier()
			if strings.HasPrefix(class, "PXEClient") {
				return
			}
			reply, err := dhcpv4.NewReplyFromRequest(m, dhcpv4.WithMessageType(kind),
				dhcpv4.WithYourIP(net.IPv4(10, 77, 0, 2)), dhcpv4.WithServerIP(own),
				dhcpv4.WithOption(dhcpv4.OptServerIdentifier(own)), dhcpv4.WithNetmask(net.CIDRMask(24, 32)),
				dhcpv4.WithRouter(own), dhcpv4.WithLeaseTime(3600),
				dhcpv4.WithOption(dhcpv4.OptNTPServers(own)))
			if err != nil {
				t.Errorf("DHCP: %v", err)
				return
			}
			if strings.HasPrefix(class, "HTTPClient") { // UEFI 2.10 §24.7.2
				reply.UpdateOption(dhcpv4.OptClassIdentifier("HTTPClient"))
				reply.UpdateOption(dhcpv4.OptBootFileName(uri))
			}
			conn.WriteTo(reply.ToBytes(), &net.UDPAddr{IP: net.IPv4bcast, Port: dhcpv4.ClientPort})
		}))(t)
	go s.Serve()
	t.Cleanup(func() { s.Close() })
}

// serveHTTP serves pages at an address of the namespace.
func serveHTTP(t *testing.T, at string, h http.Handler) {
	t.Helper()
	l := must.Get(net.Listen("tcp", at))(t)
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: h}}
	s.Start()
	t.Cleanup(s.Close)
}

// extra adds words to the kernel's command line of a guest that boots by systemd's EFI stub.
func extra(words string) []string {
	return []string{"-smbios", "type=11,value=io.systemd.stub.kernel-cmdline-extra=" + words}
}
