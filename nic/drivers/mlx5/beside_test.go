package mlx5_test

import (
	"encoding/binary"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/drivers/mlx5"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/must"
	devrig "github.com/rebound-nic/rebound/proof/nictest/rig"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/mlx5sim"
)

// besideRig is a card driven by a kernel, with our driver beside the kernel's.
type besideRig struct {
	testing.TB
	model  *mlx5sim.Model
	port   *sim.Port
	far    *sim.Cable
	kernel *mlx5.Kernel
	dev    *mlx5.Device
	resp   []*fastpath.Responder
	log    devrig.Log
	own    mlx5.Options

	violates string // what the card may report as a violation
}

func newBeside(t testing.TB, o mlx5sim.Options) *besideRig {
	o.MAC, o.UCTX = ourMAC, true
	return newBesideOn(t, mlx5sim.New(o))
}

func newBesideOn(t testing.TB, m *mlx5sim.Model) *besideRig {
	x := &besideRig{TB: t, model: m}
	var err error
	if x.port, err = sim.New(m, sim.Options{Name: "mlx5"}); err != nil {
		t.Fatal(err)
	}
	var near *sim.Cable
	near, x.far = sim.Pair()
	x.port.Connect(near)
	x.busy(func() { x.kernel = mlx5.NewKernel(t, x.port, mlx5.KernelPort{MAC: ourMAC, MTU: 1500}) })
	t.Cleanup(func() {
		x.busy(func() { must.Close(t, x.kernel.Host()) })
		for _, v := range x.port.Violations() {
			if x.violates == "" || !strings.Contains(v, x.violates) {
				t.Error("violation: ", v)
			}
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
	if o.RingSize == 0 {
		o.RingSize = 64
	}
	o.Log = slog.New(slog.NewTextHandler(&x.log, nil))
	x.busy(func() { x.dev, err = mlx5.Open(x.kernel.Function(x), o, x.own) })
	return err
}

func (x *besideRig) open(o nic.Options) {
	x.Helper()
	if o.Match == nil {
		match := answers
		o.Match = &match
	}
	if err := x.tryOpen(o); err != nil {
		x.Fatalf("%v\n%s", err, x.log.String())
	}
	x.resp = nil
	for range max(o.Queues, 1) {
		r := must.Get(fastpath.New(*o.Match))(x)
		x.resp = append(x.resp, r)
	}
	x.settle()
}

func (x *besideRig) close() {
	x.Helper()
	x.busy(func() { must.Close(x, x.dev) })
}

// settle steps the card and both drivers until all are idle, and returns how many frames each queue answered.
func (x *besideRig) settle() (answered []int) {
	answered = make([]int, len(x.resp))
	for idle := 0; idle < 8; idle++ {
		if x.port.Settle(100000) > 1 {
			idle = 0
		}
		for i, r := range x.resp {
			if n := x.dev.Queue(i).Poll(r); n > 0 {
				answered[i], idle = answered[i]+n, 0
			}
		}
	}
	return answered
}

// reaches sends a frame from the wire and returns who received it: "ours" if it was answered, "kernel", or "nobody".
func (x *besideRig) reaches(frame []byte) string {
	x.Helper()
	x.far.Send(0, frame)
	n := 0
	for _, a := range x.settle() {
		n += a
	}
	buf := make([]byte, 2048)
	got, _, err := x.kernel.Host().Recv(buf)
	if err != nil {
		x.Fatal(err)
	}
	sent := 0
	for x.far.Recv(0) != nil {
		sent++
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

// to4 returns an IPv4 packet to an address, with a protocol and the start of its payload.
func to4(mac [6]byte, dst [4]byte, protocol byte, payload ...byte) []byte {
	f := append([]byte{}, request(mac, 64, -1)...)
	f[23] = protocol
	copy(f[30:], dst[:])
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

func udp(port byte) []byte { return []byte{0x30, 0x39, 0, port} }

var ours, others = [4]byte{10, 0, 0, 2}, [4]byte{10, 0, 0, 3}

// Only frames that are answered are diverted from the kernel, and after Close the kernel receives everything again.
func TestBeside(t *testing.T) {
	x := newBeside(t, mlx5sim.Options{Profile: mlx5sim.ConnectX6Dx, ICMP: true})
	ping := request(ourMAC, 64, -1)
	broadcast := [6]byte{0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}
	arp := append(append(append([]byte{}, broadcast[:]...), farMAC[:]...), append([]byte{8, 6, 0, 1, 8, 0, 6, 4, 0, 1}, make([]byte, 40)...)...)
	fragment := to4(ourMAC, ours, 17, udp(7)...)
	fragment[20] = 0x20
	if got := x.reaches(ping); got != "kernel" {
		t.Fatalf("without our driver a ping is %s", got)
	}
	x.open(nic.Options{})
	for _, c := range []struct {
		name, want string
		frame      []byte
	}{
		{"ping", "ours", ping},
		{"tagged ping", "ours", request(ourMAC, 64, 5)},
		{"UDP to our port", "ours", to4(ourMAC, ours, 17, udp(7)...)},
		{"echo reply", "kernel", to4(ourMAC, ours, 1, 0)},
		{"unreachable", "kernel", to4(ourMAC, ours, 1, 3)},
		{"UDP to another port", "kernel", to4(ourMAC, ours, 17, udp(9)...)},
		{"UDP to another address", "kernel", to4(ourMAC, others, 17, udp(7)...)},
		{"ping of another address", "kernel", to4(ourMAC, others, 1, 8)},
		{"TCP", "kernel", to4(ourMAC, ours, 6, 0x30, 0x39, 0, 22)},
		{"ARP", "kernel", arp},
		{"another station's", "nobody", request(farMAC, 64, -1)},
	} {
		if got := x.reaches(c.frame); got != c.want {
			t.Errorf("%s is %s, want %s", c.name, got, c.want)
		}
	}
	fixed := to4(ourMAC, ours, 17, udp(7)...)
	fixed[20] = 0x20 // a fragment; the header's checksum changes with it
	binary.BigEndian.PutUint16(fixed[24:], binary.BigEndian.Uint16(fixed[24:])-0x2000)
	if got := x.reaches(fixed); got != "kernel" {
		t.Errorf("a fragment is %s", got)
	}
	info := x.dev.Info()
	if info.Via != "verbs" || info.Device != "eth1" || info.Backend != nic.Sim || !strings.Contains(info.Model, "firmware 16.35.2000") {
		t.Errorf("%+v", info)
	}
	if !strings.HasPrefix(info.Push, "blueflame full") {
		t.Errorf("push %q", info.Push)
	}
	var s nic.Stats
	x.busy(func() {
		if err := x.dev.ReadStats(&s); err != nil {
			t.Error(err)
		}
	})
	if s.RxFrames != 3 || s.TxFrames != 3 || s.Extra["vport_rx_frames"] <= 3 {
		t.Errorf("counted %d received and %d sent, of the vport %d", s.RxFrames, s.TxFrames, s.Extra["vport_rx_frames"])
	}
	if contexts, n := x.model.UserObjects(); contexts != 1 || n == 0 {
		t.Errorf("%d objects in %d contexts", n, contexts)
	}
	x.close()
	x.resp = nil
	if contexts, n := x.model.UserObjects(); contexts != 0 || n != 0 {
		t.Errorf("%d objects in %d contexts are left", n, contexts)
	}
	if got := x.reaches(ping); got != "kernel" {
		t.Errorf("after Close a ping is %s", got)
	}
}

// Without a parser for ICMP types, pings are diverted together with all ICMP, but only for dedicated addresses of the
// responder.
func TestBesideDedicated(t *testing.T) {
	x := newBeside(t, mlx5sim.Options{Profile: mlx5sim.ConnectX5})
	x.open(nic.Options{})
	if got := x.reaches(request(ourMAC, 64, -1)); got != "kernel" {
		t.Errorf("a ping to the kernel's address is %s", got)
	}
	if notes := list(x.dev.Info().Notes); !strings.Contains(notes, "pings to 10.0.0.2 are answered by the kernel") {
		t.Errorf("notes: %s", notes)
	}
	if got := x.reaches(to4(ourMAC, ours, 17, udp(7)...)); got != "ours" {
		t.Errorf("a datagram is %s", got)
	}
	x.close()
	x.own.Dedicated = []netip.Addr{netip.MustParseAddr("10.0.0.2")}
	x.open(nic.Options{})
	if got := x.reaches(request(ourMAC, 64, -1)); got != "ours" {
		t.Errorf("a ping to our address is %s", got)
	}
	x.close()
}

// A configured tag restricts the rules: frames of other VLANs stay with the kernel.
func TestBesideVLAN(t *testing.T) {
	x := newBeside(t, mlx5sim.Options{Profile: mlx5sim.ConnectX6Dx, ICMP: true})
	match := answers
	match.VLANs = []uint16{0, 5}
	x.open(nic.Options{Match: &match})
	for vlan, want := range map[int]string{-1: "ours", 5: "ours", 6: "kernel"} {
		if got := x.reaches(request(ourMAC, 64, vlan)); got != want {
			t.Errorf("VLAN %d is %s, want %s", vlan, got, want)
		}
	}
	x.close()
}

func TestBesideQueues(t *testing.T) {
	x := newBeside(t, mlx5sim.Options{Profile: mlx5sim.ConnectX6Dx, ICMP: true})
	x.open(nic.Options{Queues: 2})
	busy := make([]int, 2)
	for port := range byte(64) {
		x.far.Send(0, to4(ourMAC, ours, 17, 0x30, port, 0, 7))
		for q, n := range x.settle() {
			busy[q] += n
		}
	}
	if busy[0] == 0 || busy[1] == 0 || busy[0]+busy[1] != 64 {
		t.Errorf("64 datagrams: the queues answered %v", busy)
	}
	x.close()
}

// Without write-combining the kernel has no such pages, and a doorbell notifies the card.
func TestBesideUncached(t *testing.T) {
	x := newBeside(t, mlx5sim.Options{Profile: mlx5sim.ConnectX6Dx, ICMP: true})
	x.kernel.NoWC = true
	x.open(nic.Options{})
	if got := x.reaches(request(ourMAC, 64, -1)); got != "ours" {
		t.Errorf("a ping is %s", got)
	}
	x.close()
}

func TestBesideRefuses(t *testing.T) {
	match := answers
	o := nic.Options{Match: &match}
	for _, c := range []struct {
		name  string
		model mlx5sim.Options
		own   mlx5.Options
		set   func(*besideRig)
		o     nic.Options
		is    error
		says  string
	}{
		{name: "no send queues", model: mlx5sim.Options{ICMP: true}, set: func(x *besideRig) { x.kernel.NoRaw, x.violates = true, "without RAW_TX" }, o: o, is: nic.ErrHardware, says: "CAP_NET_RAW"},
		{name: "no steering", own: mlx5.Options{NoSteering: true}, o: o, says: "debug.no_steering"},
		{name: "another MAC", o: nic.Options{Match: &match, MAC: farMAC}, says: "nic.mac"},
		{name: "a bond's port", set: func(x *besideRig) { x.kernel.Port.Master = "bond0" }, o: o, is: errors.ErrUnsupported, says: "eth1 belongs to bond0"},
		{name: "a port of the card's switch", set: func(x *besideRig) { x.kernel.Port.Switchdev = true }, o: o, is: errors.ErrUnsupported, says: "switchdev mode"},
		{name: "another MTU", o: nic.Options{Match: &match, MTU: 9000}, says: "interface eth1 has 1500"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.model.Profile = mlx5sim.ConnectX6Dx
			x := newBeside(t, c.model)
			x.own = c.own
			if c.set != nil {
				c.set(x)
			}
			err := x.tryOpen(c.o)
			if err == nil || !strings.Contains(err.Error(), c.says) || c.is != nil && !errors.Is(err, c.is) {
				t.Fatalf("%v, want %v with %q", err, c.is, c.says)
			}
			if contexts, n := x.model.UserObjects(); contexts != 0 || n != 0 {
				t.Errorf("%d objects in %d contexts are left", n, contexts)
			}
		})
	}
	x := newBesideOn(t, mlx5sim.New(mlx5sim.Options{MAC: ourMAC, Profile: mlx5sim.ConnectX6Dx}))
	if err := x.tryOpen(o); !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "mlxconfig -d 0000:03:00.0 set UCTX_EN=1") {
		t.Errorf("firmware without user contexts: %v", err)
	}
	x.busy(func() {
		if err := mlx5.Available(x.kernel.Function(t)); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("firmware without user contexts is available: %v", err)
		}
	})
	x = newBeside(t, mlx5sim.Options{Profile: mlx5sim.ConnectX6Dx})
	x.busy(func() {
		if err := mlx5.Available(x.kernel.Function(t)); err != nil {
			t.Errorf("not available: %v", err)
		}
	})
}

// A device that the kernel resets is opened again, unless its address has changed: the rules and the replies use the
// old one.
func TestBesideRestart(t *testing.T) {
	x := newBeside(t, mlx5sim.Options{Profile: mlx5sim.ConnectX6Dx, ICMP: true})
	x.open(nic.Options{})
	serve := func(until func() bool) error {
		var err error
		x.busy(func() {
			err = devrig.ServeOn(x.dev, x.resp[0], func() {
				if !await.Holds(until) {
					t.Errorf("does not come\n%s", x.log.String())
				}
			})
		})
		return err
	}
	var reset sync.Once
	if err := serve(func() bool {
		reset.Do(func() { x.kernel.Event(8) })
		return strings.Contains(x.log.String(), "was restarted")
	}); err != nil {
		t.Fatal(err)
	}
	if got := x.reaches(request(ourMAC, 64, -1)); got != "ours" {
		t.Errorf("after a restart a ping is %s", got)
	}
	x.kernel.Port.MAC = farMAC
	err := serve(func() bool { return strings.Contains(x.log.String(), "the restart failed") })
	if err == nil || !strings.Contains(err.Error(), "another address now") {
		t.Errorf("the interface has another address: %v", err)
	}
	x.close()
}
