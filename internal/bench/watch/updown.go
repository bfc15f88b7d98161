package watch

import (
	"log/slog"
	"time"
)

// A target is down if downProbes consecutive probes have no reply, and the first and the last of them are at least
// downFor apart: at a high rate, a momentary loss is no outage.
const (
	downProbes = 3
	downFor    = time.Second
)

// health tracks whether a target answers.
type health struct {
	heard  bool      // it has answered at least once
	down   bool      // it is down, or has never answered and was reported
	silent int64     // probes since the last reply
	first  time.Time // when the first of them was sent
	since  time.Time // of the state
}

// change is a new state of a target, as it is logged.
type change struct {
	level slog.Level
	text  string
	args  []any
}

// missed records a probe without a reply within the timeout, which expired at now.
func (h *health) missed(now time.Time, timeout time.Duration) *change {
	sent := now.Add(-timeout)
	if h.silent++; h.silent == 1 {
		h.first = sent
	}
	if h.down || h.silent < downProbes || sent.Sub(h.first) < downFor {
		return nil
	}
	h.down, h.since = true, h.first
	c := &change{slog.LevelWarn, "target is down", []any{"since", h.since, "probes", h.silent}}
	if !h.heard {
		c.text = "target has not answered"
	}
	return c
}

// answered records a reply.
func (h *health) answered(now time.Time) (c *change) {
	switch {
	case h.down && h.heard:
		c = &change{slog.LevelInfo, "target is up again", []any{"down_since", h.since, "recovered_after", now.Sub(h.since).Round(time.Millisecond), "probes", h.silent}}
	case !h.heard:
		c = &change{slog.LevelInfo, "target is up", nil}
	}
	if c != nil {
		h.since = now
	}
	h.heard, h.down, h.silent = true, false, 0
	return c
}

// up reports whether the target answers. known is false before the outcome of its first probes.
func (s *state) up() (up, known bool) {
	return s.health.heard && !s.health.down, s.health.heard || s.health.down
}

// report queues a change of a target's state for the log; nil means none. The reason is added if there is one.
func (k *archive) report(s *state, c *change) {
	if c == nil {
		return
	}
	c.args = append([]any{"target", s.Name()}, c.args...)
	if s.closed && c.level == slog.LevelWarn {
		c.args = append(c.args, "reason", "it reports a closed port (ICMP)")
	}
	k.news = append(k.news, *c)
	k.note(s.Name(), *c)
}
