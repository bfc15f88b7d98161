package engine

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/polling"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/sim"
)

// wired is a port whose replies come back over a simulated wire.
type wired struct {
	far  sim.Wire
	near *sim.Impaired
}

func (w *wired) now() time.Duration { return time.Duration(testClock.Nanoseconds(polling.TSC())) }

func (w *wired) Send(b []byte) error {
	w.far.Send(w.now(), b)
	return nil
}

func (w *wired) Recv(buf []byte) (int, int64, error) {
	n := copy(buf, w.near.Recv(w.now()))
	return n, int64(polling.TSC()), nil
}

func TestCountsOfAWire(t *testing.T) {
	needs.Long(t)
	for name, i := range map[string]sim.Impairment{
		"nothing":          {Delay: 200 * time.Microsecond},
		"loss":             {Delay: 200 * time.Microsecond, Loss: 0.03, Seed: 1},
		"duplicates":       {Delay: 200 * time.Microsecond, Duplicate: 0.03, Seed: 2},
		"reordering":       {Delay: 200 * time.Microsecond, Reorder: 0.05, Seed: 3},
		"loss, reordering": {Delay: 200 * time.Microsecond, Loss: 0.1, Reorder: 0.1, Seed: 4},
	} {
		a, b := sim.Pair()
		w := &wired{far: b, near: sim.Impair(a, i)}
		s, rec := stream(t, w, 20_000, time.Second, nil)
		must.OK(t, s.Run(Limit{Count: 4000}, new(atomic.Bool)))
		got, did := s.Counts(), w.near.Counts()
		if uint64(got.Unanswered()) != did.Lost || uint64(got.Duplicates) != did.Duplicated ||
			uint64(got.Reordered) != did.Reordered || did.Frames != 4000 {
			t.Errorf("%s: the bench counts %d lost, %d duplicates, %d reordered; the wire did %+v", name,
				got.Unanswered(), got.Duplicates, got.Reordered, did)
		}
		if i.Loss > 0 && did.Lost == 0 || i.Duplicate > 0 && did.Duplicated == 0 || i.Reorder > 0 &&
			did.Reordered == 0 {
			t.Errorf("%s: the wire did nothing: %+v", name, did)
		}
		if n := series(rec)("rtt").Count; n != 4000-got.Unanswered() {
			t.Errorf("%s: %d round trips, %d lost", name, n, got.Unanswered())
		}
		q := s.Sequence()
		sum := int64(0)
		for length, count := range q.LossLengths {
			sum += int64(length) * count
		}
		if sum != got.Unanswered() || (q.LossPeriods > 0) != (got.Unanswered() > 0) ||
			(q.Extent > 0) != (got.Reordered > 0) {
			t.Errorf("%s: %+v with %d lost, %d reordered", name, q, got.Unanswered(), got.Reordered)
		}
	}
}
