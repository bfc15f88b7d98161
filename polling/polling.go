// Package polling has what a polling loop needs to measure itself: the cycle counter, and a histogram with one writer
// that takes a few instructions per value. It imports nothing, so that fastpath and the drivers do not depend on
// reports and plots.
package polling

import "math/bits"

// TSC reads the cycle counter: RDTSC on amd64, CNTVCT_EL0 on arm64. The unit is the counter's tick; latency.Clock
// converts it to nanoseconds. The read is not serialised: neighbouring loads may move across it by some cycles.
func TSC() uint64

// FencedTSC is TSC for timing a few instructions: it executes after all earlier instructions and before all later ones.
// It takes tens of cycles, so do not use it in a loop that answers.
func FencedTSC() uint64

const (
	subBits = 7 // 2^7 linear steps per octave: a bucket is at most 1/128 (0.8 %) wide
	sub     = 1 << subBits
	// Buckets is the number of counters of a Histogram: values up to 2^40 ticks (some minutes) have buckets.
	Buckets = (40 - subBits + 1) * sub
)

// Histogram counts tick values in logarithmic buckets with linear steps. One goroutine records, any number may read at
// the same time. A reader can miss a value that is being recorded, but never sees a torn count.
type Histogram struct {
	count [Buckets]Counter
	max   Counter
}

// Bucket returns the index of the bucket that holds v. Values of 2^40 ticks and more are in the last one.
func Bucket(v uint64) int {
	shift := bits.Len64(v|(2*sub-1)) - subBits - 1
	return min(shift<<subBits+int(v>>shift), Buckets-1)
}

// Lowest returns the lowest value of the bucket with index i, the inverse of Bucket.
func Lowest(i int) uint64 {
	if i < 2*sub {
		return uint64(i)
	}
	shift := i>>subBits - 1
	return uint64(i-shift<<subBits) << shift
}

// Record counts v. Only one goroutine may call it at a time.
func (h *Histogram) Record(v uint64) {
	h.count[Bucket(v)].Add(1)
	h.max.Raise(v)
}

// Load copies the counts so far into counts and returns the exact maximum.
func (h *Histogram) Load(counts *[Buckets]uint64) (greatest uint64) {
	for i := range h.count {
		counts[i] = h.count[i].Load()
	}
	return h.max.Load()
}

// Loop records the timing of a polling loop: Gap, from the start of one iteration to the start of the next (it shows
// when the thread was descheduled), and Turnaround, from the start of an iteration that found frames to its last
// transmit being posted.
//
//	t := r.Loop.Begin()
//	for !stop.Load() {
//		t = r.Loop.Pass(t, q.Poll(r))
//	}
type Loop struct {
	// Start is when the current iteration started, for code that needs the time too often to read the counter. Only the
	// polling goroutine reads it.
	Start uint64

	// Looked is when the latest iteration started that did not find a full batch of frames, so that it left none
	// behind: a frame that the current iteration finds came after that. 0 if there was none yet. Only the polling
	// goroutine reads it.
	Looked uint64

	// Keep is the shortest iteration that is kept in Long, in ticks; 0 keeps none. It is set before the loop begins.
	Keep uint64

	Gap, Turnaround Histogram
	Long            Long
}

// full is how many frames the smallest batch of a driver has. An iteration that answered fewer has emptied the queue.
const full = 32

// Begin has the current iteration start now, the first or one that has waited, and returns when that is.
func (l *Loop) Begin() uint64 {
	l.Start = TSC()
	return l.Start
}

// Pass ends an iteration that started at t and answered n frames, and returns the start of the next one.
func (l *Loop) Pass(t uint64, n int) uint64 {
	now := TSC()
	l.Start = now
	l.Gap.Record(now - t)
	if now-t > l.Keep-1 {
		l.Long.Add(t, now)
	}
	if n < full {
		l.Looked = t
	}
	if n > 0 {
		l.Turnaround.Record(now - t)
	}
	return now
}
