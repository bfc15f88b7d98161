// Package veth gives tests a pair of virtual Ethernet interfaces between two network namespaces.
package veth

import (
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/needs"
)

// Pair is a pair of virtual Ethernet interfaces, each in an unnamed network namespace that is removed when the test
// ends. Each end has a kernel address in both families.
type Pair struct {
	Host, Peer End
}

// End is one side of a Pair.
type End struct {
	Name string
	MAC  net.HardwareAddr
	IPv4 netip.Prefix
	IPv6 netip.Prefix

	ns netns.NsHandle
}

// New makes the pair "host0", "peer0", up and with 192.0.2.1/24 and 2001:db8::1/64 at Host, .2 and ::2 at Peer. It
// skips the test without root.
func New(t testing.TB) *Pair {
	t.Helper()
	return NewQueues(t, 1)
}

// NewQueues is New with the given number of receive and transmit queues at each end.
func NewQueues(t testing.TB, queues int) *Pair {
	t.Helper()
	needs.Root(t, "network namespaces")
	v := &Pair{
		Host: End{Name: "host0", MAC: net.HardwareAddr{2, 0x52, 0x62, 0, 0, 1},
			IPv4: netip.MustParsePrefix("192.0.2.1/24"), IPv6: netip.MustParsePrefix("2001:db8::1/64")},
		Peer: End{Name: "peer0", MAC: net.HardwareAddr{2, 0x52, 0x62, 0, 0, 2},
			IPv4: netip.MustParsePrefix("192.0.2.2/24"), IPv6: netip.MustParsePrefix("2001:db8::2/64")},
	}
	for _, e := range []*End{&v.Host, &v.Peer} {
		onThread(func() {
			ns, err := netns.New()
			if err != nil {
				t.Error("new network namespace:", err)
				return
			}
			e.ns = ns
		})
		if t.Failed() {
			t.FailNow()
		}
		t.Cleanup(func() { e.ns.Close() })
	}
	v.Host.Do(func() {
		pair := &netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: v.Host.Name, HardwareAddr: v.Host.MAC, NumTxQueues: queues,
				NumRxQueues: queues}, PeerName: v.Peer.Name,
			PeerHardwareAddr: v.Peer.MAC, PeerNamespace: netlink.NsFd(v.Peer.ns),
		}
		if err := netlink.LinkAdd(pair); err != nil {
			t.Error("make a veth pair:", err)
		}
	})
	for _, e := range []*End{&v.Host, &v.Peer} {
		e.Do(func() { e.configure(t) })
	}
	if t.Failed() {
		t.FailNow()
	}
	for _, e := range []*End{&v.Host, &v.Peer} {
		// The first interface was set up without a carrier. Until a thread of the kernel has noticed the carrier, what
		// is sent is dropped, and not counted.
		await.Until(t, e.Name+" is up", func() (up bool) {
			e.Do(func() {
				l, err := netlink.LinkByName(e.Name)
				up = err == nil && l.Attrs().OperState == netlink.OperUp
			})
			return up
		})
	}
	return v
}

func (e *End) configure(t testing.TB) {
	for _, name := range []string{"lo", e.Name} {
		l, err := netlink.LinkByName(name)
		if err != nil {
			t.Error(name, err)
			return
		}
		if name != "lo" {
			for _, p := range []netip.Prefix{e.IPv4, e.IPv6} {
				a := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(),
					Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}
				if p.Addr().Is6() {
					a.Flags = 0x02 // IFA_F_NODAD: usable immediately
				}
				if err := netlink.AddrAdd(l, a); err != nil {
					t.Error(name, p, err)
				}
			}
		}
		if err := netlink.LinkSetUp(l); err != nil {
			t.Error(name, err)
		}
	}
}

// Do runs f on a thread in the end's namespace; processes that f starts are in it, too. f must not call t.FailNow, and
// goroutines that f starts are in the original namespace.
func (e *End) Do(f func()) {
	onThread(func() {
		if err := netns.Set(e.ns); err != nil {
			panic(err)
		}
		f()
	})
}

// txDropped is how many frames the end's interface has dropped: a veth pair between two namespaces has a queue of 256
// frames, emptied by a softirq that the kernel may delay when the machine is busy.
func (e *End) txDropped(t testing.TB) (n uint64) {
	e.Do(func() {
		l, err := netlink.LinkByName(e.Name)
		if err != nil {
			t.Error(e.Name, err)
			return
		}
		n = l.Attrs().Statistics.TxDropped
	})
	return n
}

// echoReplies is how many ping replies the end's kernel has received, in a's address family.
func (e *End) echoReplies(t testing.TB, a netip.Addr) (n int) {
	e.Do(func() {
		file := "/proc/thread-self/net/snmp6"
		if a.Is4() {
			file = "/proc/thread-self/net/snmp"
		}
		b, err := os.ReadFile(file)
		if err != nil {
			t.Error(err)
			return
		}
		lines := strings.Split(string(b), "\n")
		for i, line := range lines {
			f := strings.Fields(line)
			switch {
			case len(f) == 2 && f[0] == "Icmp6InEchoReplies":
				n, _ = strconv.Atoi(f[1])
				return
			case len(f) > 1 && f[0] == "Icmp:": // a line of names, then one of values
				n, _ = strconv.Atoi(strings.Fields(lines[i+1])[slices.Index(f, "InEchoReps")])
				return
			}
		}
		t.Error(file, "has no count of echo replies")
	})
	return n
}

// Without runs f as Do does, on a thread that lacks a capability and CAP_SYS_ADMIN.
func (e *End) Without(t testing.TB, capability int, f func()) {
	e.Do(func() {
		header, set := &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
		if err := unix.Capget(header, &set[0]); err != nil {
			t.Error(err)
			return
		}
		for _, c := range []int{capability, unix.CAP_SYS_ADMIN} {
			set[c/32].Effective &^= 1 << (c % 32)
			set[c/32].Permitted &^= 1 << (c % 32)
		}
		if err := unix.Capset(header, &set[0]); err != nil {
			t.Error(err)
			return
		}
		f()
	})
}

func onThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlock: the thread cannot be reused
		f()
	}()
	<-done
}
