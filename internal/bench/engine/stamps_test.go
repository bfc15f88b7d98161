package engine

import (
	"errors"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/polling"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

func TestTimestamps(t *testing.T) {
	f := &fake{stamp: nic.Timestamp{Nanoseconds: 5000}}
	f.onSend = func(n int, b []byte) {
		f.tx = append(f.tx, txStamp{uint32(n), nic.Timestamp{Nanoseconds: 2000}, 0},
			txStamp{uint32(n), nic.Timestamp{Nanoseconds: 2500, Hardware: true}, 0})
		f.reply(b, 0)
	}
	s, rec := stream(t, f, 0, 20*time.Second, func(o *Options) {
		o.Stamps = NewStamper(f, nic.Timestamping{RxSoftware: true, TxSoftware: true})
	})
	must.OK(t, s.Run(Limit{Count: 10}, new(atomic.Bool)))
	get := series(rec)
	if h := get(latency.KernelSeries); h.Count != 10 || h.Min != 3000 || h.Max != 3000 {
		t.Errorf("kernel: %d, %d to %d", h.Count, h.Min, h.Max)
	}
	if h := get(latency.HardwareSeries); h.Count != 0 {
		t.Errorf("the card stamped no reply, yet there are %d pairs", h.Count)
	}
	f.stamp.Hardware = true
	must.OK(t, s.Run(Limit{Count: 5}, new(atomic.Bool)))
	if h := series(rec)(latency.HardwareSeries); h.Count != 5 || h.Max != 2500 {
		t.Errorf("hardware: %d, max %d", h.Count, h.Max)
	}
}

// The timestamp of a sent frame may arrive long after all replies: of the last probe or, on a busy host, of every
// probe.
func TestLateTimestamps(t *testing.T) {
	for _, first := range []int{9, 0} {
		f := &fake{stamp: nic.Timestamp{Nanoseconds: 5000, Hardware: true}}
		f.onSend = func(n int, b []byte) {
			due := uint64(0)
			if n >= first {
				due = polling.TSC() + testClock.Ticks(50*time.Millisecond)
			}
			f.tx = append(f.tx, txStamp{uint32(n), nic.Timestamp{Nanoseconds: 2500, Hardware: true}, due})
			f.reply(b, 0)
		}
		s, rec := stream(t, f, 0, time.Second, func(o *Options) {
			o.Stamps = NewStamper(f, nic.Timestamping{RxHardware: true, TxHardware: true})
		})
		must.OK(t, s.Run(Limit{Count: 10}, new(atomic.Bool)))
		if h := series(rec)(latency.HardwareSeries); h.Count != 10 || h.Min != 2500 {
			t.Errorf("late from probe %d on: %d pairs of 10, from %d ns", first, h.Count, h.Min)
		}
	}
}

// The slowest round trips have the kernel's timestamps, also those that arrive after the reply, and what its clock
// showed.
func TestSlowestHaveTimestamps(t *testing.T) {
	f := &fake{stamp: nic.Timestamp{Nanoseconds: 5000}}
	f.onSend = func(n int, b []byte) {
		due := uint64(0)
		if n%2 == 1 {
			due = polling.TSC() + testClock.Ticks(20*time.Millisecond)
		}
		f.tx = append(f.tx, txStamp{uint32(n), nic.Timestamp{Nanoseconds: 2000 + int64(n)}, due})
		f.reply(b, 0)
	}
	s, _ := stream(t, f, 0, time.Second, func(o *Options) {
		o.Stamps = NewStamper(f,
			nic.Timestamping{RxSoftware: true, TxSoftware: true})
	})
	before := time.Now().UnixNano()
	must.OK(t, s.Run(Limit{Count: 10}, new(atomic.Bool)))
	after := time.Now().UnixNano()
	seen := map[int64]bool{}
	for _, k := range s.Slowest() {
		seen[k.NIC.Sent] = true
		if c := k.NIC; c.Seen != 5000 || c.Clock < before || c.Clock > after || int64(c.Tick-k.Seen) < 0 {
			t.Errorf("%+v", k)
		}
	}
	for n := range int64(10) {
		if !seen[2000+n] {
			t.Errorf("probe %d has not its own timestamp: %v", n, seen)
		}
	}
	f.stamp.Hardware = true // of a clock that is not related to ticks
	s, _ = stream(t, f, 0, time.Second, func(o *Options) { o.Stamps = NewStamper(f, nic.Timestamping{}) })
	must.OK(t, s.Run(Limit{Count: 3}, new(atomic.Bool)))
	for _, k := range s.Slowest() {
		check.Equal(t, k.NIC, NIC{}, "by the card: %+v")
	}
}

// clocked is a card whose clock can be read: ns of ticks, and an hour ahead.
type clocked struct {
	*fake
	reads int
	fails error
	takes uint64 // ticks
	ahead int64  // ns
}

const cardAhead = 3600e9

func (c *clocked) ReadClock() (int64, error) {
	c.reads++
	for from := polling.TSC(); polling.TSC()-from < c.takes; {
	}
	return testClock.Nanoseconds(polling.TSC()) + cardAhead + c.ahead, c.fails
}

// If the card's clock can be read, the slowest round trips and the random sample have the card's timestamps, and a
// reading of its clock, which is not repeated for each of them.
func TestSlowestHaveCardTimestamps(t *testing.T) {
	f := &clocked{fake: &fake{stamp: nic.Timestamp{Nanoseconds: 5000, Hardware: true}}}
	f.onSend = func(n int, b []byte) {
		due := uint64(0)
		if n%2 == 1 {
			due = polling.TSC() + testClock.Ticks(time.Millisecond)
		}
		f.tx = append(f.tx, txStamp{uint32(n), nic.Timestamp{Nanoseconds: 1, Hardware: false}, 0},
			txStamp{uint32(n), nic.Timestamp{Nanoseconds: 2000 + int64(n), Hardware: true}, due})
		f.reply(b, 0)
	}
	const probes = 400
	run := func() *Stream {
		s, _ := stream(t, f, 0, time.Second, func(o *Options) {
			o.Sample = probes / 4
			o.Stamps = NewStamper(f, nic.Timestamping{RxHardware: true, TxHardware: true})
		})
		must.OK(t, s.Run(Limit{Count: probes}, new(atomic.Bool)))
		return s
	}
	s := run()
	for what, all := range map[string][]Slow{"slowest": s.Slowest(), "sample": s.Sample()} {
		sent := map[int64]bool{}
		for _, k := range all {
			c := k.NIC
			sent[c.Sent] = true
			low, high := testClock.Nanoseconds(c.Tick)+cardAhead, testClock.Nanoseconds(c.Tick+c.Within)+cardAhead
			if !c.Card || c.Seen != 5000 || c.Sent < 2000 || c.Clock < low || c.Clock > high {
				t.Fatalf("%s: %+v, read between %d and %d", what, c, low, high)
			}
		}
		if len(sent) != len(all) {
			t.Errorf("%s: %d times of sending for %d probes", what, len(sent), len(all))
		}
	}
	check.Equal(t, len(s.Sample()), probes/4, "%d in the sample")
	if f.reads == 0 || f.reads >= 2*probes {
		t.Errorf("%d readings for %d probes", f.reads, probes)
	}
	f.sent, f.fails = 0, errors.New("gone")
	for _, k := range run().Slowest() {
		check.Equal(t, k.NIC, NIC{}, "its clock cannot be read: %+v")
	}
}

// A card's clock that takes long to read is read for at most a tenth of the thread's time. The most exact
// reading counts until another one is more exact, or until the clock was set.
func TestSlowCardClock(t *testing.T) {
	f := &clocked{fake: &fake{}, takes: testClock.Ticks(300 * time.Microsecond)}
	s := &stamps{Stamper: &Stamper{card: f}, clock: testClock}
	first := polling.TSC()
	for f.reads < 6 {
		s.readCard()
	}
	if took := polling.TSC() - first; took < 2*20*f.takes {
		t.Errorf("read three times in %d ticks, while a reading takes %d", took, f.takes)
	}
	wait := func() (n NIC) {
		for before := f.reads; f.reads == before; {
			n = s.readCard()
		}
		return n
	}
	was := s.reading
	f.takes *= 20
	check.Equal(t, wait(), was, "after a slow reading: %+v")
	f.takes, f.ahead = f.takes/20, int64(time.Hour)
	if n := wait(); n.Clock-was.Clock < int64(time.Hour) {
		t.Errorf("%+v after %+v, and the clock was set forward by an hour", n, was)
	}
	f.fails = errors.New("gone")
	check.Equal(t, wait(), NIC{}, "its clock cannot be read: %+v")
}

func TestEstimates(t *testing.T) {
	for _, ns := range []float64{0.1, 1, 100, 12345, 1e6, 16e9} {
		e := fastpath.ErrorEstimate(true, ns/1e9)
		if got := estimateNS(e); got < ns || got > ns*1.01+0.25 || e&0x8000 == 0 {
			t.Errorf("%v ns encodes as %#x, which is %v ns", ns, e, got)
		}
	}
	if got := between(5<<32|999_999_000, 6<<32|500, true); got != 1500 {
		t.Errorf("PTP: %d", got)
	}
	if got := between(6<<32|500, 5<<32|999_999_000, true); got != -1500 {
		t.Errorf("PTP backwards: %d", got)
	}
	if got := between(6<<32, 5<<32|1<<31, false); got != -500_000_000 {
		t.Errorf("NTP backwards: %d", got)
	}
	if got := NTP(time.Unix(0, 500_000_000)); got != 2208988800<<32|1<<31 {
		t.Errorf("NTP of half a second past 1970: %#x", got)
	}
}

func TestSlew(t *testing.T) {
	const tenth = 100 * time.Millisecond
	for _, c := range []struct {
		wall time.Duration
		want float64
	}{{tenth, 0}, {tenth + 4*time.Microsecond, 40e-6}, {tenth - 49*time.Microsecond, -490e-6},
		{tenth + 60*time.Microsecond, 0}, {-time.Hour, 0}} {
		if got := slew(c.wall, int64(tenth)); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%v of the wall clock in %v: %g, expected %g", c.wall, tenth, got, c.want)
		}
	}
	if got := slew(time.Second, 0); got != 0 {
		t.Errorf("in no time: %g", got)
	}
}

// stampsOf returns the timestamps of a recorder that runs, and what it counts by the kernel and by the card.
func stampsOf(t *testing.T, f *fake, active nic.Timestamping) (*stamps, func() [2]int64) {
	rec := must.Get(latency.NewRecorder(testClock, latency.RecorderOptions{}))(t)
	s := newStamps(NewStamper(f, active), rec, 8)
	s.slow, s.sample = new(slowest), &sample{kept: make([]Slow, 1)}
	rec.Begin(1)
	return s, func() [2]int64 {
		rec.End(2)
		get := series(rec)
		return [2]int64{get(latency.KernelSeries).Count, get(latency.HardwareSeries).Count}
	}
}

// Timestamps of a probe and of its reply are paired once, whichever comes first, unless the frame was another one or
// the probe's place was taken. What is missing is waited for until it is given up.
func TestPairs(t *testing.T) {
	all := nic.Timestamping{RxSoftware: true, TxSoftware: true, RxHardware: true, TxHardware: true}
	f := &fake{stamp: nic.Timestamp{Nanoseconds: 1}}
	s, counted := stampsOf(t, f, all)
	tx := func(id uint32) { f.tx = append(f.tx, txStamp{id, nic.Timestamp{Nanoseconds: 1}, 0}) }
	s.send(5, true) // frame 0
	s.Other()       // frame 1
	s.send(6, true) // frame 2
	s.other()       // frame 3
	s.send(7, false)
	check.Equal(t, s.behind(), false, "behind before a reply: %t")
	s.receive(13, 1) // its place has another probe
	s.receive(5, 1)
	check.Equal(t, s.behind(), true, "behind: %t")
	for _, id := range []uint32{1, 3, 4, 8} { // of no measured probe
		tx(id)
	}
	s.collect()
	check.Equal(t, s.behind(), true, "behind: %t")
	tx(0)
	tx(0)
	tx(2)
	s.collect()
	check.Equal(t, s.behind(), false, "behind after all have come: %t")
	s.receive(6, 1)
	check.Equal(t, s.pairs, [2]int64{2, 0}, "pairs %v")
	f.stamp.Hardware = true
	s.receive(6, 1)
	check.Equal(t, s.behind(), true, "behind the card: %t")
	s.abandon()
	check.Equal(t, s.behind(), false, "behind what was given up: %t")
	f.stamp = nic.Timestamp{}
	s.receive(6, 1)
	check.Equal(t, s.behind(), false, "behind a reply without a timestamp: %t")
	check.Equal(t, counted(), [2]int64{2, 0}, "recorded %v")
	for _, c := range []struct {
		active nic.Timestamping
		both   [2]bool
	}{
		{all, [2]bool{true, true}},
		{nic.Timestamping{RxSoftware: true, RxHardware: true}, [2]bool{}},
		{nic.Timestamping{TxSoftware: true, TxHardware: true}, [2]bool{}},
		{nic.Timestamping{RxHardware: true, TxHardware: true}, [2]bool{false, true}},
		{nic.Timestamping{RxHardware: true, TxHardware: true, RxPTP: true}, [2]bool{}},
	} {
		check.Equal(t, NewStamper(f, c.active).both, c.both, "%v")
	}
	(*Stamper)(nil).Other()
}

// A reading may be wrong by half of the time that it took, and by 200 ppm of the time since.
func TestOff(t *testing.T) {
	check.Equal(t, (&NIC{Tick: 1e9, Within: 100}).off(1e9+1e6), 250, "%v ticks")
}
