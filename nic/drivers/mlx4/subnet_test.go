package mlx4_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/cksum"
	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim/fabric"
	"github.com/rebound-nic/rebound/sim/mlx4sim"
)

var be = binary.BigEndian

// subnetRig is a driver on a model with an InfiniBand port, connected to a fabric.
type subnetRig struct {
	*rig
	fabric *fabric.Fabric
	qpn    uint32
}

func newSubnetRig(t testing.TB, o mlx4sim.Options) *subnetRig {
	o.Link = mlx4sim.InfiniBand
	return onSubnet(newRig(t, o))
}

func onSubnet(x *rig) *subnetRig {
	x.OwnMAC = true
	return &subnetRig{rig: x, fabric: fabric.New(x.Errorf, x.Far)}
}

var (
	our4      = netip.MustParsePrefix("10.0.0.2/24")
	our6      = netip.MustParsePrefix("fd00::2/64")
	far4      = netip.MustParseAddr("10.0.0.1")
	far6      = netip.MustParseAddr("fd00::1")
	solicited = netip.MustParseAddr("ff02::1:ff00:2") // our6's solicited-node group
)

func answering() *fastpath.Config {
	return &fastpath.Config{Addresses: []netip.Prefix{our4, our6}, UDPPorts: []uint16{7}}
}

func (x *subnetRig) Open(o nic.Options) {
	x.Helper()
	if o.Match == nil && o.Steer == nil {
		o.Match = answering()
	}
	must.OK(x, x.TryOpen(o))
	x.attach()
}

func (x *subnetRig) attach() {
	x.Helper()
	x.until("the link is up", func() bool { l, err := x.Dev.Link(); return err == nil && l.Up })
	x.qpn = be.Uint32(must.Get(net.ParseMAC(x.Dev.Info().MAC))(x)[2:]) & 0xFFFFFF
	x.respond(*answering())
}

// respond has the responder answer as c says, on the port's own address.
func (x *subnetRig) respond(c fastpath.Config) {
	x.Helper()
	c.MAC = [6]byte{2, 0, 0, byte(x.qpn >> 16), byte(x.qpn >> 8), byte(x.qpn)}
	x.Resp = []*fastpath.Responder{must.Get(fastpath.New(c))(x)}
}

// stepped runs f while the fabric runs freely.
func (x *subnetRig) stepped(f func()) {
	end := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-end:
				return
			default:
				if !x.fabric.Step() {
					time.Sleep(100 * time.Microsecond)
				}
			}
		}
	})
	defer wg.Wait()
	defer close(end)
	f()
}

// until waits for a condition, while the device and the fabric run freely.
func (x *subnetRig) until(what string, ok func() bool) {
	x.Helper()
	x.Busy(func() {
		x.stepped(func() {
			if !await.Holds(ok) {
				x.Errorf("waited in vain: %s\n%s", what, x.Logs.String())
			}
		})
	})
}

func (x *subnetRig) Settle() {
	for idle := 0; idle < 8; idle++ {
		if x.Port.Settle(100000) > 1 || x.fabric.Step() || x.Dev.DatagramQueue().Poll(x.Resp[0]) > 0 {
			idle = 0
		}
	}
}

// Served runs the driver's own loop and f, with the device and the fabric running freely.
func (x *subnetRig) Served(f func()) {
	x.Helper()
	x.stepped(func() { must.OK(x, x.rig.Serve(f)) })
}

// reply returns the only packet that the driver sends.
func (x *subnetRig) reply() fabric.Packet {
	x.Helper()
	x.Settle()
	got := x.fabric.Received()
	must.Equal(x, len(got), 1, fmt.Sprint(x.Resp[0].Stats())+": %d replies")
	return got[0]
}

// answer returns the driver's reply to a payload. It goes back to its sender, with a GRH if the request has one.
func (x *subnetRig) answer(payload []byte, global bool) []byte {
	x.Helper()
	var grh []byte
	if global {
		grh = fabric.GRH(x.fabric.HostGID(), x.fabric.Ports[0].GID(x.fabric))
	}
	x.fabric.Send(0, x.qpn, payload, grh)
	k := x.reply()
	if k.DLID != 1 || k.SLID != 2 || k.SL != 3 || k.DQP != fabric.HostQP || k.SQP != x.qpn || k.QKey != 0x0B1B ||
		len(k.Payload) != len(payload) {
		x.Fatalf("the reply to %d bytes: %+v", len(payload), k)
	}
	if global != (k.GRH != nil) || global && (!bytes.Equal(k.GRH[24:], grh[8:24]) ||
		!bytes.Equal(k.GRH[8:24], grh[24:])) {
		x.Errorf("GRH % x", k.GRH)
	}
	return k.Payload
}

func (x *subnetRig) Answers(n int) {
	x.Helper()
	x.Await(func() bool {
		if len(x.fabric.Received()) > 0 {
			return true
		}
		x.fabric.Send(0, x.qpn, ping4(n), nil)
		return false
	})
}

func (x *subnetRig) Close() {
	x.Helper()
	x.stepped(x.rig.Close)
}

func (x *subnetRig) extra(name string) uint64 {
	var s nic.Stats
	if err := x.Dev.ReadStats(&s); err != nil {
		return ^uint64(0)
	}
	return s.Extra[name]
}

func (x *subnetRig) change(f func(*fabric.Fabric)) {
	x.fabric.Change(func() { f(x.fabric) })
}

func ipoib(kind uint16, packet []byte) []byte {
	return append([]byte{byte(kind >> 8), byte(kind), 0, 0}, packet...)
}

// ping4 returns an echo request of n bytes of IPv4.
func ping4(n int) []byte { return ipoib(0x0800, request([6]byte{}, n+14, -1)[14:]) }

// packet6 returns an echo request, or a datagram to port 7, of n bytes of IPv6.
func packet6(next byte, n int) []byte {
	m, sum := make([]byte, n-40), 2
	if m[0] = 128; next == 17 {
		copy(m, []byte{0x9C, 0x40, 0, 7, byte((n - 40) >> 8), byte(n - 40)})
		sum = 6
	}
	for i := 8; i < len(m); i++ {
		m[i] = byte(i)
	}
	return ip6(far6, our6.Addr(), next, 9, m, sum)
}

// ip6 returns an IPv6 packet as IPoIB's payload. The message has its checksum at an offset.
func ip6(from, to netip.Addr, next, hops byte, message []byte, sum int) []byte {
	p := append(be.AppendUint16([]byte{0x60, 0, 0, 0}, uint16(len(message))), next, hops)
	p = slices.Concat(p, from.AsSlice(), to.AsSlice(), message)
	be.PutUint16(p[40+sum:], ^cksum.Sum(p[8:], uint16(next)+uint16(len(message))))
	return ipoib(0x86DD, p)
}

// udp returns a datagram whose message has a UDP header without a checksum, in IPv4 or IPv6, as IPoIB's payload.
func udp(from, to netip.Addr, hops byte, message []byte) []byte {
	n := uint16(len(message))
	if from.Is6() {
		return ip6(from, to, 17, hops, message, 6)
	}
	p := append(be.AppendUint16([]byte{0x45, 0}, 20+n), 0, 1, 0, 0, hops, 17, 0, 0)
	p = slices.Concat(p, from.AsSlice(), to.AsSlice(), message)
	be.PutUint16(p[10:], ^cksum.Sum(p[:20], 0))
	be.PutUint16(p[26:], ^cksum.Sum(p[12:], 17+n))
	return ipoib(0x0800, p)
}
