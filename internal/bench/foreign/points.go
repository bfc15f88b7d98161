package foreign

import (
	"fmt"
	"math"
	"slices"

	"github.com/rebound-nic/rebound/latency"
)

// maxCount bounds the counts in a file.
const maxCount = 1e15

// unknown marks minimum, maximum and mean as unknown.
func (m *measurement) unknown() { m.least, m.most, m.middle = math.NaN(), math.NaN(), math.NaN() }

func (m *measurement) point(f *file, line int, percent float64, ns int64) error {
	if !(percent >= 0 && percent <= 100) || len(m.points) >= 1000 {
		return f.bad(line, "%v is no percentile", percent)
	}
	m.points = append(m.points, latency.Percentile{Quantile: percent / 100, Value: ns})
	return nil
}

// order sorts the percentiles, and refuses those whose values do not rise with them.
func (m *measurement) order(f *file) error {
	slices.SortFunc(m.points, func(a, b latency.Percentile) int {
		switch {
		case a.Quantile < b.Quantile:
			return -1
		case a.Quantile > b.Quantile:
			return 1
		}
		return 0
	})
	for i, p := range m.points {
		if i > 0 && (p.Value < m.points[i-1].Value || p.Quantile == m.points[i-1].Quantile) {
			return f.bad(0, "percentile %v is below the one before", 100*p.Quantile)
		}
	}
	return nil
}

// extremes sets minimum, maximum and mean, in units of factor nanoseconds; nil is unknown.
func (m *measurement) extremes(f *file, factor float64, least, most, mean *float64) error {
	m.unknown()
	for _, x := range []struct {
		from *float64
		to   *float64
	}{{least, &m.least}, {most, &m.most}, {mean, &m.middle}} {
		if x.from == nil {
			continue
		}
		if _, err := scaled(*x.from, factor); err != nil {
			return f.bad(0, "%v", err)
		}
		*x.to = *x.from * factor
	}
	return nil
}

// histogram is latency.FromCounts for numbers from a file: it refuses counts that are negative or too large.
func histogram(values, counts []int64) (*latency.Histogram, error) {
	var sum int64
	for _, n := range counts {
		if n < 0 || n > maxCount {
			return nil, fmt.Errorf("a count of %d: want 0 to %g", n, maxCount)
		}
		if sum += n; sum > maxCount {
			return nil, fmt.Errorf("counts add up to more than %g", maxCount)
		}
	}
	return latency.FromCounts(values, counts), nil
}
