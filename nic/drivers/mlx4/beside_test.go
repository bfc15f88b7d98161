package mlx4_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/verbs"
	"github.com/rebound-nic/rebound/nic/drivers/mlx4"
	"github.com/rebound-nic/rebound/nic/kit/beside"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/golden"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	devrig "github.com/rebound-nic/rebound/proof/nictest/rig"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/mlx4sim"
)

// besideRig is a card driven by a kernel, with our driver beside the kernel's.
type besideRig struct {
	*devrig.Beside[*mlx4.Device]
	kernel *mlx4.Kernel
	own    mlx4.Options
}

func newBeside(t testing.TB) *besideRig {
	x := &besideRig{}
	x.Beside = devrig.NewBeside(t, "mlx4", mlx4sim.New(mlx4sim.Options{}), func(p *sim.Port) nic.Device {
		x.kernel = mlx4.NewKernel(t, p, ourMAC, 1500)
		return x.kernel.Host()
	}, devrig.DriverBeside[*mlx4.Device]{
		Open: func(o nic.Options) (*mlx4.Device, error) { return mlx4.Open(x.kernel.Function(), o, x.own) },
		Poll: func(d *mlx4.Device, queue int, r *fastpath.Responder) int { return d.Queue(queue).Poll(r) },
		Left: func() int { return x.kernel.Left() },
	})
	return x
}

var (
	ping     = devrig.Echo(64)
	datagram = devrig.UDP4(2, 7)
	to4      = devrig.To4
)

// kernels returns frames for the kernel, whether all of IPv4 to our address is ours or not.
func kernels() map[string][]byte {
	return map[string][]byte{"UDP to another address": devrig.UDP4(3, 7),
		"TCP to another address": to4(3, 6, 0x30, 0x39, 0, 22), "ARP": devrig.ARP()}
}

// Only datagrams that are answered are diverted from the kernel, and after Close the kernel receives everything again.
func TestBeside(t *testing.T) {
	x := newBeside(t)
	x.Expect("kernel", map[string][]byte{"a datagram without our driver": datagram})
	x.Open(nic.Options{})
	x.Expect("ours", map[string][]byte{"a datagram": datagram})
	x.Expect("kernel", kernels())
	x.Expect("kernel", map[string][]byte{"a ping": ping, "TCP": to4(2, 6, 0x30, 0x39, 0, 22),
		"UDP to another port": devrig.UDP4(2, 9)})
	x.Expect("nobody", map[string][]byte{"another station's": request(farMAC, 64, -1)})
	for range 300 { // several rounds of the rings
		x.Expect("ours", map[string][]byte{"a datagram": datagram})
	}
	info := x.Dev.Info()
	if info.Via != "verbs" || info.Device != "eth1" || info.Backend != nic.Sim || !info.NoDropCounter ||
		!info.NoByteCounter || !strings.Contains(info.Model, "port 1, firmware 2.42.5000") ||
		info.Push != "blueflame full" || !strings.Contains(list(info.Notes),
		"pings to 10.0.0.2 are answered by the kernel") {
		t.Errorf("%+v", info)
	}
	var s nic.Stats
	x.Busy(func() { must.OK(t, x.Dev.ReadStats(&s)) })
	if s.RxFrames != 301 || s.TxFrames != 301 || s.Extra["queue_0_pushed_whole"] != 301 {
		t.Errorf("counted %+v", s)
	}
	x.Close()
	x.Expect("kernel", map[string][]byte{"a datagram after Close": datagram})
}

// All of IPv4 to an address that only the responder has is ours.
func TestBesideDedicated(t *testing.T) {
	x := newBeside(t)
	x.own.Dedicated = []netip.Addr{netip.MustParseAddr("10.0.0.2")}
	x.Open(nic.Options{})
	x.Expect("ours", map[string][]byte{"a ping": ping, "a datagram": datagram, "a tagged ping": request(ourMAC, 64, 5)})
	x.Expect("nobody", map[string][]byte{"TCP": to4(2, 6, 0x30, 0x39, 0, 22)})
	x.Expect("kernel", kernels())
	x.Close()
}

// A bench receives the replies to its datagrams, from its target.
func TestBesideBench(t *testing.T) {
	x := newBeside(t)
	local := netip.MustParseAddr("10.0.0.2")
	x.Open(nic.Options{Steer: &nic.Steer{Local: local, Remote: netip.MustParseAddr("10.0.0.1"),
		UDPPorts: []uint16{50000}}})
	reply := to4(2, 17, 0, 7, 0xC3, 0x50)
	other := to4(2, 17, 0, 7, 0xC3, 0x50)
	other[29] = 9
	x.Expect("ours", map[string][]byte{"our reply": reply})
	x.Expect("kernel", map[string][]byte{"another host's": other, "another socket's": to4(2, 17, 0, 7, 0xC3, 0x51),
		"a ping": ping})
	x.Expect("kernel", kernels())
	x.Sends(to4(3, 17, 0xC3, 0x50, 0, 7))
	x.Close()
	for _, s := range []nic.Steer{{Local: local, EchoIDs: []uint16{1}},
		{Local: netip.MustParseAddr("fd00::2"), UDPPorts: []uint16{1}}, {Local: local, Neighbours: true}} {
		check.Fails(t, fmt.Sprintf("%+v", s), x.TryOpen(nic.Options{Steer: &s}), errors.ErrUnsupported)
	}
}

func TestBesideWithoutBlueFlame(t *testing.T) {
	x := newBeside(t)
	x.kernel.NoFlame = true
	x.Open(nic.Options{})
	x.Expect("ours", map[string][]byte{"a datagram": datagram})
	check.Equal(t, x.Dev.Info().Push, "doorbell full", "push %q")
	x.Close()
}

// Without completions of 64 bytes (old firmware, or mlx4_core.enable_64b_cqe_eqe=0) the kernel has version 3 of its
// interface.
func TestBesideVersion3(t *testing.T) {
	x := newBeside(t)
	x.kernel.NoCaps = true
	x.Open(nic.Options{})
	x.Expect("ours", map[string][]byte{"a datagram": datagram})
	check.Equal(t, x.Dev.Info().Push, "blueflame full", "push %q")
	x.Close()
}

func TestBesideRefuses(t *testing.T) {
	six := fastpath.Config{MAC: ourMAC, Addresses: []netip.Prefix{netip.MustParsePrefix("fd00::2/64")}}
	tagged := devrig.AnsweredBeside()
	tagged.VLANs = []uint16{5}
	for _, c := range []struct {
		name string
		own  mlx4.Options
		set  func(*mlx4.Kernel)
		o    nic.Options
		is   error
		says string
	}{
		{name: "no rules", set: func(k *mlx4.Kernel) { k.NoRules = true }, is: errors.ErrUnsupported, says: "log_num_mgm_entry_size=-1"},
		{name: "no right", set: func(k *mlx4.Kernel) { k.NoRaw = true }, is: nic.ErrRights, says: "CAP_NET_RAW"},
		{name: "two queues", o: nic.Options{Queues: 2}, is: errors.ErrUnsupported, says: "there is one"},
		{name: "VLANs", o: nic.Options{Match: tagged}, is: errors.ErrUnsupported, says: "respond.vlans"},
		{name: "IPv6", o: nic.Options{Match: &six}, says: "do not select IPv6"},
		{name: "another port", own: mlx4.Options{Port: 2}, says: "eth1 is port 1"},
		{name: "no steering", own: mlx4.Options{Steering: "a0"}, says: "debug.no_steering"},
		{name: "a bond's port", set: func(k *mlx4.Kernel) { k.Port.Master = "bond0" }, is: errors.ErrUnsupported, says: "eth1 belongs to bond0"},
		{name: "another MTU", o: nic.Options{MTU: 9000}, says: "interface eth1 has 1500"},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newBeside(t)
			x.own = c.own
			if c.set != nil {
				c.set(x.kernel)
			}
			if c.o.Match == nil {
				c.o.Match = devrig.AnsweredBeside()
			}
			check.Fails(t, "Open", x.TryOpen(c.o), c.is, c.says)
		})
	}
}

// A card is available if one of its ports is Ethernet.
func TestBesideAvailable(t *testing.T) {
	x := newBeside(t)
	read := beside.Read
	defer func() { beside.Read = read }()
	beside.Read = func(name string) (beside.Interface, error) {
		if strings.HasPrefix(name, "ib") {
			return beside.Interface{}, errors.ErrUnsupported
		}
		return read(name)
	}
	x.Busy(func() {
		fn := verbs.Of(x.kernel.Function())
		for names, want := range map[string]error{"eth1": nil, "ib0 eth1": nil, "eth1 ib0": nil,
			"ib0 ib1": errors.ErrUnsupported, "": nic.ErrNoDevice} {
			fn.Function.Interfaces = strings.Fields(names)
			err := check.Err(mlx4.Available(fn))
			check.Equal(t, errors.Is(err, want), true, fmt.Sprint(names, ": ", err, ": %t"))
		}
		x.kernel.NoRules = true
		check.Fails(t, "without rules", check.Err(mlx4.Available(verbs.Of(x.kernel.Function()))), errors.ErrUnsupported)
	})
}

// A device that the kernel resets is opened again when it is back.
func TestBesideRestart(t *testing.T) {
	needs.Long(t)
	x := newBeside(t)
	x.Open(nic.Options{})
	x.Restarts("device_fatal", func() { x.kernel.Recovers(); x.kernel.Event(8) })
	x.Expect("ours", map[string][]byte{"a datagram after a restart": datagram})
	x.Restarts("mtu_changed", func() { x.kernel.Change(func(f *beside.Interface) { f.MTU = 1400 }) })
	x.Expect("ours", map[string][]byte{"a datagram after a change of the MTU": datagram})
	var s nic.Stats
	x.Busy(func() { must.OK(t, x.Dev.ReadStats(&s)) })
	if notes := x.Dev.Info().Notes; s.RxFrames != 2 || s.TxFrames != 2 || s.Resets != 2 ||
		strings.Count(list(notes), "pings to 10.0.0.2") != 1 {
		t.Errorf("after two restarts %+v, %q", s, notes)
	}
	x.Close()
}

// A process that is killed at any moment leaves nothing on the card.
func TestBesideKilled(t *testing.T) {
	x := newBeside(t)
	x.Killed(&x.kernel.Calls, &x.kernel.DieAt, x.kernel.Kill)
}

// Each call to the kernel that fails is reported, and leaves nothing on the card.
func TestBesideCallFails(t *testing.T) {
	x := newBeside(t)
	golden.Equal(t, "testdata/fails.txt", x.Refused(&x.kernel.Kernel, nic.Options{Match: devrig.AnsweredBeside()}))
}
