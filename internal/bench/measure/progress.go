package measure

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/rebound-nic/rebound/internal/bench/engine"
	"github.com/rebound-nic/rebound/internal/host/metrics"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/page"
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
		sent, received := s.stream.Progress.Sent.Load(), s.stream.Progress.Received.Load()
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

const (
	liveEvery   = 200 * time.Millisecond // interval at which the counters are read
	liveSeconds = 60                     // number of seconds shown
	// minimum age of a page before it is built again, because it allocates, and no garbage collection runs while
	// measuring
	livePage = time.Second
)

// live shows the last minute of a session while it measures, on a terminal and at an HTTP address. It reads the values
// that the measuring thread publishes, from a goroutine that runs on other CPUs.
type live struct {
	mu      sync.Mutex
	of      []*lively
	seconds []second // of all series, latest last
	now     time.Time
	paused  *atomic.Bool // nil for never

	to    io.Writer // nil for none
	lines int       // shown on the terminal; -1 if there is no terminal
	done  chan struct{}
	over  chan struct{}
	hide  func()

	made time.Time
	html []byte
}

// lively is a series with its live state.
type lively struct {
	name     string
	follower *latency.Follower
	progress *engine.Progress
	tally    latency.Tally // of the current second
	sent     int64         // before the current second
	last     int64         // unanswered probes, latest
	least    int64         // the fewest since the current second started
	sentNow  int64
}

// second is the result of a series in one second.
type second struct {
	at            time.Time
	series        int
	replies, sent int64
	p50, p99, max int64 // ns; 0 without replies
	last, least   int64 // probes without a reply so far, at the end of the second and at the minimum during it
}

func newLive(all []*Series, now time.Time) *live {
	l := &live{now: now, lines: -1}
	for _, s := range all {
		l.of = append(l.of,
			&lively{name: sanitize.Text(s.Label()), follower: s.rec.Follow(), progress: &s.stream.Progress})
	}
	return l
}

// startLive starts to show the session on w and, if address is not empty, at that address.
func startLive(all []*Series, w io.Writer, address string, paused *atomic.Bool, log *slog.Logger) (l *live, err error) {
	l = newLive(all, time.Now())
	l.paused = paused
	l.done, l.over = make(chan struct{}), make(chan struct{})
	if p, ok := w.(*sanitize.Writer); ok && p.File() != nil {
		w = p.File() // a terminal needs control characters
	}
	if l.to = w; w != nil {
		if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
			l.lines = 0
		}
	}
	l.hide = func() {}
	if address != "" {
		if l.hide, err = metrics.ListenStatus(address, l, log); err != nil {
			return nil, fmt.Errorf("-live: %w", err)
		}
	}
	go l.run()
	return l, nil
}

// run shows the seconds as they end, except during pauses, until the measurement is over.
func (l *live) run() {
	defer close(l.over)
	tick := time.NewTicker(liveEvery)
	defer tick.Stop()
	for {
		select {
		case <-l.done:
			l.step(time.Now(), true)
			return
		case now := <-tick.C:
			if l.paused == nil || !l.paused.Load() {
				l.step(now, false)
			}
		}
	}
}

func (l *live) end() {
	close(l.done)
	<-l.over
	l.hide()
}

// step reads new values. The terminal is redrawn when a second is over, or at the end.
func (l *live) step(now time.Time, end bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.of {
		s.read()
	}
	if now.Unix() == l.now.Unix() && !end {
		return
	}
	before := len(l.seconds)
	for k, s := range l.of {
		if x, ok := s.turn(); ok {
			x.at, x.series = l.now, k
			l.seconds = append(l.seconds, x)
		}
	}
	fresh := len(l.seconds) - before
	l.now = now
	if most := liveSeconds * len(l.of); len(l.seconds) > most {
		l.seconds = append(l.seconds[:0], l.seconds[len(l.seconds)-most:]...)
	}
	for len(l.seconds) > 0 && now.Sub(l.seconds[0].at) > (liveSeconds+1)*time.Second {
		l.seconds = append(l.seconds[:0], l.seconds[1:]...)
	}
	if l.to != nil {
		l.draw(fresh)
	}
}

func (s *lively) read() {
	received := s.progress.Received.Load() // before Sent: no reply is counted without its probe
	s.sentNow = s.progress.Sent.Load()
	s.last = max(s.sentNow-received, 0)
	s.least = min(s.least, s.last)
	s.follower.AddTo(&s.tally)
}

// turn ends a second. ok is false if the series was not measured in it.
func (s *lively) turn() (x second, ok bool) {
	x = second{replies: s.tally.Count(), sent: s.sentNow - s.sent, last: s.last, least: s.least}
	if x.replies == 0 && x.sent == 0 {
		return x, false
	}
	if h := s.tally.Histogram(); h.Count > 0 {
		x.p50, x.p99, x.max = h.Quantile(0.5), h.Quantile(0.99), h.Max
	}
	s.tally.Reset()
	s.sent, s.least = s.sentNow, s.last
	return x, true
}

// unanswered returns how many probes of each second have no reply. A probe may still be outstanding at the end of its
// second: missing replies that arrive later are subtracted.
func sessionUnanswered(all []second) []int64 {
	out := make([]int64, len(all))
	least := map[int]int64{} // so far, from the end
	settled := make([]int64, len(all))
	for i := len(all) - 1; i >= 0; i-- {
		s := all[i]
		settled[i] = s.last
		if later, ok := least[s.series]; ok {
			settled[i] = min(settled[i], later)
		}
		least[s.series] = min(settled[i], s.least)
	}
	before := map[int]int64{}
	for i, s := range all {
		if b, ok := before[s.series]; ok {
			out[i] = max(settled[i]-b, 0)
		} else {
			out[i] = max(settled[i]-min(s.least, settled[i]), 0)
		}
		before[s.series] = settled[i]
	}
	return out
}

func (x *second) values(lost int64) []string {
	ns := func(v int64) string {
		if x.replies == 0 {
			return "–"
		}
		return latency.FormatNS(float64(v))
	}
	return []string{ns(x.p50), ns(x.p99), ns(x.max), fmt.Sprint(x.sent), fmt.Sprint(lost)}
}

var liveColumns = []string{"p50", "p99", "max", "sent", "no reply"}

// draw writes the seconds: on a terminal as many as fit, over the previous ones, otherwise a line for each new one.
func (l *live) draw(fresh int) {
	lost := sessionUnanswered(l.seconds)
	var b bytes.Buffer
	from := len(l.seconds) - fresh
	if l.lines >= 0 {
		rows := 25
		if f, ok := l.to.(*os.File); ok {
			if _, h, err := term.GetSize(int(f.Fd())); err == nil {
				rows = h
			}
		}
		if l.lines > 0 {
			fmt.Fprintf(&b, "\x1b[%dA", l.lines)
		}
		from = max(len(l.seconds)-max(rows-3, 1), 0)
		l.lines = len(l.seconds) - from + 1
		fmt.Fprintf(&b, "\x1b[J%8s  %12s %12s %12s %9s %9s  last minute\n", "UTC", liveColumns[0], liveColumns[1],
			liveColumns[2], liveColumns[3], liveColumns[4])
	}
	for i := from; i < len(l.seconds); i++ {
		x := &l.seconds[i]
		v := x.values(lost[i])
		if l.lines >= 0 {
			fmt.Fprintf(&b, "%8s  %12s %12s %12s %9s %9s  %s\n", x.at.UTC().Format("15:04:05"), v[0], v[1], v[2], v[3],
				v[4], l.of[x.series].name)
			continue
		}
		fmt.Fprintf(&b, "live %s %s:", x.at.UTC().Format("15:04:05"), l.of[x.series].name)
		for k, name := range liveColumns {
			fmt.Fprintf(&b, "  %s %s", name, v[k])
		}
		b.WriteByte('\n')
	}
	_, _ = l.to.Write(b.Bytes())
}

// ServeHTTP serves the page with the last minute.
func (l *live) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	html, err := l.page(time.Now())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	if r.URL.Query().Get("every") == "10" {
		w.Header().Set("Refresh", "10")
	}
	_, _ = w.Write(html)
}

func (l *live) page(now time.Time) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.made) < livePage && l.html != nil {
		return l.html, nil
	}
	s := &page.Status{Over: "Rebound · live", Title: "Last minute", Name: "second",
		Columns: append([]string{"series"}, liveColumns...), Reload: "?every=10",
		Foot: "In each second: percentiles from the intended send, probes sent, and those without a reply so far. The report has the exact counts. Times are UTC."}
	lost := sessionUnanswered(l.seconds)
	var names []string
	for _, of := range l.of {
		names = append(names, of.name)
	}
	s.Answer = "measuring " + strings.Join(names, ", ")
	for i := len(l.seconds) - 1; i >= 0; i-- {
		x := &l.seconds[i]
		row := page.StatusRow{Name: x.at.UTC().Format("15:04:05"), Values: [][]string{{l.of[x.series].name}}}
		for _, v := range x.values(lost[i]) {
			row.Values = append(row.Values, []string{v})
		}
		s.Rows = append(s.Rows, row)
	}
	var b bytes.Buffer
	err := page.WriteStatus(&b, s)
	l.made, l.html = now, b.Bytes()
	return l.html, err
}

// errNoOtherCPU is returned for -live on a machine on which it would disturb the measurement.
var errNoOtherCPU = errors.New("-live needs a second CPU besides the measuring one")
