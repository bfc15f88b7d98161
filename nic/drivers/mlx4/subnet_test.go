package mlx4_test

import (
	"encoding/binary"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

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
	x := newRig(t, o)
	x.OwnMAC = true
	return &subnetRig{rig: x, fabric: fabric.New(t.Errorf, x.Far)}
}

var (
	our4      = netip.MustParsePrefix("10.0.0.2/24")
	our6      = netip.MustParsePrefix("fd00::2/64")
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
	if err := x.TryOpen(o); err != nil {
		x.Fatalf("Open: %v", err)
	}
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
	p = append(append(append(p, from.AsSlice()...), to.AsSlice()...), message...)
	be.PutUint16(p[40+sum:], ^ones([]byte{0, next}, p[4:6], p[8:]))
	return ipoib(0x86DD, p)
}

// stampRequest returns a STAMP test packet with n bytes after the UDP header, in IPv4 or IPv6, as IPoIB's payload (RFC
// 8762 §4.2.1).
func stampRequest(v6 bool, n int) (payload []byte, udp int) {
	u := make([]byte, 8+n)
	copy(u, []byte{0x9C, 0x40, 3, 0x5E, byte((8 + n) >> 8), byte(8 + n), 0, 0})
	m := u[8:]
	copy(m, []byte{0, 0, 0, 42, 0xE8, 0xD4, 0xA5, 0x0F, 0x11, 0x22, 0x33, 0x44, 0x9F, 1})
	for i := 44; i < n; i++ {
		m[i] = byte(i)
	}
	if v6 {
		return ip6(far6, our6.Addr(), 17, 57, u, 6), 44
	}
	p := append([]byte{0x45, 0, byte((28 + n) >> 8), byte(28 + n), 0, 1, 0, 0, 57, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2}, u...)
	be.PutUint16(p[10:], ^ones(p[:20]))
	be.PutUint16(p[26:], ^ones(p[12:20], []byte{0, 17, byte((8 + n) >> 8), byte(8 + n)}, p[20:]))
	return ipoib(0x0800, p), 24
}

// ones is the sum of 16-bit words in one's complement (RFC 1071). Each part but the last has an even length.
func ones(parts ...[]byte) uint16 {
	var s uint32
	for _, b := range parts {
		for i, v := range b {
			s += uint32(v) << (8 * (1 - i%2))
		}
	}
	for s>>16 != 0 {
		s = s&0xFFFF + s>>16
	}
	return uint16(s)
}
