package measure

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/internal/bench/engine"
	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

// made is a display of synthetic series, with the test's clock and probes.
type made struct {
	*live
	rec  []*latency.Recorder
	now  time.Time
	tick uint64
	sent []int64
	got  []int64
}

func newMade(t *testing.T, names ...string) *made {
	t.Helper()
	m := &made{live: newLive(nil, time.Unix(1_700_000_000, 0)), now: time.Unix(1_700_000_000, 0), tick: 1,
		sent: make([]int64, len(names)), got: make([]int64, len(names))}
	clock := latency.FixedClock(latency.ClockInfo{Source: "tsc", Frequency: 1e9, Steady: true}, 0, m.now)
	for _, name := range names {
		r := must.Get(latency.NewRecorder(clock, latency.RecorderOptions{Interval: 10 * time.Millisecond}))(t)
		r.Begin(m.tick)
		m.rec = append(m.rec, r)
		m.of = append(m.of, &lively{name: name, follower: r.Follow(), progress: &engine.Progress{}})
	}
	return m
}

// second makes a series send probes and get a reply to some of them; the others stay outstanding.
func (m *made) second(k int, sent, replies int, ns uint64) {
	for range replies {
		m.tick += 1e9 / 1000
		m.rec[k].Record(m.tick, m.tick, m.tick+ns)
	}
	m.tick += 1e9 / 10
	m.rec[k].Record(m.tick, m.tick, m.tick+ns) // ends the interval; it is part of the next second
	m.sent[k] += int64(sent)
	m.got[k] += int64(replies)
	m.of[k].progress.Sent.Store(m.sent[k])
	m.of[k].progress.Received.Store(m.got[k])
}

func (m *made) pass() {
	m.now = m.now.Add(time.Second)
	m.step(m.now, false)
}

// A second has the percentiles of its replies, and the number of probes that never got one; probes that are just
// outstanding at its end are not lost.
func TestLiveSeconds(t *testing.T) {
	m := newMade(t, "a", "b")
	m.second(0, 100, 100, 5000)
	m.pass()
	m.second(0, 100, 90, 7000) // ten are outstanding
	m.second(1, 50, 50, 3000)
	m.pass()
	m.second(0, 100, 107, 5000) // seven of them arrived, three did not
	m.pass()
	m.pass() // nothing was measured
	type row struct {
		series     int
		sent, lost int64
		p50        int64
	}
	var got []row
	lost := sessionUnanswered(m.seconds)
	for i, s := range m.seconds {
		got = append(got, row{s.series, s.sent, lost[i], s.p50 / 100 * 100})
	}
	check.Same(t, got, []row{{0, 100, 0, 5000}, {0, 100, 3, 7000}, {1, 50, 0, 3000}, {0, 100, 0, 5000}}, "%v")
}

// Only the last minute is kept, however many series there are.
func TestLiveIsBounded(t *testing.T) {
	m := newMade(t, "a", "b")
	for range 200 {
		m.second(0, 1, 1, 5000)
		m.second(1, 1, 1, 5000)
		m.pass()
	}
	if n := len(m.seconds); n > 2*(liveSeconds+1) || n < 2*liveSeconds {
		t.Errorf("%d seconds of two series are kept", n)
	}
}

// Output other than a terminal gets a line for each second, without control characters; a terminal is redrawn in place.
func TestLiveText(t *testing.T) {
	var b bytes.Buffer
	m := newMade(t, "10.0.0.2")
	m.to = &b
	for range 2 {
		m.second(0, 10, 9, 5000)
		m.pass()
	}
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	if len(lines) != 2 || !strings.HasPrefix(lines[0], "live 22:13:20 10.0.0.2:  p50 ") ||
		!strings.HasSuffix(lines[0], "sent 10  no reply 1") || strings.Contains(b.String(), "\x1b") {
		t.Errorf("%q", lines)
	}
	b.Reset()
	m.lines = 0
	for range 3 {
		m.second(0, 10, 10, 5000)
		m.pass()
	}
	if s := b.String(); strings.Count(s, "\x1b[J") != 3 || !strings.Contains(s, "\x1b[4A") ||
		!strings.HasSuffix(s, "10.0.0.2\n") || m.lines != 6 {
		t.Errorf("%d lines: %q", m.lines, s)
	}
}

// The page has the last minute, latest second first, and is built at most once a second.
func TestLivePage(t *testing.T) {
	m := newMade(t, "<script>alert(1)</script>")
	m.second(0, 10, 9, 5000)
	m.pass()
	m.second(0, 10, 10, 123_000)
	m.pass()
	get := func() string {
		h := httptest.NewRecorder()
		m.ServeHTTP(h, httptest.NewRequest("GET", "/", nil))
		return h.Body.String()
	}
	body := get()
	if strings.Contains(body, "<script") || !strings.Contains(body, "&lt;script&gt;") ||
		!strings.Contains(body, "123.") || strings.Index(body, "22:13:21") > strings.Index(body, "22:13:20") {
		t.Errorf("%s", body)
	}
	m.second(0, 10, 10, 999_000)
	m.pass()
	if get() != body {
		t.Error("the page is made again at once")
	}
	m.made = m.made.Add(-2 * livePage)
	if get() == body {
		t.Error("the page is not made again after a second")
	}
}

// The live display does not change percentiles: a session that alternates between slices with and without it finds no
// difference. A false verdict has a chance of 5 % in each of three tries.
func TestLiveChangesNothing(t *testing.T) {
	needs.Long(t)
	echo := must.Get(net.ListenPacket("udp4", "127.0.0.1:0"))(t)
	defer echo.Close()
	go func() {
		b := make([]byte, 2000)
		for {
			n, from, err := echo.ReadFrom(b)
			if err != nil {
				return
			}
			echo.WriteTo(b[:n], from)
		}
	}()
	variant := func(name string) Settings {
		return Settings{Name: name, Target: netip.MustParseAddr("127.0.0.1"), Proto: probe.UDP,
			Port:  uint16(echo.LocalAddr().(*net.UDPAddr).Port),
			Rates: []float64{2000}, Sizes: []int{0}, Transport: "socket", Driver: "auto", Timeout: 2 * time.Second}
	}
	var said []string
	for range 3 {
		var paused, stop atomic.Bool
		var shown bytes.Buffer
		o := Plan{Variants: []Settings{variant("with"), variant("without")}, Paired: true,
			Duration: 1200 * time.Millisecond, Slice: 100 * time.Millisecond, Runs: 1, Core: -1,
			Out: filepath.Join(t.TempDir(), "out"), Stop: &stop, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
			Live: true, LiveAt: "127.0.0.1:0", ProgressTo: &shown, livePaused: &paused}
		o.Before = func(s *Series) error {
			paused.Store(s.Label() == "without")
			return nil
		}
		result := must.Get(Run(o))(t)
		if !strings.Contains(shown.String(), "live ") {
			t.Fatalf("nothing was shown: %q", shown.String())
		}
		c := compare.Reports(result.Reports[0], result.Reports[1])
		tested, verdicts := 0, ""
		for _, r := range c.Pairs[0].Rows {
			if r.Tested() {
				tested++
			}
			if r.Verdict > compare.Noise {
				verdicts += " " + r.Stat.String() + " " + r.Verdict.String()
			}
		}
		if tested == 0 {
			t.Fatalf("nothing was tested: %v", c.Notes)
		}
		if verdicts == "" {
			return
		}
		said = append(said, verdicts)
	}
	t.Errorf("reading along changes what is measured, in three sessions of three: %q", said)
}
