package watch

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/page"
	"github.com/rebound-nic/rebound/proof/browser"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/numbers"
	"github.com/rebound-nic/rebound/proof/synthetic"
)

// stepped is a watch whose loop is replaced by the test, which sends events at chosen times.
type stepped struct {
	*watch
	now  time.Time
	ring *ring
}

func newStepped(t *testing.T) *stepped {
	t.Helper()
	w := &watch{start: noon, loop: loopOf(t)}
	w.archive, _ = logged(nil)
	w.archive.timeout = time.Second
	return &stepped{w, noon, newRing(1 << 12)}
}

// second records a target's probe one second later: answered after ns, or missed if ns is 0.
func (s *stepped) second(of *state, ns int64) {
	s.ring.put(event{flow: of.id, kind: sent})
	if ns > 0 {
		s.ring.put(event{flow: of.id, kind: answered, ns: ns})
	} else {
		s.ring.put(event{flow: of.id, kind: missed, wire: gone})
	}
}

func (s *stepped) pass() {
	s.now = s.now.Add(time.Second)
	s.archive.drain(s.ring, s.now)
}

// outage is a watch of four targets: one answers, one stopped in the second minute, one never answered, and one cannot
// be probed.
func outage(t *testing.T) *stepped {
	s := newStepped(t)
	good, dead := s.archive.target(target(t, "10.0.0.2"), noon), s.archive.target(target(t, "10.0.0.3"), noon)
	silent, unknown := s.archive.target(target(t, "10.0.0.4"), noon), s.archive.target(target(t, "no.example"), noon)
	for _, of := range []*state{good, dead, silent} {
		s.archive.found(of, "")
	}
	s.archive.found(unknown, "the name <b>cannot</b> be looked up\x1b[31m")
	for i := range 150 {
		s.second(good, int64(1000*(1+i/60)))
		alive := int64(2000)
		if i >= 90 {
			alive = 0
		}
		s.second(dead, alive)
		s.second(silent, 0)
		s.pass()
	}
	good.verdicts["p99"] = judgement{verdict: compare.Slower, shift: 3000}
	return s
}

// A new statistic is one row of latency.Stats: the verdicts on hours and the page have it.
func TestNewStat(t *testing.T) {
	before := latency.Stats
	defer func() { latency.Stats = before }()
	toys := latency.Stat{Name: "toys", In: latency.BriefTable, Of: func(*latency.Summary) float64 { return 7250 }}
	latency.Stats = append(slices.Clip(before), toys)
	s := &state{Target: outage(t).archive.byName["icmp:10.0.0.2"].Target,
		verdicts: map[string]judgement{"toys": {verdict: compare.Slower, shift: 7250}}}
	values := s.row().Values
	check.Same(t, values[len(values)-1], []string{"toys slower by 7.250 µs"}, "%q")
	r := synthetic.Link{Seed: 1, Median: 4000, Seconds: 20, Rate: 500, Runs: 10}.Report()
	check.Equal(t, len(compareHour(r, r, time.Minute).Rows), 5, "%d statistics of an hour")
}

// The page shows each target's state with its start, its last minutes, and the changes. Names from a source are shown
// as text.
func TestStatus(t *testing.T) {
	s := outage(t)
	p := s.status(s.now)
	check.Equal(t, p.Answer, "1 down, 1 silent, 1 not probed, 1 up", "answer %q")
	var names []string
	for _, r := range p.Rows {
		names = append(names, r.Name+" "+r.State)
		if len(r.Values) != len(p.Columns) {
			t.Errorf("%s: %d values for %d columns", r.Name, len(r.Values), len(p.Columns))
		}
	}
	check.Same(t, names, []string{"icmp:10.0.0.3 down", "icmp:10.0.0.4 silent", "icmp:no.example not probed",
		"icmp:10.0.0.2 up"}, "rows %q")
	dead, good := p.Rows[0].Values, p.Rows[3].Values
	for what, x := range map[string]struct{ got, want []string }{
		"since when the target is down":   {dead[0], []string{"2026-11-22", "12:01:30"}},
		"its minute that has begun":       {dead[1], []string{"31 of 31 missed"}},
		"its minute before":               {dead[2], []string{"2.000 µs · 2.000 µs", "max 2.000 µs", "29 of 60 missed"}},
		"its first minute":                {dead[3], []string{"2.000 µs · 2.000 µs", "max 2.000 µs", "0 of 59 missed"}},
		"the good target's minute before": {good[2], []string{"2.000 µs · 2.000 µs", "max 2.000 µs", "0 of 60 missed"}},
		"a minute before the start":       {good[5], []string{"–"}},
		"its change":                      {good[7], []string{"p99 slower by 3.000 µs"}},
	} {
		if !slices.Equal(x.got, x.want) {
			t.Errorf("%s: %q, want %q", what, x.got, x.want)
		}
	}
	var changes []string
	for _, c := range p.Changes {
		changes = append(changes, c.When()+" "+c.Name+" "+c.Text)
	}
	check.Same(t, changes, []string{"2026-11-22 12:01:33 UTC icmp:10.0.0.3 target is down",
		"2026-11-22 12:00:03 UTC icmp:10.0.0.4 target has not answered",
		"2026-11-22 12:00:01 UTC icmp:10.0.0.3 target is up", "2026-11-22 12:00:01 UTC icmp:10.0.0.2 target is up"},
		"changes %q")
	get := func(path string) *httptest.ResponseRecorder {
		h := httptest.NewRecorder()
		s.ServeHTTP(h, httptest.NewRequest("GET", path, nil))
		return h
	}
	h := get("/?every=10")
	body := h.Body.String()
	for _, bad := range []string{"<script", "<b>cannot", "\x1b", "onload"} {
		if strings.Contains(body, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	if !strings.Contains(body, "&lt;b&gt;cannot") || h.Header().Get("Refresh") != "10" {
		t.Errorf("no escaped reason, or Refresh %q", h.Header().Get("Refresh"))
	}
	for _, every := range []string{"", "?every=0", "?every=x", "?every=10;url=http:evil", "?every=99999"} {
		h := get("/" + every)
		if got := h.Header().Get("Refresh"); got != "" || h.Code != http.StatusOK {
			t.Errorf("%q: %d, Refresh %q", every, h.Code, got)
		}
	}
}

// The status page and the log write numbers in one way, also those of a large fleet and of changes.
func TestStatusNumbers(t *testing.T) {
	s := newStepped(t)
	log := new(bytes.Buffer)
	s.archive = newArchive(time.Minute, nil, 0, noon, slog.New(
		slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	s.archive.timeout = time.Second
	of := s.archive.target(target(t, "10.0.0.2"), noon)
	s.archive.found(of, "")
	for i := range 150 {
		ns := int64(1500 + i)
		if i >= 50 && i < 90 {
			ns = 0
		}
		s.second(of, ns)
		s.pass()
	}
	k := s.archive
	k.report(of, &change{slog.LevelWarn, "probes cannot be sent",
		[]any{"probes", 123_456, "packets", int64(1), "recovered_after", 90*time.Minute + 1500*time.Millisecond}})
	k.report(of, &change{slog.LevelWarn, "slower than at this hour on previous days",
		[]any{"shift", latency.FormatSigned(-3000), "days", 7, "p", 0.012_345_678}})
	k.report(of, &change{slog.LevelWarn, "trace of the source port",
		[]any{"source_port", uint16(49_152), "packets", 12}})
	s.pass()
	for i := range 12_000 {
		k.target(target(t, fmt.Sprintf("10.1.%d.%d", i/250, 1+i%250)), noon)
	}
	var html bytes.Buffer
	must.OK(t, page.WriteStatus(&html, s.status(s.now)))
	check.Contains(t, html.String(), "12,000 not probed, 1 up", "probes 123,456, packets 1, recovered after 5,402 s",
		"p 0.0123", "source port 49152, packets 12", "recovered after 41.00 s")
	check.Contains(t, log.String(), "target is up again", "probes=123456")
	message := regexp.MustCompile(`msg=("[^"]*"|\S+)`)
	for _, f := range append(numbers.Others(html.String(), nil),
		numbers.Others(strings.Join(message.FindAllString(log.String(), -1), "\n"), nil)...) {
		t.Error(f)
	}
}

// The page is bounded: it keeps the latest changes and minutes, and leaves out targets that are up if there are too
// many.
func TestStatusIsBounded(t *testing.T) {
	s := newStepped(t)
	flapping := s.archive.target(target(t, "10.0.0.2"), noon)
	for i := range 600 {
		ns := int64(1000)
		if i%10 >= 5 {
			ns = 0
		}
		s.second(flapping, ns)
		s.pass()
	}
	check.Equal(t, len(s.archive.changes), keptChanges, "%d changes are kept")
	check.Equal(t, len(flapping.recent.done), minutes, "%d minutes are kept")
	for i := range mostRows + 5 {
		s.archive.target(target(t, fmt.Sprintf("10.1.%d.%d", i/250, 1+i%250)), noon)
	}
	s.loop.events.dropped.Add(1)
	s.archive.failing = os.ErrPermission
	check.Same(t, s.status(s.now).Alerts, []string{"1 event of the measuring loop not counted: this machine is overloaded",
		"the log of the hour cannot be written: see the log of this program"}, "%q")
	check.Equal(t, newStepped(t).status(noon).Answer, "no target", "%q")
	if p := s.status(s.now); len(p.Rows) != mostRows || len(p.Notes) != 1 ||
		!strings.Contains(p.Notes[0], "6 more targets") {
		t.Errorf("%d rows, notes %q", len(p.Rows), p.Notes)
	}
}

// The page opens in a browser without a script, fits a phone, and axe-core finds no violation.
func TestStatusInBrowser(t *testing.T) {
	needs.Long(t)
	axe := must.Get(os.ReadFile(filepath.Join(needs.NPM(t, "axe-core"), "axe.min.js")))(t)
	s := outage(t)
	server := httptest.NewServer(s)
	defer server.Close()
	b := browser.Start(t)
	for _, width := range []int{1280, 360} {
		b.Open(server.URL, width)
		var got struct {
			Overflow float64
			Rows     int
			Scripts  int
		}
		b.Eval(`({Overflow: document.documentElement.scrollWidth - innerWidth, Rows: document.querySelectorAll("table.status tbody tr").length, Scripts: document.scripts.length})`, &got)
		if got.Overflow > 0 || got.Rows != 4 || got.Scripts != 0 {
			t.Errorf("at %d px: %+v", width, got)
		}
		b.Eval(string(axe)+";0", nil)
		var violations []string
		b.Eval(`axe.run(document, {resultTypes: ["violations"]}).then(r => r.violations.map(v => v.id + ": " + v.nodes.map(n => n.html.slice(0, 160)).join(" | ")))`, &violations)
		check.Same(t, violations, nil, "%q")
	}
	b.Click(`document.querySelector('a[href="?every=10"]')`)
	b.Until(`location.search == "?every=10"`)
	check.Equal(t, b.Console(), "", "console: %s")
}
