package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/beevik/ntp"
	"golang.org/x/sys/unix"
)

// sample is a comparison of this machine's clock with another one.
type sample struct {
	offset time.Duration // to add to this machine's clock
	err    time.Duration // the largest error of offset
	from   string
}

const (
	clockInterval = 64 * time.Second
	stepLimit     = 128 * time.Millisecond // a larger offset is stepped, as ntpd does
	pllConstant   = 4                      // of the kernel's loop, for this interval
)

// keepClock sets the clock until ctx ends.
func keepClock(ctx context.Context, c *config, servers func() []string, report func(string)) {
	if c.clock == "none" {
		report("not synchronized: appliance.clock is \"none\"")
		return
	}
	for {
		s, err := measure(c, servers())
		if err == nil {
			err = discipline(s)
		}
		wait := clockInterval
		if err != nil {
			report("not synchronized: " + err.Error())
			wait = 5 * time.Second
		} else {
			report(fmt.Sprintf("%s, offset %v, error at most %v", s.from, s.offset.Round(time.Microsecond), s.err.Round(time.Microsecond)))
		}
		if !sleep(ctx, wait) {
			return
		}
	}
}

func measure(c *config, servers []string) (s sample, err error) {
	if c.clock != "ntp" {
		return hardwareClock(c.clock)
	}
	if len(c.ntp) > 0 {
		servers = c.ntp
	}
	if len(servers) == 0 {
		return s, errors.New("no NTP server (set appliance.ntp, or DHCP option 42)")
	}
	// The answer with the smallest error counts.
	var errs []error
	for _, server := range servers {
		r, e := ntp.QueryWithOptions(server, ntp.QueryOptions{Timeout: 3 * time.Second})
		if e == nil {
			e = r.Validate()
		}
		if e != nil {
			errs = append(errs, fmt.Errorf("%s: %w", server, e))
			continue
		}
		// The largest error is the root distance (RFC 5905 §11.2): half of the round trip counts whole.
		if bound := r.RootDistance; s.from == "" || bound < s.err {
			s = sample{r.ClockOffset, bound, fmt.Sprintf("NTP from %s, stratum %d", server, r.Stratum)}
		}
	}
	if s.from == "" {
		return s, errors.Join(errs...)
	}
	return s, nil
}

// hardwareClock compares with a PTP hardware clock that holds UTC: the best of some readings, each between two of this machine's clock.
func hardwareClock(device string) (s sample, err error) {
	f, err := os.Open(device)
	if err != nil {
		return s, err
	}
	defer f.Close()
	id := int32(^int(f.Fd())<<3 | 3) // FD_TO_CLOCKID (clock_gettime(2))
	s = sample{err: time.Hour, from: device}
	for range 10 {
		var before, there, after unix.Timespec
		for _, r := range []struct {
			id int32
			to *unix.Timespec
		}{{unix.CLOCK_REALTIME, &before}, {id, &there}, {unix.CLOCK_REALTIME, &after}} {
			if err := unix.ClockGettime(r.id, r.to); err != nil {
				return s, fmt.Errorf("%s: %w", device, err)
			}
		}
		if half := time.Duration(after.Nano()-before.Nano()) / 2; half < s.err {
			s.err, s.offset = half, time.Duration(there.Nano()-before.Nano())-half
		}
	}
	return s, nil
}

// discipline steps or steers the clock, and tells the kernel the largest error, which STAMP replies carry.
func discipline(s sample) error {
	if s.offset.Abs() > stepLimit {
		now := unix.NsecToTimespec(time.Now().Add(s.offset).UnixNano())
		if err := unix.ClockSettime(unix.CLOCK_REALTIME, &now); err != nil {
			return err
		}
		s.offset = 0
	}
	const (
		adjOffset, adjMaxError, adjEstError, adjStatus, adjTimeConst, adjNano = 0x1, 0x4, 0x8, 0x10, 0x20, 0x2000 // linux/timex.h
		staPLL                                                                = 0x1
	)
	t := unix.Timex{Modes: adjOffset | adjMaxError | adjEstError | adjStatus | adjTimeConst | adjNano, Offset: s.offset.Nanoseconds(),
		Maxerror: max(1, (s.err + s.offset.Abs()).Microseconds()), Esterror: max(1, s.err.Microseconds()), Status: staPLL, Constant: pllConstant}
	if _, err := unix.Adjtimex(&t); err != nil {
		return fmt.Errorf("adjtimex: %w", err)
	}
	return nil
}
