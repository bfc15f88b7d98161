package rig

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/sim"
)

// Released fails the test if the driver still uses the device.
func (x *Rig[D]) Released() {
	x.Helper()
	if n := x.Port.Mappings(); n != 0 || x.Port.BusMaster() {
		x.Errorf("%d mappings, bus mastering %v", n, x.Port.BusMaster())
	}
}

// Refuses fails the test unless Open returns an error that is is, if that is not nil, and contains says. It returns
// that error.
func (x *Rig[D]) Refuses(o nic.Options, is error, says string) error {
	x.Helper()
	err := x.TryOpen(o)
	if err == nil || is != nil && !errors.Is(err, is) || !strings.Contains(err.Error(), says) {
		x.Fatalf("%v, want %v with %q", err, is, says)
	}
	return err
}

// Refusals opens a device again and again: the first command of Open is refused, then the second, and so on. It returns
// what Open said each time. open opens a device whose command n is refused, and returns that command's name, or "" if
// there were fewer.
func Refusals(open func(n int) (command string, err error)) string {
	var said strings.Builder
	for n := 1; ; n++ {
		command, err := open(n)
		switch {
		case command == "":
			return said.String()
		case err == nil:
			fmt.Fprintf(&said, "%d it opens without %s\n", n, command)
		default:
			fmt.Fprintf(&said, "%d %s: %v\n", n, command, err)
		}
	}
}

// RefusedCommand refuses command n of those that open gives a model, and returns its name, or "" if there were fewer.
func RefusedCommand(m interface {
	FailAdmin(func(command string) (status uint8))
}, n int, open func()) (name string) {
	made := 0
	m.FailAdmin(func(command string) uint8 {
		if made++; made != n {
			return 0
		}
		name = command
		return 1
	})
	open()
	m.FailAdmin(nil)
	return name
}

// FellBack returns those of a device's notes that say what it fell back from, each in a line.
func FellBack(notes []string) string {
	var all string
	for _, n := range notes {
		if strings.HasPrefix(n, "fell back ") {
			all += "\n\t" + n
		}
	}
	return all
}

// EachCommandRefused opens a device whose firmware refuses one command, for each of the commands that Open uses. With
// those of Close there are at least least. Open returns an error that names the command, or the driver continues
// without it and notes that: noted reports whether it does. open returns the rig of a device that asks refuse about
// each command.
func EachCommandRefused[D nic.Device](t *testing.T, least int, open func(refuse func(op uint16) bool) *Rig[D],
	noted func(op uint16, notes string) bool) {
	var all []uint16
	x := open(func(op uint16) bool {
		if !slices.Contains(all, op) {
			all = append(all, op)
		}
		return false
	})
	x.Open(nic.Options{Queues: 2})
	opens := slices.Clone(all)
	x.Close()
	if len(all) < least {
		t.Errorf("only %d commands were used", len(all))
	}
	for _, bad := range opens {
		x := open(func(op uint16) bool { return op == bad })
		err := x.TryOpen(nic.Options{Queues: 2})
		switch {
		case err == nil:
			if notes := strings.Join(x.Dev.Info().Notes, "\n"); !noted(bad, notes) {
				t.Errorf("command %#x is refused, and Info does not tell: %s", bad, notes)
			}
			t.Logf("%#x can be done without", bad)
			x.Close()
		case !errors.Is(err, nic.ErrHardware) || !strings.Contains(err.Error(), fmt.Sprintf("(%#x)", bad)) ||
			!strings.Contains(err.Error(), "bad parameter"):
			t.Errorf("command %#x is refused: %v", bad, err)
		}
		x.Port.ForgetViolations() // of a device whose command failed
	}
}

// Recovers breaks the device under traffic. The driver logs says, counts resets of the device or of its send queue, and
// answers again.
func (x *Rig[D]) Recovers(broken func(), says string, resets, sendResets uint64) {
	x.Helper()
	x.Exchange(30, 98)
	x.Exchange(10, 500)
	before := x.Stats()
	broken()
	x.Served(func() {
		x.Await(func() bool {
			x.Ping(OurMAC, 98, -1)
			return strings.Contains(x.Logs.String(), says)
		})
		x.Counts(func(s nic.Stats) bool { return s.Resets == resets && s.Extra["send_queue_resets"] == sendResets })
		x.Answers(98)
		x.Answers(700)
	})
	x.Exchange(70, 98)
	x.Exchange(70, 700)
	if s := x.Stats(); s.TxFrames < before.TxFrames+140 || s.RxFrames < before.RxFrames+140 {
		x.Errorf("totals went from %+v to %+v", before, s)
	}
}

// Served is Serve of a loop that must end without an error, and discards what is left of its frames and violations.
func (x *Rig[D]) Served(f func()) {
	x.Helper()
	if err := x.Serve(f); err != nil {
		x.Errorf("Serve: %v", err)
	}
	x.Port.ForgetViolations() // of pending frames
	x.Settle()
	x.Received()
}

// Counts waits for statistics, and for the end of a restart.
func (x *Rig[D]) Counts(ok func(nic.Stats) bool) {
	x.Helper()
	x.Await(func() bool {
		var s nic.Stats
		return x.Dev.ReadStats(&s) == nil && ok(s)
	})
	x.Dev.Link()
}

// RecoversFromStuckCommand asks for something that firmware never answers while stuck is on: ask times out and names
// the command. The driver restarts the device, and it answers again.
func (x *Rig[D]) RecoversFromStuckCommand(stuck func(on bool), ask func() error, command string) {
	x.Helper()
	x.Exchange(10, 98)
	x.Served(func() {
		stuck(true)
		err := ask()
		stuck(false)
		if !errors.Is(err, nic.ErrTimeout) || !strings.Contains(err.Error(), command) {
			x.Errorf("%v", err)
		}
		x.Counts(func(s nic.Stats) bool { return s.Extra["resets_command_stuck"] == 1 })
		x.Answers(98)
	})
	x.Exchange(70, 98)
}

// BusCost returns the transactions on the bus that n frames of size bytes cause, one at a time in steady state.
// measured is called before them. If the frames are not answered, they are for another address than the responder's.
func (x *Rig[D]) BusCost(size, n int, answered bool, measured func()) sim.Counts {
	x.Helper()
	want := 1
	if !answered {
		want, x.Resp[0] = 0, responder(x, OurMAC, "10.0.0.3/24")
	}
	exchange := func(n int) {
		for range n {
			x.Ping(OurMAC, size, -1)
			x.Settle()
			if got := x.Received(); got != want {
				x.Fatalf("%d replies to a frame of %d bytes, want %d", got, size, want)
			}
		}
	}
	exchange(256)
	before := x.Port.Counts()
	measured()
	exchange(n)
	return x.Port.Counts().Since(before)
}
