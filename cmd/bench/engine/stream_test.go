package engine

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"rebound/cmd/bench/probe"
	"rebound/latency"
	"rebound/latency/hot"
	"rebound/nic"
)

// fake is a port whose far end does what the test scripts. Replies are UDP payloads, which come back as they were sent.
type fake struct {
	sent    int
	queue   []reply // in order of arrival
	onSend  func(n int, frame []byte) error
	waiting []byte
	stamp   nic.Timestamp
	tx      []txStamp
}

type reply struct {
	due  uint64 // tick
	data []byte
}

type txStamp struct {
	id uint32
	t  nic.Timestamp
}

func (f *fake) Send(b []byte) error {
	f.sent++
	return f.onSend(f.sent-1, b)
}

func (f *fake) Recv(buf []byte) (int, int64, error) {
	now := hot.TSC()
	if len(f.queue) == 0 || f.queue[0].due > now {
		return 0, 0, nil
	}
	n := copy(buf, f.queue[0].data)
	f.queue = f.queue[1:]
	return n, int64(now), nil
}

func (f *fake) reply(b []byte, due uint64) {
	f.queue = append(f.queue, reply{due, append([]byte(nil), b...)})
}

func (f *fake) EnableTimestamps(bool) (nic.Timestamping, error) { return nic.Timestamping{}, nil }
func (f *fake) RxTimestamp() nic.Timestamp                      { return f.stamp }
func (f *fake) TxTimestamp() (uint32, nic.Timestamp, bool, error) {
	if len(f.tx) == 0 {
		return 0, nic.Timestamp{}, false, nil
	}
	s := f.tx[0]
	f.tx = f.tx[1:]
	return s.id, s.t, true, nil
}

var testClock = func() *latency.Clock {
	c, err := latency.NewClock()
	if err != nil {
		panic(err)
	}
	return c
}()

func stream(t *testing.T, p Port, rate float64, timeout time.Duration, change func(*Options)) (*Stream, *latency.Recorder) {
	t.Helper()
	codec, err := probe.New(probe.Flow{Proto: probe.UDP, Layer: probe.Datagram, Src: netip.MustParseAddr("10.0.0.1"), Dst: netip.MustParseAddr("10.0.0.2"),
		SrcPort: 50000, DstPort: 7, Run: 1, Size: 60})
	if err != nil {
		t.Fatal(err)
	}
	rec, err := latency.NewRecorder(testClock, latency.RecorderOptions{OpenLoop: rate > 0})
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Port: p, Codec: codec, Recorder: rec, Rate: rate, Timeout: timeout}
	if change != nil {
		change(&o)
	}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return s, rec
}

func series(rec *latency.Recorder) func(name string) *latency.Histogram {
	rep := latency.NewReport("test", latency.RoundTrip)
	rec.Fill(rep)
	return func(name string) *latency.Histogram { return rep.Find(name).Total }
}

func spin(d time.Duration) {
	for end := hot.TSC() + testClock.Ticks(d); hot.TSC() < end; {
	}
}

// TestCoordinatedOmission: the sender is held up once, for 20 ms at 10000 probes per second. 200 probes should have left
// meanwhile; they leave late, and are answered at once. From the intended moments about half of them took over 10 ms. From
// the actual ones only the probe that was held up did: that is the omission.
func TestCoordinatedOmission(t *testing.T) {
	const stalled, stall = 50, 20 * time.Millisecond
	f := &fake{}
	f.onSend = func(n int, b []byte) error {
		if n == stalled {
			spin(stall)
		}
		f.reply(b, 0)
		return nil
	}
	s, rec := stream(t, f, 10000, time.Second, nil)
	var stop atomic.Bool
	if err := s.Run(Limit{Count: 400}, &stop); err != nil {
		t.Fatal(err)
	}
	get := series(rec)
	half := (stall / 2).Nanoseconds()
	corrected, actual, lag := get(latency.MainSeries).CountAbove(half), get(latency.UncorrectedSeries).CountAbove(half), get(LagSeries).CountAbove(half)
	if corrected < 99 { // fixed by the schedule: probes 50 to 149 are intended more than 10 ms before the stall ends
		t.Errorf("corrected: %d round trips above %d ns, want 99 or more", corrected, half)
	}
	if actual < 1 || actual > corrected/4 {
		t.Errorf("uncorrected: %d round trips above %d ns, corrected %d", actual, half, corrected)
	}
	if lag < 98 {
		t.Errorf("send lag: %d above %d ns", lag, half)
	}
	if c := s.Counts(); c.Sent != 400 || c.Received != 400 || c.Reordered != 0 {
		t.Errorf("%+v", c)
	}
}

// TestFarStall: the far end is held up, the sender is not. Both series have to show it.
func TestFarStall(t *testing.T) {
	f := &fake{}
	var until uint64
	f.onSend = func(n int, b []byte) error {
		if n == 50 {
			until = hot.TSC() + testClock.Ticks(20*time.Millisecond)
		}
		f.reply(b, until)
		return nil
	}
	s, rec := stream(t, f, 10000, time.Second, nil)
	var stop atomic.Bool
	if err := s.Run(Limit{Count: 400}, &stop); err != nil {
		t.Fatal(err)
	}
	get := series(rec)
	if a := get(latency.MainSeries).CountAbove(10_000_000); a < 99 {
		t.Errorf("corrected: %d above 10 ms", a)
	}
	if a := get(latency.UncorrectedSeries).CountAbove(19_500_000); a < 1 {
		t.Errorf("uncorrected: the first probe of the stall does not show it")
	}
}

// TestClosedLoop: probe 2 is lost, probe 5's reply comes after its time-out while probe 6 waits, probe 8 is answered twice,
// probe 9 by a corrupt reply only, probe 10 by a corrupt and a good one.
func TestClosedLoop(t *testing.T) {
	f := &fake{}
	var held []byte
	f.onSend = func(n int, b []byte) error {
		switch n {
		case 2:
			return nil
		case 5:
			held = append(held, b...)
			return nil
		case 6:
			f.reply(held, 0)
		case 8:
			f.reply(b, 0)
		case 9, 10:
			bad := append([]byte(nil), b...)
			bad[len(bad)-1] ^= 1
			f.reply(bad, 0)
			if n == 9 {
				return nil
			}
		}
		f.reply(b, 0)
		return nil
	}
	s, rec := stream(t, f, 0, 300*time.Millisecond, nil)
	var stop atomic.Bool
	if err := s.Run(Limit{Count: 20}, &stop); err != nil {
		t.Fatal(err)
	}
	want := Counts{Sent: 20, Received: 17, Late: 1, Spoiled: 1, Duplicates: 1, Corrupt: 2}
	if c := s.Counts(); c != want || c.Lost() != 1 {
		t.Errorf("%+v lost %d, want %+v lost 1", c, c.Lost(), want)
	}
	h := series(rec)(latency.MainSeries)
	if h.Count != 18 || h.CountAbove(299_000_000) != 1 {
		t.Errorf("%d recorded, %d beyond the time-out: a late reply belongs into the histogram", h.Count, h.CountAbove(299_000_000))
	}
	if s.Fields[probe.Payload] != 2 {
		t.Errorf("fields %v", s.Fields)
	}
}

func TestRingFull(t *testing.T) {
	f := &fake{}
	refusals := 3
	f.onSend = func(n int, b []byte) error {
		if refusals > 0 {
			refusals--
			return nic.ErrFull
		}
		f.reply(b, 0)
		return nil
	}
	s, _ := stream(t, f, 0, time.Second, nil)
	var stop atomic.Bool
	if err := s.Run(Limit{Count: 5}, &stop); err != nil {
		t.Fatal(err)
	}
	if c := s.Counts(); c.Sent != 5 || c.Received != 5 || s.Full != 3 {
		t.Errorf("%+v, full %d", c, s.Full)
	}
	f.onSend = func(int, []byte) error { return nic.ErrFull }
	s, _ = stream(t, f, 0, 5*time.Millisecond, nil)
	if err := s.Run(Limit{Count: 5}, &stop); !errors.Is(err, ErrSend) || !errors.Is(err, nic.ErrFull) {
		t.Errorf("a ring that stays full: %v", err)
	}
	if c := s.Counts(); c.Sent != 1 || c.Unsent != 1 || c.Lost() != 1 {
		t.Errorf("%+v", c)
	}
}

// TestPortFails: what was measured before the interface went stays.
func TestPortFails(t *testing.T) {
	for _, rate := range []float64{0, 10000} {
		f := &fake{}
		f.onSend = func(n int, b []byte) error {
			if n == 10 {
				return nic.ErrGone
			}
			f.reply(b, 0)
			return nil
		}
		s, rec := stream(t, f, rate, 50*time.Millisecond, nil)
		var stop atomic.Bool
		if err := s.Run(Limit{Count: 20}, &stop); !errors.Is(err, nic.ErrGone) {
			t.Errorf("rate %v: %v", rate, err)
		}
		if n := series(rec)(latency.MainSeries).Count; n < 9 {
			t.Errorf("rate %v: %d recorded", rate, n)
		}
	}
}

func TestStop(t *testing.T) {
	for _, rate := range []float64{0, 100000} {
		f := &fake{}
		var stop atomic.Bool
		f.onSend = func(n int, b []byte) error {
			if n == 100 {
				stop.Store(true)
			}
			f.reply(b, 0)
			return nil
		}
		s, rec := stream(t, f, rate, time.Second, nil)
		if err := s.Run(Limit{}, &stop); err != nil {
			t.Fatal(err)
		}
		if n := series(rec)(latency.MainSeries).Count; n != 101 || s.window.counts.Lost() != 0 {
			t.Errorf("rate %v: %d recorded, %+v", rate, n, s.Counts())
		}
	}
}

// TestStopWhileWaiting: after a signal no time-out of a minute is sat out.
func TestStopWhileWaiting(t *testing.T) {
	for _, rate := range []float64{0, 100000} {
		f := &fake{}
		var stop atomic.Bool
		f.onSend = func(n int, b []byte) error {
			if n == 100 {
				stop.Store(true)
			} else {
				f.reply(b, 0)
			}
			return nil
		}
		s, _ := stream(t, f, rate, time.Minute, nil)
		if err := s.Run(Limit{}, &stop); err != nil {
			t.Fatal(err)
		}
		if c := s.Counts(); c.Lost() != 0 || c.Abandoned != 1 || c.Received != c.Sent {
			t.Errorf("rate %v: %+v", rate, c)
		}
	}
}

// TestTooLate: a sender that cannot offer the rate gives up where it is told to, instead of sending all of it late.
func TestTooLate(t *testing.T) {
	f := &fake{onSend: func(int, []byte) error { spin(20 * time.Microsecond); return nil }}
	s, _ := stream(t, f, 1e6, time.Millisecond, nil)
	var stop atomic.Bool
	if err := s.Run(Limit{Count: 100_000, Behind: time.Millisecond}, &stop); err != nil {
		t.Fatal(err)
	}
	if c := s.Counts(); c.Sent > 1000 || testClock.Nanoseconds(s.Behind) < 1_000_000 {
		t.Errorf("%d sent, %d ns behind", c.Sent, testClock.Nanoseconds(s.Behind))
	}
}

// TestGapOfTheMeasuredPart: what the warm-up lost says nothing about the round trips.
func TestGapOfTheMeasuredPart(t *testing.T) {
	for _, rate := range []float64{0, 10000} {
		f := &fake{}
		slow := false
		f.onSend = func(n int, b []byte) error { slow = n == 0; f.reply(b, 0); return nil }
		s, _ := stream(t, f, rate, time.Second, func(o *Options) { o.Port = held{f, &slow} })
		var stop atomic.Bool
		if err := s.Run(Limit{Warmup: 5 * time.Millisecond, Count: 10}, &stop); err != nil {
			t.Fatal(err)
		}
		var counts [hot.Buckets]uint64
		s.Gap.Load(&counts)
		n := int64(0)
		for i, c := range counts {
			if hot.Lowest(i) >= testClock.Ticks(3*time.Millisecond) {
				n += int64(c)
			}
		}
		if n != 0 {
			t.Errorf("rate %v: %d gaps of 3 ms, which were the warm-up's", rate, n)
		}
	}
}

// held is a port of which a Recv takes 4 ms where slow is set.
type held struct {
	*fake
	slow *bool
}

func (h held) Recv(buf []byte) (int, int64, error) {
	if *h.slow {
		*h.slow = false
		spin(4 * time.Millisecond)
	}
	return h.fake.Recv(buf)
}

func TestWarmupStaysOut(t *testing.T) {
	for _, rate := range []float64{0, 10000} {
		f := &fake{}
		f.onSend = func(n int, b []byte) error { f.reply(b, 0); return nil }
		s, rec := stream(t, f, rate, time.Second, nil)
		var stop atomic.Bool
		if err := s.Run(Limit{Warmup: 5 * time.Millisecond, Count: 30}, &stop); err != nil {
			t.Fatal(err)
		}
		n := series(rec)(latency.MainSeries).Count
		if c := s.Counts(); n != 30 || c.Sent != 30 || s.Warmup == 0 || int64(f.sent) != 30+s.Warmup {
			t.Errorf("rate %v: %d recorded, %d sent, warm-up %d, %+v", rate, n, f.sent, s.Warmup, c)
		}
	}
}

// TestQuestionsAreAnswered: what is not a reply goes to Answer, and what that returns is sent, before, in and after a run.
func TestQuestionsAreAnswered(t *testing.T) {
	f := &fake{}
	question := make([]byte, 60)
	answers := 0
	f.onSend = func(n int, b []byte) error {
		if string(b) == "answer" {
			answers++
			return nil
		}
		f.queue = append(f.queue, reply{0, question})
		f.reply(b, 0)
		return nil
	}
	f.queue = append(f.queue, reply{0, question})
	codec, err := probe.New(probe.Flow{Proto: probe.UDP, Src: netip.MustParseAddr("10.0.0.1"), Dst: netip.MustParseAddr("10.0.0.2"),
		SrcPort: 50000, DstPort: 7, Run: 1, Size: 60})
	if err != nil {
		t.Fatal(err)
	}
	s, _ := stream(t, f, 0, 10*time.Millisecond, func(o *Options) {
		o.Codec = codec
		o.Answer = func(b []byte) []byte {
			if string(b) != string(question) {
				return nil
			}
			return []byte("answer")
		}
	})
	var stop atomic.Bool
	if err := s.Run(Limit{Count: 3}, &stop); err != nil {
		t.Fatal(err)
	}
	if answers != 4 {
		t.Errorf("%d answers, want 4", answers)
	}
}

func TestTimestamps(t *testing.T) {
	f := &fake{stamp: nic.Timestamp{Nanoseconds: 5000}}
	f.onSend = func(n int, b []byte) error {
		f.tx = append(f.tx, txStamp{uint32(n), nic.Timestamp{Nanoseconds: 2000}}, txStamp{uint32(n), nic.Timestamp{Nanoseconds: 2500, Hardware: true}})
		f.reply(b, 0)
		return nil
	}
	s, rec := stream(t, f, 0, time.Second, func(o *Options) { o.Stamps = NewStamper(f) })
	var stop atomic.Bool
	if err := s.Run(Limit{Count: 10}, &stop); err != nil {
		t.Fatal(err)
	}
	get := series(rec)
	if h := get(latency.KernelSeries); h.Count != 10 || h.Min != 3000 || h.Max != 3000 {
		t.Errorf("kernel: %d, %d to %d", h.Count, h.Min, h.Max)
	}
	if h := get(latency.HardwareSeries); h.Count != 0 {
		t.Errorf("the card stamped no reply, yet there are %d pairs", h.Count)
	}
	f.stamp.Hardware = true
	if err := s.Run(Limit{Count: 5}, &stop); err != nil {
		t.Fatal(err)
	}
	if h := series(rec)(latency.HardwareSeries); h.Count != 5 || h.Max != 2500 {
		t.Errorf("hardware: %d, max %d", h.Count, h.Max)
	}
}

// TestSTAMP plays a reflector that takes 3 us, keeps its own count, and whose network loses probes 4 and 5 on the way there
// and probe 8 on the way back.
func TestSTAMP(t *testing.T) {
	for _, stateful := range []bool{true, false} {
		f := &fake{}
		be := binary.BigEndian
		count := uint32(100)
		f.onSend = func(n int, b []byte) error {
			if n == 4 || n == 5 {
				return nil
			}
			r := make([]byte, len(b))
			be.PutUint32(r, be.Uint32(b))
			if stateful {
				be.PutUint32(r, count)
				count++
			}
			if n == 8 {
				return nil
			}
			t2 := uint64(1000)<<32 | 0xffffffff - 100 // the fraction overflows into the seconds
			be.PutUint64(r[16:], t2)
			be.PutUint64(r[4:], t2+3000<<32/1000000000+1)
			be.PutUint16(r[12:], 0x8000|20<<8|9)
			copy(r[24:28], b[0:4])
			copy(r[28:36], b[4:12])
			copy(r[36:38], b[12:14])
			r[40] = 62
			f.reply(r, hot.TSC()+testClock.Ticks(100*time.Microsecond))
			return nil
		}
		codec, err := probe.New(probe.Flow{Proto: probe.STAMP, Layer: probe.Datagram, Src: netip.MustParseAddr("10.0.0.1"),
			Dst: netip.MustParseAddr("10.0.0.2"), SrcPort: 50000, DstPort: 862, Run: 1, Size: 86})
		if err != nil {
			t.Fatal(err)
		}
		s, rec := stream(t, f, 0, 400*time.Millisecond, func(o *Options) { o.Codec = codec }) // longer than a busy machine holds a thread up
		var stop atomic.Bool
		if err := s.Run(Limit{Count: 12}, &stop); err != nil {
			t.Fatal(err)
		}
		if c := s.Counts(); c.Received != 9 || c.Lost() != 3 || c.Corrupt != 0 {
			t.Fatalf("%+v %v", c, s.Fields)
		}
		got, want := *s.STAMP(), STAMP{Stateful: stateful, Synchronised: true, WorstError: estimateNS(20<<8 | 9), TTL: 62}
		if stateful {
			want.LostForward = 2
		}
		if got != want {
			t.Errorf("stateful %t: %+v, want %+v", stateful, got, want)
		}
		get := series(rec)
		if h := get(latency.ResidenceSeries); h.Count != 9 || h.Min != 3000 || h.Max != 3000 {
			t.Errorf("residence %d, %d to %d ns", h.Count, h.Min, h.Max)
		}
		rtt, network := get(latency.MainSeries), get(NetworkSeries)
		if d := rtt.Sum - network.Sum; d < 9*3000-9 || d > 9*3000+9 {
			t.Errorf("round trips and network differ by %v ns", d)
		}
	}
}

func TestEstimates(t *testing.T) {
	for _, ns := range []float64{0.1, 1, 100, 12345, 1e6, 16e9} {
		e := encodeEstimate(ns, true)
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

// TestRunAllocatesNothing: beyond a fixed few at its beginning and end, nothing for each probe.
func TestRunAllocatesNothing(t *testing.T) {
	for _, rate := range []float64{0, 1e6} {
		var data [64]byte
		var n int
		loop := &echo{data: &data, n: &n}
		s, _ := stream(t, loop, rate, time.Second, nil)
		var stop atomic.Bool
		if a := testing.AllocsPerRun(5, func() { _ = s.Run(Limit{Count: 5000}, &stop) }); a > 3 {
			t.Errorf("rate %v: %v allocations in a run of 5000 probes", rate, a)
		}
	}
}

// echo answers the latest probe at once.
type echo struct {
	data *[64]byte
	n    *int
}

func (e *echo) Send(b []byte) error { *e.n = copy(e.data[:], b); return nil }
func (e *echo) Recv(buf []byte) (int, int64, error) {
	n := copy(buf, e.data[:*e.n])
	*e.n = 0
	return n, int64(hot.TSC()), nil
}
