package watch

import (
	"log/slog"
	"time"

	"github.com/rebound-nic/rebound/nic"
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

	stuck      bool // probes cannot be sent: whether the target answers is unknown
	unsent     int  // probes that could not be sent, since a reply
	blocked    time.Time
	missedThen int // probes without a reply since one could not be sent
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
	if h.missedThen++; h.stuck && h.missedThen >= downProbes {
		h.stuck, h.unsent = false, 0
		if h.down {
			return &change{nic.Notice, "probes are sent again, and get no reply", []any{"not_sent_since", h.blocked}}
		}
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

// notSent records a probe that this host could not send. Whether the target answers is unknown once that happens as
// often as losses that mean that it is down.
func (h *health) notSent(now time.Time, why error) *change {
	h.missedThen = 0
	if h.unsent++; h.unsent == 1 {
		h.blocked = now
	}
	if h.stuck || h.unsent < downProbes || now.Sub(h.blocked) < downFor {
		return nil
	}
	h.stuck, h.since = true, h.blocked
	return &change{slog.LevelWarn, "probes cannot be sent", []any{"since", h.blocked, "probes", h.unsent, "error", why}}
}

// answered records a reply.
func (h *health) answered(now time.Time) (c *change) {
	switch {
	case h.stuck:
		c = &change{nic.Notice, "probes are sent again, and answered",
			[]any{"not_sent_since", h.blocked, "probes", h.unsent}}
	case h.down && h.heard:
		c = &change{nic.Notice, "target is up again", []any{"down_since", h.since, "recovered_after",
			now.Sub(h.since).Round(time.Millisecond), "probes", h.silent}}
	case !h.heard:
		c = &change{slog.LevelInfo, "target is up", nil}
	}
	if c != nil {
		h.since = now
	}
	h.heard, h.down, h.silent = true, false, 0
	h.stuck, h.unsent, h.missedThen = false, 0, 0
	return c
}

// up reports whether the target answers. known is false before the outcome of its first probes, and while probes cannot
// be sent.
func (s *state) up() (up, known bool) {
	h := &s.health
	if !h.down && (h.stuck || !s.ready) {
		return false, false
	}
	return h.heard && !h.down, h.heard || h.down
}

// probed reports whether probes are sent to the target.
func (s *state) probed() bool { return s.ready && !s.health.stuck }

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
