package watch

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/fleet/targets"
	"github.com/rebound-nic/rebound/internal/bench/observe"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/proof/check"
)

type blind struct{ nic.Port }

func (blind) Info() nic.Info { return nic.Info{NoDropCounter: true} }

// A probe without a reply is certainly lost only if this host dropped nothing while it was outstanding, and is no
// longer lost if its reply comes late.
func TestOverdueIsPlaced(t *testing.T) {
	k := newArchive(time.Minute, nil, 0, time.Unix(0, 0), slog.New(slog.DiscardHandler))
	s := k.target(targets.Target{Host: "10.0.0.2"}, time.Unix(0, 0))
	k.byID[0] = s
	w := new(wire)
	from, queue := observe.Source{}, int64(0)
	reading := func(tick uint64, frames int64) {
		w.drops.add(observe.Reading{Drops: []report.Drop{{Place: report.DroppedHere, By: "ring", Frames: frames},
			{Place: report.NotSent, By: "ring", Frames: int64(tick), Ours: true},
			{Place: report.NotSent, By: "qdisc", Frames: queue}}}, from, tick)
	}
	probe := uint64(0)
	miss := func(sent uint64) {
		probe++
		k.record(&event{kind: missed, probe: probe, sent: sent, until: sent + 20, wire: w})
	}
	late := func(n uint64) { k.record(&event{kind: late, probe: n}) }
	places := func(what string, here, there int64) {
		t.Helper()
		if n := s.all; n.DroppedHere != here || n.DroppedHereUncertain != here || n.RefusedThere != there ||
			n.RefusedThereUncertain != there {
			t.Errorf("%s: up to %d dropped here, want %d; up to %d refused there, want %d", what, n.DroppedHere, here,
				n.RefusedThere, there)
		}
	}
	want := func(what string, lost, uncertain, lateOnes, tooLate int64) {
		t.Helper()
		k.decide(false)
		if n := s.all; n.Lost != lost || n.LostUncertain != uncertain || n.Late != lateOnes || n.tooLate != tooLate {
			t.Errorf("%s: %d lost, %d of them uncertain, %d late, %d too late; want %d, %d, %d, %d", what, n.Lost,
				n.LostUncertain, n.Late, n.tooLate,
				lost, uncertain, lateOnes, tooLate)
		}
	}
	reading(0, 5)
	reading(10, 5)
	miss(11)
	want("nothing read since", 0, 0, 0, 0)
	reading(30, 5)
	want("it may still be late", 0, 0, 0, 0)
	reading(31, 5)
	want("no drops", 1, 0, 0, 0)
	miss(35)
	miss(36)
	reading(40, 7)
	late(2)
	reading(60, 7)
	want("one late, one while this host dropped two", 2, 1, 1, 0)
	late(3)
	want("after it was counted", 2, 1, 1, 1)
	miss(61)
	queue = 1
	reading(90, 7)
	want("this host's queue dropped one", 3, 2, 1, 1)
	miss(91)
	reading(120, 7)
	want("no drops again", 4, 2, 1, 1)
	from.Device = blind{}
	reading(121, 7)
	miss(122)
	reading(150, 7)
	want("a device that does not count its drops", 5, 3, 1, 1)
	from.Device = nil
	places("this host", 3, 0)
	k.record(&event{kind: refused, closed: true})
	reading(151, 7)
	miss(152)
	reading(180, 7)
	want("the target said that nothing is at the port", 6, 4, 1, 1)
	miss(181)
	k.record(&event{kind: answered})
	reading(210, 7)
	want("the target answered again only later", 7, 5, 1, 1)
	k.record(&event{kind: refused}) // by a router
	miss(211)
	reading(240, 7)
	want("a router refused", 8, 5, 1, 1)
	miss(241)
	w.drops.end()
	want("the wire is closed", 9, 6, 1, 1)
	places("the target, too", 4, 2)
	reading(241, 7)
	w.drops.ended = false
	miss(242)
	failed := errors.New("no such device")
	w.failure.Store(&failed)
	reading(270, 7)
	want("the device failed", 10, 7, 1, 1)
	w.failure.Store(nil)
	k.record(&event{kind: missed, probe: 99, sent: 271, until: 280, wire: w, corrupt: true})
	reading(290, 7)
	want("a corrupt reply came", 10, 7, 1, 1)
	check.Equal(t, s.all.CorruptOnly, 1, "%d probes were answered by corrupt replies only")
	if len(k.missing) != 0 || len(k.undecided) != 0 {
		t.Errorf("%d and %d are kept", len(k.missing), len(k.undecided))
	}
}
