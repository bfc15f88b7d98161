package xdp

import (
	"encoding/binary"
	"unsafe"

	"github.com/cilium/ebpf"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/polling"
)

// compiler is the version of clang that built the committed object.
const compiler = "14.0.6"

// The program has the buckets of package polling, and room for fastpath's verdicts.
var (
	_ [polling.Buckets]uint64 = programCpuCounts{}.Turnaround.Counts
	_ [64 - fastpath.Verdicts]struct{}
)

const cpuSize = int(unsafe.Sizeof(programCpuCounts{}))

// Histogram is a program's recording: the number of values in each of polling's buckets, in nanoseconds, and the
// maximum.
type Histogram struct {
	Counts   [polling.Buckets]uint64
	Greatest uint64
}

// counts reads what the CPUs have counted, from memory that the kernel shares. It makes no system call.
type counts struct {
	memory *ebpf.Memory
	cpus   int
	buf    []byte
}

func newCounts(m *ebpf.Map) (*counts, error) {
	memory, err := m.Memory()
	if err != nil {
		return nil, err
	}
	return &counts{memory: memory, cpus: int(m.MaxEntries()), buf: make([]byte, 8*polling.Buckets)}, nil
}

// read reads the n words at offset of one CPU; they are valid until the next read.
func (c *counts) read(cpu int, offset uintptr, n int) []byte {
	b := c.buf[:8*n]
	if _, err := c.memory.ReadAt(b, int64(cpu*cpuSize)+int64(offset)); err != nil {
		panic(err) // the map has a fixed size
	}
	return b
}

// add adds the words at offset of every CPU to sum.
func (c *counts) add(offset uintptr, sum []uint64) {
	for cpu := range c.cpus {
		b := c.read(cpu, offset, len(sum))
		for j := range sum {
			sum[j] += binary.LittleEndian.Uint64(b[8*j:])
		}
	}
}

func (c *counts) verdicts() (s fastpath.Stats) {
	c.add(unsafe.Offsetof(programCpuCounts{}.Verdicts), s[:])
	return s
}

func (c *counts) bytes() (n [2]uint64) { // received, sent
	c.add(unsafe.Offsetof(programCpuCounts{}.RxBytes), n[:])
	return n
}

func (c *counts) turnaround() Histogram {
	return c.histogram(unsafe.Offsetof(programCpuCounts{}.Turnaround))
}

func (c *counts) delivery() Histogram {
	return c.histogram(unsafe.Offsetof(programCpuCounts{}.Delivery))
}

// histogram sums the histograms at offset of every CPU: struct histogram of state.h.
func (c *counts) histogram(offset uintptr) (h Histogram) {
	for cpu := range c.cpus {
		h.Greatest = max(h.Greatest, binary.LittleEndian.Uint64(c.read(cpu, offset, 1)))
	}
	c.add(offset+8, h.Counts[:])
	return h
}
