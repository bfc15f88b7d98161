package latency

import (
	"math"
	"slices"
)

// Wait summarises how long a frame that arrives at a random moment waits while a loop polls with these gaps: until the
// end of the gap in which it arrives. Gaps are thus weighted by their length, because more frames arrive in a long gap.
// Per iteration, a long gap is one among millions. Count is the number of gaps; Min is 0.
func (h *Histogram) Wait() Summary {
	w := Summary{Count: h.Count, Max: h.Max}
	if h.Count == 0 {
		return w
	}
	var total, squares, cubes float64
	gaps := slices.Collect(h.Buckets)
	middle := func(b Bucket) float64 { return min(float64(b.Low+b.High)/2, float64(h.Max)) }
	for _, b := range gaps {
		n, g := float64(b.Count), middle(b)
		total, squares, cubes = total+n*g, squares+n*g*g, cubes+n*g*g*g
	}
	if total == 0 {
		return w
	}
	slices.Reverse(gaps)
	longest := func(i int) (length, count float64) { return middle(gaps[i]), float64(gaps[i].Count) }
	at := func(q float64) int64 { return int64(math.Round(WaitQuantile(q, total, len(gaps), longest))) }
	w.P50, w.P90, w.P99, w.P999, w.P9999 = at(0.5), at(0.9), at(0.99), at(0.999), at(0.9999)
	w.Mean = squares / (2 * total)
	w.StdDev = math.Sqrt(max(cubes/(3*total)-w.Mean*w.Mean, 0))
	return w
}

// WaitAbove returns the share (0 to 1) of frames, arriving at random moments, that wait longer than ns.
func (h *Histogram) WaitAbove(ns int64) float64 {
	var total, above float64
	for b := range h.Buckets {
		g, n := min(float64(b.Low+b.High)/2, float64(h.Max)), float64(b.Count)
		total, above = total+n*g, above+n*max(g-float64(ns), 0)
	}
	if total == 0 {
		return 0
	}
	return above / total
}

// WaitQuantile returns the wait that the fraction q (0 to 1) of all frames arriving at random moments does not exceed.
// gap returns the length of the i-th of n kinds of gaps, the longest first, and their number; total is the sum of all
// lengths. It allocates nothing.
func WaitQuantile(q, total float64, n int, gap func(i int) (length, count float64)) float64 {
	// In a gap of length g, the frames of its first g-x wait longer than x. So the sum of g-x over all gaps longer than
	// x is proportional to the share of frames that wait longer than x.
	target := (1 - q) * total
	var longer, sum float64 // number and total length of the gaps so far, which are longer
	for i := range n {
		length, count := gap(i)
		if sum-longer*length > target {
			break
		}
		longer, sum = longer+count, sum+count*length
	}
	if longer == 0 {
		return 0
	}
	return max((sum-target)/longer, 0)
}
