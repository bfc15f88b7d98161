package xdp

import (
	"encoding/binary"
	"structs"
	"unsafe"

	"github.com/cilium/ebpf"

	"rebound/fastpath"
	"rebound/polling"
)

// compiler is the version of clang that made the committed object.
const compiler = "14.0.6"

// clock is struct clock of responder.c.
type clock = struct {
	_             structs.HostLayout
	At            uint64
	Ntp           uint64
	Rate          uint64
	ErrorEstimate uint64
}

// The program's buckets are polling's, its verdicts fit.
var (
	_ [polling.Buckets]uint64 = programCpuCounts{}.Turnaround
	_ [64 - fastpath.Verdicts]struct{}
)

const cpuSize = int(unsafe.Sizeof(programCpuCounts{}))

// counts reads what the CPUs have counted, from memory that the kernel shares.
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
	return &counts{memory: memory, cpus: int(m.MaxEntries())}, nil
}

// add adds the n words at offset of every CPU to sum.
func (c *counts) add(offset uintptr, sum []uint64) {
	if len(c.buf) < 8*len(sum) {
		c.buf = make([]byte, 8*len(sum))
	}
	for i := range c.cpus {
		if _, err := c.memory.ReadAt(c.buf[:8*len(sum)], int64(i*cpuSize)+int64(offset)); err != nil {
			panic(err) // the map is as long as it was made
		}
		for j := range sum {
			sum[j] += binary.LittleEndian.Uint64(c.buf[8*j:])
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

// turnaround returns the sum of the histograms, and the greatest value, in nanoseconds.
func (c *counts) turnaround() (counts [polling.Buckets]uint64, greatest uint64) {
	c.add(unsafe.Offsetof(programCpuCounts{}.Turnaround), counts[:])
	var b [8]byte
	for i := range c.cpus {
		if _, err := c.memory.ReadAt(b[:], int64(i*cpuSize)+int64(unsafe.Offsetof(programCpuCounts{}.TurnaroundMax))); err != nil {
			panic(err)
		}
		greatest = max(greatest, binary.LittleEndian.Uint64(b[:]))
	}
	return counts, greatest
}
