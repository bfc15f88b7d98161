package mmio

import (
	"bytes"
	"encoding/binary"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/must"
)

// eachPush runs test with each method of storing a block. Methods that this processor lacks are skipped by name.
func eachPush(t *testing.T, test func(t *testing.T)) {
	best := pushWith
	defer func() { pushWith = best }()
	for p := Stores; p <= AVX2; p++ {
		t.Run(p.String(), func(t *testing.T) {
			if why := lacks(p); why != "" {
				t.Skip(why)
			}
			pushWith = p
			test(t)
		})
	}
}

const maxBlocks = 5

// arena returns memory from mmap, like that of drivers. Tests place source, destination and records in it, and compare
// all of it.
func arena(t testing.TB, size int) []byte {
	b := must.Get(unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON))(t)
	t.Cleanup(func() { unix.Munmap(b) })
	return b
}

// poison fills b with bytes that differ between offsets and between values of salt.
func poison(b []byte, salt byte) {
	for i := range b {
		b[i] = byte(i*7) ^ byte(i>>8) ^ salt
	}
}

// TestCopyWC compares CopyWC with copy, for each method: all counts, all source alignments, destinations at several
// blocks, and no byte changed around the destination or in the source.
func TestCopyWC(t *testing.T) {
	const dstAt, srcAt = 1024, 2048 // 64-byte aligned
	mem := arena(t, 8192)
	want := make([]byte, len(mem))
	eachPush(t, func(t *testing.T) {
		for n := -1; n <= maxBlocks; n++ {
			for align := range 64 {
				dst := dstAt + 64*(align%3)
				poison(mem, byte(align+n))
				copy(want, mem)
				copy(want[dst:], want[srcAt+align:][:64*max(n, 0)])
				CopyWC(unsafe.Pointer(&mem[dst]), unsafe.Pointer(&mem[srcAt+align]), n)
				if !bytes.Equal(mem, want) {
					t.Fatalf("%d blocks, source at +%d: byte %d is wrong", n, align, differ(mem, want))
				}
			}
		}
	})
}

// TestPushWQE does the same for PushWQE, from every block of a ring, so that it wraps between any two.
func TestPushWQE(t *testing.T) {
	const ringAt, ringBlocks, windowAt, srcAt, recAt = 1024, 8, 2048, 4096, 64
	mem := arena(t, 8192)
	want := make([]byte, len(mem))
	ring := SendRing{Base: unsafe.Pointer(&mem[ringAt]), Record: (*uint32)(unsafe.Pointer(&mem[recAt])),
		Mask: ringBlocks - 1}
	eachPush(t, func(t *testing.T) {
		for n := -1; n <= maxBlocks; n++ {
			for _, tail := range []uint32{0, 1, 3, 5, 6, 7, 8, 1<<32 - 2, 1<<32 - 1} {
				for align := range 64 {
					poison(mem, byte(align+n))
					copy(want, mem)
					for i := range max(n, 0) {
						block := want[srcAt+align+64*i:][:64]
						copy(want[ringAt+64*((tail+uint32(i))%ringBlocks):], block)
						copy(want[windowAt+64*i:], block)
					}
					*(*uint32)(unsafe.Pointer(&want[recAt])) = 0xc0ffee01
					PushWQE(&ring, tail, 0xc0ffee01, unsafe.Pointer(&mem[windowAt]), unsafe.Pointer(&mem[srcAt+align]),
						n)
					if !bytes.Equal(mem, want) {
						t.Fatalf("%d blocks at %d, source at +%d: byte %d is wrong", n, tail, align, differ(mem, want))
					}
				}
			}
		}
	})
}

// eachEntry has push build an entry of every length up to four blocks after the first, from several blocks of a ring,
// with and without a window, and compares memory with a plain description of the entry: the first block starts as head
// writes it and has room for first bytes of the data, and each block has its data behind their length. Bytes after the
// data are copied into the last block.
func eachEntry(t *testing.T, first int, head func(block, header []byte),
	push func(ring *SendRing, tail, n uint32, header, src unsafe.Pointer, length uint32, window unsafe.Pointer)) {
	const ringAt, ringBlocks, windowAt, srcAt, headAt = 1024, 8, 2048, 4096, 6144
	mem := arena(t, 8192)
	want := make([]byte, len(mem))
	ring := SendRing{Base: unsafe.Pointer(&mem[ringAt]), Mask: ringBlocks - 1}
	eachPush(t, func(t *testing.T) {
		for length := 1; length <= first+(maxBlocks-1)*60; length++ {
			n := 1 + (length-first+59)/60
			for _, tail := range []uint32{0, 4, 5, 6, 7, 8, 1<<32 - 1} {
				for _, window := range []unsafe.Pointer{unsafe.Pointer(&mem[windowAt]), nil} {
					src := srcAt + length%64
					poison(mem, byte(length))
					copy(want, mem)
					for i, at := 0, 0; i < n; i++ {
						block, size := want[ringAt+64*((tail+uint32(i))%ringBlocks):][:64], 60
						if i == 0 {
							head(block, mem[headAt:])
							size = first
						}
						if size > 0 {
							binary.BigEndian.PutUint32(block[60-size:], 1<<31|uint32(min(length-at, size)))
							copy(block[64-size:], mem[src+at:])
						}
						at += size
						if window != nil {
							copy(want[windowAt+64*i:], block)
						}
					}
					push(&ring, tail, uint32(n), unsafe.Pointer(&mem[headAt]), unsafe.Pointer(&mem[src]),
						uint32(length), window)
					if !bytes.Equal(mem, want) {
						t.Fatalf("%d bytes in %d blocks at %d: byte %d is wrong", length, n, tail, differ(mem, want))
					}
				}
			}
		}
	})
}

func TestPushInline(t *testing.T) {
	const c0, c1 = 0x8182838485868788, 0x9192939495969798
	eachEntry(t, 44, func(block, _ []byte) {
		binary.LittleEndian.PutUint64(block, c0)
		binary.LittleEndian.PutUint64(block[8:], c1)
	}, func(ring *SendRing, tail, n uint32, _, src unsafe.Pointer, length uint32, window unsafe.Pointer) {
		PushInline(ring, tail, n, src, length, c0, c1, window)
	})
}

func TestPushHeaded(t *testing.T) {
	eachEntry(t, 0, func(block, header []byte) { copy(block, header) }, PushHeaded)
}

func differ(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}

func TestStores(t *testing.T) {
	mem := arena(t, 4096)
	want := make([]byte, len(mem))
	rec, db32, db64 := (*uint32)(unsafe.Pointer(&mem[64])), (*uint32)(unsafe.Pointer(&mem[132])),
		(*uint64)(unsafe.Pointer(&mem[256]))
	rec2, w32, w64 := (*uint32)(unsafe.Pointer(&want[64])), (*uint32)(unsafe.Pointer(&want[132])),
		(*uint64)(unsafe.Pointer(&want[256]))
	for _, c := range []struct {
		name      string
		call, ref func()
	}{
		{"Store8", func() { Store8((*uint8)(unsafe.Pointer(db32)), 0x81) }, func() { *(*uint8)(unsafe.Pointer(w32)) = 0x81 }},
		{"Store16", func() { Store16((*uint16)(unsafe.Pointer(db32)), 0x8182) }, func() { *(*uint16)(unsafe.Pointer(w32)) = 0x8182 }},
		{"Store32", func() { Store32(db32, 0x81828384) }, func() { *w32 = 0x81828384 }},
		{"Store64", func() { Store64(db64, 0x8182838485868788) }, func() { *w64 = 0x8182838485868788 }},
		{"RingDoorbell", func() { RingDoorbell(rec, 0x91929394, db64, 0xa1a2a3a4a5a6a7a8) }, func() { *rec2, *w64 = 0x91929394, 0xa1a2a3a4a5a6a7a8 }},
		{"RingDoorbellWC", func() { RingDoorbellWC(rec, 0xb1b2b3b4, db64, 0xc1c2c3c4c5c6c7c8) }, func() { *rec2, *w64 = 0xb1b2b3b4, 0xc1c2c3c4c5c6c7c8 }},
		{"fences", func() { FenceWC(); WriteBarrier() }, func() {}},
	} {
		poison(mem, 3)
		poison(want, 3)
		c.call()
		c.ref()
		if !bytes.Equal(mem, want) {
			t.Errorf("%s: byte %d is wrong", c.name, differ(mem, want))
		}
	}
}

func TestNothingAllocates(t *testing.T) {
	mem := arena(t, 4096)
	rec, db := (*uint32)(unsafe.Pointer(&mem[0])), (*uint64)(unsafe.Pointer(&mem[64]))
	dst, src := unsafe.Pointer(&mem[1024]), unsafe.Pointer(&mem[2048])
	ring := SendRing{unsafe.Pointer(&mem[3072]), rec, 7}
	if n := testing.AllocsPerRun(100, func() {
		RingDoorbellWC(rec, 1, db, 2)
		PushWQE(&ring, 1, 1, dst, src, 2)
		PushInline(&ring, 1, 2, src, 64, 1, 2, dst)
		PushHeaded(&ring, 1, 2, src, src, 60, dst)
		CopyWC(dst, src, 1)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestCombined(t *testing.T) {
	if (Timing{Store: 50, Block: 400}).Combined() || !(Timing{Store: 50, Block: 60}).Combined() {
		t.Error("Combined confuses eight writes with one")
	}
}
