package latency

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/polling"
)

// ErrClock is returned if the cycle counter is unusable as a clock: it stalls or runs backwards.
var ErrClock = errors.New("cycle counter is no clock")

// Clock converts ticks of polling.TSC to nanoseconds and to wall time. It is immutable.
type Clock struct {
	info  ClockInfo
	scale uint64 // ns per tick, 32.32 fixed point

	tsc  uint64 // the same moment by counter and by wall clock
	wall time.Time
}

// ClockInfo describes the clock in a report.
type ClockInfo struct {
	Source    string   `json:"source"`      // "tsc", "cntvct"
	Frequency float64  `json:"hz"`          // ticks per second
	Method    string   `json:"method"`      // how the frequency was determined
	ErrorPPM  float64  `json:"error_ppm"`   // bound on the frequency's error
	ReadNS    float64  `json:"read_ns"`     // median cost of reading it
	StepNS    float64  `json:"step_ns"`     // increment of the counter: no value has a finer resolution
	Steady    bool     `json:"steady"`      // the CPU guarantees a constant rate in all power states
	Kernel    string   `json:"clocksource"` // the kernel's own clock source
	Notes     []string `json:"notes,omitempty"`
}

// calibration is how long NewClock compares the counter with CLOCK_MONOTONIC_RAW. Each reading has an uncertainty of
// tens of nanoseconds, so this limits the error to about one part in a million.
const calibration = 60 * time.Millisecond

// NewClock calibrates the counter, which blocks the calling goroutine for about 60 ms. If the CPU does not guarantee a
// constant rate, the Clock still works; its info has Steady false and a note in Notes.
func NewClock() (*Clock, error) {
	finish, err := StartClock()
	if err != nil {
		return nil, err
	}
	return finish()
}

// StartClock begins what NewClock does, and returns a function that completes it: it waits for the rest of the 60 ms,
// so a program can do other things meanwhile.
func StartClock() (finish func() (*Clock, error), err error) {
	a, err := bracket(unix.CLOCK_MONOTONIC_RAW)
	if err != nil {
		return nil, err
	}
	end := time.Now().Add(calibration)
	return func() (*Clock, error) {
		time.Sleep(time.Until(end))
		return newClock(a)
	}, nil
}

// newClock calibrates the counter by the time since reading a.
func newClock(a reading) (*Clock, error) {
	c := &Clock{}
	c.info.Source, c.info.Steady, c.info.Notes = counterSource()
	if b, err := os.ReadFile("/sys/devices/system/clocksource/clocksource0/current_clocksource"); err == nil {
		c.info.Kernel = strings.TrimSpace(string(b))
	}
	b, err := bracket(unix.CLOCK_MONOTONIC_RAW)
	if err != nil {
		return nil, err
	}
	if b.tsc <= a.tsc || b.ns <= a.ns {
		return nil, fmt.Errorf("%w: it went from %d to %d while CLOCK_MONOTONIC_RAW went from %d to %d ns", ErrClock,
			a.tsc, b.tsc, a.ns, b.ns)
	}
	ns := float64(b.ns - a.ns)
	c.info.Frequency = float64(b.tsc-a.tsc) / ns * 1e9
	c.info.Method = "measured against CLOCK_MONOTONIC_RAW"
	c.info.ErrorPPM = (float64(a.width+b.width)/2/c.info.Frequency*1e9 + 2) / ns * 1e6
	if hz, from := declaredFrequency(); hz > 0 {
		off := math.Abs(hz/c.info.Frequency-1) * 1e6
		if off <= c.info.ErrorPPM+1 {
			c.info.Method = fmt.Sprintf("%s, confirmed by measuring within %.2g ppm", from, off)
			c.info.Frequency, c.info.ErrorPPM = hz, c.info.ErrorPPM+off
		} else {
			c.info.Notes = append(c.info.Notes, fmt.Sprintf(
				"%s says %.0f Hz, measured %.0f Hz: the measured one is used", from, hz, c.info.Frequency))
		}
	}
	c.scale = scaleOf(c.info.Frequency)

	w, err := bracket(unix.CLOCK_REALTIME)
	if err != nil {
		return nil, err
	}
	c.tsc, c.wall = w.tsc, time.Unix(0, w.ns)
	c.info.ReadNS, c.info.StepNS = readCost(c)
	return c, nil
}

// FixedClock returns a Clock with the frequency in info, whose counter was at tsc at the time wall. It is for replayed
// or synthetic recordings.
func FixedClock(info ClockInfo, tsc uint64, wall time.Time) *Clock {
	return &Clock{info: info, scale: scaleOf(info.Frequency), tsc: tsc, wall: wall}
}

func scaleOf(hz float64) uint64 { return uint64(math.Round(1e9 / hz * (1 << 32))) }

// Info returns the description of the clock for a report.
func (c *Clock) Info() ClockInfo { return c.info }

// Nanoseconds converts a number of ticks.
func (c *Clock) Nanoseconds(ticks uint64) int64 {
	hi, lo := bits.Mul64(ticks, c.scale)
	return int64(hi<<32 | lo>>32)
}

// Between returns the nanoseconds from tick a to tick b; negative if b is before a.
func (c *Clock) Between(a, b uint64) int64 {
	if int64(b-a) < 0 {
		return -c.Nanoseconds(a - b)
	}
	return c.Nanoseconds(b - a)
}

// Ticks converts a non-negative duration.
func (c *Clock) Ticks(d time.Duration) uint64 {
	return uint64(float64(d) * c.info.Frequency / 1e9)
}

// Time returns the wall time at which the counter was at tsc. It does not follow steps and slews of the wall clock that
// happen after the Clock was created.
func (c *Clock) Time(tsc uint64) time.Time {
	return c.wall.Add(time.Duration(c.Between(c.tsc, tsc)))
}

// reading is a clock reading taken between two reads of the counter.
type reading struct {
	tsc   uint64 // midpoint of the two counter reads
	width uint64 // ticks between the two counter reads
	ns    int64
}

// bracket returns the tightest of several readings.
func bracket(clock int32) (reading, error) {
	runtime.LockOSThread() // on one core, as far as the scheduler leaves the thread there
	defer runtime.UnlockOSThread()
	best := reading{width: math.MaxUint64}
	for range 64 {
		var ts unix.Timespec
		before := polling.TSC()
		err := unix.ClockGettime(clock, &ts)
		after := polling.TSC()
		if err != nil {
			return best, fmt.Errorf("clock_gettime(%d): %w", clock, err)
		}
		if w := after - before; w < best.width {
			best = reading{before + w/2, w, ts.Nano()}
		}
	}
	return best, nil
}

// readCost returns the cost of one polling.TSC in nanoseconds, from the fastest of several batches, and the counter's
// step. Some counters advance by many ticks at a time, so differences between reads are multiples of that step.
// Differences seen in less than 1 % of the reads are ignored: the thread may have moved to another core in between.
func readCost(c *Clock) (read, step float64) {
	const batch, batches = 256, 16
	best := int64(math.MaxInt64)
	seen := map[uint64]int{}
	var at [batch]uint64
	for range batches {
		for i := range at {
			at[i] = polling.TSC()
		}
		best = min(best, c.Nanoseconds(at[batch-1]-at[0]))
		for i := range batch - 1 {
			seen[at[i+1]-at[i]]++
		}
	}
	ticks := uint64(0)
	for d, n := range seen {
		if n >= batch*batches/100 {
			ticks = gcd(ticks, d)
		}
	}
	return float64(best) / (batch - 1), float64(max(ticks, 1)) / c.info.Frequency * 1e9
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
