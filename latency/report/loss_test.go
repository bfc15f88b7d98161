package report_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/latency/host"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/must"
)

// Each probe without a reply has a place, and if the counters cannot distinguish two places, the range contains the
// true number.
func TestLocate(t *testing.T) {
	ring := func(n int64) report.Drop {
		return report.Drop{Place: report.DroppedHere, By: "ring: rx_dropped", Frames: n, Ours: true}
	}
	nic := func(n int64) report.Drop {
		return report.Drop{Place: report.DroppedHere, By: "interface: rx_missed_errors", Frames: n}
	}
	for _, c := range []struct {
		name        string
		u           report.Unanswered
		drops       []report.Drop
		least, most int64
	}{
		{"nothing missing", report.Unanswered{}, nil, 0, 0},
		{"nothing missing, other traffic dropped", report.Unanswered{}, []report.Drop{nic(7)}, 0, 0},
		{"lost", report.Unanswered{Measured: 12}, nil, 12, 12},
		{"all dropped here", report.Unanswered{Measured: 12}, []report.Drop{ring(12)}, 0, 0},
		{"some dropped here", report.Unanswered{Measured: 12}, []report.Drop{ring(5)}, 7, 7},
		{"of the warm-up, too", report.Unanswered{Measured: 12, Warmup: 3}, []report.Drop{ring(15)}, 0, 0},
		{"of the warm-up or not", report.Unanswered{Measured: 12, Warmup: 3}, []report.Drop{ring(5)}, 7, 10},
		{"more than are missing", report.Unanswered{Measured: 12, Warmup: 3}, []report.Drop{ring(16)}, 0, 12},
		{"copies", report.Unanswered{Measured: 12, Copies: true}, []report.Drop{ring(5)}, 7, 12},
		{"a counter of all traffic", report.Unanswered{Measured: 12}, []report.Drop{nic(12)}, 0, 12},
		{"ring and NIC", report.Unanswered{Measured: 12}, []report.Drop{ring(4), nic(3)}, 5, 8},
		{"never arrived there", report.Unanswered{Measured: 12, Forward: 10}, []report.Drop{nic(12)}, 10, 12},
		{"never arrived there, ring", report.Unanswered{Measured: 12, Forward: 10}, []report.Drop{ring(2)}, 10, 10},
		{"not sent", report.Unanswered{Measured: 12}, []report.Drop{{Place: report.NotSent, Frames: 2, Ours: true}}, 10, 10},
		{"refused there", report.Unanswered{Measured: 12}, []report.Drop{{Place: report.RefusedThere, Frames: 12, Ours: true}}, 0, 0},
		{"dropped there", report.Unanswered{Measured: 12}, []report.Drop{{Place: report.DroppedThere, Frames: 2}}, 10, 12},
		{"everywhere", report.Unanswered{Measured: 12}, []report.Drop{{Place: report.RefusedThere, Frames: 8, Ours: true}, ring(8)}, 0, 0},
	} {
		var n report.Counts
		elsewhere := n.Locate(c.u, c.drops)
		sum := int64(0)
		for _, k := range elsewhere {
			sum += k
		}
		accounted(t, c.name, &n, c.u.Measured, elsewhere)
		if n.LostLeast() != c.least || n.Lost != c.most || n.Lost+sum != c.u.Measured {
			t.Errorf("%s: lost %s, want %d to %d; %v of %d elsewhere", c.name, n.LostText(), c.least, c.most, elsewhere,
				c.u.Measured)
		}
	}
	if n := (report.Counts{Lost: 12, LostUncertain: 12, DroppedHere: 12}); n.LostText() != "between 0 and 12" ||
		n.Elsewhere() != "12 dropped here" {
		t.Errorf("%q, %q", n.LostText(), n.Elsewhere())
	}
}

// accounted checks that lost and the numbers of all places add up to the probes without a reply: exactly, or within
// their bounds.
func accounted(t *testing.T, name string, n *report.Counts, unanswered int64, elsewhere map[report.Place]int64) {
	t.Helper()
	least, most := n.LostLeast(), n.Lost
	exact := n.LostUncertain == 0
	uncertain := map[report.Place]int64{report.NotSent: n.SendFailedUncertain,
		report.DroppedHere:  n.DroppedHereUncertain,
		report.RefusedThere: n.RefusedThereUncertain, report.DroppedThere: n.DroppedThereUncertain,
		report.Unknown: n.UnknownUncertain}
	for _, p := range report.Places {
		if n.At(p) > unanswered || n.At(p)-uncertain[p] != elsewhere[p] {
			t.Errorf("%s: %d %s, %d of them uncertain, of %d without a reply; certain %d", name, n.At(p), p,
				uncertain[p], unanswered, elsewhere[p])
		}
		least, most, exact = least+n.At(p)-uncertain[p], most+n.At(p), exact && uncertain[p] == 0
	}
	if least > unanswered || most < unanswered || exact && least != unanswered {
		t.Errorf("%s: parts add up to %d to %d, and %d probes have no reply", name, least, most, unanswered)
	}
}

// Whatever the counters contain, and however many probes of the warm-up or of an interrupted run they include, the
// parts never exceed the probes without a reply, and the true numbers are within their bounds.
func TestPartsAddUp(t *testing.T) {
	rnd := rand.New(rand.NewPCG(22, 3))
	for i := range 20000 {
		truth := map[report.Place]int64{}
		var drops []report.Drop
		u := report.Unanswered{Warmup: rnd.Int64N(2) * rnd.Int64N(20), Copies: rnd.IntN(4) == 0}
		left := u.Warmup
		for _, p := range report.Places {
			if rnd.IntN(2) == 0 {
				continue
			}
			truth[p] = rnd.Int64N(20)
			u.Measured += truth[p]
			// probes of the warm-up, or probes whose replies were not awaited
			other := min(rnd.Int64N(2)*rnd.Int64N(20), left)
			left -= other
			d := report.Drop{Place: p, By: "counter", Frames: truth[p] + other, Ours: true}
			if u.Copies {
				d.Frames += rnd.Int64N(9)
			}
			if rnd.IntN(3) == 0 {
				d.Ours, d.Frames = false, d.Frames+rnd.Int64N(50)
			}
			drops = append(drops, d)
		}
		between := rnd.Int64N(20)
		u.Measured += between
		var n report.Counts
		certain := n.Locate(u, drops)
		accounted(t, fmt.Sprint(i), &n, u.Measured, certain)
		if between < n.LostLeast() || between > n.Lost {
			t.Fatalf("%d: %d lost, reported %s; %+v %+v", i, between, n.LostText(), u, drops)
		}
		for _, p := range report.Places {
			if truth[p] < certain[p] || truth[p] > n.At(p) {
				t.Fatalf("%d: %d %s, reported %d to %d; %+v %+v", i, truth[p], p, certain[p], n.At(p), u, drops)
			}
		}
	}
}

// A finding's fix has another field name in reports of schema 1 and 2.
func TestOldFindings(t *testing.T) {
	for _, text := range []string{
		`{"schema":2,"host":{"findings":[{"id":"a","severity":"note","what":"w","mend":"do it"}]}}`,
		`{"schema":3,"host":{"findings":[{"id":"a","severity":"note","what":"w","fix":"do it"}]}}`,
	} {
		rep := must.Get(report.Parse(strings.NewReader(text), "x"))(t)
		want := host.Finding{ID: "a", Severity: host.Note, What: "w", Fix: "do it"}
		if rep.Schema != report.Schema || len(rep.Host.Findings) != 1 || rep.Host.Findings[0] != want {
			t.Errorf("%s: schema %d, findings %+v", text, rep.Schema, rep.Host.Findings)
		}
	}
}

// In a report of schema 1, lost is every probe without a reply. Now lost excludes unsent probes, and the drops in the
// device's counter are uncertain.
func TestLocateOld(t *testing.T) {
	for text, want := range map[string]report.Counts{
		`{"schema":1,"counts":{"sent":9,"lost":5,"send_failed":2}}`: {Sent: 9, Lost: 3,
			SendFailed: 2},
		`{"schema":1,"counts":{"sent":9,"lost":5},"device":{"counters":{"rx_dropped":2}}}`: {Sent: 9, Lost: 5,
			LostUncertain: 2, DroppedHere: 2, DroppedHereUncertain: 2, DroppedHereCounted: true},
		`{"schema":1,"counts":{"sent":9,"lost":5},"device":{"counters":{"rx_dropped":18446744073709551615}}}`: {Sent: 9,
			Lost: 5, LostUncertain: 5, DroppedHere: 5, DroppedHereUncertain: 5, DroppedHereCounted: true},
		`{"schema":3,"counts":{"sent":9},"device":{"driver":"socket"}}`: {Sent: 9,
			DroppedHereCounted: true},
		`{"schema":3,"counts":{"sent":9},"device":{"driver":"virtio","counters":{"rx_frames":9}}}`: {Sent: 9},
		`{"schema":1,"counts":{"sent":9,"lost":5},"traffic":{"transport":"socket"}}`: {Sent: 9, Lost: 5,
			LostUncertain: 5},
		`{"schema":1,"counts":{"sent":9,"lost":1,"send_failed":1}}`: {Sent: 9,
			SendFailed: 1},
		`{"schema":2,"counts":{"sent":9,"lost":5,"send_failed":2},"traffic":{"transport":"socket"}}`: {Sent: 9, Lost: 5, SendFailed: 2},
	} {
		r, err := report.Parse(strings.NewReader(text), "report.json")
		if err != nil || r.Counts != want || r.Schema != report.Schema {
			t.Errorf("%s: %+v, %v", text, r.Counts, err)
		}
	}
}
