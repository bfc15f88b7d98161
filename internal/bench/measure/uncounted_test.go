package measure

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/internal/bench/engine"
	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

// card is a device whose drop and reset counters grow from one reading to the next.
type card struct {
	nic.Port
	drops     uint64
	restarts  uint64
	resets    uint64
	info      nic.Info
	rxDropped uint64
}

func (c *card) Info() nic.Info          { return c.info }
func (c *card) Link() (nic.Link, error) { return nic.Link{}, nil }
func (c *card) ReadStats(s *nic.Stats) error {
	*s = nic.Stats{RxDropped: c.rxDropped, Resets: c.resets}
	c.rxDropped += c.drops
	c.resets += c.restarts
	return nil
}

// datagrams is a series of UDP probes over a wire to a card.
func datagrams(w engine.Port, c *card, timeout time.Duration) *Series {
	return &Series{Settings: Settings{Message: true, Timeout: timeout}, wire: w, port: &port{device: c},
		flow: probe.Flow{Proto: probe.UDP, Layer: probe.Datagram, Src: netip.MustParseAddr("10.0.0.1"),
			Dst:     netip.MustParseAddr("10.0.0.2"),
			SrcPort: 1000, DstPort: 7, Run: 1, Size: 60}}
}

// If a responder's metrics cannot be read while the bench runs, or if its device has no drop counter, the report has a
// range and a note with a remedy.
func TestUnreadMetrics(t *testing.T) {
	needs.Long(t)
	clock := must.Get(latency.NewClock())(t)
	const refused = "# TYPE rebound_refused_total counter\nrebound_refused_total{reason=\"rate\"} 0\n"
	const trouble = "# TYPE rebound_device_trouble_total counter\nrebound_device_trouble_total{kind=\"rx_dropped\"} 0\n"
	// a different time at each reading
	const again = "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds %d\n"
	for _, c := range []struct {
		name, page string
		readings   int
		lost, note string
	}{
		{"read", refused + trouble, 1 << 30, "3", ""},
		{"started again", refused + trouble + again, 1 << 30, "between 0 and 3", "the responder or its device was restarted"},
		{"gone after the start", refused + trouble, 1, "between 0 and 3", "check that -responder-metrics still answers"},
		{"no counter", refused, 1 << 30, "between 0 and 3", "does not count the frames that it drops"},
	} {
		readings := 0
		page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if readings++; readings > c.readings {
				w.WriteHeader(http.StatusInternalServerError)
				return
			}
			fmt.Fprint(w, strings.ReplaceAll(c.page, "%d", fmt.Sprint(readings)))
		}))
		defer page.Close()
		s := datagrams(&moody{silent: 3}, &card{info: nic.Info{Driver: "mlx5", Backend: nic.Silicon}},
			1500*time.Millisecond)
		s.Settings.Responder = page.URL
		must.OK(t, s.Prepare(clock, Recording{}, 1000))
		must.OK(t, s.Run(engine.Limit{Count: 20}, new(atomic.Bool)))
		rep := s.Report(Circumstances{Clock: clock, Slack: time.Hour}) // a busy machine does not reach a rate
		if n := rep.Counts; n.RefusedThereCounted != (c.readings > 1) ||
			n.DroppedThereCounted != (c.name == "read" || c.name == "started again") || !n.DroppedHereCounted {
			t.Errorf("%s: counted %+v", c.name, n)
		}
		notes := strings.Join(rep.Warnings, "\n")
		if rep.Counts.LostText() != c.lost || !strings.Contains(notes, c.note) || c.note == "" && notes != "" {
			t.Errorf("%s: lost %s, want %s; notes %q", c.name, rep.Counts.LostText(), c.lost, notes)
		}
	}
}

// Drops counted by a card are counted as dropped here. If a card does not count its drops, probes are not certainly
// lost between the hosts.
func TestCardDrops(t *testing.T) {
	needs.Long(t)
	clock := must.Get(latency.NewClock())(t)
	for _, c := range []struct {
		name string
		card card
		lost string
		here int64
	}{
		{"no drops", card{info: nic.Info{Driver: "mlx5", Backend: nic.Silicon}}, "3", 0},
		{"two dropped", card{info: nic.Info{Driver: "mlx5", Backend: nic.Silicon}, drops: 2}, "between 1 and 3", 2},
		{"restarted", card{info: nic.Info{Driver: "mlx5", Backend: nic.Silicon}, restarts: 1}, "between 0 and 3", 0},
		{"not counted", card{info: nic.Info{Driver: "virtio", Backend: nic.Silicon, NoDropCounter: true}}, "between 0 and 3", 0},
	} {
		s := datagrams(&moody{silent: 3}, &c.card, 1500*time.Millisecond)
		must.OK(t, s.Prepare(clock, Recording{}, 1000))
		must.OK(t, s.Run(engine.Limit{Count: 20}, new(atomic.Bool)))
		n, drops := s.Counts()
		if n.DroppedHereCounted == c.card.info.NoDropCounter || n.RefusedThereCounted || n.DroppedThereCounted {
			t.Errorf("%s: counted %+v", c.name, n)
		}
		if n.Sent != 20 || n.LostText() != c.lost || n.DroppedHere != c.here || n.Received+n.Late != 17 {
			t.Errorf("%s: %+v, lost %s, want %s", c.name, n, n.LostText(), c.lost)
		}
		want := []report.Drop{{Place: report.DroppedHere, By: "NIC: rx_dropped", Frames: c.here}}
		if c.here > 0 && !slices.Equal(drops, want) {
			t.Errorf("%s: %+v, want %+v", c.name, drops, want)
		}
		rep := &report.Report{}
		s.device(rep)
		if _, has := rep.Device.Counters["rx_dropped"]; has == c.card.info.NoDropCounter {
			t.Errorf("%s: counters %v", c.name, rep.Device.Counters)
		}
	}
}

// interrupted sets stop with the last of a number of probes.
type interrupted struct {
	moody
	probes int
	stop   atomic.Bool
}

func (w *interrupted) Send(b []byte) error {
	if w.probes--; w.probes == 0 {
		w.stop.Store(true)
	}
	return w.moody.Send(b)
}

// Drops of probes that are no longer awaited after an interruption are not assigned to the probes sent: the parts add
// up.
func TestInterruptedDrops(t *testing.T) {
	needs.Long(t)
	clock := must.Get(latency.NewClock())(t)
	w := &interrupted{moody: moody{silent: 3}, probes: 20}
	s := datagrams(w, &card{info: nic.Info{Driver: "afpacket", Backend: nic.Socket}, drops: 3}, time.Minute)
	must.OK(t, s.Prepare(clock, Recording{}, 1000))
	must.OK(t, s.Run(engine.Limit{}, &w.stop))
	n, drops := s.Counts()
	if n.Sent != 17 || n.Received != 17 || n.DroppedHere != 0 || n.Lost != 0 || len(drops) != 1 ||
		drops[0].Frames != 3 {
		t.Errorf("%+v %+v", n, drops)
	}
	rep := &report.Report{Counts: n, Drops: drops}
	if text := strings.Join(rep.ByCounter(),
		"\n"); text != "dropped here: 3 by ring: rx_dropped (includes probes that are not in sent: of the warm-up, or not awaited)" {
		t.Errorf("%q", text)
	}
}

// No more probes are refused than have no reply: a probe that is perhaps lost and perhaps refused counts once.
func TestPerhapsRefused(t *testing.T) {
	for _, x := range []struct{ refused, uncertain, lost, unanswered, most, least int64 }{{1, 1, 1, 1, 1, 0},
		{0, 0, 3, 3, 3, 0}, {5, 2, 4, 7, 7, 3}} {
		c := report.Counts{RefusedThere: x.refused, RefusedThereUncertain: x.uncertain, Lost: x.lost}
		if perhapsRefused(&c, x.unanswered); c.RefusedThere != x.most ||
			c.RefusedThere-c.RefusedThereUncertain != x.least {
			t.Errorf("%+v: %+v", x, c)
		}
	}
}
