package process

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// A message is logged this many times in a burst, and then once a second. This keeps messages that another host can
// trigger at will, such as failed connections, from filling the disk. The next one that is logged reports how many were
// suppressed.
const (
	messageBurst = 500
	messageEvery = time.Second
	mostMessages = 1000 // texts that have a budget; they are constants of the program
)

// sparing is a Handler that limits the rate of each message.
type sparing struct {
	slog.Handler
	*budgets
}

type budgets struct {
	mu   sync.Mutex
	left map[string]*budget
}

// budget is the rate limit's state for one message.
type budget struct {
	full    time.Time // when the full burst is available again
	dropped int
}

func (s *sparing) Handle(ctx context.Context, r slog.Record) error {
	dropped, ok := s.allow(r.Message, r.Time)
	if !ok {
		return nil
	}
	if dropped > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int("left_out_before", dropped))
	}
	return s.Handler.Handle(ctx, r)
}

// allow reports whether a message may be logged, and how many were not since the last one.
func (s *budgets) allow(message string, now time.Time) (dropped int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.left[message]
	if b == nil {
		if len(s.left) >= mostMessages {
			return 0, true
		}
		b = &budget{full: now}
		s.left[message] = b
	}
	if b.full.Before(now) {
		b.full = now
	}
	if b.full.Sub(now) > (messageBurst-1)*messageEvery {
		b.dropped++
		return 0, false
	}
	b.full = b.full.Add(messageEvery)
	dropped, b.dropped = b.dropped, 0
	return dropped, true
}

func (s *sparing) WithAttrs(a []slog.Attr) slog.Handler {
	return &sparing{s.Handler.WithAttrs(a), s.budgets}
}

func (s *sparing) WithGroup(name string) slog.Handler {
	return &sparing{s.Handler.WithGroup(name), s.budgets}
}
