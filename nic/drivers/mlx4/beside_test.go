package mlx4_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/drivers/mlx4"
	"github.com/rebound-nic/rebound/nic/kit/beside"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/must"
	devrig "github.com/rebound-nic/rebound/proof/nictest/rig"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/mlx4sim"
)

// besideRig is a card driven by a kernel, with our driver beside the kernel's.
type besideRig struct {
	testing.TB
	port   *sim.Port
	far    *sim.Cable
	kernel *mlx4.Kernel
	dev    *mlx4.Device
	resp   *fastpath.Responder
	bench  bool
	log    devrig.Log
	own    mlx4.Options
}

func newBeside(t testing.TB) *besideRig {
	x := &besideRig{TB: t}
	var err error
	if x.port, err = sim.New(mlx4sim.New(mlx4sim.Options{}), sim.Options{Name: "mlx4"}); err != nil {
		t.Fatal(err)
	}
	var near *sim.Cable
	near, x.far = sim.Pair()
	x.port.Connect(near)
	x.busy(func() {
		x.kernel = mlx4.NewKernel(t, x.port, beside.Interface{Link: nic.Link{Up: true, Speed: 40000}, MAC: ourMAC, MTU: 1500, Number: 1})
	})
	t.Cleanup(func() {
		x.busy(func() { must.Close(t, x.kernel.Host()) })
		for _, v := range x.port.Violations() {
			t.Error("violation: ", v)
		}
		x.port.Close()
	})
	return x
}

func (x *besideRig) busy(f func()) {
	x.port.Start()
	defer x.port.Stop()
	f()
}

var answers = fastpath.Config{MAC: ourMAC, Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.2/24")}, UDPPorts: []uint16{7}}

func (x *besideRig) tryOpen(o nic.Options) (err error) {
	x.Helper()
	o.RingSize = 64
	o.Log = slog.New(slog.NewTextHandler(&x.log, nil))
	x.busy(func() { x.dev, err = mlx4.Open(x.kernel.Function(x), o, x.own) })
	return err
}

func (x *besideRig) open(o nic.Options) {
	x.Helper()
	x.resp, x.bench = nil, o.Steer != nil
	if o.Steer == nil {
		if o.Match == nil {
			match := answers
			o.Match = &match
		}
		var err error
		if x.resp, err = fastpath.New(*o.Match); err != nil {
			x.Fatal(err)
		}
	}
	if err := x.tryOpen(o); err != nil {
		x.Fatalf("%v\n%s", err, x.log.String())
	}
	x.settle()
}

func (x *besideRig) close() {
	x.Helper()
	x.busy(func() { must.Close(x, x.dev) })
	x.resp = nil
	if x.kernel.Objects != 0 {
		x.Errorf("%d objects are left", x.kernel.Objects)
	}
}

// settle steps the card and our driver until both are idle, and returns how many frames it answered.
func (x *besideRig) settle() (answered int) {
	for idle := 0; idle < 8; idle++ {
		if x.port.Settle(100000) > 1 {
			idle = 0
		}
		if x.resp == nil {
			continue
		}
		if n := x.dev.Queue(0).Poll(x.resp); n > 0 {
			answered, idle = answered+n, 0
		}
	}
	return answered
}

// reaches sends a frame from the wire and returns who received it: "ours" if it was answered or the bench has it, "kernel", or "nobody".
func (x *besideRig) reaches(frame []byte) string {
	x.Helper()
	x.far.Send(0, frame)
	n, buf := x.settle(), make([]byte, 2048)
	sent := 0
	for x.far.Recv(0) != nil {
		sent++
	}
	if x.bench {
		got, _, err := x.dev.Recv(buf)
		if err != nil {
			x.Fatal(err)
		}
		if got > 0 {
			n, sent = 1, 1
		}
	}
	got, _, err := x.kernel.Host().Recv(buf)
	if err != nil {
		x.Fatal(err)
	}
	switch {
	case n == 1 && sent == 1 && got == 0:
		return "ours"
	case n == 0 && sent == 0 && got == len(frame):
		return "kernel"
	case n == 0 && sent == 0 && got == 0:
		return "nobody"
	}
	x.Errorf("%d answered, %d left the card, the kernel received %d bytes of %d", n, sent, got, len(frame))
	return "?"
}

// to4 returns an IPv4 packet to 10.0.0.last, with a protocol and the start of its payload.
func to4(last byte, protocol byte, payload ...byte) []byte {
	f := append([]byte{}, request(ourMAC, 64, -1)...)
	f[23], f[33] = protocol, last
	clear(f[34:])
	copy(f[34:], payload)
	f[24], f[25] = 0, 0
	sum := uint32(0)
	for i := 14; i < 34; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(f[i:]))
	}
	sum = sum&0xFFFF + sum>>16
	binary.BigEndian.PutUint16(f[24:], ^uint16(sum&0xFFFF+sum>>16))
	if protocol == 17 {
		binary.BigEndian.PutUint16(f[38:], uint16(len(f)-34))
	}
	return f
}

// expect sends frames by name and checks who received them.
func (x *besideRig) expect(frames map[string][]byte, want string) {
	x.Helper()
	for name, f := range frames {
		if got := x.reaches(f); got != want {
			x.Errorf("%s is for %s, want %s", name, got, want)
		}
	}
}

var (
	ping     = request(ourMAC, 64, -1)
	datagram = to4(2, 17, 0x30, 0x39, 0, 7)
	kernels  = map[string][]byte{
		"UDP to another port": to4(2, 17, 0x30, 0x39, 0, 9), "UDP to another address": to4(3, 17, 0x30, 0x39, 0, 7), "TCP to another address": to4(3, 6, 0x30, 0x39, 0, 22),
		"ARP": append(append(bytes.Repeat([]byte{0xFF}, 6), farMAC[:]...), append([]byte{8, 6, 0, 1, 8, 0, 6, 4, 0, 1}, make([]byte, 40)...)...),
	}
)

// Only datagrams that are answered are diverted from the kernel, and after Close the kernel receives everything again.
func TestBeside(t *testing.T) {
	x := newBeside(t)
	x.expect(map[string][]byte{"a datagram without our driver": datagram}, "kernel")
	x.open(nic.Options{})
	x.expect(map[string][]byte{"a datagram": datagram}, "ours")
	x.expect(kernels, "kernel")
	x.expect(map[string][]byte{"a ping": ping, "TCP": to4(2, 6, 0x30, 0x39, 0, 22)}, "kernel")
	x.expect(map[string][]byte{"another station's": request(farMAC, 64, -1)}, "nobody")
	for range 300 { // several rounds of the rings
		x.expect(map[string][]byte{"a datagram": datagram}, "ours")
	}
	info := x.dev.Info()
	if info.Via != "verbs" || info.Device != "eth1" || info.Backend != nic.Sim || !info.NoDropCounter || !strings.Contains(info.Model, "port 1, firmware 2.42.5000") ||
		info.Push != "blueflame full" || !strings.Contains(list(info.Notes), "pings to 10.0.0.2 are answered by the kernel") {
		t.Errorf("%+v", info)
	}
	var s nic.Stats
	x.busy(func() {
		if err := x.dev.ReadStats(&s); err != nil {
			t.Error(err)
		}
	})
	if s.RxFrames != 301 || s.TxFrames != 301 || s.Extra["queue_0_pushed_whole"] != 301 {
		t.Errorf("counted %+v", s)
	}
	x.close()
	x.expect(map[string][]byte{"a datagram after Close": datagram}, "kernel")
}

// All of IPv4 to an address that only the responder has is ours.
func TestBesideDedicated(t *testing.T) {
	x := newBeside(t)
	x.own.Dedicated = []netip.Addr{netip.MustParseAddr("10.0.0.2")}
	x.open(nic.Options{})
	x.expect(map[string][]byte{"a ping": ping, "a datagram": datagram, "a tagged ping": request(ourMAC, 64, 5)}, "ours")
	x.expect(map[string][]byte{"TCP": to4(2, 6, 0x30, 0x39, 0, 22)}, "nobody")
	x.expect(kernels2(), "kernel")
	x.close()
}

func kernels2() map[string][]byte {
	m := map[string][]byte{}
	for name, f := range kernels {
		if name != "UDP to another port" {
			m[name] = f
		}
	}
	return m
}

// A bench receives the replies to its datagrams, from its target.
func TestBesideBench(t *testing.T) {
	x := newBeside(t)
	local := netip.MustParseAddr("10.0.0.2")
	x.open(nic.Options{Steer: &nic.Steer{Local: local, Remote: netip.MustParseAddr("10.0.0.1"), UDPPorts: []uint16{50000}}})
	reply := to4(2, 17, 0, 7, 0xC3, 0x50)
	other := to4(2, 17, 0, 7, 0xC3, 0x50)
	other[29] = 9
	x.expect(map[string][]byte{"our reply": reply}, "ours")
	x.expect(map[string][]byte{"another host's": other, "another socket's": to4(2, 17, 0, 7, 0xC3, 0x51), "a ping": ping}, "kernel")
	x.expect(kernels, "kernel")
	probe := to4(3, 17, 0xC3, 0x50, 0, 7)
	must.OK(t, x.dev.Send(probe))
	x.settle()
	if sent := x.far.Recv(0); !bytes.Equal(sent, probe) {
		t.Errorf("sent %x, want %x", sent, probe)
	}
	x.close()
	for _, s := range []nic.Steer{{Local: local, EchoIDs: []uint16{1}}, {Local: netip.MustParseAddr("fd00::2"), UDPPorts: []uint16{1}}, {Local: local, Neighbours: true}} {
		if err := x.tryOpen(nic.Options{Steer: &s}); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%+v: %v", s, err)
		}
	}
}

func TestBesideWithoutBlueFlame(t *testing.T) {
	x := newBeside(t)
	x.kernel.NoFlame = true
	x.open(nic.Options{})
	x.expect(map[string][]byte{"a datagram": datagram}, "ours")
	if p := x.dev.Info().Push; p != "doorbell full" {
		t.Errorf("push %q", p)
	}
	x.close()
}

func TestBesideRefuses(t *testing.T) {
	match := answers
	six := fastpath.Config{MAC: ourMAC, Addresses: []netip.Prefix{netip.MustParsePrefix("fd00::2/64")}}
	tagged := answers
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
		{name: "VLANs", o: nic.Options{Match: &tagged}, is: errors.ErrUnsupported, says: "respond.vlans"},
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
				c.o.Match = &match
			}
			err := x.tryOpen(c.o)
			if err == nil || !strings.Contains(err.Error(), c.says) || c.is != nil && !errors.Is(err, c.is) {
				t.Fatalf("%v, want %v with %q", err, c.is, c.says)
			}
			if x.kernel.Objects != 0 {
				t.Errorf("%d objects are left", x.kernel.Objects)
			}
			if c.name != "no rules" {
				return
			}
			x.busy(func() {
				if err := mlx4.Available(x.kernel.Function(t)); !errors.Is(err, errors.ErrUnsupported) {
					t.Errorf("without rules it is available: %v", err)
				}
				x.kernel.NoRules = false
				if err := mlx4.Available(x.kernel.Function(t)); err != nil {
					t.Errorf("not available: %v", err)
				}
			})
		})
	}
}

// A device that the kernel resets is opened again.
func TestBesideRestart(t *testing.T) {
	x := newBeside(t)
	x.open(nic.Options{})
	var reset sync.Once
	var err error
	x.busy(func() {
		err = devrig.ServeOn(x.dev, x.resp, func() {
			if !await.Holds(func() bool {
				reset.Do(func() { x.kernel.Event(8) })
				return strings.Contains(x.log.String(), "was restarted")
			}) {
				t.Errorf("is not restarted\n%s", x.log.String())
			}
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	x.expect(map[string][]byte{"a datagram after a restart": datagram}, "ours")
	x.close()
}

// A process that is killed at any moment, while it opens the card or under traffic, leaves nothing on the card, which no longer writes to its
// memory, and the kernel receives everything again.
func TestBesideKilled(t *testing.T) {
	x := newBeside(t)
	match := answers
	devrig.Killed(t, devrig.Process{
		Open:  func() error { return x.tryOpen(nic.Options{Match: &match}) },
		Calls: &x.kernel.Calls, DieAt: &x.kernel.DieAt,
		Begin: func() func(*rand.Rand) {
			r := must.Get(fastpath.New(match))(t)
			return func(rng *rand.Rand) {
				x.far.Send(0, datagram)
				x.far.Send(0, to4(2, 17, 0x30, 0x39, 0, 9))
				for range rng.IntN(4) {
					x.port.Step()
				}
				if rng.IntN(3) > 0 {
					x.dev.Queue(0).Poll(r)
				}
			}
		},
		Kill: func() { x.busy(x.kernel.Kill) },
		Dead: func(kill int, opened bool) {
			if x.kernel.Objects != 0 {
				t.Fatalf("kill %d: %d objects are left", kill, x.kernel.Objects)
			}
			x.resp = nil
			devrig.Drain(t, x.port, x.far, x.kernel.Host())
			if got := x.reaches(datagram); got != "kernel" {
				t.Fatalf("after kill %d a frame is for %s", kill, got)
			}
			if opened {
				x.busy(func() { x.dev.Close() })
			}
		},
	})
}
