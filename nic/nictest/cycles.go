package nictest

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"rebound/polling"
)

// Cycles measures what a Poll alone costs, in ticks of the cycle counter for each reply. arrive plays the device: it brings
// batch frames and completes what was sent. It runs between the measured passes.
//
// A pass is read with fences on both sides, so that nothing of it is hidden in the harness or the other way round. Passes are
// summed in groups, and a group is one sample: work that a loop does only now and then is in each of them, and what took the
// core away is in few. Reported are the samples' lower quartile and median, with the cost of the harness, an empty pass, taken
// off; harness-cycles says what that was.
func Cycles(b *testing.B, batch int, arrive func(n int), poll func() int) {
	const passes = 64 // in a group: twice the slots that a loop may leave to tidy up
	var drained atomic.Uint32
	var samples, empty []float64
	measure := func(poll func() int) float64 {
		var ticks uint64
		n := 0
		for range passes {
			arrive(batch)
			drained.Add(1) // a device's writes come from memory, not from this core's store buffer
			t := polling.FencedTSC()
			n += poll()
			ticks += polling.FencedTSC() - t
		}
		if n != passes*batch {
			b.Fatalf("%d replies in %d passes, want %d in each", n, passes, batch)
		}
		return float64(ticks) / float64(n)
	}
	for b.Loop() {
		samples = append(samples, measure(poll))
	}
	arrive = func(int) {}
	nothing := func() int { return idle(batch) }
	for range 1000 {
		empty = append(empty, measure(nothing))
	}
	slices.Sort(samples)
	slices.Sort(empty)
	harness := empty[len(empty)/4]
	b.ReportMetric(samples[len(samples)/4]-harness, "cycles/reply")
	b.ReportMetric(samples[len(samples)/2]-harness, "median-cycles/reply")
	b.ReportMetric(harness, "harness-cycles/reply")
}

// idle is a Poll that does nothing: a call from a closure, as the measured one is.
//
//go:noinline
func idle(n int) int { return n }

// HugePages returns zeroed memory for rings and buffers that lies in huge pages where the kernel gives them, as a driver's
// arena does. It is the test's until it ends.
func HugePages(t testing.TB, bytes int) []byte {
	const huge = 2 << 20
	size := (bytes + huge - 1) &^ (huge - 1)
	mem, err := unix.Mmap(-1, 0, size+huge, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(fmt.Errorf("mmap of %d bytes: %w", size+huge, err))
	}
	t.Cleanup(func() { unix.Munmap(mem) })
	off := -uintptr(unsafe.Pointer(&mem[0])) & (huge - 1)
	part := mem[off : off+uintptr(size)]
	_ = unix.Madvise(part, unix.MADV_HUGEPAGE) // without huge pages the figures are higher, and as true
	clear(part)
	return part[:bytes]
}
