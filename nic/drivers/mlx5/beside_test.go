package mlx5_test

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/verbs"
	"github.com/rebound-nic/rebound/nic/bus/verbs/abi"
	"github.com/rebound-nic/rebound/nic/drivers/mlx5"
	"github.com/rebound-nic/rebound/nic/kit"
	"github.com/rebound-nic/rebound/nic/kit/beside"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/golden"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	devrig "github.com/rebound-nic/rebound/proof/nictest/rig"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/mlx5sim"
)

// besideRig is a card driven by a kernel, with our driver beside the kernel's.
type besideRig struct {
	*devrig.Beside[*mlx5.Device]
	model  *mlx5sim.Model
	kernel *mlx5.Kernel
	own    mlx5.Options
	base   int // objects of the kernel
}

func newBeside(t testing.TB, o mlx5sim.Options) *besideRig {
	o.MAC = ourMAC
	m := mlx5sim.New(o)
	x := &besideRig{model: m}
	x.Beside = devrig.NewBeside(t, "mlx5", m, func(p *sim.Port) nic.Device {
		x.kernel = mlx5.NewKernel(t, p, ourMAC, 1500)
		x.base = m.Objects()
		return x.kernel.Host()
	}, devrig.DriverBeside[*mlx5.Device]{
		Open: func(o nic.Options) (*mlx5.Device, error) { return mlx5.Open(x.kernel.Function(), o, x.own) },
		Poll: func(d *mlx5.Device, queue int, r *fastpath.Responder) int { return d.Queue(queue).Poll(r) },
		Left: func() int { return left(m, x.base) },
	})
	return x
}

// newBesideICMP is newBeside on a card with a parser for ICMP.
func newBesideICMP(t testing.TB) *besideRig { return newBeside(t, withParser) }

// newBesideRaw is newBeside on a card without user contexts, whose kernel makes queue pairs for raw packets.
func newBesideRaw(t testing.TB) *besideRig { return newBeside(t, withoutContexts) }

// bothKinds runs a test on a card with user contexts and on one without.
func bothKinds(t *testing.T, test func(t *testing.T, x *besideRig)) {
	t.Run("DEVX", func(t *testing.T) { test(t, newBesideICMP(t)) })
	t.Run("raw packets", func(t *testing.T) { test(t, newBesideRaw(t)) })
}

var (
	ping     = devrig.Echo(64)
	datagram = devrig.UDP4(2, 7)
	to4      = devrig.To4
)

// Only frames that are answered are diverted from the kernel, and after Close the kernel receives everything again.
func TestBeside(t *testing.T) {
	x := newBesideICMP(t)
	x.Expect("kernel", map[string][]byte{"without our driver a ping": ping})
	x.Open(nic.Options{})
	x.Expect("ours", map[string][]byte{"ping": ping, "tagged ping": request(ourMAC, 64, 5),
		"UDP to our port": datagram})
	fragment := devrig.UDP4(2, 7)
	fragment[20] = 0x20 // the header's checksum changes with it
	binary.BigEndian.PutUint16(fragment[24:], binary.BigEndian.Uint16(fragment[24:])-0x2000)
	x.Expect("kernel", map[string][]byte{"echo reply": to4(2, 1, 0), "unreachable": to4(2, 1, 3),
		"UDP to another port":    devrig.UDP4(2, 9),
		"UDP to another address": devrig.UDP4(3, 7), "ping of another address": to4(3, 1, 8),
		"TCP": to4(2, 6, 0x30, 0x39, 0, 22), "ARP": devrig.ARP(),
		"a fragment": fragment})
	x.Expect("nobody", map[string][]byte{"another station's": request(farMAC, 64, -1)})
	info := x.Dev.Info()
	if info.Via != "verbs" || info.Device != "eth1" || info.Backend != nic.Sim ||
		!strings.Contains(info.Model, "firmware 16.35.2000") ||
		!strings.HasPrefix(info.Push, "blueflame full") {
		t.Errorf("%+v", info)
	}
	var s nic.Stats
	x.Busy(func() { must.OK(t, x.Dev.ReadStats(&s)) })
	if s.RxFrames != 3 || s.TxFrames != 3 || s.Extra["vport_rx_frames"] <= 3 {
		t.Errorf("counted %d received and %d sent, of the vport %d", s.RxFrames, s.TxFrames, s.Extra["vport_rx_frames"])
	}
	if contexts, n := x.model.UserObjects(); contexts != 1 || n == 0 {
		t.Errorf("%d objects in %d contexts", n, contexts)
	}
	x.Close()
	x.Expect("kernel", map[string][]byte{"after Close a ping": ping})
}

// Without a parser for ICMP types, pings are diverted together with all ICMP, but only for dedicated addresses of the
// responder.
func TestBesideDedicated(t *testing.T) {
	x := newBeside(t, withContexts)
	x.Open(nic.Options{})
	x.Expect("kernel", map[string][]byte{"a ping to the kernel's address": ping})
	check.Contains(t, list(x.Dev.Info().Notes), "pings to 10.0.0.2 are answered by the kernel")
	x.Expect("ours", map[string][]byte{"a datagram": datagram})
	x.Close()
	x.answersAddedAddress()
}

// answersAddedAddress: pings to an address that the responder added are its own.
func (x *besideRig) answersAddedAddress() {
	x.own.Dedicated = []netip.Addr{netip.MustParseAddr("10.0.0.2")}
	x.Open(nic.Options{})
	x.Expect("ours", map[string][]byte{"a ping to our address": ping})
	x.Close()
}

// Older firmware has no match on the IP version. Rules then match the EtherType, as Linux's do.
func TestBesideEtherType(t *testing.T) {
	for name, o := range map[string]mlx5sim.Options{"DEVX": withParser, "raw packets": withoutContexts} {
		t.Run(name, func(t *testing.T) {
			o.NoIPVersion = true
			x := newBeside(t, o)
			match := devrig.AnsweredBeside()
			match.VLANs = []uint16{0, 5}
			x.Open(nic.Options{Match: match})
			tagged := append(append(append([]byte{}, datagram[:12]...), 0x81, 0, 0, 5), datagram[12:]...)
			x.Expect("ours", map[string][]byte{"a datagram": datagram, "a tagged datagram": tagged})
			x.Expect("kernel", map[string][]byte{"UDP to another port": devrig.UDP4(2, 9), "ARP": devrig.ARP()})
			x.Close()
		})
	}
}

// A configured tag restricts the rules: frames of other VLANs stay with the kernel.
func TestBesideVLAN(t *testing.T) {
	x := newBesideICMP(t)
	match := devrig.AnsweredBeside()
	match.VLANs = []uint16{0, 5}
	x.Open(nic.Options{Match: match})
	x.Expect("ours", map[string][]byte{"no VLAN": ping, "VLAN 5": request(ourMAC, 64, 5)})
	x.Expect("kernel", map[string][]byte{"VLAN 6": request(ourMAC, 64, 6)})
	x.Close()
}

func TestBesideQueues(t *testing.T) {
	x := newBesideICMP(t)
	x.Open(nic.Options{Queues: 2})
	busy := make([]int, 2)
	for port := range byte(64) {
		x.Far.Send(0, to4(2, 17, 0x30, port, 0, 7))
		for q, n := range x.Settle() {
			busy[q] += n
		}
	}
	if busy[0] == 0 || busy[1] == 0 || busy[0]+busy[1] != 64 {
		t.Errorf("64 datagrams: the queues answered %v", busy)
	}
	x.Close()
}

// Without write-combining the kernel has no such pages, and reports no BlueFlame register for raw packets.
func TestBesideUncached(t *testing.T) {
	for push, open := range map[string]func(testing.TB) *besideRig{"blueflame": newBesideICMP,
		"doorbell": newBesideRaw} {
		x := open(t)
		x.kernel.NoWC = true
		x.Open(nic.Options{})
		x.Expect("ours", map[string][]byte{"a datagram": datagram})
		check.Contains(t, x.Dev.Info().Push, push)
		x.Close()
	}
}

// Where the BAR has no page left for write-combining, an ordinary one will do.
func TestBesideFullBAR(t *testing.T) {
	x := newBesideICMP(t)
	x.kernel.NoFlames = true
	x.Open(nic.Options{})
	x.Expect("ours", map[string][]byte{"a datagram": datagram})
	x.Close()
	x.kernel.NoPages = true
	check.Fails(t, "no page", x.TryOpen(nic.Options{Match: devrig.AnsweredBeside()}), nil, "page of doorbells",
		"PF_LOG_BAR_SIZE")
}

func TestBesideRefuses(t *testing.T) {
	const remedy = "mlxconfig -d 0000:03:00.0 set UCTX_EN=1"
	noRaw := func(x *besideRig) { x.kernel.NoRaw, x.Violates = true, "without RAW_TX" }
	bonded := func(x *besideRig) { x.kernel.Port.Master = "bond0" }
	switched := func(x *besideRig) { x.kernel.Switch = true }
	answers := func(change func(*abi.MLX5AllocUcontextResp)) func(*besideRig) {
		return func(x *besideRig) { x.kernel.Answer = change }
	}
	old := answers(func(r *abi.MLX5AllocUcontextResp) { r.CQEVersion = 0 })
	flames := func(n uint32) func(*besideRig) {
		return answers(func(r *abi.MLX5AllocUcontextResp) { r.BfRegSize = n })
	}
	inline := answers(func(r *abi.MLX5AllocUcontextResp) { r.EthMinInline = 5 })
	noChains := func(x *besideRig) { x.kernel.NoChains = true }
	for name, c := range map[string]struct {
		open func(testing.TB) *besideRig
		set  func(*besideRig)
		o    nic.Options
		is   error
		says []string
	}{
		"no right":                   {newBesideICMP, noRaw, nic.Options{}, nic.ErrHardware, []string{"CAP_NET_RAW"}},
		"no steering":                {newBesideICMP, func(x *besideRig) { x.own.NoSteering = true }, nic.Options{}, nil, []string{"debug.no_steering"}},
		"another MAC":                {newBesideICMP, nil, nic.Options{MAC: farMAC}, nil, []string{"nic.mac"}},
		"a bond's port":              {newBesideICMP, bonded, nic.Options{}, errors.ErrUnsupported, []string{"eth1 belongs to bond0"}},
		"a port of a switch":         {newBesideICMP, switched, nic.Options{}, errors.ErrUnsupported, []string{"switchdev mode"}},
		"another MTU":                {newBesideICMP, nil, nic.Options{MTU: 9000}, nil, []string{"interface eth1 has 1500"}},
		"raw packets, two queues":    {newBesideRaw, nil, nic.Options{Queues: 2}, errors.ErrUnsupported, []string{"cpu.cores: give one"}},
		"raw packets, no right":      {newBesideRaw, noRaw, nic.Options{}, nic.ErrRights, []string{"CAP_NET_RAW"}},
		"completions of version 0":   {newBesideRaw, old, nic.Options{}, errors.ErrUnsupported, []string{remedy, "use driver xdp"}},
		"small BlueFlame registers":  {newBesideRaw, flames(64), nic.Options{}, nic.ErrHardware, []string{"BlueFlame registers of 64 bytes"}},
		"odd BlueFlame registers":    {newBesideRaw, flames(384), nic.Options{}, nic.ErrHardware, []string{"BlueFlame registers of 384 bytes"}},
		"large BlueFlame registers":  {newBesideRaw, flames(4096), nic.Options{}, nic.ErrHardware, []string{"BlueFlame registers of 4096 bytes"}},
		"inline mode 4":              {newBesideRaw, inline, nic.Options{}, nic.ErrHardware, []string{"minimum inline mode 4, expected 0 to 3"}},
		"a shorter completion queue": {newBesideRaw, func(x *besideRig) { x.kernel.Shorter = 1 }, nic.Options{}, nic.ErrHardware, []string{"a completion queue of 62 entries, expected 63"}},
		"no chains of flow tables":   {newBesideRaw, noChains, nic.Options{}, errors.ErrUnsupported, []string{remedy, "chain flow tables", "use driver xdp"}},
	} {
		t.Run(name, func(t *testing.T) {
			x := c.open(t)
			if c.set != nil {
				c.set(x)
			}
			c.o.Match = devrig.AnsweredBeside()
			check.Fails(t, "Open", x.TryOpen(c.o), c.is, c.says...)
		})
	}
}

func TestBesideAvailable(t *testing.T) {
	available := func(x *besideRig) (how string, err error) {
		x.Busy(func() { how, err = mlx5.Available(verbs.Of(x.kernel.Function())) })
		return how, err
	}
	check.Equal(t, must.Get(available(newBesideICMP(t)))(t), "by DEVX", "it is used %s, want %s")
	x := newBesideRaw(t)
	check.Contains(t, must.Get(available(x))(t), "queue pairs for raw packets", "mlxconfig UCTX_EN=1")
	x.kernel.NoChains = true
	check.Fails(t, "without chains of flow tables", check.Err(available(x)), errors.ErrUnsupported)
}

// A device that the kernel resets is opened again when it is back, unless its address has changed: the rules and the
// replies use the old one.
func TestBesideRestart(t *testing.T) {
	needs.Long(t)
	bothKinds(t, func(t *testing.T, x *besideRig) {
		x.Open(nic.Options{})
		x.Restarts("device_fatal", func() { x.kernel.Recovers(); x.kernel.Event(verbs.EventDeviceFatal) })
		x.Expect("ours", map[string][]byte{"after a restart a datagram": datagram})
		x.Restarts("mtu_changed", func() { x.kernel.Change(func(p *beside.Interface) { p.MTU = 1400 }) })
		x.Expect("ours", map[string][]byte{"after a change of the MTU a datagram": datagram})
		check.Equal(t, x.Dev.Info().MTU, 1400, "MTU %d")
		var s nic.Stats
		x.Busy(func() { must.OK(t, x.Dev.ReadStats(&s)) })
		if s.RxFrames != 2 || s.TxFrames != 2 || s.Resets != 2 || s.Extra["kernel_events"] != 0 {
			t.Errorf("after two restarts %+v", s)
		}
		x.kernel.Change(func(p *beside.Interface) { p.MAC = farMAC })
		check.Fails(t, "another address", x.Serve(x.Dev, "the restart failed", func() {}), nil, "another address now")
		x.Close()
	})
}

// An interface that is renamed or moved away ends the responder.
func TestBesideInterfaceGone(t *testing.T) {
	needs.Long(t)
	defer func(d time.Duration) { kit.ComesBack = d }(kit.ComesBack)
	kit.ComesBack = 0 // after a few attempts
	x := newBesideICMP(t)
	x.Open(nic.Options{})
	err := x.Serve(x.Dev, "the restart failed", func() { x.kernel.Hidden.Store(true) })
	check.Fails(t, "the interface is gone", err, nic.ErrGone, "interface_gone")
	x.Close()
}

// Events that do not end the device are counted. A command of a context that the kernel has closed fails by name.
func TestBesideTaken(t *testing.T) {
	x := newBesideICMP(t)
	x.Open(nic.Options{})
	var s nic.Stats
	x.kernel.Event(verbs.EventQPFatal + 100)
	x.Busy(func() {
		if !await.Holds(func() bool { return x.Dev.ReadStats(&s) == nil && s.Extra["kernel_events"] == 1 }) {
			t.Errorf("an event is not counted: %v", s.Extra)
		}
		x.kernel.Kill()
		check.Fails(t, "statistics of a device that the kernel took away", x.Dev.ReadStats(&s), nic.ErrHardware,
			"the kernel took the device away")
	})
	x.Close()
}

// A process that is killed at any moment leaves nothing on the card.
func TestBesideKilled(t *testing.T) {
	needs.Long(t)
	bothKinds(t, func(t *testing.T, x *besideRig) { x.Killed(&x.kernel.Calls, &x.kernel.DieAt, x.kernel.Kill) })
}

// An older kernel does not report the minimum inline mode, which is then that of layer 2.
func TestBesideInlineMode(t *testing.T) {
	for reported, notes := range map[uint8]string{0: "18 bytes, which the vport demands (min_wqe_inline_mode 1)",
		4: "82 bytes, which the vport demands (min_wqe_inline_mode 3)"} {
		x := newBesideRaw(t)
		x.kernel.Answer = func(r *abi.MLX5AllocUcontextResp) { r.EthMinInline = reported }
		x.Open(nic.Options{})
		check.Contains(t, list(x.Dev.Info().Notes), notes)
		x.Close()
	}
}

// Each call to the kernel that fails is reported, and leaves nothing on the card.
func TestBesideCallFails(t *testing.T) {
	for name, open := range map[string]func(testing.TB) *besideRig{"devx": newBesideICMP, "raw": newBesideRaw} {
		t.Run(name, func(t *testing.T) {
			x := open(t)
			golden.Equal(t, "testdata/fails-"+name+".txt",
				x.Refused(&x.kernel.Kernel, nic.Options{Match: devrig.AnsweredBeside()}))
		})
	}
}

// Without user contexts in the firmware the kernel makes the queues, which answer the same frames but for pings: the
// kernel does not report whether the card can tell them from other ICMP.
func TestBesideRawPackets(t *testing.T) {
	x := newBesideRaw(t)
	x.Open(nic.Options{})
	tagged := append(append(append([]byte{}, datagram[:12]...), 0x81, 0, 0, 5), datagram[12:]...)
	x.Expect("ours", map[string][]byte{"UDP to our port": datagram, "tagged UDP": tagged})
	x.Expect("kernel", map[string][]byte{"ping": ping, "UDP to another port": devrig.UDP4(2, 9),
		"UDP to another address": devrig.UDP4(3, 7), "ARP": devrig.ARP()})
	x.Sends(datagram)
	info := x.Dev.Info()
	notes := list(info.Notes)
	if info.Via != "verbs" || !strings.HasPrefix(info.Push, "blueflame full") {
		t.Errorf("%+v", info)
	}
	check.Contains(t, notes, "queue pairs for raw packets, because the firmware has no user contexts",
		"pings to 10.0.0.2 are answered by the kernel", "16 of 16 WQEs",
		"of longer ones 0 bytes, which the vport demands")
	var s nic.Stats
	x.Busy(func() { must.OK(t, x.Dev.ReadStats(&s)) })
	if s.RxFrames != 2 || s.TxFrames != 3 {
		t.Errorf("counted %d received, %d sent", s.RxFrames, s.TxFrames)
	}
	if contexts, _ := x.model.UserObjects(); contexts != 0 {
		t.Errorf("%d user contexts", contexts)
	}
	x.Close()
	x.Expect("kernel", map[string][]byte{"after Close UDP": datagram})
	x.answersAddedAddress()
}

// A send queue that fails is reset alone, by commands or by the kernel.
func TestBesideSendError(t *testing.T) {
	bothKinds(t, func(t *testing.T, x *besideRig) {
		x.Open(nic.Options{})
		x.Expect("ours", map[string][]byte{"a datagram": datagram})
		var s nic.Stats
		must.OK(t, x.Serve(x.Dev, "send completion with error: syndrome 0x04", func() {
			x.Port.Hold(func() { x.model.FailNextSend(0x04) })
			await.Holds(func() bool {
				x.Far.Send(0, datagram)
				return x.Dev.ReadStats(&s) == nil && s.Extra["send_queue_resets"] == 1
			})
		}))
		x.Settle()
		for x.Far.Recv(0) != nil {
		}
		x.Expect("ours", map[string][]byte{"a datagram after the error": datagram})
		x.Busy(func() { must.OK(t, x.Dev.ReadStats(&s)) })
		if s.Extra["send_queue_resets"] != 1 || s.Resets != 0 || s.TxErrors == 0 {
			t.Errorf("%+v", s)
		}
		x.Close()
	})
}
