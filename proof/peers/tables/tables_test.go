package tables

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

func reported(label string, rounds ...[]int64) *report.Report {
	rep := report.New("bench", report.RoundTrip)
	rep.Label = label
	s := &latency.Series{Name: latency.MainSeries}
	var all []int64
	for i, values := range rounds {
		at := int64(i) * 1000
		rep.Runs = append(rep.Runs, latency.Run{Start: at, End: at + 900})
		half := len(values) / 2
		s.Intervals = append(s.Intervals, latency.Interval{Start: at, End: at + 450,
			Histogram: latency.FromValues(values[:half])},
			latency.Interval{Start: at + 450, End: at + 900, Histogram: latency.FromValues(values[half:])})
		all = append(all, values...)
	}
	s.Total = latency.FromValues(all)
	s.Summary = s.Total.Summary()
	rep.Series = append(rep.Series, s)
	rep.Counts.Sent, rep.Counts.Received = int64(len(all)), int64(len(all))
	return rep
}

// Rounds are kept separate, and ratios are computed within a round: a machine that gets slower changes none of them.
func TestRatioOfRounds(t *testing.T) {
	a := reported("a", []int64{100, 100, 100, 100}, []int64{200, 200, 200, 200}, []int64{400, 400, 400, 400})
	b := reported("b", []int64{200, 200, 200, 200}, []int64{400, 400, 400, 400}, []int64{800, 800, 800, 800})
	if got := rounds(a, 0.5); len(got) != 3 || got[0] != 100 || got[1] != 200 || got[2] != 400 {
		t.Errorf("rounds %v, want 100, 200, 400", got)
	}
	check.Equal(t, Ratio(rounds(a, 0.5), rounds(b, 0.5)), (Spread{0.5, 0.5, 0.5}), "ratio %v")
	check.Equal(t, spreadOf([]float64{4, 1, 3, 2}), (Spread{2.5, 1, 4}), "spread %v")
	check.Equal(t, spreadOf(nil), (Spread{}), "spread of nothing %v")
}

// A log has its intervals in whole milliseconds: one that seems to start before its run still belongs to it.
func TestRoundsOfARoundedLog(t *testing.T) {
	rep := reported("a", []int64{100, 100, 100, 100}, []int64{200, 200, 200, 200})
	rep.Main().Intervals[2].Start -= 50
	must.Equal(t, len(rounds(rep, 1)), 2, "%d rounds")
	rep.Main().Intervals[2].Histogram = latency.FromValues([]int64{900})
	if got := rounds(rep, 1); got[1] != 900 {
		t.Errorf("rounds %v: the second lost its first interval", got)
	}
}

func TestMissed(t *testing.T) {
	at := func(ns int64) []int64 { return []int64{ns, ns, ns, ns} }
	table := Table{Closed: []*report.Report{reported("responder-afxdp", at(79)), reported("testpmd-afxdp", at(100))}}
	if got := table.Missed(); len(got) != 0 {
		t.Errorf("0.79 of testpmd: %q", got)
	}
	table.Closed[0] = reported("responder-afxdp", at(81))
	for floor, want := range map[int64]string{0: "missed", 79: "missed, though the floor reaches it",
		81: "missed, by the floor too"} {
		if table.Closed = table.Closed[:2]; floor > 0 {
			table.Closed = append(table.Closed, reported("floor-afxdp", at(floor)))
		}
		want = "p50 of responder-afxdp is 0.81 of testpmd-afxdp's, the goal is 0.8: " + want
		if got := table.Missed(); len(got) != 1 || got[0] != want {
			t.Errorf("0.81 of testpmd, floor %d: %q, want %q", floor, got, want)
		}
	}
	table.Closed = table.Closed[:1]
	table.Closed[0].Counts.Corrupt = 1
	if got := table.Missed(); len(got) != 1 || !strings.Contains(got[0], "1 replies corrupt") {
		t.Errorf("a corrupt reply: %q", got)
	}
}

// Each responder is compared with all other programs that answer, but only with the floor on its own socket.
func TestCompared(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"responder-afxdp", "testpmd-afxdp", true}, {"responder-afxdp", "testpmd-afpacket", true}, {"responder-afxdp", "kernel", true},
		{"responder-afxdp", "floor-afxdp", true}, {"responder-afxdp", "floor-afxdp-generic", false}, {"responder-afxdp-generic", "floor-afxdp", false},
		{"responder-afxdp-udp", "socket-udp", true}, {"responder-afxdp", "responder-afpacket", false}, {"responder-afxdp", "responder-afxdp", false},
		{"floor-afxdp", "testpmd-afxdp", true}, {"floor-afxdp-generic", "testpmd-afxdp", true}, {"floor-afxdp", "testpmd-afpacket", false},
		{"floor-afpacket", "testpmd-afpacket", true}, {"floor-afxdp", "kernel", false}, {"testpmd-afxdp", "kernel", false}, {"kernel", "testpmd-afxdp", false},
	} {
		if got := Compared(c.a, c.b); got != c.want {
			t.Errorf("%s / %s: %t", c.a, c.b, got)
		}
	}
}

// The result of a search is the lowest rate that failed, and the reason, from the notes as bench writes them.
func TestCeiling(t *testing.T) {
	rep := report.New("bench", report.RoundTrip)
	if rate, why := Ceiling(rep); rate != 0 || why != "" {
		t.Errorf("no search: %v %q", rate, why)
	}
	rep.Notes = []string{"the highest of the rates tried that lost nothing in 300ms (RFC 2544 §26.1 wants 60 s), to 1 %",
		"1,000,000/s: not offered: this host fell 100.0 ms behind (trial 3)", "500,000/s: loss of 0.01 %",
		"250,000/s: no loss (trial 2)",
		"375,000/s: loss of 0.002 % (trial 3)", "312,500/s: no loss", "taken in/s: a hurry"}
	if rate, why := Ceiling(rep); rate != 375000 || why != "loss of 0.002 % (trial 3)" {
		t.Errorf("%v %q", rate, why)
	}
}

// The tables say for each goal what was measured and whether the floor misses it too, for each search whether the peer
// or the bench set the limit, and for each rate how late the bench was.
func TestMarkdown(t *testing.T) {
	at := func(ns int64) []int64 { return []int64{ns, ns, ns, ns} }
	peer, bench := reported("testpmd-afxdp", at(100)), reported("responder-afxdp", at(90))
	peer.Traffic.Rate, bench.Traffic.Rate = 200e3, 300e3
	peer.Notes = []string{"200000/s: no loss", "202000/s: loss of 0.5 %"}
	bench.Notes = []string{"300000/s: no loss", "303000/s: not offered: this host fell 20ms behind"}
	slow := reported("responder-afxdp at 75 percent", at(4000))
	slow.Traffic.Rate = 225e3
	lag := latency.FromValues(at(3000))
	slow.Series = append(slow.Series, &latency.Series{Name: "send_lag", Total: lag, Summary: lag.Summary()})
	slow.Counts.Lost = 1
	other := reported("testpmd-afxdp at 75 percent", at(4000))
	other.Counts.Lost = 2
	table := Table{
		Closed: []*report.Report{reported("responder-afxdp", at(90)), reported("floor-afxdp", at(85)),
			reported("testpmd-afxdp", at(100))},
		Versus:     [][2]string{{"responder-afxdp", "floor-afxdp"}},
		Saturation: []*report.Report{peer, bench},
		Open:       []*report.Report{slow, other},
		Skipped:    []string{"kernel: none here"},
	}
	text := table.Markdown()
	check.Contains(t, text,
		"| responder-afxdp / floor-afxdp | 1.06 (1.06 to 1.06) |",
		"| p50 of responder-afxdp at most 0.8 of testpmd-afxdp's | 0.90 (0.90 to 0.90) | 0.85 (0.85 to 0.85) | 1.06 (1.06 to 1.06) | missed, by the floor too |",
		"| p99 of responder-afxdp at most 1.0 of testpmd-afxdp's | 0.90 (0.90 to 0.90) | 0.85 (0.85 to 0.85) | 1.06 (1.06 to 1.06) | reached |",
		"| testpmd-afxdp | 200000 | 0.10 | loss of 0.5 % at 202000/s |",
		"| responder-afxdp | 300000 | 0.09 | the bench, which fell 20ms behind at 303000/s |",
		"| responder-afxdp at 75 % | 225000 | 4 | 1 | 0 | 4.00 | 4.00 | 4.00 | 3.00 | 3.00 |",
		"1 of 4 probes to the responders were lost, and 0 came back corrupt",
		"Not measured: kernel: none here",
	)
}

func TestInsert(t *testing.T) {
	file := filepath.Join(t.TempDir(), "README.md")
	must.OK(t, os.WriteFile(file, []byte("a\n<!-- peers:begin -->\nold\n<!-- peers:end -->\nb\n"), 0o644))
	for range 2 {
		must.OK(t, Insert(file, "peers", "new\n"))
	}
	if b, _ := os.ReadFile(file); string(b) != "a\n<!-- peers:begin -->\nnew\n<!-- peers:end -->\nb\n" {
		t.Errorf("%q", b)
	}
	if err := Insert(file, "other", "new\n"); !errors.Is(err, ErrNoPlace) {
		t.Errorf("no such lines: %v", err)
	}
}

// A loop compared with itself reaches the goal; one that is slower by more than a step of the counter does not.
func TestGapTable(t *testing.T) {
	slow := latency.FromValues([]int64{1000, 1000})
	fast := latency.FromValues([]int64{800, 800})
	same, missed := GapTable([]*latency.Histogram{slow}, []*latency.Histogram{slow}, 1)
	if len(missed) > 0 || !strings.Contains(same, "1.00 (1.00 to 1.00)") {
		t.Errorf("the same against itself: %q\n%s", missed, same)
	}
	if _, missed := GapTable([]*latency.Histogram{slow}, []*latency.Histogram{fast}, 10); len(missed) == 0 {
		t.Error("1000 ns against 800 ns reach the goal of 1.2")
	}
	if _, missed := GapTable([]*latency.Histogram{slow}, []*latency.Histogram{fast}, 200); len(missed) != 0 {
		t.Errorf("a difference of one step of the counter: %q", missed)
	}
}
