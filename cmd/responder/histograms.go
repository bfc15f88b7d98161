package main

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"rebound/cmd/internal/metrics"
	"rebound/polling"
)

// histogram is a metric with the counts of a polling.Histogram. A value is taken for the middle of its bucket. unit is the length of
// a tick in seconds.
func histogram(d *prometheus.Desc, t *ticks, unit float64, since time.Time, labels ...string) prometheus.Metric {
	return metrics.Histogram(d, func(yield func(float64, uint64) bool) {
		for i, n := range t.count {
			if n != 0 && !yield(middle(i)*unit, n) {
				return
			}
		}
	}, t.sum*unit, metrics.Finest, since, labels...)
}

// middle is the middle of bucket i of a polling.Histogram, in ticks.
func middle(i int) float64 {
	low, next := polling.Lowest(i), uint64(0)
	if i+1 < polling.Buckets {
		next = polling.Lowest(i + 1)
	} else { // what is above has no bucket
		next = 2*low - polling.Lowest(i-1)
	}
	if next == low+1 { // one value
		return float64(low)
	}
	return float64(low+next) / 2
}
