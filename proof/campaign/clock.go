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

// The time of day is one for the whole machine, whatever the namespaces: a step of it is seen by every program here. So the campaign
// does it only if -clock says that it may, and a second process puts it back: that one ends with the campaign, however the campaign
// ends, SIGKILL included.

// inGuard marks the process that puts the time of day back.
const inGuard = "REBOUND_CAMPAIGN_CLOCK"

// clocks are the two that the time of day's distance from is read and kept: the monotonic one is never set.
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

// unstepped is how far the time of day may be from where it was and count as put back: more than a clock that is being disciplined
// drifts during a fault, and less than any step.
const unstepped = 20 * time.Millisecond

// putBack sets the time of day to what it would be, had nobody stepped it: own is the distance of before.
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

// guard is the second process: it says that it has read the clocks, waits until in ends, and puts the time of day back.
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

// guarded calls f between the start of a guard and its end, and makes sure that the time of day is what it was.
func guarded(f func() error) (err error) {
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), inGuard+"=1")
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no signal to our group, nor a terminal's, ends it
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
		if perr := putBack(machine{}, own); perr != nil { // if it was killed
			err = perr
		}
	}()
	if _, err := out.Read(make([]byte, 16)); err != nil {
		return fmt.Errorf("the process that puts the time of day back does not start: %w", err)
	}
	return f()
}

// steps are how far the time of day goes: what a first synchronization does, a leap, a wrong time zone in a BIOS.
var steps = []time.Duration{time.Millisecond * 50, time.Second, time.Minute, time.Hour}

// clockSteps has the time of day go forth and back under traffic.
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
