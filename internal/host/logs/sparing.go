package logs

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// A message is logged so many times at once, and once a second after that: what another host can cause as often as it likes, such as
// a connection that fails, does not fill the disk. The first one that is logged again says how many were not.
const (
	messageBurst = 500
	messageEvery = time.Second
	mostMessages = 1000 // texts that have a budget; they are constants of the program
)

// sparing is a Handler that leaves out messages which come too often.
type sparing struct {
	slog.Handler
	*budgets
}

type budgets struct {
	mu   sync.Mutex
	left map[string]*budget
}

// budget is one message's.
type budget struct {
	full    time.Time // when all of it will be there again
	dropped int
}

func (s *sparing) Handle(ctx context.Context, r slog.Record) error {
	dropped, ok := s.take(r.Message, r.Time)
	if !ok {
		return nil
	}
	if dropped > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int("left_out_before", dropped))
	}
	return s.Handler.Handle(ctx, r)
}

// take reports whether a message may be logged, and how many were not since the last one.
func (s *budgets) take(message string, now time.Time) (dropped int, ok bool) {
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
