package measure

import (
	"bytes"
	"fmt"
	"log/slog"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rebound-nic/rebound/internal/bench/engine"
	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/synthetic"
)

func TestLivenessReportsAnOutageOnce(t *testing.T) {
	var l liveness
	s, start := &Series{}, time.Unix(1000, 0)
	for i, o := range []struct {
		at             time.Duration
		sent, received int64
		want           int
	}{
		{0, 10, 10, unchanged},
		{time.Second, 20, 19, unchanged},
		{2 * time.Second, 30, 19, unchanged}, // probes are sent, no replies arrive
		{3 * time.Second, 40, 19, unchanged},
		{4 * time.Second, 50, 19, stopped},
		{9 * time.Second, 90, 19, unchanged},
		{10 * time.Second, 91, 20, resumed},
		{20 * time.Second, 91, 20, unchanged}, // nothing is sent: a hook runs
		{21 * time.Second, 92, 20, unchanged},
		{30 * time.Second, 92, 20, unchanged},
	} {
		check.Equal(t, l.observe(s, o.sent, o.received, start.Add(o.at)), o.want,
			fmt.Sprintf("observation %d: ", i)+"%d")
	}
}

// A target whose round trip takes longer than two seconds is not reported as silent before a probe can have timed out.
func TestLivenessWaitsForTheTimeout(t *testing.T) {
	var l liveness
	s, start := &Series{}, time.Unix(1000, 0)
	s.Timeout = 5 * time.Second
	for i, want := range []int{unchanged, unchanged, unchanged, unchanged, unchanged, unchanged, unchanged, stopped} {
		check.Equal(t, l.observe(s, int64(10*i), 0, start.Add(time.Duration(i)*time.Second)), want,
			fmt.Sprintf("after %d s: ", i)+"%d")
	}
}

// Lines of text state what was sent and how much is done, and the log when the target falls silent.
func TestProgressLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines, log bytes.Buffer
		rec := must.Get(latency.NewRecorder(synthetic.Clock(), latency.RecorderOptions{}))(t)
		s := &Series{Settings: Settings{Name: "a\x1b"}}
		codec := must.Get(probe.New(datagrams(nil, nil, 0).flow))(t)
		s.stream = must.Get(engine.New(engine.Options{Recorder: rec, Codec: codec}))(t)
		p := newProgress(&lines, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})), 10,
			engine.Limit{Count: 1000})
		p.next(s)
		p.next(s)
		s.stream.Progress.Received.Store(400)
		s.stream.Progress.Sent.Store(500)
		time.Sleep(5*time.Second + 300*time.Millisecond)
		s.stream.Progress.Sent.Store(2000)
		time.Sleep(3 * time.Second)
		s.stream.Progress.Received.Store(401)
		time.Sleep(3 * time.Second)
		p.end()
		check.Equal(t, lines.String(), "a\\u001b: 500 sent, 400 answered, 15 % of 10 × 1,000 probes done\n"+
			"a\\u001b: 2,000 sent, 401 answered, 20 % of 10 × 1,000 probes done\n", "%s")
		check.Contains(t, log.String(), "the target does not answer", "the target answers again")
	})
	far := time.Unix(9e9, 0).UnixNano()
	for _, c := range []struct {
		limit         engine.Limit
		begun, before int64
		want          float64
	}{{engine.Limit{Count: 100}, 0, 30, 0.22}, {engine.Limit{Count: 100}, 0, 60, 0.2}, {engine.Limit{Count: 10}, 0, 0, 0.3},
		{engine.Limit{Duration: 1e9}, 0, 0, 0.3}, {engine.Limit{Duration: 1e9}, far, 0, 0.2}, {engine.Limit{}, 0, 0, 0.2},
		{engine.Limit{Duration: 1e9, Count: 100}, far, 0, 0.25}} {
		p := &progress{total: 10, limit: c.limit}
		p.slices.Store(3)
		p.begun.Store(c.begun)
		p.before.Store(c.before)
		if got := p.part(50); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%+v: %v is done, want %v", c.limit, got, c.want)
		}
	}
	long := &progress{total: 1200, limit: engine.Limit{Duration: 1500e6, Count: 5}}
	check.Equal(t, long.extent(), "1,200 × 1.500 s", "%s")
}
