package sim

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"time"
)

// Pauser is a model whose transmitter a test can pause, as a pause frame does (IEEE 802.3 annex 31B): the device keeps
// its descriptors, and fetches and sends nothing until the pause ends.
type Pauser interface{ Pause(on bool) }

// Faulty injects faults between a model and its host. With no fault set it changes nothing. Set the knobs between Steps
// of a port that does not run freely.
type Faulty struct {
	Model
	host faultyHost

	// Stalled freezes the device: writes are lost, and nothing is fetched, sent or received. Reads still return values.
	Stalled bool
	// LoseWrite drops a write to a BAR if it returns true.
	LoseWrite func(bar int, off uint64, p []byte) bool
}

// Inject wraps m. seed decides which bits flip.
func Inject(m Model, seed uint64) *Faulty {
	f := &Faulty{Model: m}
	f.host.rng = rand.New(rand.NewPCG(seed, 2))
	return f
}

// FlipWriteBacks flips one bit in one of every `every` DMA writes of at most max bytes: write-backs are short, frames
// are not. 0 disables it.
func (f *Faulty) FlipWriteBacks(every, max int) { f.host.flipEvery, f.host.flipMax = every, max }

// DelayDMA delays DMA writes and interrupts by d, in order. A DMA read of data that is still delayed waits for it, as
// on PCIe, where a read pushes earlier writes ahead of it.
func (f *Faulty) DelayDMA(d time.Duration) { f.host.delay = d }

// Pause pauses the model's transmitter. It reports whether the model supports that.
func (f *Faulty) Pause(on bool) bool {
	p, ok := f.Model.(Pauser)
	if ok {
		p.Pause(on)
	}
	return ok
}

// Raise raises interrupt vector v, even if the driver did not enable it.
func (f *Faulty) Raise(v int) { f.host.Interrupt(v) }

// Flipped returns how many writes had a bit flipped.
func (f *Faulty) Flipped() int { return f.host.flipped }

func (f *Faulty) Attach(h Host) {
	f.host.Host = h
	f.Model.Attach(&f.host)
}

// RegisterName returns the name that the wrapped model gives.
func (f *Faulty) RegisterName(bar int, off uint64) (string, binary.ByteOrder) {
	if n, ok := f.Model.(Namer); ok {
		return n.RegisterName(bar, off)
	}
	return "", binary.LittleEndian
}

func (f *Faulty) WriteBAR(bar int, off uint64, p []byte) error {
	if f.Stalled || f.LoseWrite != nil && f.LoseWrite(bar, off, p) {
		return nil
	}
	return f.Model.WriteBAR(bar, off, p)
}

func (f *Faulty) Step() bool {
	late := f.host.settle(false)
	return !f.Stalled && f.Model.Step() || late
}

func (f *Faulty) Receive(frame []byte) bool { return !f.Stalled && f.Model.Receive(frame) }

// Reset drops delayed writes and interrupts.
func (f *Faulty) Reset() {
	f.host.late = nil
	f.Model.Reset()
}

type faultyHost struct {
	Host
	rng                *rand.Rand
	flipEvery, flipMax int
	flipped            int
	delay              time.Duration
	late               []late
}

// late is a delayed DMA write, or a delayed interrupt if data is nil.
type late struct {
	due    time.Duration
	iova   uint64
	data   []byte
	vector int
}

// Peek reads host memory directly: the driver's stores are visible at once, however late the device's own writes are.
func (h *faultyHost) Peek(iova uint64, p []byte) error {
	if host, ok := h.Host.(interface {
		Peek(iova uint64, p []byte) error
	}); ok {
		return host.Peek(iova, p)
	}
	return errors.ErrUnsupported
}

func (h *faultyHost) DMAWrite(iova uint64, p []byte) error {
	if h.flipEvery > 0 && len(p) <= h.flipMax && h.rng.IntN(h.flipEvery) == 0 {
		p = append([]byte(nil), p...)
		bit := h.rng.IntN(8 * len(p))
		p[bit/8] ^= 1 << (bit % 8)
		h.flipped++
	}
	if h.delay == 0 && len(h.late) == 0 {
		return h.Host.DMAWrite(iova, p)
	}
	h.late = append(h.late, late{due: h.Now() + h.delay, iova: iova, data: append([]byte{}, p...)})
	return nil
}

func (h *faultyHost) DMARead(iova uint64, p []byte) error {
	for _, l := range h.late {
		if l.data != nil && iova < l.iova+uint64(len(l.data)) && l.iova < iova+uint64(len(p)) {
			h.settle(true)
			break
		}
	}
	return h.Host.DMARead(iova, p)
}

func (h *faultyHost) Interrupt(v int) {
	if h.delay == 0 && len(h.late) == 0 {
		h.Host.Interrupt(v)
		return
	}
	h.late = append(h.late, late{due: h.Now() + h.delay, vector: v})
}

// settle delivers what is due, or everything. It reports whether anything is or was delayed.
func (h *faultyHost) settle(all bool) bool {
	n := len(h.late)
	for len(h.late) > 0 && (all || h.late[0].due <= h.Now()) {
		l := h.late[0]
		h.late = h.late[1:]
		if l.data == nil {
			h.Host.Interrupt(l.vector)
		} else {
			_ = h.Host.DMAWrite(l.iova, l.data) // the host records the violation
		}
	}
	return n > 0
}

// Between runs f between two Steps and accesses of a driver, to inject faults while the port runs freely. f must not
// call methods of the port.
func (p *Port) Between(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}
