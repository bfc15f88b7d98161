package dma

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// fakeMapper assigns addresses as an IOMMU would, records what is mapped, and fails on request.
type fakeMapper struct {
	next   uint64
	step   uint64            // gap between mappings
	page   bool              // return errScattered for more than a page
	mapped map[uint64]Memory // by device address
	failAt int               // the Map call, counted from 1, that fails
	stuck  bool              // Unmap fails
	calls  int
}

var errFake = errors.New("fake failure")

func (f *fakeMapper) Map(m Memory) (uint64, error) {
	if f.page && len(m.Bytes) > m.Page {
		return 0, fmt.Errorf("fake: %w", errScattered)
	}
	if f.calls++; f.calls == f.failAt {
		return 0, errFake
	}
	if f.mapped == nil {
		f.mapped = map[uint64]Memory{}
	}
	iova := f.next
	f.next += uint64(len(m.Bytes)) + f.step
	f.mapped[iova] = m
	return iova, nil
}

func (f *fakeMapper) Unmap(iova uint64, size int) error {
	if f.stuck {
		return errFake
	}
	if len(f.mapped[iova].Bytes) != size {
		return fmt.Errorf("fake: unmap of %d bytes at %#x, mapped %d", size, iova, len(f.mapped[iova].Bytes))
	}
	delete(f.mapped, iova)
	return nil
}

func held(t *testing.T) int {
	maps := must.Get(os.ReadFile("/proc/self/maps"))(t)
	n := bytes.Count(maps, []byte("rebound-dma"))
	fds := must.Get(os.ReadDir("/proc/self/fd"))(t)
	for _, fd := range fds {
		if to, _ := os.Readlink("/proc/self/fd/" + fd.Name()); strings.Contains(to, "rebound-dma") {
			n++
		}
	}
	return n
}

func (f *fakeMapper) at(iova uint64) *byte {
	for base, m := range f.mapped {
		if iova >= base && iova-base < uint64(len(m.Bytes)) {
			return &m.Bytes[iova-base]
		}
	}
	return nil
}

func TestAllocator(t *testing.T) {
	for _, m := range []*fakeMapper{
		{next: 0x7f00_0000_0000},
		{next: 0x1000}, // the device's addresses are less aligned than the processor's
		{next: 0x100_0000, step: 0x1000, page: true},
		{next: 0x100_0000, page: true}, // pieces that happen to be contiguous
	} {
		rnd := rand.New(rand.NewPCG(1, 2))
		a := must.Get(NewArena(m, 4<<20))(t)
		live := map[uint64]Block{}
		for range 400 {
			size, align := 1+rnd.IntN(1<<(1+rnd.IntN(16))), 1<<rnd.IntN(14)
			b, err := a.Alloc(size, align)
			if errors.Is(err, ErrNoRoom) {
				must.OK(t, a.Grow(1<<20))
				continue
			}
			must.OK(t, err)
			if b.IOVA%uint64(align) != 0 || len(b.Bytes) != size || cap(b.Bytes) != size {
				t.Fatalf("%d bytes aligned to %d: got %d (cap %d) at %#x", size, align, len(b.Bytes), cap(b.Bytes),
					b.IOVA)
			}
			if p := uint64(uintptr(unsafe.Pointer(&b.Bytes[0]))); p%uint64(min(align, 4096)) != 0 {
				t.Fatalf("the processor's address %#x is not aligned to %d", p, align)
			}
			if m.at(b.IOVA) != &b.Bytes[0] || m.at(b.IOVA+uint64(size)-1) != &b.Bytes[size-1] {
				t.Fatalf("the device sees other memory at %#x", b.IOVA)
			}
			if len(bytes.Trim(b.Bytes, "\x00")) != 0 {
				t.Fatal("a block is not zeroed, or overlaps a live one")
			}
			copy(b.Bytes, bytes.Repeat([]byte{0xa5}, size))
			live[b.IOVA] = b
		}
		for _, b := range live {
			if strings.Trim(string(b.Bytes), "\xa5") != "" {
				t.Fatal("a block was written by the allocation of another")
			}
		}
		must.OK(t, a.Close())
		check.Equal(t, len(m.mapped), 0, "%d mappings are left")
	}
	check.Equal(t, held(t), 0, "%d files and mappings are left")
}

type keepingMapper struct {
	fakeMapper
	pool Pool
}

func (k *keepingMapper) Kept() *Pool { return &k.pool }

func TestMemoryOfClosedArenaIsZeroedForTheNext(t *testing.T) {
	for _, guard := range []bool{false, true} {
		keepsMemory(t, guard)
	}
}

func keepsMemory(t *testing.T, guard bool) {
	m := &keepingMapper{pool: Pool{Guard: guard}}
	var first *byte
	for range 3 {
		a := must.Get(NewArena(m, 1<<20))(t)
		b := must.Get(a.Alloc(1<<20, 4096))(t)
		if first == nil {
			first = &b.Bytes[0]
		} else if first != &b.Bytes[0] {
			t.Error("the memory was not kept")
		}
		if len(bytes.Trim(b.Bytes, "\x00")) != 0 {
			t.Error("a block has the content of the arena before")
		}
		copy(b.Bytes, bytes.Repeat([]byte{0xa5}, 1<<20))
		must.OK(t, a.Close())
		check.Equal(t, faults(&b.Bytes[0]), guard, "an access to memory of a closed arena faults: %v")
	}
	for _, mp := range m.pool.free {
		check.OK(t, mp.close(&m.fakeMapper))
	}
}

func faults(b *byte) (failed bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { failed = recover() != nil }()
	*b = 1
	return
}

func TestArenaPiecewise(t *testing.T) {
	// Ordinary pages in contiguous pairs: the arena must join each pair, and must not join across the gaps.
	m := &fakeMapper{next: 0x100000, page: true}
	a := must.Get(NewArena(m, 2<<20))(t)
	defer a.Close()
	check.Equal(t, len(a.segments), 1, "%d segments of pages that follow each other")
	if a.mappings[0].mem.Page == 4096 {
		must.Get(a.Alloc(1<<20, 4096))(t)
	}
}

func TestGrow(t *testing.T) {
	m := &fakeMapper{next: 0x40000000, step: 1 << 30}
	a := must.Get(NewArena(m, 1))(t)
	defer a.Close()
	var pages []Block
	for {
		b, err := a.Alloc(4096, 4096)
		if errors.Is(err, ErrNoRoom) {
			break
		}
		must.OK(t, err)
		pages = append(pages, b)
	}
	if len(pages) == 0 || len(pages)*4096 != len(a.segments[0].bytes) {
		t.Errorf("%d pages came of %d bytes", len(pages), len(a.segments[0].bytes))
	}
	must.OK(t, a.Grow(3<<20))
	check.Equal(t, len(m.mapped), 2, "%d mappings after Grow")
	must.Get(a.Alloc(3<<20, 1<<21))(t)
	// two if the first one used the last huge page
	if n := a.Notes(); len(n) == 0 || len(n) > 2 || len(n) == 2 && n[0] == n[1] {
		t.Errorf("Notes = %q, want one for each kind of memory", n)
	}
}

func TestArenaErrors(t *testing.T) {
	check.Fails(t, "a mapper that fails", check.Err(NewArena(&fakeMapper{failAt: 1}, 4096)), errFake)
	m := &fakeMapper{page: true, failAt: 3}
	// more than two pages, even of 2 MiB
	check.Fails(t, "a mapper that fails in the middle", check.Err(NewArena(m, 8<<20)), errFake)
	check.Equal(t, len(m.mapped), 0, "%d pieces stay mapped after a failure in the middle")
	for _, size := range []int{0, -1, 1 << 50} {
		check.Fails(t, fmt.Sprintf("an arena of %d bytes", size), check.Err(NewArena(&fakeMapper{}, size)), nil)
	}
	a := must.Get(NewArena(&fakeMapper{next: 1 << 30}, 4096))(t)
	for _, c := range [][2]int{{0, 1}, {-1, 1}, {8, 0}, {8, 3}, {8, -4}} {
		if _, err := a.Alloc(c[0], c[1]); err == nil || errors.Is(err, ErrNoRoom) {
			t.Errorf("Alloc(%d, %d) = %v", c[0], c[1], err)
		}
	}
	whole := len(a.segments[0].bytes)
	for n, size := range []int{0, 4096, whole / 2} {
		if size > 0 {
			must.Get(a.Alloc(size, 1))(t)
		}
		check.Fails(t, fmt.Sprint("no room ", n), check.Err(a.Alloc(whole+1, 1)), ErrNoRoom,
			fmt.Sprintf("the largest free range of 1 mappings has %d bytes", whole-size-4096*(n/2)))
	}
	for range 2 {
		must.Close(t, a)
	}
	check.Fails(t, "Alloc after Close", check.Err(a.Alloc(8, 8)), errClosed)
	check.Fails(t, "Grow after Close", a.Grow(8), errClosed)
}

// TestCloseKeepsWhatTheDeviceHas: memory that could not be taken from the device must not go back to the kernel.
func TestCloseKeepsWhatTheDeviceHas(t *testing.T) {
	m := &fakeMapper{next: 1 << 30}
	a := must.Get(NewArena(m, 4096))(t)
	m.stuck = true
	check.Fails(t, "Close", a.Close(), errFake)
	check.Equal(t, held(t) > 0, true, "memory that the device may use is still there: %v")
	m.stuck = false
	must.Close(t, a)
	check.Equal(t, held(t), 0, "%d files and mappings are left")
}

// Linux before 5.14 has no MADV_POPULATE_WRITE.
func TestOldKernel(t *testing.T) {
	defer func(f func([]byte, int) error) { madvise = f }(madvise)
	madvise = func([]byte, int) error { return unix.EINVAL }
	mp := must.Get(mapPages(4<<20, -1, kind{page: os.Getpagesize()}))(t)
	defer mp.close(nil)
	var st unix.Stat_t
	if err := unix.Fstat(mp.mem.FD, &st); err != nil || st.Blocks*512 < 4<<20 {
		t.Errorf("%d bytes of 4 MiB are there, %v", st.Blocks*512, err)
	}
}
