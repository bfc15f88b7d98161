package mlxkit

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/proof/check"
)

func TestDataSegment(t *testing.T) {
	s := NewData(0x01020304, 0x11121314, 0x2122232425262728)
	got := *(*[16]byte)(unsafe.Pointer(&s))
	check.Equal(t, got, [16]byte{1, 2, 3, 4, 0x11, 0x12, 0x13, 0x14, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28},
		"segment % x")
	a, b := s.Words()
	if words := [2]uint64{a, b}; *(*[16]byte)(unsafe.Pointer(&words)) != got {
		t.Errorf("words %#x, segment % x", words, got)
	}
}

func TestSyndrome(t *testing.T) {
	for s, want := range map[Syndrome]string{0x04: "0x04 local protection error", 0x99: "0x99 (unknown)"} {
		check.Equal(t, s.String(), want, "%s")
	}
}

func TestUnsent(t *testing.T) {
	// Eight blocks. From block 6 on: WQEs of 1, 2 (over the end of the queue), 1 and 3 blocks; a size of 0 counts as a
	// block.
	queue := make([]byte, 8*Block)
	for at, ds := range map[int]byte{6: 4, 7: 5, 1: 0, 2: 9} {
		queue[at*Block+7] = 0xC0 | ds // the upper two bits are reserved
	}
	const done = 1<<16 - 2 // a block's counter has 16 bits on the wire, 32 in the driver
	for at, want := range map[uint32]uint64{0: 4, 1: 3, 3: 2, 4: 1, 7: 0} {
		if got := Unsent(unsafe.Pointer(&queue[0]), 7, done, done+7, uint16((done+at)&0xFFFF)); got != want {
			t.Errorf("error at block %d: %d WQEs unsent, want %d", at, got, want)
		}
	}
}

func TestSteps(t *testing.T) {
	failed := errors.New("refused")
	for _, dead := range []bool{false, true} {
		var s Steps
		var undone []string
		for _, name := range []string{"first", "second", "third"} {
			s.Done(name, func() error {
				undone = append(undone, name)
				if name == "second" {
					return failed
				}
				return nil
			})
		}
		want := []string{"third", "second", "first"}
		if dead {
			want = want[:2]
		}
		if err := s.Undo(func() bool { return dead }); !errors.Is(err, failed) ||
			!strings.HasPrefix(err.Error(), "second: ") || !slices.Equal(undone, want) {
			t.Errorf("dead %v: undone %q, want %q; %v", dead, undone, want, err)
		}
		if err := s.Undo(func() bool { return dead }); err != nil || len(undone) != len(want) {
			t.Errorf("dead %v: the second Undo did something: %q, %v", dead, undone, err)
		}
	}
}

func TestBuffers(t *testing.T) {
	memory := make([]byte, 4*64)
	b := NewBuffers(dma.Block{Bytes: memory, IOVA: 1 << 32}, make([]uint32, 4))
	next := func(n uint64, done uint32, want bool) {
		t.Helper()
		at, iova, free := b.Next(done)
		if off := uint64(uintptr(at) - uintptr(unsafe.Pointer(&memory[0]))); off != n*64 || iova != 1<<32+n*64 ||
			free != want {
			t.Errorf("the next buffer is at %d, for the device at %#x, and free %v with %d blocks done; want buffer %d, %v", off, iova, free, done, n, want)
		}
	}
	for n, end := range []uint32{1, 3, 4, 6} {
		next(uint64(n), 0, true)
		b.Use(end)
	}
	next(0, 0, false)
	next(0, 1, true)
	b.Use(1 << 30)
	next(1, 2, false)
	done := uint32(1 << 30)
	for range 7 { // block numbers wrap
		done += 1 << 30
		b.Free(done)
	}
	for n := range uint64(4) {
		next((n+1)%4, done, true)
		b.Use(done)
	}
	for range 4 {
		b.Use(5)
	}
	b.Reset()
	next(0, 0, true)
}
