package engine

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/polling"
)

// A run allocates a few times at its start and end, and not at all per probe.
func TestRunAllocatesNothing(t *testing.T) {
	for _, rate := range []float64{0, 1e6} {
		s, _ := stream(t, new(echo), rate, 20*time.Second, nil)
		var stop atomic.Bool
		if a := testing.AllocsPerRun(5, func() { _ = s.Run(Limit{Count: 5000}, &stop) }); a > 3 {
			t.Errorf("rate %v: %v allocations in a run of 5000 probes", rate, a)
		}
	}
}

// echo answers the latest probe immediately.
type echo struct {
	data [64]byte
	n    int
}

func (e *echo) Send(b []byte) error { e.n = copy(e.data[:], b); return nil }
func (e *echo) Recv(buf []byte) (int, int64, error) {
	n := copy(buf, e.data[:e.n])
	e.n = 0
	return n, int64(polling.TSC()), nil
}
