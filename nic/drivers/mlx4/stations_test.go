package mlx4_test

import (
	"bytes"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/sim/fabric"
	"github.com/rebound-nic/rebound/sim/mlx4sim"
)

// A responder's port and a bench's port on one subnet: the bench uses Ethernet frames only, and finds the responder by
// ARP and neighbour discovery, with groups and paths from subnet administration.
func TestInfiniBandProber(t *testing.T) {
	x, y := newSubnetRig(t, mlx4sim.Options{MAC: [6]byte{2, 0, 0, 0, 0, 0xA}}),
		newSubnetRig(t, mlx4sim.Options{MAC: [6]byte{2, 0, 0, 0, 0, 0xB}})
	f := fabric.New(t.Errorf, x.Far, y.Far)
	x.fabric, y.fabric = f, f
	both := func(f func()) { x.Busy(func() { y.Busy(f) }) }
	for _, r := range []*subnetRig{x, y} {
		o := nic.Options{Match: answering()}
		if r == y {
			o = nic.Options{Steer: &nic.Steer{Local: netip.MustParseAddr("fd00::1"), Remote: our6.Addr(),
				Neighbours: true}}
		}
		must.OK(t, r.TryOpen(o))
	}
	x.attach()
	y.attach()
	mac := must.Get(net.ParseMAC(y.Dev.Info().MAC))(t)
	buf := make([]byte, 4096)
	// round sends a frame from y until a wanted one comes back.
	round := func(what string, frame []byte, wanted func(b []byte) bool) (got []byte) {
		both(func() {
			end := time.Now().Add(time.Minute)
			for sent := (time.Time{}); got == nil && time.Now().Before(end); {
				if time.Since(sent) > 5*time.Second {
					sent = time.Now()
					must.OK(t, y.Dev.Send(frame))
				}
				f.Step()
				x.Dev.DatagramQueue().Poll(x.Resp[0])
				n, _, err := y.Dev.Recv(buf)
				must.OK(t, err)
				if n > 0 && wanted(buf[:n]) {
					got = bytes.Clone(buf[:n])
				}
			}
		})
		must.Equal(t, got != nil, true, what+" is answered: %v")
		return got
	}
	head := func(to []byte, kind uint16, p []byte) []byte {
		return append(append(append(bytes.Clone(to), mac...), byte(kind>>8), byte(kind)), p...)
	}
	question := slices.Concat([]byte{0, 1, 8, 0, 6, 4, 0, 1}, mac, []byte{10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2})
	reply := round("ARP", append(head(bytes.Repeat([]byte{0xFF}, 6), 0x0806, question), make([]byte, 18)...),
		func(b []byte) bool {
			return len(b) == 42 && be.Uint16(b[12:]) == 0x0806 && b[21] == 2 &&
				bytes.Equal(b[28:32], []byte{10, 0, 0, 2})
		})
	station := reply[22:28]
	if want := []byte{2, 0, 2, byte(x.qpn >> 16), byte(x.qpn >> 8), byte(x.qpn)}; !bytes.Equal(station, want) ||
		!bytes.Equal(reply[6:12], want) || !bytes.Equal(reply[:6], mac) {
		t.Errorf("ARP reply % x, want station % x", reply, want)
	}
	if f.Paths == 0 {
		t.Error("no path was asked for")
	}
	for _, n := range []int{28, 84, 400, 2044} {
		ping := request([6]byte{}, n+14, -1)
		pong := round("ping", append(head(station, 0x0800, ping[14:]), make([]byte, max(0, 60-14-n))...),
			func(b []byte) bool { return len(b) == n+14 && b[12] == 8 && b[13] == 0 })
		if !bytes.Equal(pong[42:], ping[42:]) || !bytes.Equal(pong[:6], mac) || !bytes.Equal(pong[6:12], station) {
			t.Errorf("% x", pong)
		}
	}
	question = append(append([]byte{135, 0, 0, 0, 0, 0, 0, 0}, our6.Addr().AsSlice()...), 1, 1)
	p := ip6(far6, solicited, 58, 255, append(question, mac...), 2)[4:]
	advert := round("solicitation", head([]byte{0x33, 0x33, 0xFF, 0, 0, 2}, 0x86DD, p),
		func(b []byte) bool { return len(b) == 86 && b[20] == 58 && b[54] == 136 })
	if !bytes.Equal(advert[78:86], append([]byte{2, 1}, station...)) {
		t.Errorf("% x", advert)
	}
	ping := packet6(58, 100)[4:]
	round("ping over IPv6", head(station, 0x86DD, ping), func(b []byte) bool { return len(b) == 114 && b[54] == 129 })
	both(func() {
		if err := y.Dev.Send(head([]byte{4, 0, 0, 0, 0, 1}, 0x0800, ping)); err == nil ||
			!strings.Contains(err.Error(), "is no station of this subnet") {
			t.Errorf("to a MAC of Ethernet: %v", err)
		}
		// To a group that does not exist: dropped, and logged once.
		p := bytes.Clone(p)
		p[39] = 9
		y.Dev.Send(head([]byte{0x33, 0x33, 0xFF, 0, 0, 9}, 0x86DD, p))
		y.Await(func() bool {
			f.Step()
			return strings.Contains(y.Logs.String(), "subnet administration knows no way")
		})
	})
	padded := head(station, 0x0800, append([]byte{0x45, 0, 0, 46}, make([]byte, 42)...))
	if n := testing.AllocsPerRun(200, func() {
		if err := y.Dev.Send(padded); err != nil && err != nic.ErrFull {
			t.Error(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations for each frame that is sent", n)
	}
	x.Port.ForgetViolations()
	y.Port.ForgetViolations()
	both(func() {
		for _, r := range []*subnetRig{y, x} {
			r.Close()
		}
	})
}

// Bus cost of a reply over InfiniBand: no DMA read before the wire for up to 176 bytes of IP.
func TestInfiniBandBusCost(t *testing.T) {
	const n = 64
	for _, c := range needs.Each(3, []struct {
		push  string
		size  int    // of the IP packet
		reads int    // DMA reads on the way to the wire
		mmio  uint64 // BlueFlame blocks of 64 bytes, or doorbells
	}{{"full", 46, 0, 2}, {"full", 56, 0, 2}, {"full", 57, 0, 3}, {"full", 84, 0, 3}, {"full", 176, 0, 4},
		{"full", 177, 1, 2}, {"off", 46, 2, 1}, {"off", 1500, 2, 1}}) {
		w := &watched{Model: mlx4sim.New(mlx4sim.Options{Link: mlx4sim.InfiniBand})}
		x := onSubnet(newRigOf(t, w.Model, w))
		x.own.Push = c.push
		x.Open(nic.Options{})
		exchange := func(n int) {
			for range n {
				x.answer(ping4(c.size), false)
			}
		}
		exchange(16)
		var writes uint64
		for range 50 { // the port is served meanwhile: commands and events only add to the counts
			before := x.Port.Counts()
			w.onWay = 0
			exchange(n)
			if writes = x.Port.Counts().Since(before).MMIOWrite; w.onWay == c.reads*n && writes == c.mmio*n {
				break
			}
		}
		t.Logf("%-4s %4d bytes of IP: %.2f DMA reads on the way to the wire, %.2f MMIO writes a reply", c.push, c.size,
			float64(w.onWay)/n, float64(writes)/n)
		if w.onWay != c.reads*n || writes != c.mmio*n {
			t.Errorf("push %s, %d bytes: %d DMA reads on the way to the wire and %d MMIO writes of %d replies, want %d and %d of each", c.push, c.size, w.onWay, writes,
				n, c.reads, c.mmio)
		}
		x.Close()
	}
}
