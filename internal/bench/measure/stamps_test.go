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
		SrcPorts: ports, DstPort: 7, Run: 0xffffffff, Size: 60}}
	s.port = p
	p.series = append(p.series, s)
	return s
}

// echoed is a bed whose other end answers everything.
type echoed struct{ *bed }

func (e echoed) Recv(buf []byte) (int, int64, error) {
	e.step()
	for f := e.far.receive(); f != nil; f = e.far.receive() {
		e.far.send(f)
	}
	e.step()
	return e.near.Recv(buf)
}

// TestStampsOfPTPOnly: on a card that timestamps PTP messages alone, the probes of all series have the card's
// timestamps.
func TestStampsOfPTPOnly(t *testing.T) {
	clock := must.Get(latency.NewClock())(t)
	synctest.Test(t, func(t *testing.T) {
		a, z := sim.Pair()
		z.SetUp(true)
		b := &bed{t: t, far: frames{z}}
		b.Port = b.device(0, nearMAC, ring, a)
		b.near = b.Port.(nic.Prober)
		p := &port{device: b, Port: echoed{b}}
		for _, s := range []*Series{udpSeries(p, 50000), udpSeries(p, 50001)} {
			s.wire = p.Port
			s.hop = s.newNextHop()
		}
		must.OK(t, p.enableStamps(Options{Timestamps: true}, b.Port.(nic.Timestamper)))
		for i, s := range p.series {
			must.OK(t, s.Prepare(clock, Recording{}, 0))
			must.OK(t, s.Run(engine.Limit{Count: 200}, new(atomic.Bool)))
			rep := report.New("test", report.RoundTrip)
			rep.Fill(s.rec.Recording())
			if c, _ := s.Counts(); c.Received != 200 || c.Corrupt != 0 {
				t.Errorf("series %d: %+v", i, c)
			}
			check.Equal(t, rep.Find(latency.HardwareSeries).Total.Count, 200, "%d probes have the card's timestamps")
		}
	})
}

// ptpOnly is a card that timestamps only PTP messages.
type ptpOnly struct{ nic.Timestamper }

func (ptpOnly) EnableTimestamps(bool, uint16) (nic.Timestamping, error) {
	return nic.Timestamping{RxHardware: true, TxHardware: true, RxPTP: true}, nil
}

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
