package observe

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/fastpath"
)

// Bound is the maximum error of a clock, with its source.
type Bound struct {
	Error  time.Duration
	Source string
}

// errUnknown is returned if no source knows the clock error.
var errUnknown = errors.New("clock error unknown")

// Read returns the current bound: the user's if that is not 0, otherwise the lowest that chronyd and ptp4l report,
// otherwise the kernel's. iface is the interface used for measuring, whose PTP hardware clock is named if no program
// sets it; it may be "". It runs chronyc, and takes a few milliseconds.
func Read(stated time.Duration, iface string) (Bound, error) {
	if stated > 0 {
		return Bound{stated, "stated by -clock-error"}, nil
	}
	chrony, noChrony := queryChrony()
	ptp, noPTP := queryPTP(ptp4lSocket, readPHC)
	switch {
	case noChrony == nil && (noPTP != nil || chrony.Error <= ptp.Error):
		return chrony, nil
	case noPTP == nil:
		return ptp, nil
	}
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	kernel, noKernel := fromKernel(state, &t, err)
	if noKernel == nil {
		return kernel, nil
	}
	why := []error{noChrony, noPTP}
	if iface != "" {
		if h, err := readPHC(iface); err == nil {
			why = append(why, fmt.Errorf(
				"%s of %s is %v ± %v ahead of the system's clock, and its own error is unknown", h.name, iface, h.ahead,
				(h.window+1)/2))
		} else if !errors.Is(err, errNoPHC) {
			why = append(why, fmt.Errorf("the PTP hardware clock of %s: %w", iface, err))
		}
	}
	return Bound{}, unknown(append(why, noKernel))
}

// unknown returns errUnknown with the reasons.
func unknown(why []error) error {
	err := errUnknown
	for _, w := range why {
		err = fmt.Errorf("%w; %w", err, w)
	}
	return fmt.Errorf("%w (set -clock-error)", err)
}

// Worst is the bound for a measurement between two readings: it is unknown if either reading is unknown.
func Worst(a, b Bound) Bound {
	if b.Error > a.Error {
		return b
	}
	return a
}

// fromKernel is the kernel's own bound, which grows until the program that disciplines the clock renews it
// (adjtimex(2)).
func fromKernel(state int, t *unix.Timex, err error) (Bound, error) {
	switch {
	case err != nil:
		return Bound{}, fmt.Errorf("adjtimex: %w", err)
	case state == unix.TIME_ERROR || t.Status&unix.STA_UNSYNC != 0:
		return Bound{}, errors.New("the kernel reports its clock as unsynchronised (adjtimex)")
	case fastpath.UnknownError(t.Maxerror):
		return Bound{}, fmt.Errorf(
			"the program that sets the clock does not report its error to the kernel (adjtimex: maxerror of %d µs counts from 0): phc2sys, ptp4l and systemd-timesyncd do not", t.Maxerror)
	}
	return Bound{time.Duration(t.Maxerror) * time.Microsecond, "the kernel (adjtimex: maxerror)"}, nil
}

// queryChrony returns the error bound of the system clock that chronyd reports, within two seconds.
func queryChrony() (Bound, error) {
	path, err := exec.LookPath("chronyc")
	if err != nil {
		return Bound{}, errors.New("chronyc not found")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "-n", "-c", "tracking").Output()
	if err != nil {
		return Bound{}, fmt.Errorf("chronyc tracking: %w (%s)", err, strings.TrimSpace(string(out)))
	}
	return parseTracking(string(out))
}

// Fields of `chronyc -c tracking` (chronyc(1), in the order in which it prints them).
const (
	fieldReference = 0
	fieldOffset    = 4 // seconds by which the system's clock differs from chronyd's estimate
	fieldDelay     = 10
	fieldDisperse  = 11
	fieldLeap      = 13
	trackingFields = 14
)

// localReference is the identifier that chronyd uses when it follows only its own clock.
const localReference = "7F7F0101"

// parseTracking reads the bound that chronyc(1) gives: |offset| + root dispersion + root delay/2.
func parseTracking(text string) (Bound, error) {
	f := strings.Split(strings.TrimSpace(text), ",")
	if len(f) < trackingFields {
		return Bound{}, fmt.Errorf("chronyc tracking: %d fields, expected %d", len(f), trackingFields)
	}
	switch {
	case f[fieldLeap] == "Not synchronised":
		return Bound{}, errors.New("chronyd is not synchronised")
	case f[fieldReference] == localReference:
		return Bound{}, errors.New("chronyd follows only its own clock")
	}
	var v [trackingFields]float64
	for _, i := range [...]int{fieldOffset, fieldDelay, fieldDisperse} {
		var err error
		if v[i], err = strconv.ParseFloat(f[i], 64); err != nil || math.IsNaN(v[i]) || math.IsInf(v[i], 0) {
			return Bound{}, fmt.Errorf("chronyc tracking: field %d is %q, expected seconds", i+1, f[i])
		}
	}
	s := math.Abs(v[fieldOffset]) + v[fieldDisperse] + v[fieldDelay]/2
	if s <= 0 || s > 1e6 {
		return Bound{}, fmt.Errorf("chronyc tracking: an error of %g s", s)
	}
	return Bound{time.Duration(math.Ceil(s * 1e9)), "chronyd (offset, root dispersion and half the root delay)"}, nil
}
