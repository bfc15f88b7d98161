package ixgbe

import (
	"math"
	"testing"
)

// SYSTIM overflows after hours, while timestamps continue, whichever of two is read first.
func TestTimestampsContinue(t *testing.T) {
	var s stamps
	s.shift.Store(21)
	const ns = 1 << 21
	whole := int64(1) << (64 - 21)
	for _, c := range []struct {
		systim uint64
		want   int64
	}{{5 * ns, 5}, {1 << 63, whole / 2}, {(1<<63 - 9) * 2, whole - 1}, {7 * ns, whole + 7},
		{^uint64(0) - ns + 1, whole - 1}, {8 * ns, whole + 8}, {6 * ns, whole + 6},
		{1 << 62, whole + whole/4}, {1 << 63, whole + whole/2}, {3 << 62, whole + whole/4*3}, {3 * ns, 2*whole + 3}} {
		if got := s.time(c.systim); got.Nanoseconds != c.want || !got.Hardware {
			t.Errorf("SYSTIM %#x is %+v, want %d ns", c.systim, got, c.want)
		}
	}
}

// A period of SYSTIM's clock is 6.4 ns at 10 Gb/s, and longer by as much as the link is slower.
func TestIncrements(t *testing.T) {
	for speed, i := range increments {
		if ns := math.Ldexp(float64(i.value), -int(i.shift)); math.Abs(ns*float64(speed)/64_000-1) > 1e-8 {
			t.Errorf("%d Mb/s: %g ns", speed, ns)
		}
	}
}
