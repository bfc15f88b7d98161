package mlx5_test

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"rebound/nic"
	"rebound/nic/bus/pci"
	"rebound/nic/mlx5"
	"rebound/nic/sim/mlx5sim"
)

// Each ID that the package drives is opened, answers on two queues in each way to the wire, tells its link, serves page
// requests, and is closed with all of it given back.
func TestEveryID(t *testing.T) {
	modelled := map[uint16]bool{}
	for _, p := range mlx5sim.Profiles() {
		modelled[p.Device()] = true
		t.Run(fmt.Sprintf("%04x", p.Device()), func(t *testing.T) {
			x := newRig(t, mlx5sim.Options{Profile: p})
			x.open(nic.Options{Queues: 2})
			x.exchange(40, 60)
			x.exchange(40, 98)
			x.exchange(40, 700)
			x.exchange(5, 1514)
			info := x.dev.Info()
			if id := fmt.Sprintf("15b3:%04x", p.Device()); !strings.Contains(info.Model, id) || strings.Contains(info.Model, "VF") != p.Virtual() {
				t.Errorf("%s", info.Model)
			}
			var l nic.Link
			var err error
			x.busy(func() { l, err = x.dev.Link() })
			want := 100000
			if p == mlx5sim.ConnectX4Lx || p == mlx5sim.ConnectX4LxVF || p == mlx5sim.ConnectX6Lx {
				want = 50000
			}
			if !l.Up || l.Speed != want || err != nil {
				t.Errorf("link %+v, %v", l, err)
			}
			before := x.stats().Extra["firmware_pages"]
			x.model.AskPages(5)
			x.busy(func() {
				x.await(func() bool {
					var s nic.Stats
					return x.dev.ReadStats(&s) == nil && s.Extra["firmware_pages"] == before+5
				})
			})
			x.exchange(5, 98)
			if n := x.model.Counters().PortWrites; n != 0 {
				t.Errorf("%d port registers were written, which a virtual function does not have", n)
			}
			x.close()
			if n, _ := x.model.Pages(); n != 0 || x.port.Mappings() != 0 {
				t.Errorf("%d pages are still firmware's, %d mappings", n, x.port.Mappings())
			}
		})
	}
	for id := range 1 << 16 {
		if _, ok := mlx5.Supports(pci.ID{Vendor: 0x15B3, Device: uint16(id)}); ok != modelled[uint16(id)] {
			t.Errorf("15b3:%04x: driven %v, modelled %v", id, ok, modelled[uint16(id)])
		}
	}
}

// A virtual function has the address that its host gave it, or draws one, which a restart keeps; pages may be the host's affair.
func TestVirtualFunction(t *testing.T) {
	t.Run("given", func(t *testing.T) {
		x := newRig(t, mlx5sim.Options{Profile: mlx5sim.ConnectX5VF, MAC: ourMAC, HostPages: true})
		x.ownMAC = true
		x.open(nic.Options{})
		x.exchange(10, 98)
		if i := x.dev.Info(); i.MAC != net.HardwareAddr(ourMAC[:]).String() || strings.Contains(list(i.Notes), "drawn") {
			t.Errorf("%s, %s", i.MAC, list(i.Notes))
		}
		if s := x.stats(); s.Extra["firmware_pages"] != 0 {
			t.Errorf("%d pages were given where the host gives them", s.Extra["firmware_pages"])
		}
		x.close()
	})
	t.Run("drawn", func(t *testing.T) {
		x := newRig(t, mlx5sim.Options{Profile: mlx5sim.ConnectXVF})
		x.ownMAC = true
		x.open(nic.Options{})
		mac, err := net.ParseMAC(x.dev.Info().MAC)
		if err != nil || mac[0]&3 != 2 || !strings.Contains(list(x.dev.Info().Notes), "drawn") {
			t.Fatalf("%v, %v, %s", mac, err, list(x.dev.Info().Notes))
		}
		ours := [6]byte(mac)
		x.resp[0] = x.responder(ours)
		answered := func() {
			t.Helper()
			x.ping(ours, 98, -1)
			x.settle()
			if n := x.received(); n != 1 {
				t.Errorf("%d replies from the drawn address", n)
			}
		}
		answered()
		if err := x.serve(func() {
			x.fn.Reset()
			x.await(func() bool { return strings.Contains(x.logs.String(), "was restarted") })
		}); err != nil {
			t.Errorf("Serve: %v", err)
		}
		x.port.ForgetViolations()
		answered()
		x.close()
	})
}

// What one application sends to another's address turns round in the device, and so does the answer to the first address: the
// vport has to be told to, which this one was not, and the TIRs that they may. Before there is an application nothing turns round.
func TestLoopback(t *testing.T) {
	for _, p := range []mlx5sim.Profile{mlx5sim.ConnectX6Dx, mlx5sim.ConnectX4LxVF} {
		t.Run(fmt.Sprintf("%04x", p.Device()), func(t *testing.T) {
			x := newRig(t, mlx5sim.Options{Profile: p, NoLoopback: true})
			x.own.Push = "full"
			x.open(nic.Options{Queues: 2})
			defer x.close()
			if err := x.dev.Send(request(ourMAC, 98, -1)); err != nil {
				t.Fatal(err)
			}
			x.settle()
			if n := x.received(); n != 1 {
				t.Errorf("a frame for our own address did not go out, with no application to turn it round for: %d", n)
			}
			a := [6]byte{2, 0, 0, 0, 0, 0xAA}
			x.resp[1] = x.responder(a)
			x.assign(a, 1)
			x.turnsRound(a)
			if err := x.serve(func() {
				x.fn.Reset()
				x.await(func() bool { return strings.Contains(x.logs.String(), "was restarted") })
			}); err != nil {
				t.Errorf("Serve: %v", err)
			}
			x.port.ForgetViolations()
			x.received()
			x.turnsRound(a)
		})
	}
}

// Old firmware turns frames round whatever it is told. Applications reach each other; the device's first address is kept out
// of it, and Info says so.
func TestLoopbackOfOldFirmware(t *testing.T) {
	x := newRig(t, mlx5sim.Options{})
	x.own.Push = "full"
	x.open(nic.Options{Queues: 2})
	defer x.close()
	a, b := [6]byte{2, 0, 0, 0, 0, 0xAA}, [6]byte{2, 0, 0, 0, 0, 0xBB}
	x.resp[1] = x.responder(a)
	x.assign(a, 1)
	x.assign(b, 0)
	f := request(a, 98, -1)
	copy(f[6:], b[:])
	if err := x.dev.Send(f); err != nil {
		t.Fatal(err)
	}
	if n := x.answer(1); n != 1 {
		t.Errorf("the application answered %d frames of the other's", n)
	}
	buf := make([]byte, 2048)
	if n, _, err := x.dev.Recv(buf); n != len(f) || [6]byte(buf) != b || err != nil {
		t.Errorf("the answer did not come back: %d bytes, %v", n, err)
	}
	if err := x.dev.Send(request(ourMAC, 98, -1)); err != nil {
		t.Fatal(err)
	}
	x.port.Settle(10000)
	if n, _, err := x.dev.Recv(buf); n != 0 || err != nil || x.model.Counters().SelfBlocked != 1 {
		t.Errorf("a frame of %d bytes for the first address came round, %v, %d were kept out", n, err, x.model.Counters().SelfBlocked)
	}
	if n := x.received(); n != 0 {
		t.Errorf("%d frames went out on the wire", n)
	}
	if notes := list(x.dev.Info().Notes); strings.Count(notes, "cannot switch local loopback") != 1 {
		t.Error(notes)
	}
}

func (x *rig) assign(mac [6]byte, queue int) {
	x.Helper()
	x.busy(func() {
		if err := x.dev.Assign(mac, -1, queue); err != nil {
			x.Error(err)
		}
	})
}

// answer lets the device run and queue answer what it has.
func (x *rig) answer(queue int) int {
	x.port.Settle(10000)
	n := x.dev.Queue(queue).Poll(x.resp[queue])
	x.port.Settle(10000)
	return n
}

// turnsRound sends an echo request from our first address to an application's on queue 1, and looks for the answer to come
// back without having been on the wire.
func (x *rig) turnsRound(a [6]byte) {
	x.Helper()
	f := request(a, 98, -1)
	copy(f[6:], ourMAC[:])
	if err := x.dev.Send(f); err != nil {
		x.Fatal(err)
	}
	before := x.resp[1].Stats()
	answered := x.answer(1)
	// The answer is to our first address, whose frames the hash spreads over both queues: nobody answers an answer there.
	buf := make([]byte, 2048)
	n, _, err := x.dev.Recv(buf)
	if again := x.dev.Queue(1).Poll(x.resp[1]); answered != 1 || again != 0 || err != nil {
		x.Errorf("answered %d, then %d, %v", answered, again, err)
	}
	after := x.resp[1].Stats()
	if refused := after.Refused() - before.Refused(); n != len(f) && refused != 1 || n == len(f) && [6]byte(buf[:6]) != ourMAC {
		x.Errorf("the answer did not come back: %d bytes on queue 0, %d refused on queue 1", n, refused)
	}
	if n := x.received(); n != 0 {
		x.Errorf("%d frames went out on the wire", n)
	}
}
