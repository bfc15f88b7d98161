package campaign

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The time of day is shared by the whole machine, including all namespaces: every program here sees a step of it. So
// the campaign changes it only with -clock, and a second process restores it when the campaign ends, for whatever
// reason, including SIGKILL.

// inGuard marks the process that restores the time of day.
const inGuard = "REBOUND_CAMPAIGN_CLOCK"

// clocks are the time of day and the monotonic clock, which is never stepped and serves as reference.
type clocks interface {
	realtime() (time.Duration, error)
	monotonic() (time.Duration, error)
	set(realtime time.Duration) error
}

type machine struct{}

func read(clock int32) (time.Duration, error) {
	var t unix.Timespec
	err := unix.ClockGettime(clock, &t)
	return time.Duration(t.Nano()), err
}

func (machine) realtime() (time.Duration, error)  { return read(unix.CLOCK_REALTIME) }
func (machine) monotonic() (time.Duration, error) { return read(unix.CLOCK_MONOTONIC) }

func (machine) set(realtime time.Duration) error {
	t := unix.NsecToTimespec(int64(realtime))
	return unix.ClockSettime(unix.CLOCK_REALTIME, &t)
}

// offset is how far the time of day is ahead of the monotonic clock.
func offset(c clocks) (time.Duration, error) {
	before, err := c.monotonic()
	if err != nil {
		return 0, err
	}
	now, err := c.realtime()
	if err != nil {
		return 0, err
	}
	after, err := c.monotonic()
	return now - before - (after-before)/2, err
}

// unstepped is the greatest deviation of the time of day that counts as restored: more than the drift of a disciplined
// clock during a fault, and less than any step.
const unstepped = 20 * time.Millisecond

// putBack sets the time of day to what it would be without steps: own is the offset from before the steps.
func putBack(c clocks, own time.Duration) error {
	now, err := offset(c)
	if err != nil {
		return err
	}
	if d := now - own; d.Abs() <= unstepped {
		return nil
	}
	m, err := c.monotonic()
	if err != nil {
		return err
	}
	if err := c.set(m + own); err != nil {
		return fmt.Errorf("the time of day cannot be put back: %w", err)
	}
	return nil
}

// guard is the second process: it reports that it has read the clocks, waits until in is closed, and restores the time
// of day.
func guard(c clocks, in io.Reader, out io.Writer) error {
	own, err := offset(c)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out, "ready"); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, in)
	return putBack(c, own)
}

// guarded starts a guard, calls f, stops the guard, and makes sure that the time of day was restored.
func guarded(f func() error) (err error) {
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), inGuard+"=1")
	// protects it from signals to our process group and from a terminal's
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	if err != nil {
		return err
	}
	out, err := c.StdoutPipe()
	if err != nil {
		return err
	}
	own, err := offset(machine{})
	if err != nil {
		return err
	}
	if err := c.Start(); err != nil {
		return err
	}
	defer func() {
		in.Close()
		if werr := c.Wait(); werr != nil && err == nil {
			err = fmt.Errorf("the process that puts the time of day back: %w", werr)
		}
		if perr := putBack(machine{}, own); perr != nil { // in case the guard was killed
			err = perr
		}
	}()
	if _, err := out.Read(make([]byte, 16)); err != nil {
		return fmt.Errorf("the process that puts the time of day back does not start: %w", err)
	}
	return f()
}

// steps are the sizes of clock steps: a first synchronization, a leap second, a wrong time zone in a BIOS.
var steps = []time.Duration{time.Millisecond * 50, time.Second, time.Minute, time.Hour}

// clockSteps steps the time of day forwards and backwards under traffic.
func clockSteps(s *session) error {
	if !s.clock {
		s.skip = "it sets the machine's time of day, for every program on it: only with -clock"
		return nil
	}
	return guarded(func() error {
		for range 1 + s.r.IntN(4) {
			d := steps[s.r.IntN(len(steps))]
			if s.r.IntN(2) == 1 {
				d = -d
			}
			s.note("%+v", d)
			now, err := machine{}.realtime()
			if err == nil {
				err = machine{}.set(now + d)
			}
			if err == unix.EPERM {
				s.skip = "the time of day cannot be set here: " + err.Error()
				return nil
			}
			if err != nil {
				return err
			}
			s.for_(20*time.Millisecond, 300*time.Millisecond)
		}
		return nil
	})
}
