package measure

import (
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rebound-nic/rebound/internal/bench/engine"
	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim"
)

func udpSeries(p *port, ports ...uint16) *Series {
	s := &Series{Settings: Settings{Timeout: 20 * time.Second, Target: netip.MustParseAddr("10.0.0.2"),
		Sizes: []int{0}}, flow: probe.Flow{Proto: probe.UDP, SrcMAC: nearMAC,
		DstMAC: farMAC, Src: netip.MustParseAddr("10.0.0.1"), Dst: netip.MustParseAddr("10.0.0.2"), SrcPort: ports[0],
		SrcPorts: ports, DstPort: 7, Run: 0xffff0000 | uint32(ports[0]), Size: 60}}
	s.port = p
	p.series = append(p.series, s)
	return s
}

// echoed is a bed whose other end answers everything, once it is not to hold its answers back.
type echoed struct {
	*bed
	hold bool
}

func (e *echoed) Recv(buf []byte) (int, int64, error) {
	e.step()
	for f := e.far.receive(); f != nil; f = e.far.receive() {
		e.held = append(e.held, f)
		for ; !e.hold && len(e.held) > 0; e.held = e.held[1:] {
			e.far.send(e.held[0])
		}
	}
	e.step()
	return e.near.Recv(buf)
}

// stampedSeries are series on the model of a card that timestamps PTP messages alone.
func stampedSeries(t *testing.T, ports ...uint16) (*port, *echoed) {
	a, z := sim.Pair()
	z.SetUp(true)
	b := &bed{t: t, far: frames{z}}
	b.Port = b.device(0, nearMAC, ring, a)
	b.near = b.Port.(nic.Prober)
	e := &echoed{bed: b}
	p := &port{device: b, Port: e}
	for _, n := range ports {
		s := udpSeries(p, n)
		s.wire = p.Port
		s.hop = s.newNextHop()
	}
	must.OK(t, p.enableStamps(Options{Timestamps: true}, b.Port.(nic.Timestamper)))
	return p, e
}

// hardware is the number of round trips of a series that have the card's timestamps.
func hardware(s *Series) int64 {
	rep := report.New("test", report.RoundTrip)
	rep.Fill(s.rec.Recording())
	return rep.Find(latency.HardwareSeries).Total.Count
}

// TestStampsOfPTPOnly: on a card that timestamps PTP messages alone, the probes of all series have the card's
// timestamps, in every slice.
func TestStampsOfPTPOnly(t *testing.T) {
	clock := must.Get(latency.NewClock())(t)
	synctest.Test(t, func(t *testing.T) {
		p, _ := stampedSeries(t, 50000, 50001)
		for _, s := range p.series {
			must.OK(t, s.Prepare(clock, Recording{}, 0))
		}
		for range 2 {
			for _, s := range p.series {
				must.OK(t, s.Run(engine.Limit{Count: 100}, new(atomic.Bool)))
			}
		}
		for i, s := range p.series {
			if c, _ := s.Counts(); c.Received != 200 || c.Corrupt != 0 {
				t.Errorf("series %d: %+v", i, c)
			}
			check.Equal(t, hardware(s), 200, "%d probes have the card's timestamps")
		}
	})
}

// TestLateInAnotherSlice: a reply that comes in another series' slice is not one of that series' replies.
func TestLateInAnotherSlice(t *testing.T) {
	clock := must.Get(latency.NewClock())(t)
	synctest.Test(t, func(t *testing.T) {
		p, far := stampedSeries(t, 50000, 50001)
		late, next := p.series[0], p.series[1]
		late.Timeout = time.Millisecond
		for _, s := range p.series {
			must.OK(t, s.Prepare(clock, Recording{}, 0))
		}
		far.hold = true
		must.OK(t, late.Run(engine.Limit{Count: 3}, new(atomic.Bool)))
		far.hold = false
		must.OK(t, next.Run(engine.Limit{Count: 100}, new(atomic.Bool)))
		if c, _ := next.Counts(); c.Received != 100 || c.Corrupt != 0 {
			t.Errorf("%+v", c)
		}
		check.Equal(t, hardware(next), 100, "%d probes have the card's timestamps")
	})
}

// TestStampsAfterOtherFrames: probes outside of the measurement do not shift the timestamps of those in it.
func TestStampsAfterOtherFrames(t *testing.T) {
	clock := must.Get(latency.NewClock())(t)
	synctest.Test(t, func(t *testing.T) {
		p, _ := stampedSeries(t, 50000)
		s := p.series[0]
		must.OK(t, s.Prepare(clock, Recording{}, 0))
		must.OK(t, s.Answered())
		must.OK(t, s.Run(engine.Limit{Count: 100}, new(atomic.Bool)))
		check.Equal(t, hardware(s), 100, "%d probes have the card's timestamps")
	})
}

// ptpOnly is a card that timestamps only PTP messages.
type ptpOnly struct{ nic.Timestamper }

func (ptpOnly) EnableTimestamps(bool) (nic.Timestamping, error) {
	return nic.Timestamping{RxHardware: true, TxHardware: true, RxPTP: true}, nil
}

func (ptpOnly) TimestampPort(uint16) error { return nil }

// TestNoStamps: probes that such a card cannot timestamp are refused, with the reason.
func TestNoStamps(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Series)
		want   string
	}{
		{"ping", func(s *Series) { s.flow.Proto = probe.ICMP }, "-proto udp"},
		{"STAMP", func(s *Series) { s.flow.Proto = probe.STAMP }, "-proto udp"},
		{"ports", func(s *Series) { s.flow.SrcPorts = []uint16{1, 2} }, "one source port"},
		{"short", func(s *Series) { s.Sizes, s.flow.Size = []int{75}, 75 }, "76 bytes or more"},
		{"long enough", func(s *Series) { s.Sizes, s.flow.Size = []int{76}, 76 }, ""},
	} {
		p := &port{}
		c.change(udpSeries(p, 50000))
		err := p.enableStamps(Options{Timestamps: true}, ptpOnly{})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}
