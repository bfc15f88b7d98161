package responder

import (
	"math"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/polling"
)

// ticks is the sum of hot histograms, for the numbers that are requested again and again while the loops run: unlike
// a latency.Histogram it makes no garbage.
type ticks struct {
	count    [polling.Buckets]uint64
	n        uint64
	sum      float64 // by the buckets' lowest values
	greatest uint64
}

func (t *ticks) add(h *polling.Histogram) {
	var counts [polling.Buckets]uint64
	greatest := h.Load(&counts)
	t.merge(&counts, greatest)
}

func (t *ticks) merge(counts *[polling.Buckets]uint64, greatest uint64) {
	t.greatest = max(t.greatest, greatest)
	for i, n := range counts {
		t.count[i] += n
		t.n += n
		t.sum += float64(n) * float64(polling.Lowest(i))
	}
}

// beyond returns the sum of the values of at least a length in seconds, and their number, by the middles of the
// buckets. unit is the length of a tick in seconds.
func (t *ticks) beyond(least, unit float64) (seconds float64, n uint64) {
	for i := range t.count {
		if c := t.count[i]; c != 0 {
			if s := middle(i) * unit; s >= least {
				seconds += s * float64(c)
				n += c
			}
		}
	}
	return seconds, n
}

// quantile returns the lowest value of the bucket that the fraction q of all values (0 to 1) reaches, 0 if there is
// none.
func (t *ticks) quantile(q float64) uint64 {
	rank, seen := max(1, uint64(math.Ceil(q*float64(t.n)))), uint64(0)
	for i, n := range t.count {
		if seen += n; seen >= rank {
			return polling.Lowest(i)
		}
	}
	return t.greatest
}

// wait returns the time within which a fraction q of the frames that arrive at random moments is polled, if the ticks
// are a loop's gaps.
func (t *ticks) wait(q float64) uint64 {
	return uint64(latency.WaitQuantile(q, t.sum, len(t.count), func(i int) (length, count float64) {
		i = len(t.count) - 1 - i
		return float64(polling.Lowest(i)), float64(t.count[i])
	}))
}
