package mlx4_test

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/drivers/mlx4"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/mlx4sim"
)

// Each ID opens, answers on two queues, reports its link and closes with nothing left, in both steering modes.
func TestEveryID(t *testing.T) {
	for _, p := range []mlx4sim.Profile{mlx4sim.ConnectX3, mlx4sim.ConnectX3Pro} {
		for _, s := range []mlx4sim.Steering{mlx4sim.DeviceManaged, mlx4sim.MACTable} {
			x := openRig(t, mlx4sim.Options{Profile: p, Steering: s}, nic.Options{Queues: 2})
			for _, n := range []int{60, 98, 224, 225, 1514} {
				x.Exchange(20, n)
			}
			i := x.Dev.Info()
			id := fmt.Sprintf("15b3:%04x", p.Device())
			if !strings.Contains(i.Model, id) || !strings.Contains(i.Model, "MT_") ||
				strings.Contains(list(i.Notes), "DMFS") == (s == mlx4sim.MACTable) {
				t.Errorf("%s: %s\n%s", id, i.Model, list(i.Notes))
			}
			x.Busy(func() {
				if l, err := x.Dev.Link(); !l.Up || l.Speed < 10000 || err != nil {
					t.Errorf("%s: link %+v, %v", id, l, err)
				}
			})
			x.Close()
		}
	}
	for id := range 1 << 16 {
		_, ok := mlx4.Supports(pci.ID{Vendor: 0x15B3, Device: uint16(id)})
		if want := id == 0x1003 || id == 0x1007; ok != want {
			t.Errorf("Supports(15b3:%04x) is %v", id, ok)
		}
	}
}

// Frames that are accepted: those for us, broadcast, and the groups of the addresses that are answered for; no other
// group, if the addresses are known. Tags change nothing.
func TestLetIn(t *testing.T) {
	broadcast, solicited, other := [6]byte{0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}, [6]byte{0x33, 0x33, 0xFF, 0, 0, 2},
		[6]byte{0x33, 0x33, 0xFF, 0, 0, 3}
	addresses := &fastpath.Config{Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.2/24"),
		netip.MustParsePrefix("fd00::2/64")}}
	for name, c := range map[string]struct {
		card  mlx4sim.Steering
		own   string
		match *fastpath.Config
		other bool
	}{
		"rules":                    {mlx4sim.DeviceManaged, "", addresses, false},
		"all":                      {mlx4sim.DeviceManaged, "", nil, true},
		"address table":            {mlx4sim.MACTable, "", addresses, true},
		"address table, asked for": {mlx4sim.DeviceManaged, "a0", addresses, true},
	} {
		t.Run(name, func(t *testing.T) {
			x := newRig(t, mlx4sim.Options{Steering: c.card})
			x.own.Steering = c.own
			x.Open(nic.Options{Queues: 4, Match: c.match})
			for mac, want := range map[[6]byte]bool{ourMAC: true, broadcast: true, solicited: true, other: c.other,
				farMAC: false} {
				for _, vlan := range []int{-1, 0, 5, 4095} {
					before := x.model.Counters().Received
					x.Ping(mac, 80, vlan)
					x.Settle()
					check.Equal(t, !maps.Equal(x.model.Counters().Received, before), want,
						fmt.Sprintf("%v, VLAN %d: received %%v", net.HardwareAddr(mac[:]), vlan))
				}
			}
		})
	}
}

func TestVLAN(t *testing.T) {
	x := openRig(t, mlx4sim.Options{}, nic.Options{MTU: 9000})
	for _, n := range []int{60, 220, 221, 1514, 9014} {
		x.Ping(ourMAC, n, 7)
		x.Settle()
		f := x.Far.Recv(0)
		if len(f) != n+4 || f[12] != 0x81 || f[15] != 7 {
			t.Errorf("%d bytes with a tag come back as %d", n, len(f))
		}
	}
}

func TestRSS(t *testing.T) {
	x := openRig(t, mlx4sim.Options{}, nic.Options{Queues: 4})
	x.Exchange(64, 98) // one flow
	used := func() (n int) {
		for q := range 4 {
			var s nic.Stats
			x.Busy(func() { x.Dev.ReadStats(&s) })
			if s.Extra[fmt.Sprintf("queue_%d_pushed_whole", q)] > 0 {
				n++
			}
		}
		return n
	}
	check.Equal(t, used(), 1, "one flow is answered by %d queues")
	for host := range byte(64) {
		f := request(ourMAC, 98, -1)
		f[29] += host + 99 // the source's last byte, and the header's checksum
		be.PutUint16(f[24:], be.Uint16(f[24:])-uint16(host+99))
		x.Far.Send(0, f)
		x.Settle()
	}
	check.Equal(t, x.Received(), 64, "%d replies to 64 hosts")
	check.Equal(t, used(), 4, "64 flows are answered by %d queues of 4")
}

// watched is a model whose host counts its memory reads from the stores that start a send until the frame is on the
// wire. Later reads, by which the model looks for more to send, delay nothing.
type watched struct {
	*mlx4sim.Model
	sim.Host
	reads, onWay int
}

func (w *watched) Attach(h sim.Host)                   { w.Host = h; w.Model.Attach(w) }
func (w *watched) CountMMIOWrite(n int)                { w.reads = 0; w.Host.CountMMIOWrite(n) }
func (w *watched) DMARead(iova uint64, p []byte) error { w.reads++; return w.Host.DMARead(iova, p) }
func (w *watched) Transmit(frame []byte)               { w.onWay += w.reads; w.reads = 0; w.Host.Transmit(frame) }

// cost returns the bus transactions of n frames of a size, one at a time on the wire, once the driver has settled, and
// the number of reads before the frames were on the wire.
func cost(t testing.TB, push string, size, n int, answered bool) (sim.Counts, int) {
	w := &watched{Model: mlx4sim.New(mlx4sim.Options{})}
	x := newRigOf(t, w.Model, w)
	x.own.Push = push
	x.Open(nic.Options{})
	defer x.Close()
	counts := x.BusCost(size, n, answered, func() { w.onWay = 0 })
	return counts, w.onWay
}

// The bus cost of a reply, for frame sizes on both sides of each boundary, shows the use of BlueFlame. The cost of
// receiving is measured with frames that are not answered, and subtracted.
func TestBusCost(t *testing.T) {
	const n = 256
	for _, c := range needs.Each(3, []struct {
		push  string
		size  int
		reads int    // DMA reads on the way to the wire
		mmio  uint64 // BlueFlame blocks of 64 bytes, or doorbells
	}{
		{"full", 60, 0, 2}, {"full", 64, 0, 2}, {"full", 98, 0, 2}, {"full", 104, 0, 2}, {"full", 105, 0, 3}, {"full", 224, 0, 4}, {"full", 225, 1, 1},
		{"full", 1514, 1, 1}, {"off", 60, 2, 1}, {"off", 98, 2, 1}, {"off", 1514, 2, 1},
	}) {
		idle, _ := cost(t, c.push, c.size, n, false)
		with, onWay := cost(t, c.push, c.size, n, true)
		per := func(a, b uint64) float64 { return float64(int64(a-b)) / n }
		t.Logf("%-6s %4d bytes: %.2f DMA reads, %.2f of them on the way to the wire, %.2f DMA writes (completions), %.2f MMIO writes a reply", c.push, c.size,
			per(with.DMARead, idle.DMARead), float64(onWay)/n, per(with.DMAWrite, idle.DMAWrite),
			per(with.MMIOWrite, idle.MMIOWrite))
		// The driver's watch writes to the device too, by the clock: a few times in all, on a busy machine.
		if more := int64(with.MMIOWrite-idle.MMIOWrite) - int64(c.mmio*n); onWay != c.reads*n || more < -n/16 ||
			more > n/16 {
			t.Errorf("%s, %d bytes: %d DMA reads on the way to the wire and %d MMIO writes of %d replies, want %d and %d of each", c.push, c.size, onWay,
				with.MMIOWrite-idle.MMIOWrite, n, c.reads, c.mmio)
		}
		if with.MMIORead != 0 || per(with.DMAWrite, idle.DMAWrite) > 0.5 {
			t.Errorf("%s, %d bytes: %d MMIO reads, %.2f DMA writes a reply", c.push, c.size, with.MMIORead,
				per(with.DMAWrite, idle.DMAWrite))
		}
	}
}
