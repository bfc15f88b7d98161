package responder

import (
	"net"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/must"
)

// change changes the responder's port.
func (w *wire) change(t *testing.T, f func(netlink.Link) error) {
	t.Helper()
	w.here.do(t, func() { must.OK(t, f(must.Get(netlink.LinkByName(port))(t))) })
}

// The responder answers again after its interface was down, and ends with an error when that lasts too long.
func TestInterfaceFlaps(t *testing.T) {
	for _, driver := range []string{"afpacket", "afxdp", "xdp"} {
		t.Run(driver, func(t *testing.T) {
			w := newWire(t)
			p := w.start(t, nil, "nic.driver="+driver)
			for range 2 {
				w.change(t, netlink.LinkSetDown)
				if !p.logs("the interface is down: no request arrives; waiting 10m0s for it") {
					t.Fatalf("no line about the interface\n%s", p.Log)
				}
				w.change(t, netlink.LinkSetUp)
				w.run(t, "ping", "-c", "3", "-i", "0.01", "-w", "30", ours4)
			}
			if !p.logs("the interface is up again") {
				t.Errorf("no line about the return\n%s", p.Log)
			}
			p.stop(t, unix.SIGTERM)
			w = newWire(t)
			p = w.start(t, nil, "nic.driver="+driver, "nic.down_limit=1ms")
			w.change(t, netlink.LinkSetDown)
			p.end(t, exitFailed)
			if !p.logs("down for 1ms (nic.down_limit)") {
				t.Errorf("no error about the limit\n%s", p.Log)
			}
		})
	}
}

// The responder answers with its interface's new MAC, and tells the neighbours, whose entries are permanent until then.
func TestMACChanges(t *testing.T) {
	for _, driver := range []string{"afpacket", "afxdp", "xdp"} {
		t.Run(driver, func(t *testing.T) {
			w := newWire(t)
			p := w.start(t, nil, "nic.driver="+driver, "stats.listen="+kernels4+":9470")
			w.run(t, "ping", "-c", "1", "-w", "30", ours4)
			w.run(t, "ping", "-c", "1", "-w", "30", ours6)
			mac := net.HardwareAddr{2, 0, 0, 0xab, 0xcd, 1}
			w.change(t, func(l netlink.Link) error { return netlink.LinkSetHardwareAddr(l, mac) })
			known := func(a string) bool {
				var found bool
				w.there.do(t, func() {
					for _, n := range must.Get(netlink.NeighList(0, netlink.FAMILY_ALL))(t) {
						found = found || n.IP.String() == a && n.HardwareAddr.String() == mac.String()
					}
				})
				return found
			}
			if !await.Holds(func() bool { return known(ours4) && known(ours6) }) {
				t.Errorf("the neighbour was not told the new MAC\n%s", p.Log)
			}
			w.run(t, "ping", "-c", "3", "-i", "0.01", "-w", "30", ours4)
			w.run(t, "ping", "-c", "3", "-i", "0.01", "-w", "30", ours6)
			if !p.logs("the interface's MAC has changed") {
				t.Errorf("no line\n%s", p.Log)
			}
			w.impaired(t, p, "mac", "0")
			p.stop(t, unix.SIGTERM)
		})
	}
}

// impaired waits until the metrics page of p has this value for the reason.
func (w *wire) impaired(t *testing.T, p *child, reason, value string) {
	t.Helper()
	line := `rebound_impaired{reason="` + reason + `"} ` + value
	if !await.Holds(func() bool {
		return strings.Contains(w.run(t, "curl", "-s", "http://"+kernels4+":9470/metrics"),
			line)
	}) {
		t.Errorf("the metrics have no %s\n%s", line, p.Log)
	}
}

// What happens to the interface later and makes the responder lose requests, or two of them answer, is a warning and a
// metric.
func TestImpaired(t *testing.T) {
	w := newWire(t)
	p := w.start(t, nil, "nic.driver=afpacket", "stats.listen="+kernels4+":9470")
	is := func(reason, value string) { t.Helper(); w.impaired(t, p, reason, value) }
	address := must.Get(netlink.ParseAddr(ours4 + "/32"))(t)
	is("address", "0")
	w.change(t, func(l netlink.Link) error { return netlink.AddrAdd(l, address) })
	is("address", "1")
	w.change(t, func(l netlink.Link) error { return netlink.AddrDel(l, address) })
	is("address", "0")
	w.change(t, func(l netlink.Link) error { return netlink.LinkSetMTU(l, 9000) })
	is("mtu", "1")
	w.change(t, func(l netlink.Link) error { return netlink.LinkSetMTU(l, 1500) })
	is("mtu", "0")
	for _, s := range []string{"the kernel owns " + ours4 + " now", "the interface's MTU is 9000 now"} {
		if !p.logs(s) {
			t.Errorf("no line %q\n%s", s, p.Log)
		}
	}
	p.stop(t, unix.SIGTERM)
}

// Receive queues that afxdp does not serve are a warning and a metric.
func TestUnservedQueues(t *testing.T) {
	w := newWireOf(t, 2)
	p := w.start(t, nil, "nic.driver=afxdp", "stats.listen="+kernels4+":9470")
	if !p.logs("1 of 2 receive queues are not served") {
		t.Errorf("no line\n%s", p.Log)
	}
	w.impaired(t, p, "queues", "1")
	p.stop(t, unix.SIGTERM)
}
