package measure

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/rebound-nic/rebound/internal/bench/engine"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/sanitize"
	"github.com/rebound-nic/rebound/nic"
)

// progress shows the progress of a run: a bar on a terminal, otherwise an occasional line of text. It reads the values
// that the measuring thread publishes, from a goroutine that runs on other CPUs.
type progress struct {
	log    *slog.Logger
	now    atomic.Pointer[Series]
	slices atomic.Int64 // begun
	total  int
	limit  engine.Limit
	done   chan struct{}
	over   chan struct{}
	bar    *progressbar.ProgressBar
	to     io.Writer    // of lines, if there is no bar
	quiet  bool         // progress is shown elsewhere
	begun  atomic.Int64 // start of the slice, Unix ns
	before atomic.Int64 // sent by the series before the slice
}

const (
	barEvery  = 200 * time.Millisecond
	lineEvery = 5 * time.Second
	steps     = 1000
)

// newProgress shows the progress of the given number of slices on w: as a bar if it is a terminal, otherwise as lines.
func newProgress(w io.Writer, log *slog.Logger, slices int, l engine.Limit) *progress {
	p := &progress{log: log, total: slices, limit: l, done: make(chan struct{}), over: make(chan struct{})}
	every := lineEvery
	p.quiet, p.to = w == nil, w
	if p, ok := w.(*sanitize.Writer); ok && p.File() != nil {
		w = p.File() // a bar needs control characters
	}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) && controls() {
		every = barEvery
		p.bar = progressbar.NewOptions(steps, progressbar.OptionSetWriter(f), progressbar.OptionSetWidth(30),
			progressbar.OptionClearOnFinish(),
			progressbar.OptionSetPredictTime(false), progressbar.OptionSetElapsedTime(false))
	}
	go p.run(every)
	return p
}

// controls reports whether the terminal's user accepts control sequences (https://no-color.org; TERM=dumb).
func controls() bool { return os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" }

func (p *progress) next(s *Series) {
	p.slices.Add(1)
	p.begun.Store(time.Now().UnixNano())
	p.before.Store(s.Sent())
	p.now.Store(s)
}

func (p *progress) run(every time.Duration) {
	defer close(p.over)
	tick := time.NewTicker(barEvery)
	defer tick.Stop()
	var alive liveness
	shown := time.Now()
	for {
		select {
		case <-p.done:
			if p.bar != nil {
				_ = p.bar.Clear()
			}
			return
		case <-tick.C:
		}
		s := p.now.Load()
		if s == nil {
			continue
		}
		sent, received := s.Progress().Sent.Load(), s.Progress().Received.Load()
		switch alive.observe(s, sent, received, time.Now()) {
		case stopped:
			p.log.Warn("the target does not answer", "target", sanitize.Text(s.Label()), "for", quiet(s))
		case resumed:
			p.log.Log(context.Background(), nic.Notice, "the target answers again", "target", sanitize.Text(s.Label()))
		}
		if time.Since(shown) < every {
			continue
		}
		shown = time.Now()
		text := fmt.Sprintf("%s: %s sent, %s answered", sanitize.Text(s.Label()), latency.FormatCount(sent),
			latency.FormatCount(received))
		if p.bar != nil {
			p.bar.Describe(text)
			_ = p.bar.Set(int(p.part(sent) * (steps - 1)))
		} else if !p.quiet {
			fmt.Fprintf(p.to, "%s, %s of %s done\n", text, latency.FormatShare(p.part(sent)), p.extent())
		}
	}
}

// extent is what is to be measured: "10 × 1 s". The time of a slice of variants varies around it.
func (p *progress) extent() string {
	each := sanitize.Count(p.limit.Count, "probe")
	if p.limit.Duration > 0 {
		each = latency.FormatDuration(p.limit.Duration)
	}
	return fmt.Sprintf("%s × %s", latency.FormatCount(p.total), each)
}

// part returns the finished share of all slices, 0 to 1.
func (p *progress) part(sent int64) float64 {
	in := 0.0
	if p.limit.Duration > 0 {
		in = float64(time.Now().UnixNano()-p.begun.Load()) / float64(p.limit.Duration+p.limit.Warmup)
	}
	if p.limit.Count > 0 {
		in = max(in, float64(sent-p.before.Load())/float64(p.limit.Count))
	}
	return min((float64(p.slices.Load()-1)+min(max(in, 0), 1))/float64(p.total), 1)
}

func (p *progress) end() {
	close(p.done)
	<-p.over
}

// liveness detects a target that stops answering and one that answers again.
type liveness struct {
	of             *Series
	sent, received int64     // at the latest reply
	since          time.Time // when more than one probe had been sent after it
	down           bool
}

const (
	unchanged = iota
	stopped
	resumed
)

// quiet is how long a target may send no reply, although probes are sent, before it is reported: two seconds, or until
// a probe has timed out.
func quiet(s *Series) time.Duration { return max(2*time.Second, s.Timeout+time.Second) }

func (l *liveness) observe(s *Series, sent, received int64, now time.Time) int {
	switch {
	case s != l.of:
		*l = liveness{of: s, sent: sent, received: received}
	case received != l.received:
		down := l.down
		*l = liveness{of: s, sent: sent, received: received}
		if down {
			return resumed
		}
	case sent <= l.sent+1: // the last probe may still be in flight
	case l.since.IsZero():
		l.since = now
	case !l.down && now.Sub(l.since) >= quiet(s):
		l.down = true
		return stopped
	}
	return unchanged
}
