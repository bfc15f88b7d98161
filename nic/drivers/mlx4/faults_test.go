package mlx4_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/drivers/mlx4"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	devrig "github.com/rebound-nic/rebound/proof/nictest/rig"
	"github.com/rebound-nic/rebound/sim/mlx4sim"
)

// Each command that firmware refuses while the device is opened causes an error that names it, or the driver continues
// without it and reports that. Nothing is left of the attempt.
func TestEachCommandRefused(t *testing.T) {
	devrig.EachCommandRefused(t, 32, func(refuse func(uint16) bool) *devrig.Rig[*mlx4.Device] {
		return newRig(t, mlx4sim.Options{Status: func(op uint16) uint8 {
			return map[bool]uint8{true: 3}[refuse(op)]
		}}).Rig
	}, func(_ uint16, notes string) bool { return strings.Contains(notes, "bad parameter") })
}

func TestCommandWithheld(t *testing.T) {
	needs.Long(t)
	for op, name := range map[uint16]string{0x004: "QUERY_FW", 0xFFF: "MAP_FA", 0x007: "INIT_HCA", 0x013: "SW2HW_EQ",
		0x01A: "INIT2RTR_QP", 0x009: "INIT_PORT"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newRig(t, mlx4sim.Options{Withhold: func(o uint16) bool { return o == op }})
			x.Refuses(nic.Options{}, nic.ErrTimeout, name)
			x.Port.ForgetViolations()
		})
	}
}

// An unsuitable card is refused with one clear error, and nothing stays mapped.
func TestWrongCard(t *testing.T) {
	needs.Long(t)
	for name, c := range map[string]struct {
		o    mlx4sim.Options
		is   error
		says string
	}{
		"interface": {mlx4sim.Options{InterfaceRev: 2}, nic.ErrHardware, "has command interface revision 2, this driver knows 3"},
		"no ICM":    {mlx4sim.Options{NoICM: true}, nic.ErrHardware, "error in the mapping of context memory (ICM)"},
		"owned":     {mlx4sim.Options{Owned: true}, nic.ErrBusy, "ownership register (0x8069c)"},
		"semaphore": {mlx4sim.Options{SemaphoreHeld: true}, nic.ErrTimeout, "flash semaphore (0xf03fc)"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := newRig(t, c.o).Refuses(nic.Options{}, c.is, c.says); strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one error: %v", err)
			}
		})
	}
	for _, o := range []mlx4sim.Options{{Link: mlx4sim.AnyLink}, {BootReads: 20}, {Abandoned: 2},
		{NoPortEvents: true}} { // these are as they should be
		x := openRig(t, o, nic.Options{})
		x.Exchange(3, 98)
		x.Close()
	}
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
		"catastrophe":   {func(x *rig) { x.model.Catastrophe(0xBAD) }, "buffer of catastrophic errors 00000bad", 1, 0},
		"reset":         {func(x *rig) { x.Fn.Reset() }, "bus mastering is off", 1, 0},
	} {
		t.Run(name, func(t *testing.T) { // one after the other: each has two goroutines that poll
			x := openRig(t, mlx4sim.Options{}, nic.Options{})
			x.Recovers(func() { c.spoil(x) }, c.says, c.resets, c.sendRecoveries)
		})
	}
}

// If firmware dies during a command, the driver does not wait for the command's timeout, because firmware reports its
// death.
func TestDiesDuringCommand(t *testing.T) {
	var die atomic.Bool
	var x *rig
	x = newRig(t, mlx4sim.Options{Withhold: func(op uint16) bool { // QUERY_PORT
		if op != 0x043 || !die.CompareAndSwap(true, false) {
			return false
		}
		x.model.Catastrophe(0xBAD)
		return true
	}})
	x.Open(nic.Options{})
	x.Exchange(10, 98)
	x.Served(func() {
		die.Store(true)
		check.Fails(t, "", check.Err(x.Dev.Link()), nic.ErrHardware, "QUERY_PORT", "the firmware died")
		x.Counts(func(s nic.Stats) bool { return s.Resets == 1 })
		x.Answers(98)
	})
}

// After a command that firmware never completes, the watchdog restarts the card, and it answers again.
func TestStuckCommand(t *testing.T) {
	needs.Long(t)
	var stuck atomic.Bool
	x := openRig(t, mlx4sim.Options{Withhold: func(op uint16) bool { return op == 0x043 && stuck.Load() }},
		nic.Options{})
	x.RecoversFromStuckCommand(stuck.Store, func() error { _, err := x.Dev.Link(); return err }, "QUERY_PORT")
}

// late is a card that stands still until the driver gives the ownership back.
type late struct {
	*mlx4sim.Model
	still bool
}

func (l *late) Step() bool { return !l.still && l.Model.Step() }

func (l *late) WriteBAR(bar int, off uint64, p []byte) error {
	if err := l.Model.WriteBAR(bar, off, p); off != 0x8069C {
		return err
	}
	l.still = false
	l.Model.Step()
	return nil
}

// A command that firmware begins after the driver stopped waiting writes to no memory, although Close writes to the
// card.
func TestCloseAfterLateCommand(t *testing.T) {
	needs.Long(t)
	m := mlx4sim.New(mlx4sim.Options{})
	card := &late{Model: m}
	x := newRigOf(t, m, card)
	x.Open(nic.Options{})
	card.still = true
	check.Fails(t, "counters while the card stands still", x.Dev.ReadStats(new(nic.Stats)), nic.ErrTimeout)
	x.Close()
}

// If pushed WQEs are never sent, the queue switches to doorbells and reports that.
func TestBlueFlameGivenUp(t *testing.T) {
	needs.Long(t)
	x := openRig(t, mlx4sim.Options{}, nic.Options{})
	x.model.Pause(true) // as if nothing had arrived
	x.Served(func() {
		for range 10 {
			x.Ping(ourMAC, 98, -1)
		}
		x.Await(func() bool { return strings.Contains(x.Logs.String(), "nothing that was pushed has been sent") })
		x.model.Pause(false)
		x.Answers(98)
	})
	x.Exchange(70, 98)
	if i := x.Dev.Info(); i.Push != "doorbell full" || !strings.Contains(list(i.Notes),
		"from BlueFlame to plain doorbells") {
		t.Errorf("push %q\n%s", i.Push, list(i.Notes))
	}
	if s := x.Stats(); s.Resets != 0 || s.Extra["send_queue_resets"] != 1 {
		t.Errorf("%+v", s)
	}
}

// When the link goes down and up, events report it, and no repair is attempted.
func TestLinkEvents(t *testing.T) {
	x := openRig(t, mlx4sim.Options{}, nic.Options{})
	x.Exchange(5, 98)
	must.OK(t, x.Serve(func() {
		for _, up := range []bool{false, true} {
			x.Far.SetUp(up)
			x.Await(func() bool { return strings.Contains(x.Logs.String(), fmt.Sprintf("up=%v", up)) })
			x.Await(func() bool { l, err := x.Dev.Link(); return err == nil && l.Up == up })
		}
		x.Answers(98)
	}))
	if s := x.Stats(); s.Resets != 0 || s.Extra["port_changes"] < 2 {
		t.Errorf("%+v", s)
	}
}

func TestWrongOptions(t *testing.T) {
	for _, own := range []mlx4.Options{{Push: "llq"}, {MaxInline: -1}, {Port: 2}, {Port: -1}, {Steering: "b0"}} {
		x := newRig(t, mlx4sim.Options{})
		x.own = own
		x.Refuses(nic.Options{}, nil, "")
	}
	for _, o := range []nic.Options{{RingSize: 100}, {RingSize: 32}, {RingSize: 8192}, {MTU: 20000}, {MTU: 60},
		{Queues: 1000}, {Queues: 3},
		{MAC: [6]byte{1, 2, 3, 4, 5, 6}}} {
		newRig(t, mlx4sim.Options{}).Refuses(o, nil, "")
	}
}
