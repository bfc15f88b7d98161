package mlx5_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/drivers/mlx5"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/needs"
	devrig "github.com/rebound-nic/rebound/proof/nictest/rig"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/mlx5sim"
)

func TestPushModes(t *testing.T) {
	for _, c := range []struct{ push, want string }{
		{"", "blueflame full"}, {"full", "blueflame full"}, {"header", "blueflame header"}, {"off", "doorbell off"},
	} {
		t.Run(c.push, func(t *testing.T) {
			x := newRig(t, mlx5sim.Options{})
			x.own.Push = c.push
			x.Open(nic.Options{})
			check.Equal(t, x.Dev.Info().Push, c.want, "push %q")
			for _, n := range []int{60, 98, 99, 226, 227, 1514} {
				x.Exchange(40, n)
			}
		})
	}
}

// cost is the bus cost of n frames of a size in steady state, with one at a time on the wire.
func cost(t testing.TB, push string, size, n int, answered bool) sim.Counts {
	x := newRig(t, mlx5sim.Options{})
	x.own.Push = push
	x.Open(nic.Options{})
	defer x.Close()
	return x.BusCost(size, n, answered, func() {})
}

// The bus cost of a reply, for frame sizes on both sides of each boundary, shows the use of BlueFlame. The cost of
// receiving is measured with frames that are not answered, and subtracted.
func TestBusCost(t *testing.T) {
	const n = 256
	for _, c := range needs.Each(4, []struct {
		push  string
		size  int
		reads float64 // DMA reads from the request's arrival to the wire
		mmio  float64 // BlueFlame blocks of 64 bytes, or doorbells
	}{
		{"full", 60, 0, 2}, {"full", 64, 0, 2}, {"full", 98, 0, 2}, {"full", 99, 0, 3}, {"full", 226, 0, 4}, {"full", 227, 1, 1}, {"full", 1514, 1, 1},
		{"header", 60, 1, 1}, {"header", 98, 1, 1}, {"header", 1514, 1, 1},
		{"off", 60, 2, 1}, {"off", 98, 2, 1}, {"off", 99, 2, 1}, {"off", 1514, 2, 1},
	}) {
		idle, with := cost(t, c.push, c.size, n, false), cost(t, c.push, c.size, n, true)
		per := func(a, b uint64) float64 { return float64(int64(a-b)) / n }
		reads, writes, mmio := per(with.DMARead, idle.DMARead), per(with.DMAWrite, idle.DMAWrite),
			per(with.MMIOWrite, idle.MMIOWrite)
		t.Logf("%-6s %4d bytes: %.2f DMA reads, %.2f DMA writes (completions), %.2f MMIO writes a reply", c.push,
			c.size, reads, writes, mmio)
		// the watchdog writes too, periodically
		if reads > c.reads+0.02 || c.reads > 0 && reads < c.reads-0.02 || mmio > c.mmio+0.06 || mmio < c.mmio-0.06 {
			t.Errorf("%s, %d bytes: %.2f DMA reads and %.2f MMIO writes a reply, want %v and %v", c.push, c.size, reads,
				mmio, c.reads, c.mmio)
		}
		if with.MMIORead != 0 || writes > 0.5 {
			t.Errorf("%s, %d bytes: %d MMIO reads, %.2f DMA writes a reply", c.push, c.size, with.MMIORead, writes)
		}
	}
}

// For each command that firmware may refuse while the device is opened, Open either returns an error that names it or
// continues without it; nothing is left over from a failed attempt.
func TestEachCommandRefused(t *testing.T) {
	devrig.EachCommandRefused(t, 45, func(refuse func(uint16) bool) *devrig.Rig[*mlx5.Device] {
		return newRig(t, mlx5sim.Options{Status: func(op uint16) (uint8, uint32) {
			if refuse(op) {
				return 3, 0xBADBAD
			}
			return 0, 0
		}}).Rig
	}, func(op uint16, notes string) bool { return strings.Contains(notes, "0x00badbad") || op == 0x10D })
}

func TestCommandWithheld(t *testing.T) {
	needs.Long(t)
	for op, name := range map[uint16]string{0x104: "ENABLE_HCA", 0x108: "MANAGE_PAGES", 0x102: "INIT_HCA",
		0x802: "ALLOC_UAR", 0x301: "CREATE_EQ",
		0x904: "CREATE_SQ", 0x936: "SET_FLOW_TABLE_ENTRY"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			newRig(t, mlx5sim.Options{Withhold: func(o uint16) bool { return o == op }}).Refuses(nic.Options{},
				nic.ErrTimeout, name)
		})
	}
}

func TestFirmwareThatDoesNotStart(t *testing.T) {
	needs.Long(t)
	for name, c := range map[string]struct {
		o    mlx5sim.Options
		is   error
		says string
	}{
		"booting":   {mlx5sim.Options{Initializing: -1}, nic.ErrTimeout, "still initializing"},
		"BlueField": {mlx5sim.Options{EmbeddedCPU: true}, errors.ErrUnsupported, "BlueField's own processor"},
		"revision":  {mlx5sim.Options{InterfaceRev: 4}, nic.ErrHardware, "revision 4, this driver knows 5"},
		"pages":     {mlx5sim.Options{NoPages: true}, nic.ErrHardware, "MANAGE_PAGES"},
	} {
		t.Run(name, func(t *testing.T) { newRig(t, c.o).Refuses(nic.Options{}, c.is, c.says) })
	}
	x := newRig(t, mlx5sim.Options{Initializing: 50}) // slow, not dead
	x.Open(nic.Options{})
	x.Exchange(3, 98)
}

func TestPortOfAnother(t *testing.T) {
	const accessReg = 0x805
	asked := 0
	x := newRig(t, mlx5sim.Options{Status: func(op uint16) (uint8, uint32) {
		if op == accessReg {
			asked++
		}
		if op != accessReg || asked == 1 { // the first is about the host's endianness
			return 0, 0
		}
		return 5, 0x305684 // as ConnectX-7 in closed systems
	}})
	x.Open(nic.Options{})
	x.Exchange(3, 98)
	x.Close()
	x.Port.ForgetViolations()
}

// Firmware's pages are requested and returned while frames are answered, and all are back when the driver has closed.
func TestPagesUnderTraffic(t *testing.T) {
	x := openRig(t, mlx5sim.Options{}, nic.Options{})
	start, _ := x.model.Pages()
	for _, n := range []int{700, -500, 3, -100} {
		x.Exchange(5, 98)
		x.model.RequestPages(n)
		x.Busy(func() { x.Counts(func(s nic.Stats) bool { return s.Extra["firmware_pages"] == uint64(start+n) }) })
		if owned, _ := x.model.Pages(); owned != start+n {
			t.Fatalf("%d pages were requested: firmware has %d, had %d\n%s", n, owned, start, x.Logs.String())
		}
		start += n
	}
	x.Exchange(5, 98)
	// The driver counts a page when its command has completed, after the firmware received it.
	x.Busy(func() {
		x.Counts(func(s nic.Stats) bool {
			return s.Extra["page_requests"] == 4 && s.Extra["firmware_pages"] == uint64(start)
		})
	})
}

// Device faults under traffic are logged, counted and repaired: a send queue by a reset of the queue, everything else
// by a restart of the device, without losing the process.
func TestRecovery(t *testing.T) {
	for name, c := range map[string]struct {
		spoil          func(x *rig)
		says           string
		resets         uint64
		sendRecoveries uint64
	}{
		"send error":    {func(x *rig) { x.model.FailNextSend(0x04) }, "send completion with error: syndrome 0x04 local protection error", 0, 1},
		"receive error": {func(x *rig) { x.model.FailNextReceive(0x01) }, "receive completion with error: syndrome 0x01 local length error", 1, 0},
		"compressed":    {func(x *rig) { x.model.CompressNext() }, "compressed, which was not asked for", 1, 0},
		"sick":          {func(x *rig) { x.model.Fatal(0x08) }, "unrecoverable hardware error", 1, 0},
		"reset":         {func(x *rig) { x.Fn.Reset() }, "bus mastering is off", 1, 0},
	} {
		t.Run(name, func(t *testing.T) { // one after the other: each has two goroutines that poll
			x := openRig(t, mlx5sim.Options{}, nic.Options{})
			x.Recovers(func() { c.spoil(x) }, c.says, c.resets, c.sendRecoveries)
		})
	}
}

// After a command that firmware never completes, the watchdog restarts the card, and it answers again.
func TestStuckCommand(t *testing.T) {
	needs.Long(t)
	var stuck atomic.Bool
	x := openRig(t, mlx5sim.Options{Withhold: func(op uint16) bool { return op == 0x770 && stuck.Load() }},
		nic.Options{})
	x.RecoversFromStuckCommand(stuck.Store, func() error { return x.Dev.ReadStats(new(nic.Stats)) },
		"QUERY_VPORT_COUNTER")
}

func TestWrongOptions(t *testing.T) {
	for _, own := range []mlx5.Options{{Push: "llq"}, {MaxInline: -1}} {
		x := newRig(t, mlx5sim.Options{})
		x.own = own
		x.Refuses(nic.Options{}, nil, "")
	}
	for _, o := range []nic.Options{{RingSize: 100}, {RingSize: 32}, {RingSize: 8192}, {MTU: 20000}, {MTU: 60},
		{Queues: 1000},
		{MAC: [6]byte{1, 2, 3, 4, 5, 6}}} {
		newRig(t, mlx5sim.Options{}).Refuses(o, nil, "")
	}
}
