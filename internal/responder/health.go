package responder

import (
	"time"

	"github.com/rebound-nic/rebound/internal/host/metrics"
)

type pulse = metrics.Pulse // engine.go has runtime/metrics

// healthy returns an error if a loop has made no pass since the call before.
func (e *engine) healthy() error {
	passes := make([]uint64, len(e.loops))
	for i, l := range e.loops {
		passes[i] = l.count()
	}
	return e.pulse.Check(time.Now(), passes...)
}

// count returns the number of passes so far.
func (l *loop) count() uint64 {
	var t ticks
	t.add(&l.responder.Loop.Gap)
	return t.n
}
