package watch

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/fleet/targets"
	"github.com/rebound-nic/rebound/internal/bench/engine"
	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/latency/attribution"
	"github.com/rebound-nic/rebound/latency/outcome"
	"github.com/rebound-nic/rebound/polling"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// scrape returns the metrics of a watch by name and the label side.
func scrape(t *testing.T, w *watch) map[string]float64 {
	t.Helper()
	ch := make(chan prometheus.Metric, 1000)
	collector{w}.Collect(ch)
	close(ch)
	all := map[string]float64{}
	for m := range ch {
		var d dto.Metric
		must.OK(t, m.Write(&d))
		for _, l := range d.Label {
			if l.GetName() == "side" {
				name, _, _ := strings.Cut(strings.TrimPrefix(m.Desc().String(), `Desc{fqName: "`), `"`)
				all[name+" "+l.GetValue()] = d.Counter.GetValue()
			}
		}
	}
	return all
}

// Slow round trips are counted for the side that caused them, and what they took beyond the usual one is divided
// exactly. Of usual round trips, of those without times, and before it is known what is usual, nothing is counted.
func TestSlowSides(t *testing.T) {
	const usual, more = 10_000, 90_000
	unknown := engine.Far{Residence: -1, Wait: -1}
	told := engine.Far{Residence: 500, Wait: 100}
	for _, c := range []struct {
		name, proto, want string
		e                 event
	}{
		{"the reply waited for this loop", "udp:10.0.0.2", "this_host", event{waited: more + 100, far: unknown}},
		{"sending took long", "icmp:10.0.0.2", "this_host", event{held: more, waited: 100, far: unknown}},
		{"anything else", "udp:10.0.0.2", "elsewhere", event{waited: 100, far: unknown}},
		{"STAMP without the TLV", "stamp:10.0.0.2", "elsewhere", event{waited: 100, far: engine.Far{Residence: 500, Wait: -1}}},
		{"the responder answered late", "stamp:10.0.0.2", "responder", event{waited: 100, far: engine.Far{Residence: 500 + more, Wait: -1}}},
		{"the probe waited for its loop", "stamp:10.0.0.2", "responder", event{waited: 100, far: engine.Far{Residence: 500, Wait: more}}},
		{"neither loop", "stamp:10.0.0.2", "network", event{waited: 100, far: told}},
		{"both loops", "stamp:10.0.0.2", "unknown", event{waited: more, far: engine.Far{Residence: 500, Wait: more}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			k, _ := logged(nil)
			w := &watch{options: Options{}, archive: k, loop: loopOf(t), fleet: newFleet(0, "", k.log),
				probeDesc: (&Options{Sources: targets.Sources{
					Defaults: targets.Defaults{Probes: targets.Probes{Interval: time.Second}}}}).probeInfo()}
			s := k.target(target(t, c.proto), noon)
			add := func(e event, ns int64) {
				e.flow, e.kind, e.ns = s.id, answered, ns
				k.record(&e)
				k.now = k.now.Add(time.Second)
			}
			k.now = noon
			far := unknown
			if strings.HasPrefix(c.proto, "stamp") {
				if far = told; c.e.far.Wait < 0 {
					far.Wait = -1
				}
			}
			c.e.ns = 0
			add(c.e, usual+more)
			for range 2 * usualFewest {
				add(event{held: 300, waited: 100, far: far}, usual)
			}
			none := c.e
			none.untimed = true
			add(none, usual+more)
			for name, v := range scrape(t, w) {
				check.Equal(t, v, 0, name+" is %v before a slow one")
			}
			for range 3 {
				add(c.e, usual+more)
			}
			all := scrape(t, w)
			check.Equal(t, len(all), 2*len(s.sides()), "%d metrics")
			check.Equal(t, all["rebound_slow_total "+c.want], 3, c.want+" caused %v")
			sum, counted := 0.0, 0.0
			for name, v := range all {
				if strings.HasPrefix(name, "rebound_slow_seconds_total") {
					sum += v
				} else {
					counted += v
				}
			}
			if counted != 3 || sum < 3*(more-1000)*1e-9 || sum > 3*(more+1000)*1e-9 {
				t.Errorf("%v slow ones of %v s: %v", counted, sum, all)
			}
			if own := all["rebound_slow_seconds_total "+c.want]; own < sum/2 {
				t.Errorf("%s has %v of %v s", c.want, own, sum)
			}
		})
	}
}

// A stall of this watch, whose round trips come all at once, does not become what is usual.
func TestUsualOutlastsBurst(t *testing.T) {
	var s slow
	now := noon
	for range usualKept {
		s.count(&event{ns: 1000, far: engine.Far{Residence: -1, Wait: -1}}, now)
		now = now.Add(usualEvery)
	}
	for range 10 * usualKept {
		s.count(&event{ns: 9000, waited: 8000, far: engine.Far{Residence: -1, Wait: -1}}, now)
	}
	check.Equal(t, s.usual.RTT, 1000, "usual: %d ns")
	check.Equal(t, s.probes[attribution.Here], 10*usualKept, "%d are this host's")
}

// The loop passes on how long it held a probe, how long the reply may have waited for it, and what the responder
// reports in its TLV.
func TestSlowEvent(t *testing.T) {
	l := loopOf(t)
	us := l.clock.Ticks(time.Microsecond)
	codec := must.Get(probe.New(probe.Flow{Proto: probe.STAMP, Layer: probe.Datagram,
		Src: netip.MustParseAddr("10.0.0.1"), Dst: netip.MustParseAddr("10.0.0.2"),
		SrcPort: 61000, DstPort: 862, Run: 1, Size: 150, Test: probe.TestPacket{Ask: []probe.Ask{probe.AskTiming()}}}))(
		t)
	f := newFlow(0, codec, 8)
	seq := f.nextNumber()
	now := polling.TSC()
	f.slots[seq] = slot{seq: seq, sent: now - 100*us, left: now - 97*us, t1: 42, state: waiting}
	asked := bytes.Clone(codec.Build(uint32(seq), 42))
	b := bytes.Clone(asked)
	be := binary.BigEndian
	const ntpUS = 1 << 32 / 1000_000 // about
	at := uint64(4_000_000_000) << 32
	be.PutUint64(b[4:], at+30*ntpUS)  // T3
	be.PutUint64(b[16:], at+20*ntpUS) // T2
	copy(b[24:], asked[:14])          // the sender's part
	x := b[44:]
	x[0] = 0
	x[8] = fastpath.TimingLoop
	be.PutUint64(x[12:], at+5*ntpUS)
	l.process(f, b, now, now-2*us, false, outcome.None)
	var got []event
	l.events.drain(func(e *event) { got = append(got, *e) })
	if len(got) != 1 || got[0].kind != answered {
		t.Fatalf("%+v", got)
	}
	near := func(name string, v, want int64) {
		t.Helper()
		if v < want-want/10 || v > want+want/10 {
			t.Errorf("%s: %d ns, want %d", name, v, want)
		}
	}
	e := got[0]
	near("held", e.held, 3000)
	near("waited", e.waited, 2000)
	near("residence", e.far.Residence, 10_000)
	near("far wait", e.far.Wait, 15_000)
}
