package engine

import (
	"encoding/binary"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"rebound/cmd/bench/probe"
	"rebound/latency"
	"rebound/nic"
	"rebound/polling"
)

func TestTimestamps(t *testing.T) {
	f := &fake{stamp: nic.Timestamp{Nanoseconds: 5000}}
	f.onSend = func(n int, b []byte) error {
		f.tx = append(f.tx, txStamp{uint32(n), nic.Timestamp{Nanoseconds: 2000}, 0}, txStamp{uint32(n), nic.Timestamp{Nanoseconds: 2500, Hardware: true}, 0})
		f.reply(b, 0)
		return nil
	}
	s, rec := stream(t, f, 0, 20*time.Second, func(o *Options) { o.Stamps = NewStamper(f) })
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

// TestLateTimestamps has the card's stamp of the last probe come when all replies are long in.
func TestLateTimestamps(t *testing.T) {
	f := &fake{stamp: nic.Timestamp{Nanoseconds: 5000, Hardware: true}}
	f.onSend = func(n int, b []byte) error {
		due := uint64(0)
		if n == 9 {
			due = polling.TSC() + testClock.Ticks(50*time.Millisecond)
		}
		f.tx = append(f.tx, txStamp{uint32(n), nic.Timestamp{Nanoseconds: 2500, Hardware: true}, due})
		f.reply(b, 0)
		return nil
	}
	s, rec := stream(t, f, 0, time.Second, func(o *Options) { o.Stamps = NewStamper(f) })
	var stop atomic.Bool
	if err := s.Run(Limit{Count: 10}, &stop); err != nil {
		t.Fatal(err)
	}
	if h := series(rec)(latency.HardwareSeries); h.Count != 10 || h.Min != 2500 {
		t.Errorf("%d pairs of 10, from %d ns", h.Count, h.Min)
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
			f.reply(r, polling.TSC()+testClock.Ticks(100*time.Microsecond))
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
