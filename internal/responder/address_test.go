package responder

import (
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// addresses returns the addresses of the responder's port, without those that the kernel assigned.
func (w *wire) addresses(t *testing.T) (all []string) {
	t.Helper()
	w.here.do(t, func() {
		l := must.Get(netlink.LinkByName(port))(t)
		for _, a := range must.Get(netlink.AddrList(l, netlink.FAMILY_ALL))(t) {
			if !a.IP.IsLinkLocalUnicast() {
				all = append(all, a.IPNet.String())
			}
		}
	})
	slices.Sort(all)
	return all
}

// Addresses that the interface lacks exist while the responder runs; those that it already has are unchanged.
func TestLendsAddresses(t *testing.T) {
	w := newWire(t)
	defer func(old string) { secondProgram = old }(secondProgram)
	secondProgram = program(t)
	own := []string{kernels4 + "/24"}
	wanted := []netip.Prefix{netip.MustParsePrefix(ours4 + "/24"), netip.MustParsePrefix(kernels4 + "/24"),
		netip.MustParsePrefix(ours6 + "/64")}
	var added []netip.Addr
	var release func() error
	must.OK(t, w.here.try(t)(func() (err error) {
		added, release, err = lendAddresses(port, wanted, slog.New(slog.DiscardHandler))
		return err
	}))
	check.Same(t, added, []netip.Addr{wanted[0].Addr(), wanted[2].Addr()}, "added %v")
	check.Same(t, w.addresses(t), []string{ours4 + "/24", own[0], ours6 + "/64"}, "the interface has %v")
	w.here.do(t, func() {
		routes, err := netlink.RouteListFiltered(netlink.FAMILY_V6, &netlink.Route{Dst: nil}, 0)
		for _, r := range routes {
			if r.Dst != nil && r.Dst.String() == "fd77::/64" {
				t.Errorf("a route was added: %v (%v)", r, err)
			}
		}
	})
	check.OK(t, release())
	check.Same(t, w.addresses(t), own, "after release the interface has %v")
	w.here.do(t, func() { // nothing is missing: no process
		if added, release, err := lendAddresses(port, wanted[1:2], slog.New(slog.DiscardHandler)); err != nil ||
			added != nil || release() != nil {
			t.Errorf("added %v, %v", added, err)
		}
	})
}

// A responder that is killed leaves no addresses.
func TestLentAddressesAfterKill(t *testing.T) {
	w := newWire(t)
	in, held, err := os.Pipe()
	must.OK(t, err)
	holder := exec.Command("sleep", "1000") // the responder, which has the other end of the pipe
	holder.ExtraFiles = []*os.File{held}
	must.OK(t, holder.Start())
	held.Close()
	second := exec.Command(program(t), keepCommand, port, ours4+"/24")
	second.Stdin = in
	must.OK(t, w.here.try(t)(second.Start))
	in.Close()
	await.Until(t, "the address", func() bool { return slices.Contains(w.addresses(t), ours4+"/24") })
	holder.Process.Kill()
	holder.Wait()
	check.OK(t, second.Wait())
	check.Same(t, w.addresses(t), []string{kernels4 + "/24"}, "the interface has %v")
}
