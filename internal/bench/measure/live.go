package measure

import (
	"bytes"
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

	"golang.org/x/term"

	"github.com/rebound-nic/rebound/internal/bench/engine"
	"github.com/rebound-nic/rebound/internal/host/metrics"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/page"
	"github.com/rebound-nic/rebound/latency/sanitize"
)

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
		l.of = append(l.of, &lively{name: sanitize.Text(s.Label()), follower: s.Follow(), progress: s.Progress()})
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
