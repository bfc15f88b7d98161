package latency

import "math"

// Tally is a histogram that grows as values are recorded. It has the usual geometry, but allocates memory only for
// doublings that contain values: 8 kB each, where a Recorder's track takes a quarter of a megabyte. The zero Tally is
// empty. It belongs to one goroutine.
type Tally struct {
	pages    [countsLen >> subBits]*[1 << subBits]int64
	n        int64
	min, max int64
	sum      float64
}

// Record counts a value of ns nanoseconds. Negative values count as 0.
func (t *Tally) Record(ns int64) { t.record(ns, 1) }

func (t *Tally) record(ns, times int64) {
	ns = max(ns, 0)
	t.add(countsIndex(ns), times)
	if t.n == 0 || ns < t.min {
		t.min = ns
	}
	t.n += times
	t.max = max(t.max, ns)
	t.sum += float64(ns) * float64(times)
}

// add only counts in a bucket.
func (t *Tally) add(index int, times int64) {
	p := &t.pages[index>>subBits]
	if *p == nil {
		*p = new([1 << subBits]int64)
	}
	(*p)[index&(1<<subBits-1)] += times
}

// Count returns the number of values recorded.
func (t *Tally) Count() int64 { return t.n }

// Histogram returns the values recorded so far.
func (t *Tally) Histogram() *Histogram {
	h := &Histogram{Count: t.n, Max: t.max, Sum: t.sum, Min: t.min}
	used := 0
	for _, p := range t.pages {
		if p != nil {
			for _, n := range p {
				if n != 0 {
					used++
				}
			}
		}
	}
	h.index, h.count = make([]int32, 0, used), make([]int64, 0, used)
	for k, p := range t.pages {
		if p != nil {
			for i, n := range p {
				if n != 0 {
					h.index, h.count = append(h.index, int32(k<<subBits+i)), append(h.count, n)
				}
			}
		}
	}
	return h
}

// Reset empties the tally but keeps its memory.
func (t *Tally) Reset() {
	if t.n == 0 {
		return
	}
	for _, p := range t.pages {
		if p != nil {
			clear(p[:])
		}
	}
	t.n, t.min, t.max, t.sum = 0, math.MaxInt64, 0, 0
}
