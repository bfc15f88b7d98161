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
	hz, from := declaredFrequency()
	if err := c.info.calibrate(a, b, hz, from); err != nil {
		return nil, err
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

// calibrate fills in the frequency by two readings with CLOCK_MONOTONIC_RAW, and by the rate hz that from declares, 0
// if nothing does.
func (i *ClockInfo) calibrate(a, b reading, hz float64, from string) error {
	if b.tsc <= a.tsc || b.ns <= a.ns {
		return fmt.Errorf("%w: it went from %d to %d while CLOCK_MONOTONIC_RAW went from %d to %d ns", ErrClock,
			a.tsc, b.tsc, a.ns, b.ns)
	}
	ns := float64(b.ns - a.ns)
	i.Frequency = float64(b.tsc-a.tsc) / ns * 1e9
	i.Method = "measured against CLOCK_MONOTONIC_RAW"
	i.ErrorPPM = (float64(a.width+b.width)/2/i.Frequency*1e9 + 2) / ns * 1e6
	if hz == 0 {
		return nil
	}
	if off := math.Abs(hz/i.Frequency-1) * 1e6; off <= i.ErrorPPM+1 {
		i.Method = fmt.Sprintf("%s, confirmed by measuring within %.2g ppm", from, off)
		i.Frequency, i.ErrorPPM = hz, i.ErrorPPM+off
	} else {
		i.Notes = append(i.Notes, fmt.Sprintf(
			"%s says %.0f Hz, measured %.0f Hz: the measured one is used", from, hz, i.Frequency))
	}
	return nil
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

// bracket reads a clock.
func bracket(clock int32) (reading, error) {
	runtime.LockOSThread() // on one core, as far as the scheduler leaves the thread there
	defer runtime.UnlockOSThread()
	return tightest(func() (before, after uint64, ns int64, err error) {
		var ts unix.Timespec
		before = polling.TSC()
		err = unix.ClockGettime(clock, &ts)
		after = polling.TSC()
		if err != nil {
			return 0, 0, 0, fmt.Errorf("clock_gettime(%d): %w", clock, err)
		}
		return before, after, ts.Nano(), nil
	})
}

// tightest returns the tightest of several readings, each with the counter before and after it.
func tightest(read func() (before, after uint64, ns int64, err error)) (reading, error) {
	best := reading{width: math.MaxUint64}
	for range 64 {
		before, after, ns, err := read()
		if err != nil {
			return best, err
		}
		if w := after - before; w < best.width {
			best = reading{before + w/2, w, ns}
		}
	}
	return best, nil
}

// readCost returns the cost of one polling.TSC in nanoseconds, from the fastest of several batches, and the counter's
// step.
func readCost(c *Clock) (read, step float64) {
	d := differences{seen: map[uint64]int{}, mean: math.MaxFloat64}
	var at [256]uint64
	for range 16 {
		for i := range at {
			at[i] = polling.TSC()
		}
		d.add(at[:])
	}
	tick := 1e9 / c.info.Frequency
	return d.mean * tick, float64(d.step()) * tick
}

// differences are those between reads of the counter in a row, in ticks.
type differences struct {
	n    int
	seen map[uint64]int
	mean float64 // of the fastest batch
}

// add adds a batch of reads.
func (d *differences) add(at []uint64) {
	last := len(at) - 1
	for i, from := range at[:last] {
		d.seen[at[i+1]-from]++
	}
	d.n += last
	d.mean = min(d.mean, float64(at[last]-at[0])/float64(last))
}

// step returns by how many ticks the counter advances at a time, of which all differences are multiples. Those seen in
// less than 1 % of the reads are ignored: the thread may have moved to another core in between.
func (d *differences) step() uint64 {
	step := uint64(0)
	for by, n := range d.seen {
		if 100*n >= d.n {
			step = gcd(step, by)
		}
	}
	return max(step, 1)
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
