package socket

import (
	"errors"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

// alone runs f on a thread in a separate network namespace, whose loopback interface is up.
func alone(t *testing.T, f func() error) {
	t.Helper()
	needs.Root(t, "network namespaces")
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the namespace ends with the thread
		done <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return err
			}
			lo, err := netlink.LinkByName("lo")
			if err != nil {
				return err
			}
			if err := netlink.LinkSetUp(lo); err != nil {
				return err
			}
			return f()
		}()
	}()
	must.OK(t, <-done)
}

// awaitRefusal waits until the kernel has an error for a socket: the refusal comes from a softirq, which need not have
// run when a send returns.
func awaitRefusal(fd int) error {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		all := []unix.PollFd{{Fd: int32(fd)}}
		if _, err := unix.Poll(all, 1000); err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if all[0].Revents&unix.POLLERR != 0 {
			return nil
		}
	}
	return errors.New("no refusal came in a minute")
}

// A refusal caused by an earlier datagram does not fail the next one; on a host without a route every one fails, and
// Send returns.
func TestSendRefused(t *testing.T) {
	alone(t, func() error {
		p, err := UDP(netip.MustParseAddrPort("127.0.0.1:9"), netip.Addr{}, "")
		if err != nil {
			return err
		}
		defer p.Close()
		for range 5 {
			if err := p.Send([]byte("probe")); err != nil {
				return err
			}
			if err := awaitRefusal(p.fd); err != nil {
				return err
			}
		}
		if p.Refused != 4 || p.LastRefusal != unix.ECONNREFUSED {
			t.Errorf("%d refusals, the last %v", p.Refused, p.LastRefusal)
		}

		pair := netlink.NewVeth(netlink.LinkAttrs{Name: "here"})
		pair.PeerName = "there"
		if err := errors.Join(netlink.LinkAdd(pair), netlink.AddrAdd(pair, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 97, 0, 1), Mask: net.CIDRMask(24, 32)}}),
			netlink.LinkSetUp(pair)); err != nil {
			return err
		}
		if p, err = UDP(netip.MustParseAddrPort("10.97.0.2:9"), netip.Addr{}, ""); err != nil {
			return err
		}
		defer p.Close()
		if err := netlink.LinkSetDown(pair); err != nil {
			return err
		}
		if err := p.Send([]byte("probe")); !errors.Is(err, unix.ENETUNREACH) {
			t.Errorf("without a route: %v", err)
		}
		return nil
	})
}

// Timestamps that the interface does not support are not reported as active.
func TestStampsInForce(t *testing.T) {
	alone(t, func() error {
		p, err := UDP(netip.MustParseAddrPort("127.0.0.1:9"), netip.Addr{}, "")
		if err != nil {
			return err
		}
		defer p.Close()
		p.Interface = "lo"
		got, err := p.EnableTimestamps(true)
		if want := (nic.Timestamping{RxSoftware: true, TxSoftware: true}); err == nil && got != want {
			t.Errorf("in force on the loopback: %+v, want %+v", got, want)
		}
		return err
	})
}
