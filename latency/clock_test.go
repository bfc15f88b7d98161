package latency

import (
	"math"
	"math/big"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/polling"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// The clock agrees with the kernel's over an interval other than the calibration interval.
func TestClockAgreesWithKernel(t *testing.T) {
	c := must.Get(NewClock())(t)
	t.Logf("%+v", c.Info())
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	a := must.Get(bracket(unix.CLOCK_MONOTONIC_RAW))(t)
	b := a
	for b.ns-a.ns < 20e6 { // the longer the interval, the more precise the rate
		b = must.Get(bracket(unix.CLOCK_MONOTONIC_RAW))(t)
	}
	want := b.ns - a.ns
	got := c.Between(a.tsc, b.tsc)
	// At any load, both ends are accurate to the width of their brackets, and the rate to its stated error.
	bound := float64(c.Nanoseconds(a.width+b.width)) + float64(want)*c.Info().ErrorPPM/1e6 + 100
	if off := math.Abs(float64(got - want)); off > bound {
		t.Errorf("the counter says %d ns, the kernel %d: %.0f apart, bound %.0f", got, want, off, bound)
	}
	// The wall clock may be stepped in between, but not on every attempt.
	off, wall := time.Duration(0), c
	for range 5 {
		w := must.Get(bracket(unix.CLOCK_REALTIME))(t)
		if off = wall.Time(w.tsc).Sub(time.Unix(0, w.ns)).Abs(); off <= time.Millisecond {
			break
		}
		wall = must.Get(NewClock())(t)
	}
	if off > time.Millisecond {
		t.Errorf("wall time is off by %v", off)
	}
	if i := c.Info(); i.Frequency < 1e6 || i.ErrorPPM <= 0 || i.ErrorPPM > 500 || i.ReadNS <= 0 || i.StepNS <= 0 ||
		i.StepNS > 1000 || i.Method == "" {
		t.Errorf("info %+v", i)
	}
	i := c.Info()
	kernel, _ := os.ReadFile("/sys/devices/system/clocksource/clocksource0/current_clocksource")
	check.Equal(t, i.Kernel, strings.TrimSpace(string(kernel)), "the kernel's clock %q")
	source, steady, notes := counterSource()
	check.Equal(t, i.Source, source, "source %q")
	check.Equal(t, i.Steady, steady, "steady: %t")
	check.Same(t, i.Notes[:len(notes)], notes, "notes %q")
	tick := 1e9 / i.Frequency
	for what, ticks := range map[string]float64{"step": i.StepNS / tick, "256 reads": 255 * i.ReadNS / tick} {
		if ticks < 0.5 || ticks > 1e9 || math.Abs(ticks-math.Round(ticks)) > 1e-6*ticks {
			t.Errorf("%s: %v ticks", what, ticks)
		}
	}
}

func TestNanoseconds(t *testing.T) {
	for _, hz := range []float64{24e6, 1e9, 2.596e9, 5.2e9} {
		c := &Clock{scale: uint64(math.Round(1e9 / hz * (1 << 32))), info: ClockInfo{Frequency: hz}}
		for range 1000 {
			ticks := rand.Uint64N(uint64(hz) * 86400 * 30) // a month
			exact, _ := new(big.Float).Quo(new(big.Float).Mul(big.NewFloat(float64(ticks)), big.NewFloat(1e9)),
				big.NewFloat(hz)).Float64()
			if got := float64(c.Nanoseconds(ticks)); math.Abs(got-exact) > 1+exact*1e-8 {
				t.Fatalf("%v Hz, %d ticks: %v ns, want %v", hz, ticks, got, exact)
			}
		}
		if d := c.Nanoseconds(c.Ticks(time.Second)); d < 999_999_900 || d > 1_000_000_100 {
			t.Errorf("%v Hz: a second makes a round trip to %d ns", hz, d)
		}
		if c.Between(100, 50) != -c.Between(50, 100) || c.Between(math.MaxUint64-9, 10) != c.Nanoseconds(20) {
			t.Error("Between is wrong backwards or across the counter's wrap")
		}
	}
}

// Of two readings, the midpoints count. A declared rate counts if it is within the error of the measured one.
func TestCalibrate(t *testing.T) {
	a, b := reading{1000, 10, 5000}, reading{2_001_000, 30, 1_005_000} // 2 ticks a ns for a millisecond
	const ppm = (40.0/2/2 + 2) / 1e6 * 1e6
	for _, c := range []struct {
		hz              float64
		frequency, ppm  float64
		confirmed, note bool
	}{
		{0, 2e9, ppm, false, false},
		{2e9, 2e9, ppm, true, false},
		{2e9 * (1 + 12.9e-6), 2e9 * (1 + 12.9e-6), ppm + 12.9, true, false},
		{2e9 * (1 - 13.1e-6), 2e9, ppm, false, true},
	} {
		var i ClockInfo
		must.OK(t, i.calibrate(a, b, c.hz, "the label"))
		if math.Abs(i.Frequency-c.frequency) > 1e-3 || math.Abs(i.ErrorPPM-c.ppm) > 1e-6 {
			t.Errorf("%v declared: %v Hz with an error of %v ppm, want %v and %v", c.hz, i.Frequency, i.ErrorPPM,
				c.frequency, c.ppm)
		}
		check.Equal(t, strings.HasPrefix(i.Method, "the label, confirmed"), c.confirmed, i.Method+": confirmed %t")
		check.Equal(t, len(i.Notes) == 1, c.note, "a note: %t")
	}
	for _, b := range []reading{{1000, 1, 5001}, {1001, 1, 5000}, {999, 1, 5001}, {1001, 1, 4999}} {
		check.Fails(t, "a clock that stands", new(ClockInfo).calibrate(a, b, 2e9, ""), ErrClock, "from 1000 to")
	}
}

func TestTightestReading(t *testing.T) {
	widths := []uint64{100, 40, 60, 40, 90}
	n := uint64(0)
	got, err := tightest(func() (before, after uint64, ns int64, err error) {
		n++
		at := 1000 * n
		return at, at + widths[n%5], int64(n), nil
	})
	check.OK(t, err)
	check.Equal(t, got, reading{1020, 40, 1}, "%v")
	check.Equal(t, n, 64, "of %d readings")
	_, err = tightest(func() (before, after uint64, ns int64, err error) { return 0, 0, 0, os.ErrInvalid })
	check.Equal(t, err, os.ErrInvalid, "%v")
}

// The counter's step divides the differences between reads, but for those that a move to another core may cause.
func TestDifferencesBetweenReads(t *testing.T) {
	for odd, want := range []uint64{26, 26, 26, 1} { // the number of three hundred that are 7 ticks
		d := differences{seen: map[uint64]int{}, mean: math.MaxFloat64}
		for batch := range 3 {
			at := []uint64{500}
			for i := range 100 {
				by := 26 * uint64(i%2+2+batch)
				if i == 0 && batch < odd {
					by = 7
				}
				at = append(at, at[i]+by)
			}
			d.add(at)
		}
		check.Equal(t, d.step(), want, "step %d")
		fastest := 26 * 2.5
		if odd > 0 {
			fastest -= (52 - 7) / 100.0
		}
		check.Equal(t, d.mean, fastest, "mean %v")
	}
	check.Equal(t, (&differences{}).step(), 1, "step %d of none")
	few := differences{n: 302, seen: map[uint64]int{26: 299, 7: 3}}
	check.Equal(t, few.step(), 26, "step %d, with others in less than 1 %%")
}

// Values that the polling loop counted in ticks have the same value in nanoseconds, within the loop's resolution.
func TestFromHot(t *testing.T) {
	c := &Clock{scale: uint64(math.Round(1e9 / 2.5e9 * (1 << 32)))}
	var h polling.Histogram
	for range 990 {
		h.Record(1000) // 400 ns
	}
	for range 9 {
		h.Record(25_000) // 10 µs
	}
	h.Record(2_500_003) // 1 ms
	got := FromHot(&h, c)
	if got.Count != 1000 || got.Max != 1_000_001 {
		t.Errorf("count %d, max %d", got.Count, got.Max)
	}
	bucket := polling.Bucket(1000)
	check.Equal(t, got.Min, c.Nanoseconds((polling.Lowest(bucket)+polling.Lowest(bucket+1))/2),
		"min %d, of the middle of a bucket")
	for q, want := range map[float64]float64{0.5: 400, 0.99: 400, 0.995: 10_000} {
		if v := float64(got.Quantile(q)); math.Abs(v/want-1) > 0.009 {
			t.Errorf("quantile %v is %v, want %v", q, v, want)
		}
	}
	if empty := FromHot(new(polling.Histogram), c); empty.Count != 0 || empty.Max != 0 || empty.Quantile(0.5) != 0 {
		t.Errorf("empty: %+v", empty)
	}
}

func TestSelfTest(t *testing.T) {
	c := must.Get(NewClock())(t)
	start := polling.TSC()
	h := SelfTest(c, 200*time.Millisecond) // longer than a busy machine delays a thread
	took := float64(c.Between(start, polling.TSC()))
	if h.Count < 100 || h.Sum < 160e6 || h.Sum > 1.01*took || h.Max <= 0 { // buckets are accurate to 0.8 %
		t.Errorf("%d gaps with a sum of %v ns and a maximum of %d ns in 200 of %v ns", h.Count, h.Sum, h.Max, took)
	}
}

func testClock() *Clock {
	return FixedClock(ClockInfo{Source: "tsc", Frequency: 1e9}, 5_000_000, time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
}
