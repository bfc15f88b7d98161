package latency

import (
	"math"
	"math/big"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/polling"
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
	h := SelfTest(c, 200*time.Millisecond) // longer than a busy machine delays a thread
	if h.Count < 100 || h.Sum < 160e6 || h.Max <= 0 {
		t.Errorf("%d gaps with a sum of %v ns and a maximum of %d ns in 200 ms", h.Count, h.Sum, h.Max)
	}
}

func testClock() *Clock {
	return FixedClock(ClockInfo{Source: "tsc", Frequency: 1e9}, 5_000_000, time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
}
