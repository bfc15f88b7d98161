package responder

import (
	"testing"
	"time"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// The first relation has the time of day, with the error that is set, or the kernel's.
func TestStampClock(t *testing.T) {
	clock := must.Get(must.Get(latency.StartClock())(t)())(t)
	before := time.Now().Unix()
	s := newStampClock(clock, 3*time.Microsecond)
	is := s.now.Load()
	if at := int64(is.NTP>>32) - 2_208_988_800; at < before || at > time.Now().Unix() {
		t.Errorf("%d seconds after 1970, want %d", at, before)
	}
	check.Equal(t, is.ErrorEstimate, s.estimate(), "error %#x")
	if is.ErrorEstimate>>15 != 1 || is.ErrorEstimate&0xff == 0 {
		t.Errorf("error %#x", is.ErrorEstimate)
	}
}

// A slewed clock is followed at its own rate, a stepped one at the counter's.
func TestSlewedClock(t *testing.T) {
	const ticks, second = 2_600_000_000, 1 << 32
	s := &stampClock{rate: 1 << 63 / ticks * 2} // 2^64 to 2.6 GHz, nearly
	at := func(tsc, ntp uint64) *fastpath.Clock { return &fastpath.Clock{TSC: tsc, NTP: ntp} }
	start := at(1000, 3_900_000_000<<32)
	for name, c := range map[string]struct {
		before *fastpath.Clock
		passed float64 // of the time of day, while the counter moves by a tenth of a second
		ppm    float64
	}{
		"the first":        {nil, 0.1, 0},
		"as it was":        {start, 0.1, 0},
		"faster":           {start, 0.1 * (1 + 40e-6), 40},
		"slower":           {start, 0.1 * (1 - 499e-6), -499},
		"set forward":      {start, 0.1 + 100e-6, 0},
		"set back":         {start, 0.1 - 100e-6, 0},
		"set back an hour": {start, -3600, 0},
		"set far forward":  {start, 1e9, 0},
	} {
		now := at(start.TSC+ticks/10, start.NTP+uint64(int64(c.passed*second)))
		if c.before != nil {
			now.TSC = c.before.TSC + ticks/10
		}
		got := (float64(s.slewed(c.before, now))/float64(s.rate) - 1) * 1e6
		if got < c.ppm-0.1 || got > c.ppm+0.1 {
			t.Errorf("%s: the rate is %.3f ppm from the counter's, expected %v", name, got, c.ppm)
		}
	}
}
