package responder

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/internal/host/osnoise"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/golden"
	"github.com/rebound-nic/rebound/proof/must"
)

// counting is a port that has counted what a test says.
type counting struct {
	nic.Answerer
	info  nic.Info
	stats nic.Stats
	err   error
}

func (c *counting) Info() nic.Info                 { return c.info }
func (c *counting) Link() (nic.Link, error)        { return nic.Link{Up: true, Speed: 25_000}, c.err }
func (c *counting) ReadStats(out *nic.Stats) error { *out = c.stats; return c.err }
func (c *counting) Impaired() []string             { return nic.Impairments[1:2] }

// answered is a responder with two loops on CPUs 3 and 5 that has counted each verdict a different number of times. Its
// clock has two ticks per nanosecond.
func answered(t *testing.T, c *counting) *pollingLoops {
	clock := latency.FixedClock(latency.ClockInfo{Source: "tsc", Frequency: 2e9}, 0, time.Unix(1_000_000, 0))
	a := &answering{settings: &settings{}, port: c, info: c.info, start: time.Unix(1000, 0), since: time.Unix(900, 0),
		end: time.Unix(1060, 500_000_000), log: slog.New(slog.DiscardHandler)}
	a.settings.respond.addresses = []netip.Prefix{netip.MustParsePrefix("10.0.0.2/24"),
		netip.MustParsePrefix("2001:db8::2/64")}
	p := &pollingLoops{answering: a, engine: &engine{dev: c, log: a.log}, clock: clock, cores: []int{3, 5}}
	for i, core := range p.cores {
		r := must.Get(fastpath.New(fastpath.Config{MAC: [6]byte{2}, Addresses: a.settings.respond.addresses}))(t)
		for v := range fastpath.Verdict(fastpath.Verdicts) {
			for range (int(v) + 1) * (i + 1) {
				r.RefuseFor(v) // counts any verdict
			}
		}
		for n := range uint64(100) {
			r.Loop.Turnaround.Record(1000 + 10*n*uint64(i+1))
			r.Loop.Gap.Record(100 + n)
		}
		r.Loop.Gap.Record(40_000 * uint64(i+1))
		p.loops = append(p.loops, &loop{core: core, queue: i, responder: r})
	}
	p.collections.Store(1)
	a.answerer = p
	return p
}

// A summary, a report and a page of metrics have every counter once, under its name and with its unit.
func TestWhatIsReported(t *testing.T) {
	var text strings.Builder
	var usual []string // lines of the first one: the others are compared with them
	whole := nic.Stats{RxFrames: 1001, RxBytes: 2002, TxFrames: 3003, TxBytes: 4004, RxDropped: 5, RxErrors: 6,
		TxDropped: 7, TxErrors: 8, Resets: 9, Extra: map[string]uint64{"zeta": 11, "alpha": 10, "none": 0}}
	all := nic.Info{Driver: "toy", Device: "eth0", Model: "Toy X1", MAC: "02:00:00:00:00:00", MTU: 1500, Queues: 2,
		Backend: nic.Silicon, Push: "llq", Notes: []string{"a note"}}
	some := all
	some.NoByteCounter, some.NoDropCounter = true, true
	for _, c := range []struct {
		name string
		port counting
		pin  string
	}{
		{"every counter", counting{info: all, stats: whole}, ""},
		{"neither bytes nor drops", counting{info: some, stats: whole}, "pin\x1b1"},
		{"a device that does not answer", counting{info: all, err: errors.New("device is gone")}, ""},
	} {
		var said strings.Builder
		p := answered(t, &c.port)
		p.settings.nic.Pin = c.pin
		p.since = p.since.UTC()
		p.print(&said)
		fmt.Fprintln(&said, p.latest()...)
		r := p.report()
		b := must.Get(json.MarshalIndent([]any{r.Start.Unix(), r.End.Unix(), r.Runs, r.Addresses, r.Device, r.Counts,
			r.Clock.Frequency, r.Notes, len(r.Series)}, "", " "))(t)
		fmt.Fprintf(&said, "%s\n", b)
		page, collect := p.page()
		var w *httptest.ResponseRecorder
		for range 2 { // the second one replaces the first
			w = httptest.NewRecorder()
			page.Handler(collect).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		}
		metrics := slices.Sorted(strings.Lines(w.Body.String()))
		for _, line := range metrics {
			if strings.HasPrefix(line, "rebound_") && !strings.HasPrefix(line, "rebound_build_info") &&
				!strings.Contains(line, "_bucket{") {
				said.WriteString(line)
			}
		}
		fmt.Fprintf(&text, "== %s\n", c.name)
		lines := strings.SplitAfter(said.String(), "\n")
		for _, line := range lines {
			if !slices.Contains(usual, line) {
				text.WriteString(line)
			}
		}
		for _, line := range usual {
			if !slices.Contains(lines, line) {
				text.WriteString("not: " + line)
			}
		}
		if usual == nil {
			usual = lines
		}
	}
	golden.Equal(t, "testdata/reported.txt", text.String())
}

// A report has the longest gaps and causes, and says from which length on it has all of them.
func TestGapLog(t *testing.T) {
	p := answered(t, &counting{})
	g := newGapLog(p.loops, p.clock)
	check.Equal(t, g.least, uint64(10_000), "from %d ticks on")
	for i, l := range p.loops {
		check.Equal(t, l.responder.Loop.Keep, g.least, "a loop keeps from %d ticks on")
		from := g.anchor.tick + uint64(i)*1000
		l.responder.Loop.Long.Add(from, from+9_999) // too short
		l.responder.Loop.Long.Add(from+20_000, from+40_000+uint64(i)*2)
	}
	following, stop := context.WithCancel(context.Background())
	stop()
	g.follow(following) // until the last ones are read
	g.cause(osnoise.Event{CPU: 3, From: g.anchor.tick + 22_000, To: g.anchor.tick + 26_000, Cause: osnoise.Descheduled,
		Name: "hog", Took: 2 * time.Microsecond})
	g.cause(osnoise.Event{CPU: 5, From: g.anchor.tick + 26_000, To: g.anchor.tick, Cause: osnoise.Timer, Weak: true})
	var said []string
	r := g.report("by hand")
	for _, gap := range r.All {
		said = append(said, fmt.Sprintf("cpu %d, %d ns, %q %q %t", gap.Core, gap.Duration, gap.Text, gap.Name, gap.Weak))
	}
	slices.Sort(said)
	check.Equal(t, fmt.Sprintf("%s, %d, %d, %d", r.How, r.From, r.Missed, r.MissedCauses)+"\n"+strings.Join(said, "\n"),
		`by hand, 5000, 0, 0
cpu 3, 10000 ns, "" "" false
cpu 3, 2000 ns, "polling thread descheduled on cpu 3" "hog" false
cpu 5, 0 ns, "timer tick on cpu 5" "" true
cpu 5, 10001 ns, "" "" false`, "%s")
	if !slices.IsSortedFunc(r.All, func(a, b report.Gap) int { return cmp.Compare(a.Start, b.Start) }) {
		t.Error("not in the order of time")
	}

	long := p.loops[0].responder
	kept := map[uint64]bool{}
	for n := range uint64(keptGaps + 3) {
		took := 20_000 + n*7919%keptGaps // each length once, in no order
		long.Loop.Long.Add(n, n+took)
		kept[took] = true
		g.collect()
		g.cause(osnoise.Event{Took: time.Duration(took)})
	}
	r = g.report("")
	if r.From <= 10_000 || len(g.gaps) > keptGaps || len(g.causes) > keptCauses || r.MissedCauses == 0 {
		t.Errorf("%d gaps from %d ns on, %d causes, %d missed", len(g.gaps), r.From, len(g.causes), r.MissedCauses)
	}
	check.Equal(t, r.MissedCauses+int64(len(g.causes)), keptGaps+3+2, "%d causes in all")
	for _, k := range g.gaps {
		if k.took >= g.least {
			delete(kept, k.took)
		}
	}
	for took := range kept {
		if took >= g.least {
			t.Errorf("a gap of %d ticks is missing, and all from %d on are there", took, g.least)
			break
		}
	}
}

// The log has a line each interval and the summary is printed on demand, until the responder ends.
func TestSummariesOnDemand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log, out strings.Builder
		p := answered(t, &counting{})
		p.answering.log = slog.New(slog.NewTextHandler(&log, nil))
		ctx, stop := context.WithCancel(t.Context())
		var ended atomic.Bool
		ask := make(chan os.Signal)
		go func() { p.printSummaries(ctx, ask, time.Minute, &out); ended.Store(true) }()
		time.Sleep(150 * time.Second)
		ask <- os.Interrupt
		synctest.Wait()
		check.Equal(t, strings.Count(log.String(), "so far"), 2, "%d lines")
		check.Contains(t, log.String(), "answered=", "turnaround_p50_ns=", "gap_max_ns=40000")
		check.Equal(t, strings.Count(out.String(), "summary"), 1, "%d summaries")
		stop()
		synctest.Wait()
		check.Equal(t, ended.Load(), true, "ended: %t")
	})
}
