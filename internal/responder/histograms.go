package responder

import (
	"iter"
	"time"

	"github.com/rebound-nic/rebound/internal/host/metrics"
	"github.com/rebound-nic/rebound/polling"
)

// writeHistogram exports a polling.Histogram as a metric. unit is the length of a tick in seconds.
func writeHistogram(f *metrics.Family, t *ticks, unit float64, since time.Time, labels ...string) {
	f.Histogram(t.values(unit), t.sum*unit, metrics.Finest, since, labels...)
}

// values are the middles of the buckets that have any value, in seconds, and how many they have.
func (t *ticks) values(unit float64) iter.Seq2[float64, uint64] {
	return func(yield func(float64, uint64) bool) {
		for i, n := range t.count {
			if n != 0 && !yield(middle(i)*unit, n) {
				return
			}
		}
	}
}

// middle is the middle of bucket i of a polling.Histogram, in ticks.
func middle(i int) float64 {
	low, next := polling.Lowest(i), uint64(0)
	if i+1 < polling.Buckets {
		next = polling.Lowest(i + 1)
	} else { // larger values have no bucket
		next = 2*low - polling.Lowest(i-1)
	}
	if next == low+1 { // one value
		return float64(low)
	}
	return float64(low+next) / 2
}
