package mlx5_test

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/drivers/mlx5"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim/mlx5sim"
)

// Each supported ID is opened, answers on two queues in each push mode, reports its link, serves page requests, and is
// closed with everything returned.
func TestEveryID(t *testing.T) {
	modelled := map[uint16]bool{}
	for _, p := range mlx5sim.Profiles() {
		modelled[p.Device()] = true
		t.Run(fmt.Sprintf("%04x", p.Device()), func(t *testing.T) {
			x := openRig(t, mlx5sim.Options{Profile: p}, nic.Options{Queues: 2})
			for _, n := range []int{60, 98, 700, 1514} {
				x.Exchange(40, n)
			}
			info := x.Dev.Info()
			if id := fmt.Sprintf("15b3:%04x", p.Device()); !strings.Contains(info.Model, id) ||
				strings.Contains(info.Model, "VF") != p.Virtual() {
				t.Errorf("%s", info.Model)
			}
			want := 100000
			if p == mlx5sim.ConnectX4Lx || p == mlx5sim.ConnectX4LxVF || p == mlx5sim.ConnectX6Lx {
				want = 50000
			}
			x.Busy(func() { check.Equal(t, must.Get(x.Dev.Link())(t), nic.Link{Up: true, Speed: want}, "link %+v") })
			before := x.Stats().Extra["firmware_pages"]
			x.model.AskPages(5)
			x.Busy(func() { x.Counts(func(s nic.Stats) bool { return s.Extra["firmware_pages"] == before+5 }) })
			x.Exchange(5, 98)
			check.Equal(t, x.model.Counters().PortWrites, 0,
				"%d port registers were written, which a virtual function does not have")
			x.Close()
			if n, _ := x.model.Pages(); n != 0 || x.Port.Mappings() != 0 {
				t.Errorf("%d pages are still firmware's, %d mappings", n, x.Port.Mappings())
			}
		})
	}
	for id := range 1 << 16 {
		if _, ok := mlx5.Supports(pci.ID{Vendor: 0x15B3, Device: uint16(id)}); ok != modelled[uint16(id)] {
			t.Errorf("15b3:%04x: driven %v, modelled %v", id, ok, modelled[uint16(id)])
		}
	}
}

// A virtual function has the address that its host assigned, or a random one, which a restart keeps; its pages may be
// managed by the host.
func TestVirtualFunction(t *testing.T) {
	t.Run("given", func(t *testing.T) {
		x := newRig(t, mlx5sim.Options{Profile: mlx5sim.ConnectX5VF, MAC: ourMAC, HostPages: true})
		x.OwnMAC = true
		x.Open(nic.Options{})
		x.Exchange(10, 98)
		if i := x.Dev.Info(); i.MAC != net.HardwareAddr(ourMAC[:]).String() ||
			strings.Contains(list(i.Notes), "drawn") {
			t.Errorf("%s, %s", i.MAC, list(i.Notes))
		}
		if s := x.Stats(); s.Extra["firmware_pages"] != 0 {
			t.Errorf("%d pages were given where the host gives them", s.Extra["firmware_pages"])
		}
	})
	t.Run("drawn", func(t *testing.T) {
		x := newRig(t, mlx5sim.Options{Profile: mlx5sim.ConnectXVF})
		x.OwnMAC = true
		x.Open(nic.Options{})
		mac, err := net.ParseMAC(x.Dev.Info().MAC)
		if err != nil || mac[0]&3 != 2 || !strings.Contains(list(x.Dev.Info().Notes), "drawn") {
			t.Fatalf("%v, %v, %s", mac, err, list(x.Dev.Info().Notes))
		}
		ours := [6]byte(mac)
		x.Resp[0] = x.Responder(ours)
		answered := func() {
			t.Helper()
			x.Ping(ours, 98, -1)
			x.Settle()
			check.Equal(t, x.Received(), 1, "%d replies from the drawn address")
		}
		answered()
		x.Served(func() {
			x.Fn.Reset()
			x.Await(func() bool { return strings.Contains(x.Logs.String(), "was restarted") })
		})
		answered()
	})
}

// The device loops nothing back: a frame for our own address is sent on the wire, whether the vport loops frames back
// by default or not.
func TestLoopback(t *testing.T) {
	for _, p := range []mlx5sim.Profile{mlx5sim.ConnectX6Dx, mlx5sim.ConnectX4LxVF} {
		for _, off := range []bool{true, false} {
			t.Run(fmt.Sprintf("%04x, off %v", p.Device(), off), func(t *testing.T) {
				x := openRig(t, mlx5sim.Options{Profile: p, NoLoopback: off}, nic.Options{Queues: 2})
				must.OK(t, x.Dev.Send(request(ourMAC, 98, -1)))
				x.Settle()
				check.Equal(t, x.Received(), 1, "a frame for our own address did not go out: %d")
			})
		}
	}
}

func TestLoopbackOfOldFirmware(t *testing.T) {
	x := openRig(t, mlx5sim.Options{}, nic.Options{Queues: 2})
	must.OK(t, x.Dev.Send(request(ourMAC, 98, -1)))
	x.Port.Settle(10000)
	buf := make([]byte, 2048)
	if n, _, err := x.Dev.Recv(buf); n != 0 || err != nil || x.model.Counters().SelfBlocked != 1 {
		t.Errorf("a frame of %d bytes for our address came round, %v, %d were kept out", n, err,
			x.model.Counters().SelfBlocked)
	}
}

// A card with a real-time clock, with or without a free-running one, is opened and answers.
func TestClocks(t *testing.T) {
	for _, c := range []mlx5sim.Clock{mlx5sim.FreeRunning, mlx5sim.RealTime, mlx5sim.BothClocks} {
		x := openRig(t, mlx5sim.Options{Clock: c}, nic.Options{})
		x.Exchange(20, 98)
		x.Close()
	}
}
