package mmio

import (
	"bytes"
	"encoding/binary"
	"fmt"
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

// arena returns memory from mmap, like that of drivers. Tests place source, destination and records in it, and compare all of it.
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

// TestCopyWC compares CopyWC with copy, for each method: all counts, all source alignments, destinations at several blocks, and
// no byte changed around the destination or in the source.
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
	ring := SendRing{Base: unsafe.Pointer(&mem[ringAt]), Record: (*uint32)(unsafe.Pointer(&mem[recAt])), Mask: ringBlocks - 1}
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
					PushWQE(&ring, tail, 0xc0ffee01, unsafe.Pointer(&mem[windowAt]), unsafe.Pointer(&mem[srcAt+align]), n)
					if !bytes.Equal(mem, want) {
						t.Fatalf("%d blocks at %d, source at +%d: byte %d is wrong", n, tail, align, differ(mem, want))
					}
				}
			}
		}
	})
}

// TestPushInline does the same for entries with inline data of every length, with and without a window, against a plain
// description of the entry. Bytes after the data are copied into the last block.
func TestPushInline(t *testing.T) {
	const ringAt, ringBlocks, windowAt, srcAt, c0, c1 = 1024, 8, 2048, 4096, 0x8182838485868788, 0x9192939495969798
	mem := arena(t, 8192)
	want := make([]byte, len(mem))
	ring := SendRing{Base: unsafe.Pointer(&mem[ringAt]), Mask: ringBlocks - 1}
	eachPush(t, func(t *testing.T) {
		for length := 1; length <= 44+(maxBlocks-1)*60; length++ {
			n := (length + 75) / 60
			for _, tail := range []uint32{0, 4, 5, 6, 7, 8, 1<<32 - 1} {
				for _, pushed := range []bool{true, false} {
					src := srcAt + length%64
					poison(mem, byte(length))
					copy(want, mem)
					for i, at, left := 0, src, length; i < n; i++ {
						block, head := want[ringAt+64*((tail+uint32(i))%ringBlocks):][:64], 0
						if i == 0 {
							binary.LittleEndian.PutUint64(block, c0)
							binary.LittleEndian.PutUint64(block[8:], c1)
							head = 16
						}
						size := 60 - head
						binary.BigEndian.PutUint32(block[head:], 1<<31|uint32(min(left, size)))
						copy(block[head+4:], mem[at:at+size])
						at, left = at+size, left-size
						if pushed {
							copy(want[windowAt+64*i:], block)
						}
					}
					window := unsafe.Pointer(&mem[windowAt])
					if !pushed {
						window = nil
					}
					PushInline(&ring, tail, uint32(n), unsafe.Pointer(&mem[src]), uint32(length), c0, c1, window)
					if !bytes.Equal(mem, want) {
						t.Fatalf("%d bytes in %d blocks at %d: byte %d is wrong", length, n, tail, differ(mem, want))
					}
				}
			}
		}
	})
}

func TestPushHeaded(t *testing.T) {
	const ringAt, ringBlocks, windowAt, srcAt, headAt = 1024, 8, 2048, 4096, 6144
	mem := arena(t, 8192)
	want := make([]byte, len(mem))
	ring := SendRing{Base: unsafe.Pointer(&mem[ringAt]), Mask: ringBlocks - 1}
	eachPush(t, func(t *testing.T) {
		for length := 1; length <= (maxBlocks-1)*60; length++ {
			n := 1 + (length+59)/60
			for _, tail := range []uint32{0, 4, 5, 6, 7, 8, 1<<32 - 1} {
				for _, pushed := range []bool{true, false} {
					src := srcAt + length%64
					poison(mem, byte(length))
					copy(want, mem)
					for i := range n {
						block := want[ringAt+64*((tail+uint32(i))%ringBlocks):][:64]
						if i == 0 {
							copy(block, mem[headAt:])
						} else {
							at := 60 * (i - 1)
							binary.BigEndian.PutUint32(block, 1<<31|uint32(min(length-at, 60)))
							copy(block[4:], mem[src+at:][:60])
						}
						if pushed {
							copy(want[windowAt+64*i:], block)
						}
					}
					window := unsafe.Pointer(&mem[windowAt])
					if !pushed {
						window = nil
					}
					PushHeaded(&ring, tail, uint32(n), unsafe.Pointer(&mem[headAt]), unsafe.Pointer(&mem[src]), uint32(length), window)
					if !bytes.Equal(mem, want) {
						t.Fatalf("%d bytes in %d blocks at %d: byte %d is wrong", length, n, tail, differ(mem, want))
					}
				}
			}
		}
	})
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
	rec, db32, db64 := (*uint32)(unsafe.Pointer(&mem[64])), (*uint32)(unsafe.Pointer(&mem[132])), (*uint64)(unsafe.Pointer(&mem[256]))
	rec2, w32, w64 := (*uint32)(unsafe.Pointer(&want[64])), (*uint32)(unsafe.Pointer(&want[132])), (*uint64)(unsafe.Pointer(&want[256]))
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

func BenchmarkPush(b *testing.B) {
	mem := arena(b, 8192)
	dst, src := unsafe.Pointer(&mem[1024]), unsafe.Pointer(&mem[4096])
	ring := SendRing{unsafe.Pointer(&mem[2048]), (*uint32)(unsafe.Pointer(&mem[0])), 7}
	best := pushWith
	defer func() { pushWith = best }()
	for p := Stores; p <= AVX2; p++ {
		if lacks(p) != "" {
			continue
		}
		pushWith = p
		for _, n := range []int{1, 2, 4} {
			b.Run(fmt.Sprintf("%s/CopyWC-%d", p, n), func(b *testing.B) {
				for b.Loop() {
					CopyWC(dst, src, n)
				}
			})
			b.Run(fmt.Sprintf("%s/PushWQE-%d", p, n), func(b *testing.B) {
				for b.Loop() {
					PushWQE(&ring, 0, 1, dst, src, n)
				}
			})
		}
	}
}

func BenchmarkDoorbell(b *testing.B) {
	mem := arena(b, 4096)
	rec, db := (*uint32)(unsafe.Pointer(&mem[0])), (*uint64)(unsafe.Pointer(&mem[64]))
	b.Run("Store32", func(b *testing.B) {
		for b.Loop() {
			Store32(rec, 1)
		}
	})
	b.Run("RingDoorbell", func(b *testing.B) {
		for b.Loop() {
			RingDoorbell(rec, 1, db, 2)
		}
	})
	b.Run("RingDoorbellWC", func(b *testing.B) {
		for b.Loop() {
			RingDoorbellWC(rec, 1, db, 2)
		}
	})
}
