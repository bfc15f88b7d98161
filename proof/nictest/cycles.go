package nictest

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/polling"
)

// Cycles measures the cost of a Poll alone, in ticks of the cycle counter per reply. arrive acts as the device: it
// delivers batch frames and completes the sent ones. It runs between the measured passes. Time also advances for r's
// rate limit: the clients' buckets are full again, as they are at all rates but the highest.
//
// Each pass is read with fences on both sides, so that its work does not overlap with the harness. Passes are summed in
// groups, and a group is one sample: work that a loop does only occasionally is included in each group, and
// interruptions of the core only in a few. The results are the samples' lower quartile and median, with the cost of the
// harness, an empty pass, subtracted; harness-cycles is that cost. doorbell-cycles is the same for the passes that do
// nothing after their doorbell: all but the longest four of each group, because a loop reclaims in at most one pass of
// 32.
func Cycles(b *testing.B, r *fastpath.Responder, batch int, arrive func(n int), poll func() int) {
	defer mmio.PushToMemory()()   // treat windows of rings in memory as memory
	const passes, longest = 64, 4 // per group: twice the slots that a loop may leave to reclaim
	var drained atomic.Uint32
	type group [passes]uint32 // ticks of each pass
	measure := func(g *group, poll func() int) {
		n := 0
		for i := range g {
			arrive(batch)
			r.Loop.Start += 1 << 20
			drained.Add(1) // a device's writes come from memory, not from this core's store buffer
			t := polling.FencedTSC()
			n += poll()
			g[i] = uint32(polling.FencedTSC() - t)
		}
		if n != passes*batch {
			b.Fatalf("%d replies in %d passes, want %d in each", n, passes, batch)
		}
	}
	// Results are evaluated afterwards, so that this does not disturb any pass.
	quartiles := func(groups []group) (all, median, most float64) {
		var sums, heads []float64
		for _, g := range groups {
			slices.Sort(g[:])
			var sum, head float64
			for i, t := range g {
				if sum += float64(t); i < passes-longest {
					head += float64(t)
				}
			}
			sums = append(sums, sum/float64(passes*batch))
			heads = append(heads, head/float64((passes-longest)*batch))
		}
		slices.Sort(sums)
		slices.Sort(heads)
		return sums[len(sums)/4], sums[len(sums)/2], heads[len(heads)/4]
	}
	groups := make([]group, 0, 1<<13)
	for b.Loop() {
		groups = append(groups, group{})
		measure(&groups[len(groups)-1], poll)
	}
	mustBeFast(b, r)
	all, median, most := quartiles(groups)
	arrive = func(int) {}
	nothing := func() int { return idle(batch) }
	empty := make([]group, 1000)
	for i := range empty {
		measure(&empty[i], nothing)
	}
	harness, _, harnessMost := quartiles(empty)
	b.ReportMetric(all-harness, "cycles/reply")
	b.ReportMetric(median-harness, "median-cycles/reply")
	b.ReportMetric(most-harnessMost, "doorbell-cycles/reply")
	b.ReportMetric(harness, "harness-cycles/reply")
}

// mustBeFast fails a benchmark of the loop with Reply if frames went through Slow.
func mustBeFast(b *testing.B, r *fastpath.Responder) {
	b.Helper()
	if n := r.Slowed(); n != 0 && !strings.Contains(b.Name(), "slow") {
		b.Fatalf("%d frames went through Slow, and the benchmark's name does not say so", n)
	}
}

// idle is a Poll that does nothing. It is called from a closure, as the measured one is.
//
//go:noinline
func idle(n int) int { return n }

// Carve returns a function that returns the next n bytes of hugePages, from a cache line on.
func Carve(t testing.TB, bytes int) (piece func(n int) unsafe.Pointer) {
	pages := hugePages(t, bytes)
	return func(n int) unsafe.Pointer {
		p := unsafe.Pointer(&pages[0])
		pages = pages[(n+63)&^63:]
		return p
	}
}

// hugePages returns zeroed memory for rings and buffers, in huge pages if the kernel provides them, as in a driver's
// arena. It is freed when the test ends.
func hugePages(t testing.TB, bytes int) []byte {
	const huge = 2 << 20
	size := (bytes + huge - 1) &^ (huge - 1)
	mem, err := unix.Mmap(-1, 0, size+huge, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(fmt.Errorf("mmap of %d bytes: %w", size+huge, err))
	}
	t.Cleanup(func() { unix.Munmap(mem) })
	off := -uintptr(unsafe.Pointer(&mem[0])) & (huge - 1)
	part := mem[off : off+uintptr(size)]
	if _, measures := t.(*testing.B); measures {
		_ = unix.Madvise(part, unix.MADV_HUGEPAGE) // without huge pages the figures are higher but still valid
		clear(part)
	}
	return part[:bytes]
}
