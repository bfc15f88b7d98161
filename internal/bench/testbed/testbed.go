// Package testbed is a network inside this machine: two unnamed network namespaces, a veth pair between them, and the
// responder in one of them. It ends with the process.
package testbed

import (
	"fmt"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/bench/measure"
)

// Names and addresses of the testbed. They are only visible inside its namespaces.
const (
	NearIface, FarIface = "bench0", "echo0"
	NearAddress         = "10.99.0.1" // the bench's own: its kernel does not have it
	KernelPrefix        = "10.99.0.2/24"
	ResponderPrefix     = "10.99.0.3/24"
)

// Testbed has the bench's side, which is the calling thread's, and the responder's side.
type Testbed struct {
	Far  *Namespace
	Core *measure.Core // the bench's, not yet taken

	unprivileged bool
}

// Enter moves the calling thread, which must be locked, to the bench's side: into a new network namespace, with a wire
// to the responder's side in another. Close ends the responder's side; the thread cannot leave its namespace.
// unprivileged means that the process is root only in a user namespace.
func Enter(unprivileged bool) (b *Testbed, err error) {
	b = &Testbed{unprivileged: unprivileged}
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, b.forbidden("a network namespace", err)
	}
	if b.Far, err = NewNamespace(); err != nil {
		return nil, b.forbidden("a second network namespace", err)
	}
	if err = b.wire(); err == nil {
		b.Core, err = measure.Choose(-1)
	}
	if err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

// Close ends the responder's side.
func (b *Testbed) Close() { b.Far.Close() }

// Within runs f on the responder's side with all CPUs, for processes that f starts.
func (b *Testbed) Within(f func() error) error {
	return b.Far.Do(func() error {
		allCPUs()
		return f()
	})
}

func allCPUs() {
	var all unix.CPUSet
	for i := range len(all) * 64 {
		all.Set(i)
	}
	_ = unix.SchedSetaffinity(0, &all)
}

func (b *Testbed) forbidden(what string, err error) error {
	if b.unprivileged {
		return fmt.Errorf("%s inside the user namespace: %w: this host lets users make user namespaces, but gives them no rights in it "+
			"(sysctl kernel.apparmor_restrict_unprivileged_userns); run the demo as root", what, err)
	}
	return fmt.Errorf("%s: %w: it takes CAP_SYS_ADMIN, which a container's root often lacks", what, err)
}

// wire creates the veth pair and its addresses.
func (b *Testbed) wire() error {
	pair := netlink.NewVeth(netlink.LinkAttrs{Name: NearIface})
	pair.PeerName, pair.PeerNamespace = FarIface, netlink.NsFd(b.Far.FD)
	if err := netlink.LinkAdd(pair); err != nil {
		return b.forbidden("a veth pair", err)
	}
	if err := setUp(NearIface, ""); err != nil {
		return err
	}
	if err := b.Far.Do(func() error { return setUp(FarIface, KernelPrefix) }); err != nil {
		return err
	}
	const within = 30 * time.Second // the kernel does this in a work queue, which other namespaces may delay
	for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		l, err := netlink.LinkByName(NearIface)
		if err != nil {
			return err
		}
		if l.Attrs().OperState == netlink.OperUp {
			return nil
		}
	}
	return fmt.Errorf("interface %s did not come up in %v", NearIface, within)
}

// setUp assigns an address to an interface, if one is given, and sets it up. IPv6 is disabled, if permitted, because
// its background traffic would disturb the measurement.
func setUp(name, prefix string) error {
	_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/disable_ipv6", []byte("1"), 0)
	l, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("interface %s: %w", name, err)
	}
	if prefix != "" {
		a, err := netlink.ParseAddr(prefix)
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(l, a); err != nil {
			return fmt.Errorf("address %s on %s: %w", prefix, name, err)
		}
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	return nil
}
