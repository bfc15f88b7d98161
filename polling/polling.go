// Package polling holds the two things of the latency packages that a polling loop may touch: the cycle counter, and a
// histogram with one writer that costs a few instructions to record into. It imports nothing, so that fastpath and the
// drivers can use it without drawing in reports and plots.
package polling

import "math/bits"

// TSC reads the cycle counter: RDTSC on amd64, CNTVCT_EL0 on arm64. The unit is the counter's tick; latency.Clock
// converts to nanoseconds. The read is not serialised: neighbouring loads may move across it by some cycles.
func TSC() uint64

// FencedTSC is TSC for measuring a few instructions: all earlier instructions are done before the counter is read, and no
// later one starts before. It costs some tens of cycles, and has no place in a loop that answers.
func FencedTSC() uint64

const (
	subBits = 7 // 2^7 linear steps an octave: a bucket is at most 1/128 (0.8 %) wide
	sub     = 1 << subBits
	// Buckets is the number of counters of a Histogram: values up to 2^40 ticks (some minutes) have buckets.
	Buckets = (40 - subBits + 1) * sub
)

// Histogram counts tick values in logarithmic buckets with linear steps. One goroutine records, any number may read at
// the same time: a reader can miss what is being recorded, never see a torn count.
type Histogram struct {
	count [Buckets]Counter
	max   Counter
}

// Bucket returns the index of the bucket that holds v. Values of 2^40 ticks and more share the last.
func Bucket(v uint64) int {
	shift := bits.Len64(v|(2*sub-1)) - subBits - 1
	return min(shift<<subBits+int(v>>shift), Buckets-1)
}

// Lowest returns the least value of the bucket with index i, the inverse of Bucket.
func Lowest(i int) uint64 {
	if i < 2*sub {
		return uint64(i)
	}
	shift := i>>subBits - 1
	return uint64(i-shift<<subBits) << shift
}

// Record counts v. It has one caller at a time.
func (h *Histogram) Record(v uint64) {
	h.count[Bucket(v)].Add(1)
	h.max.Raise(v)
}

// Load copies what was counted so far into counts and returns the greatest value recorded, exact.
func (h *Histogram) Load(counts *[Buckets]uint64) (greatest uint64) {
	for i := range h.count {
		counts[i] = h.count[i].Load()
	}
	return h.max.Load()
}

// Loop records how a polling loop fares: Gap, from the start of one pass to the start of the next (whatever took the
// core away shows here), and Turnaround, from the start of a pass that found frames to its last transmit being posted.
//
//	t := polling.TSC()
//	for !stop.Load() {
//		t = r.Loop.Pass(t, q.Poll(r))
//	}
type Loop struct {
	// Start is when the current pass started: a time for what needs one more often than the counter is worth reading.
	// The polling goroutine alone reads it. It is 0 before the first Pass.
	Start uint64

	Gap, Turnaround Histogram
}

// Pass ends a pass that started at t and answered n frames, and returns the start of the next one.
func (l *Loop) Pass(t uint64, n int) uint64 {
	now := TSC()
	l.Start = now
	l.Gap.Record(now - t)
	if n > 0 {
		l.Turnaround.Record(now - t)
	}
	return now
}
