package watch

import (
	"bytes"
	"cmp"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/page"
	"github.com/rebound-nic/rebound/latency/sanitize"
)

const (
	keptChanges = 100  // number of state changes on the status page
	mostRows    = 2000 // number of rows on the status page: targets that are not up come first
)

// noted is a change of a target's state with its time.
type noted struct {
	change
	at   time.Time
	name string
}

// note keeps a change for the status page.
func (k *archive) note(name string, c change) {
	if len(k.changes) == keptChanges {
		k.changes = append(k.changes[:0], k.changes[1:]...)
	}
	k.changes = append(k.changes, noted{c, k.now, name})
}

// ServeHTTP serves the status page.
func (w *watch) ServeHTTP(to http.ResponseWriter, r *http.Request) {
	var b bytes.Buffer
	if err := page.WriteStatus(&b, w.status(time.Now())); err != nil {
		http.Error(to, "the page cannot be made: "+err.Error(), http.StatusInternalServerError)
		return
	}
	h := to.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	if every, err := strconv.Atoi(r.URL.Query().Get("every")); err == nil && every >= 1 && every <= 3600 {
		h.Set("Refresh", strconv.Itoa(every))
	}
	to.Write(b.Bytes())
}

// status is the content of the page at a given time.
func (w *watch) status(now time.Time) *page.Status {
	k := w.archive
	k.mu.Lock()
	defer k.mu.Unlock()
	s := &page.Status{Over: "Rebound · watch", Title: sanitize.Count(len(k.byName), "target"), Reload: "?every=10",
		Name:    "target",
		Columns: []string{"since", fmt.Sprintf("now, %d s", now.Second())},
		Foot:    "In each minute: p50 and p99, the maximum, and probes without a reply within the timeout. Times are UTC.",
		ChangesFoot: fmt.Sprintf("The last %d changes of state since %s. The log has all.", keptChanges,
			w.start.UTC().Format("2006-01-02 15:04:05 UTC"))}
	begun := now.Truncate(time.Minute)
	for i := 1; i <= minutes; i++ {
		s.Columns = append(s.Columns, begun.Add(-time.Duration(i)*time.Minute).UTC().Format("15:04"))
	}
	s.Columns = append(s.Columns, "change")
	all := make([]*state, 0, len(k.byName))
	counts := map[string]int{}
	for _, t := range k.byName {
		all = append(all, t)
		counts[stateText(t)]++
	}
	order := []string{"down", "silent", "not sent", "not probed", "starting", "up"}
	slices.SortFunc(all, func(a, b *state) int {
		return cmp.Or(cmp.Compare(slices.Index(order, stateText(a)), slices.Index(order, stateText(b))),
			strings.Compare(a.Name(), b.Name()))
	})
	for _, t := range all[:min(len(all), mostRows)] {
		s.Rows = append(s.Rows, t.row())
	}
	if n := len(all) - len(s.Rows); n > 0 {
		s.Notes = append(s.Notes, sanitize.Count(n, "more target")+" not shown")
	}
	var parts []string
	for _, name := range order {
		if counts[name] > 0 {
			parts = append(parts, latency.FormatCount(counts[name])+" "+name)
		}
	}
	s.Answer = strings.Join(parts, ", ")
	if s.Answer == "" {
		s.Answer = "no target"
	}
	if n := k.withBadPaths(); n > 0 {
		s.Alerts = append(s.Alerts, sanitize.Count(n, "target")+
			" with loss from some source ports only: equal-cost paths differ")
	}
	if n := w.loop.events.dropped.Load(); n > 0 {
		s.Alerts = append(s.Alerts, sanitize.Count(int64(n), "event")+
			" of the measuring loop not counted: this machine is overloaded")
	}
	if k.failing != nil {
		s.Alerts = append(s.Alerts, "the log of the hour cannot be written: see the log of this program")
	}
	for _, c := range slices.Backward(k.changes) {
		s.Changes = append(s.Changes, page.StatusChange{At: c.at, Name: sanitize.Text(c.name), Text: c.text,
			Detail: c.detail(), Bad: c.level >= slog.LevelWarn})
	}
	return s
}

// detail formats a change's arguments other than its target.
func (c *change) detail() string {
	var parts []string
	for i := 0; i+1 < len(c.args); i += 2 {
		key, value := fmt.Sprint(c.args[i]), c.args[i+1]
		if key == "target" {
			continue
		}
		switch v := value.(type) {
		case time.Time:
			value = v.UTC().Format("15:04:05")
		case time.Duration:
			value = latency.FormatDuration(v)
		case int:
			value = latency.FormatCount(v)
		case int64:
			value = latency.FormatCount(v)
		case float64:
			value = fmt.Sprintf("%.3g", v)
		}
		parts = append(parts, strings.ReplaceAll(key, "_", " ")+" "+sanitize.Text(fmt.Sprint(value)))
	}
	return strings.Join(parts, ", ")
}

// stateText returns the state of a target on the status page. A target that is down answered before; a silent one never
// did.
func stateText(s *state) string {
	h := &s.health
	switch {
	case h.stuck:
		return "not sent"
	case h.down && h.heard:
		return "down"
	case h.down:
		return "silent"
	case !s.ready:
		return "not probed"
	case h.heard:
		return "up"
	}
	return "starting"
}

func (s *state) row() page.StatusRow {
	r := page.StatusRow{Name: sanitize.Text(s.Name()), State: stateText(s)}
	since := []string{"–"}
	if !s.health.since.IsZero() {
		since = []string{s.health.since.UTC().Format("2006-01-02"), s.health.since.UTC().Format("15:04:05")}
	}
	if !s.ready {
		since = append(since, sanitize.Text(s.why))
	}
	since = append(since, s.pathLines()...)
	now := s.recent.current()
	r.Values = append(r.Values, since, now.lines())
	for i := 1; i <= minutes; i++ {
		if n := len(s.recent.done) - i; n >= 0 {
			r.Values = append(r.Values, s.recent.done[n].lines())
		} else {
			r.Values = append(r.Values, []string{"–"})
		}
	}
	var changed []string
	for _, stat := range compare.Stats(latency.BriefTable) {
		if j, ok := s.verdicts[stat.String()]; ok && j.verdict > compare.Noise {
			changed = append(changed, fmt.Sprintf("%s %s by %s", stat, j.verdict,
				latency.FormatNS(max(j.shift, -j.shift))))
		}
	}
	if changed == nil {
		changed = []string{"–"}
	}
	r.Values = append(r.Values, changed)
	return r
}

// lines formats a minute for a cell.
func (m minute) lines() []string {
	if m.answered+m.missed+m.unsent == 0 {
		return []string{"–"}
	}
	missed := fmt.Sprintf("%s of %s missed", latency.FormatCount(m.missed), latency.FormatCount(m.answered+m.missed))
	if m.unsent > 0 {
		missed += fmt.Sprintf(", %s not sent", latency.FormatCount(m.unsent))
	}
	if m.max == 0 {
		return []string{missed}
	}
	ns := func(v int64) string { return latency.FormatNS(float64(v)) }
	return []string{ns(m.p50) + " · " + ns(m.p99), "max " + ns(m.max), missed}
}
