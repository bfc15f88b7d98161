package sim

import (
	"iter"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// host is the Host that a model sees. Its methods run with the port's lock held.
type host Port

func (h *host) DMARead(iova uint64, p []byte) error {
	h.counts.DMARead++
	return h.dmaAccess(iova, p, false)
}

func (h *host) DMAWrite(iova uint64, p []byte) error {
	h.counts.DMAWrite++
	return h.dmaAccess(iova, p, true)
}

// Peek reads host memory without counting a transaction, for checks that a real device does not make. Models find it by
// a type assertion.
func (h *host) Peek(iova uint64, p []byte) error {
	if h.space.command()&cmdBusMaster == 0 {
		return errNoBusMaster
	}
	return h.dma.access(iova, p, false)
}

// ForgetConfig resets configuration space, as devices do that have a reset register: memory space, bus mastering and
// MSI-X are off until a driver restores them. Models find it by a type assertion.
func (h *host) ForgetConfig() { (*Port)(h).forgetConfig() }

func (h *host) dmaAccess(iova uint64, p []byte, write bool) error {
	err := error(errNoBusMaster)
	if h.space.command()&cmdBusMaster != 0 {
		err = h.dma.access(iova, p, write)
	}
	// Removing a card turns bus mastering off while the card still works. Requests for pending events or frames then
	// end at the port, and no one is at fault. It is a violation once the driver writes to the device again.
	if err != nil && !(h.cut && err == errNoBusMaster) {
		h.Errorf("%v (IOVA %#x, %d bytes)", err, iova, len(p))
	}
	return err
}

type hostError string

func (e hostError) Error() string { return string(e) }

const errNoBusMaster = hostError("DMA while bus mastering is off")

func (h *host) Interrupt(v int) {
	h.counts.Interrupts++
	if h.rec != nil {
		(*Port)(h).event(Event{Kind: interruptEvent, Value: uint64(v)})
	}
	if h.irq != nil {
		h.irq(v)
	}
}

func (h *host) Shadow(bar int) []byte { return h.shadow[bar].mem }

func (h *host) Zero(bar int) {
	for _, r := range h.conf.BARs[bar].Polled {
		h.shadow[bar].zero(r)
	}
}

func (h *host) CountMMIOWrite(n int) {
	h.counts.MMIOWrite += uint64(n)
	if h.rec != nil {
		(*Port)(h).event(Event{Kind: storesEvent, Value: uint64(n)})
	}
}

func (h *host) Command(name string, status uint8, fields iter.Seq2[string, uint64]) {
	if h.rec != nil {
		(*Port)(h).command(name, status, fields)
	}
}

func (h *host) Transmit(frame []byte) {
	if h.wire != nil {
		h.wire.Send((*Port)(h).now(), frame)
	}
}

func (h *host) OnWire() bool {
	w, ok := h.wire.(interface{ OnWire() bool })
	return ok && w.OnWire()
}

func (h *host) Errorf(format string, args ...any) { (*Port)(h).violation(Error, format, args...) }
func (h *host) Warnf(format string, args ...any)  { (*Port)(h).violation(Warning, format, args...) }

func (h *host) Dropped(reason string) {
	if h.drops == nil {
		h.drops = map[string]uint64{}
	}
	h.drops[reason]++
}

func (h *host) Now() time.Duration { return (*Port)(h).now() }

func (p *Port) now() time.Duration {
	if p.started.IsZero() {
		return p.clock
	}
	return p.clock + time.Since(p.started)
}

// Connect plugs the wire in, or out if w is nil.
func (p *Port) Connect(w Wire) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wire = w
	p.look()
}

// look reports link changes to the model.
func (p *Port) look() {
	if up := p.wire != nil && p.wire.Up(); up != p.up {
		p.up = up
		p.model.SetLink(up)
	}
}

// Step advances the clock by one Tick unless the port runs freely, passes frames from the wire to the model, and steps
// the model. It reports whether there was any work. A frame that the wire still delays does not count.
func (p *Port) Step() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.started.IsZero() {
		p.clock += Tick
	}
	if p.budget == 0 {
		return false
	}
	p.look()
	arrived := p.arrived[:0]
	for len(arrived) < rxBurst && p.wire != nil {
		frame := p.wire.Recv(p.now())
		if frame == nil {
			break
		}
		arrived = append(arrived, frame)
	}
	// A card sees stores that the driver made before a frame was sent before it sees the frame, because posted writes
	// stay ordered. So the model checks its doorbells after the frames have left the wire and before it receives them.
	busy := p.model.Step()
	if len(arrived) == 0 {
		return busy
	}
	for i, frame := range arrived {
		p.model.Receive(frame)
		arrived[i] = nil
	}
	p.arrived = arrived
	p.model.Step()
	return true
}

// Hold runs f while the model is stopped. f must not call the port.
func (p *Port) Hold(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

// Settle steps until there is no more work, at most n times, and returns the number of steps.
func (p *Port) Settle(n int) int {
	for i := range n {
		if !p.Step() {
			return i + 1
		}
	}
	return n
}

// Start lets the port run freely on its own goroutine until Stop, with the machine's clock.
func (p *Port) Start() { p.start(rest) }

// StartRemote is Start for a driver in another process or a guest, which needs the processor itself: the port naps
// early, and for up to 2 ms, or 10 ms after two seconds without work: a guest of the lab has up to a dozen functions
// that wait while one is tested. A register access that arrives as a message does not wait for that.
func (p *Port) StartRemote() { p.start(restRemote) }

// StartWith is Start for a port that waits between two looks for work. The port's goroutine calls begin first.
func (p *Port) StartWith(begin, wait func()) {
	p.begin(func(end, ran chan struct{}) {
		defer close(ran)
		begin()
		for {
			select {
			case <-end:
				return
			default:
			}
			for range 16 { // what a fault holds back is work, too
				if !p.Step() {
					break
				}
			}
			wait()
		}
	})
}

// StartVirtual is Start in a bubble of testing/synctest, with the bubble's clock, which does not advance while a
// goroutine of the bubble runs. So timeouts of a driver expire at once and never early.
func (p *Port) StartVirtual() { p.start(restVirtual) }

func (p *Port) start(rest func(idle int)) {
	p.begin(func(end, ran chan struct{}) { p.spin(end, ran, rest) })
}

// begin has the machine's clock advance, and runs loop on a goroutine unless one runs.
func (p *Port) begin(loop func(end, ran chan struct{})) {
	p.run.Lock()
	defer p.run.Unlock()
	if p.end != nil {
		return
	}
	p.end, p.ran = make(chan struct{}), make(chan struct{})
	p.mu.Lock()
	p.started = time.Now()
	p.mu.Unlock()
	go loop(p.end, p.ran)
}

// Stop undoes Start. The clock stops.
func (p *Port) Stop() {
	p.run.Lock()
	defer p.run.Unlock()
	if p.end == nil {
		return
	}
	close(p.end)
	<-p.ran
	p.end = nil
	p.mu.Lock()
	p.clock, p.started = p.now(), time.Time{}
	p.mu.Unlock()
}

// spin steps until end is closed. It rests after each step without work.
func (p *Port) spin(end, ran chan struct{}, rest func(idle int)) {
	defer close(ran)
	for idle := 0; ; {
		select {
		case <-end:
			return
		default:
		}
		if p.Step() {
			idle = 0
			continue
		}
		rest(idle)
		idle++
	}
}

// rest yields the processor after idle steps without work: on few cores the driver under test needs it.
func rest(idle int) {
	switch {
	case idle < 1000:
		runtime.Gosched()
	case idle < 1200: // the next request may come soon, and time.Sleep takes a millisecond or more on an idle machine
		unix.Nanosleep(&unix.Timespec{Nsec: 50_000}, nil)
	default:
		time.Sleep(time.Millisecond)
	}
}

// restRemote is rest for StartRemote. Each nap is 10 µs longer than the last.
func restRemote(idle int) {
	switch {
	case idle < 20:
		runtime.Gosched()
	case idle < 1200:
		unix.Nanosleep(&unix.Timespec{Nsec: min(int64(idle)*10_000, 2_000_000)}, nil)
	default:
		unix.Nanosleep(&unix.Timespec{Nsec: 10_000_000}, nil)
	}
}

// restVirtual is rest for virtual time, which passes only in a sleep.
func restVirtual(idle int) {
	if idle < 100 {
		time.Sleep(Tick)
	} else {
		time.Sleep(100 * Tick)
	}
}
