package responder

import (
	"context"
	"math/big"
	"math/bits"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/polling"
)

// stampClock relates the cycle counter to the time of day, for STAMP's timestamps.
type stampClock struct {
	now  atomic.Pointer[fastpath.Clock]
	rate uint64        // the counter's own, as in fastpath.Clock
	err  time.Duration // maximum error of the clock, 0 to use the kernel's estimate

	timex unix.Timex // used by each update: garbage would cause collections, which stop the loops
}

// related is the interval at which the two clocks are related. A clock discipline changes the rate of the time of day
// by some parts per million: some nanoseconds in this interval, but in a second as much as PTP's whole error.
const related = 100 * time.Millisecond

func newStampClock(c *latency.Clock, err time.Duration) *stampClock {
	rate, _ := new(big.Float).Quo(new(big.Float).SetMantExp(big.NewFloat(1), 64),
		big.NewFloat(c.Info().Frequency)).Uint64()
	s := &stampClock{rate: rate, err: err}
	s.update()
	return s
}

// keep follows the time of day, which is steered, and may be set, while the loops run.
func (s *stampClock) keep(ctx context.Context) {
	t := time.NewTicker(related)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			s.update()
		}
	}
}

// update relates the two clocks again. It uses the closest of several pairs of readings, because the thread may be
// interrupted between two.
func (s *stampClock) update() {
	c := &fastpath.Clock{}
	best := ^uint64(0)
	for range 8 {
		before := polling.TSC()
		now := time.Now()
		after := polling.TSC()
		if width := after - before; width < best {
			best = width
			c.TSC, c.NTP = before+width/2, ntp(now)
		}
	}
	c.Rate = s.slewed(s.now.Load(), c)
	c.ErrorEstimate = s.estimate()
	s.now.Store(c)
}

// slewed returns the rate of the time of day between two of its readings. If it differs from the counter's own rate by
// more than the kernel slews a clock (500 ppm, adjtimex(2)), the clock was stepped meanwhile, and the counter's rate is
// the better estimate.
func (s *stampClock) slewed(before, now *fastpath.Clock) uint64 {
	if before == nil || now.TSC-before.TSC <= (now.NTP-before.NTP)>>32 {
		return s.rate
	}
	d := now.NTP - before.NTP
	rate, _ := bits.Div64(d>>32, d<<32, now.TSC-before.TSC)
	if off := int64(rate - s.rate); off > int64(s.rate/2000) || -off > int64(s.rate/2000) {
		return s.rate
	}
	return rate
}

// estimate returns the maximum error of the time of day. The kernel's value is an upper bound that grows until the
// clock discipline renews it (adjtimex(2)).
func (s *stampClock) estimate() uint16 {
	if s.err > 0 {
		return fastpath.ErrorEstimate(true, s.err.Seconds())
	}
	t := &s.timex
	*t = unix.Timex{}
	state, err := unix.Adjtimex(t)
	synchronised := err == nil && state != unix.TIME_ERROR && t.Status&unix.STA_UNSYNC == 0
	return fastpath.KernelEstimate(synchronised, t.Maxerror)
}

// ntp returns t in the format of RFC 5905 §6: seconds since 1900 above, their fraction below.
func ntp(t time.Time) uint64 {
	const epoch = 2_208_988_800 // seconds from 1900 to 1970
	return uint64(t.Unix()+epoch)<<32 | uint64(t.Nanosecond())<<32/1e9
}
