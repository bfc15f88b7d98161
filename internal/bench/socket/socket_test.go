package socket

import (
	"errors"
	"net"
	"net/netip"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

// alone moves the test to a separate network namespace, whose loopback interface is up.
func alone(t *testing.T) {
	t.Helper()
	needs.Root(t, "network namespaces")
	runtime.LockOSThread() // never unlocked: the thread and its namespace end with the test
	must.OK(t, unix.Unshare(unix.CLONE_NEWNET))
	must.OK(t, netlink.LinkSetUp(must.Get(netlink.LinkByName("lo"))(t)))
}

// awaitRefusal waits until the kernel has an error for a socket: the refusal comes from a softirq, which need not have
// run when a send returns.
func awaitRefusal(t *testing.T, fd int) {
	t.Helper()
	await.Until(t, "the kernel has an error for the socket", func() bool {
		all := []unix.PollFd{{Fd: int32(fd)}}
		if _, err := unix.Poll(all, 1000); !errors.Is(err, unix.EINTR) {
			must.OK(t, err)
		}
		return all[0].Revents&unix.POLLERR != 0
	})
}

// A refusal caused by an earlier datagram does not fail the next one; on a host without a route every one fails, and
// Send returns.
func TestSendRefused(t *testing.T) {
	alone(t)
	p := must.Get(UDP(netip.MustParseAddrPort("127.0.0.1:9"), netip.Addr{}, ""))(t)
	defer p.Close()
	for range 5 {
		must.OK(t, p.Send([]byte("probe")))
		awaitRefusal(t, p.fd)
	}
	if p.Refused != 4 || p.Closed != 4 || p.LastRefusal != unix.ECONNREFUSED {
		t.Errorf("%d refusals, %d of a closed port, the last %v", p.Refused, p.Closed, p.LastRefusal)
	}

	pair := netlink.NewVeth(netlink.LinkAttrs{Name: "here"})
	pair.PeerName = "there"
	must.OK(t, netlink.LinkAdd(pair))
	must.OK(t, netlink.AddrAdd(pair, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 97, 0, 1),
		Mask: net.CIDRMask(24, 32)}}))
	must.OK(t, netlink.LinkSetUp(pair))
	p = must.Get(UDP(netip.MustParseAddrPort("10.97.0.2:9"), netip.Addr{}, ""))(t)
	defer p.Close()
	must.OK(t, netlink.LinkSetDown(pair))
	check.Fails(t, "a probe without a route", p.Send([]byte("probe")), unix.ENETUNREACH)
}

// Timestamps that the interface does not support are not reported as active.
func TestStampsInForce(t *testing.T) {
	alone(t)
	p := must.Get(UDP(netip.MustParseAddrPort("127.0.0.1:9"), netip.Addr{}, ""))(t)
	defer p.Close()
	p.Interface = "lo"
	check.Equal(t, must.Get(p.EnableTimestamps(true))(t), nic.Timestamping{RxSoftware: true, TxSoftware: true},
		"in force on the loopback: %+v")
}
