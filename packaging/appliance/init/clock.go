package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
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

// keepClock sets the clock until ctx ends. It reports each comparison; worth saying are steps, and another source or
// problem.
func keepClock(ctx context.Context, c *config, servers func() []string, report func(text string, worthSaying bool)) {
	if c.clock == "none" {
		report("not synchronized: appliance.clock is \"none\"", false)
		return
	}
	for said, failures := "", 0; ; failures++ {
		s, err := measure(c, servers())
		stepped := false
		if err == nil {
			stepped, err = discipline(s)
		}
		topic, wait := c.clock, clockInterval
		text := fmt.Sprintf("%s, offset %v, error at most %v", s.from, s.offset.Round(time.Microsecond),
			s.err.Round(time.Microsecond))
		if stepped {
			text += ", stepped"
		}
		if err != nil {
			wait, text = 5*time.Second, "not synchronized: "+err.Error()
			switch {
			case c.clock != "ntp":
				topic = text
			case failures < 3: // the network is not there yet, or one answer was lost
				topic = said
			default: // the texts of network errors have numbers that change
				topic = "NTP fails"
			}
		} else {
			failures = 0
		}
		report(text, stepped || topic != said)
		said = topic
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

// hardwareClock compares with a PTP hardware clock that holds UTC: the best of some readings, each between two of this
// machine's clock.
func hardwareClock(device string) (s sample, err error) {
	f, err := os.Open(device)
	if errors.Is(err, fs.ErrNotExist) {
		return s, fmt.Errorf("appliance.clock: no %s (%s)", device, hardwareClocks("/sys"))
	} else if err != nil {
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

// hardwareClocks says which PTP hardware clocks there are, with the names that their drivers give them: most often a
// MAC address.
func hardwareClocks(sys string) string {
	files, _ := filepath.Glob(sys + "/class/ptp/ptp*/clock_name")
	var all []string
	for _, f := range files {
		name, _ := os.ReadFile(f)
		all = append(all, fmt.Sprintf("/dev/%s, %s", filepath.Base(filepath.Dir(f)), strings.TrimSpace(string(name))))
	}
	if len(all) == 0 {
		return "this machine has no PTP hardware clock"
	}
	return "this machine has " + strings.Join(all, "; ")
}

// discipline steps or steers the clock, and tells the kernel the largest error, which STAMP replies carry.
func discipline(s sample) (stepped bool, err error) {
	if s.offset.Abs() > stepLimit {
		now := unix.NsecToTimespec(time.Now().Add(s.offset).UnixNano())
		if err := unix.ClockSettime(unix.CLOCK_REALTIME, &now); err != nil {
			return false, err
		}
		s.offset, stepped = 0, true
	}
	const (
		// linux/timex.h
		adjOffset, adjMaxError, adjEstError, adjStatus, adjTimeConst, adjNano = 0x1, 0x4, 0x8, 0x10, 0x20, 0x2000
		staPLL                                                                = 0x1
	)
	t := unix.Timex{Modes: adjOffset | adjMaxError | adjEstError | adjStatus | adjTimeConst | adjNano,
		Offset:   s.offset.Nanoseconds(),
		Maxerror: max(1, (s.err + s.offset.Abs()).Microseconds()), Esterror: max(1, s.err.Microseconds()),
		Status: staPLL, Constant: pllConstant}
	if _, err := unix.Adjtimex(&t); err != nil {
		return stepped, fmt.Errorf("adjtimex: %w", err)
	}
	return stepped, nil
}
