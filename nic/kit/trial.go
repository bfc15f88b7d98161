package kit

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/nic/bus/pci"
)

// MeasurePush reports whether a queue that pushes entries to a function's BAR measures how they leave the CPU: on
// arm64, where the kernel lists no memory types. Tests replace it.
var MeasurePush = func(fn pci.Function) bool { return runtime.GOARCH == "arm64" && !fn.Simulated() }

// trialEntries is how many entries a Trial times.
const trialEntries = 16

// Trial measures whether the window that holds a queue's entries combines stores. It sends nothing for that, because
// the devices that it is for have no empty entry: it times the queue's first entries. The loop writes them and their
// doorbells to memory in place of the window, from which Forward copies them. Thus the loop has no code for it.
type Trial struct {
	ring   unsafe.Pointer // in the device
	bell   *uint32
	stand  []byte // entries in memory
	word   uint32 // doorbell in memory
	entry  uint32 // bytes
	mask   uint32 // entries - 1
	sent   uint32 // forwarded entries
	timing mmio.Timing
}

// NewTrial returns a Trial for a ring of entries, a power of two, of entry bytes each, a multiple of 64. bell is its
// doorbell, to which 16 bits of the number of entries are written.
func NewTrial(ring unsafe.Pointer, bell *uint32, entries, entry uint32) *Trial {
	return &Trial{ring: ring, bell: bell, stand: make([]byte, entries*entry+mmio.BlockSize), entry: entry,
		mask: entries - 1}
}

// Stand returns what the loop uses in place of ring and doorbell.
func (t *Trial) Stand() (ring unsafe.Pointer, bell *uint32) {
	at := unsafe.Pointer(&t.stand[0])
	return unsafe.Add(at, -uintptr(at)&(mmio.BlockSize-1)), &t.word
}

// Forward copies the entries up to tail into the device and rings its doorbell for each. It returns what the loop has
// to use from now on, once enough entries were timed, and the times; nil before that.
func (t *Trial) Forward(tail uint32) (ring unsafe.Pointer, bell *uint32, timing *mmio.Timing) {
	from, _ := t.Stand()
	blocks := int(t.entry / mmio.BlockSize)
	for ; t.sent != tail; t.sent++ {
		at := uintptr(t.sent & t.mask * t.entry)
		last := at + uintptr(t.entry) - mmio.BlockSize
		if blocks > 1 {
			mmio.CopyWC(unsafe.Add(t.ring, at), unsafe.Add(from, at), blocks-1)
		}
		mmio.FenceWC()
		began := time.Now()
		mmio.CopyWC(unsafe.Add(t.ring, last), unsafe.Add(from, last), 1)
		mmio.FenceWC()
		stored := time.Now()
		mmio.Store32(t.bell, (t.sent+1)&0xFFFF)
		mmio.FenceWC()
		t.timing.Block = least(t.timing.Block, stored.Sub(began))
		t.timing.Store = least(t.timing.Store, time.Since(stored))
	}
	if t.sent < trialEntries {
		return nil, nil, nil
	}
	return t.ring, t.bell, &t.timing
}

func least(a, b time.Duration) time.Duration {
	if a == 0 {
		return b
	}
	return min(a, b)
}

// Measured is the result of a Trial. The loop sets it, others read it.
type Measured struct{ timing atomic.Pointer[mmio.Timing] }

// Set keeps the first result.
func (m *Measured) Set(t *mmio.Timing) { m.timing.CompareAndSwap(nil, t) }

// Check falls back from write combining in a BAR if it was measured that the BAR does not combine stores.
func (m *Measured) Check(c *Card, bar int) {
	if t := m.timing.Load(); t != nil && !t.Combined() && mmio.PushMethod() != mmio.MOVDIR64B {
		c.FallBack(fmt.Sprintf("write combining in BAR %d", bar),
			"uncached stores, one bus write for each 8 or 16 bytes", "measured: %s", times(t))
	}
}

// Notes describe the measurement.
func (m *Measured) Notes(bar int) []string {
	t := m.timing.Load()
	switch {
	case t == nil:
		return []string{fmt.Sprintf("whether BAR %d combines stores is measured with the first %d replies", bar,
			trialEntries)}
	case t.Combined():
		return []string{fmt.Sprintf("BAR %d combines stores, measured: %s", bar, times(t))}
	}
	return nil // Check fell back
}

func times(t *mmio.Timing) string {
	return fmt.Sprintf("64 bytes stored by %v took %v, a doorbell %v", mmio.PushMethod(), t.Block, t.Store)
}
