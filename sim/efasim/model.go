package efasim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/amazon"
	"github.com/rebound-nic/rebound/sim/parts"
)

// Options describes an adapter and its faults. The zero value with a MAC is a healthy EFA1.
type Options struct {
	MAC     [6]byte // the GID is the link-local address derived from it (RFC 4291)
	Profile Profile // the zero value for EFA1
	Seed    uint64  // decides the order of completions and frames

	Vectors     int    // MSI-X vectors; 0 for 33: one for management and one per EQ
	Unsupported uint64 // features (bits) that are not offered
	Width       int    // DMA address bits; 0 for 48
	Version     uint32 // VERSION; 0 for 0.1
	Controller  uint32 // CONTROLLER_VERSION; 0 for 0.0.1
	NotReady    bool   // DEV_STS.READY stays clear
	Hints       Hints

	AdminDelay      time.Duration // from an admin command to its completion
	AdminOutOfOrder bool

	InOrder    bool          // SRD frames of one Step leave in order
	Retransmit time.Duration // before SRD sends a frame again, doubled each time; 0 for 5 ms
	Timeout    time.Duration // after which it gives up; 0 for 1 s
	RNRDelay   time.Duration // before a receiver that was not ready is tried again; 0 for 500 us
	Recorded   parts.Answers // answers of a real device; nil for those of the model
	Busy       bool          // a Step that only waits for acknowledgements counts as work, for Settle
}

// Hints is efa_admin_hw_hints, in milliseconds. Zero leaves the choice to the driver. Linux uses AdminTimeout as
// microseconds, so any other value makes it time out.
type Hints struct{ MMIOReadTimeout, Watchdog, AdminTimeout, PollInterval uint16 }

// options are the Options and values derived from them.
type options struct {
	Options
	doorbells int    // BAR
	llq       uint64 // bytes of LLQ memory
}

// Model is one adapter. It implements sim.Model. Knobs may be set from any goroutine at any time.
type Model struct {
	amazon.Controller
	opt options
	gid [16]byte

	deaf, forgetful bool
	count           Counters

	pds        []pd
	uars       []uar
	ahs        []ah
	cqs        []cq
	eqs        []eq
	qps        []qp
	liveQPs    []int // those that Step handles
	liveCQs    []int
	llq        []bool         // pages of BAR 2 in use
	mrs        map[uint32]*mr // by local key, see addMR
	nextKey    uint32
	generation uint16

	clock, last time.Duration // of retransmissions, and the host's at the last Step: see stepClock
	heard       bool          // frames arrived since the last Step

	epoch     uint32
	peers     map[[16]byte]*peer
	peerOrder []*peer // in the order of their first frame
	ops       []*op
	loop      [][]byte
	out       []outgoing
}

// New returns an adapter that is not yet powered on.
func New(o Options) *Model {
	if o.Profile.Device == 0 {
		o.Profile = EFA1
	}
	def := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	def(&o.Retransmit, 5*time.Millisecond)
	def(&o.Timeout, time.Second)
	def(&o.RNRDelay, 500*time.Microsecond)
	if o.Vectors == 0 {
		o.Vectors = 1 + maxEQ
	}
	if o.Width == 0 {
		o.Width = 48
	}
	if o.Version == 0 {
		o.Version = 1
	}
	if o.Controller == 0 {
		o.Controller = 1
	}
	m := &Model{opt: options{o, o.Profile.Doorbells, llqMemory}, gid: gidOf(o.MAC), epoch: rand.Uint32()}
	m.Init(amazon.Card{
		Registers: regTable, Command: command, Features: featNames,
		// no admin timeout: a slow host needs the driver's own
		Version: o.Version, Controller: o.Controller, Width: o.Width,
		Vectors:  m.vectors(),
		NotReady: o.NotReady, AdminDelay: o.AdminDelay, AdminOutOfOrder: o.AdminOutOfOrder, Recorded: o.Recorded,
		Clear: m.clear, Execute: m.execute, Write: m.write, InReset: m.inReset,
		KeepAlive: func() amazon.Event { return amazon.Event{Group: amazon.GroupKeepAlive} },
	}, rand.New(rand.NewPCG(o.Seed, 7)))
	return m
}

func (m *Model) vectors() int { return m.opt.Vectors }

// uarBase returns the offset of the doorbell pages in their BAR.
func (m *Model) uarBase() uint64 {
	switch m.opt.doorbells {
	case 0:
		return 0x40000
	case 2:
		return m.opt.llq
	}
	return 0
}

// Config returns the function's configuration space.
func (m *Model) Config() sim.Config {
	const uars = maxUAR * uarSize
	c := sim.Config{
		Vendor: 0x1d0f, Device: m.opt.Profile.Device, SubVendor: 0x1d0f, SubDevice: m.opt.Profile.Device,
		Class:       0x020000,
		MSIXVectors: m.vectors(), MSIXBAR: 0, MSIXTable: msixTable, MSIXPBA: msixPBA,
		PCIeDevCap: 1<<28 | 1<<15 | 2, LinkSpeed: 3, LinkWidth: 16,
	}
	c.BARs[0] = sim.BAR{Size: amazon.BARSize}
	c.BARs[2] = sim.BAR{Size: m.opt.llq, Is64: true, Prefetchable: true, Polled: []sim.Range{{Len: m.opt.llq}}}
	pages := sim.Range{Off: m.uarBase(), Len: uars}
	switch m.opt.doorbells {
	case 0:
		c.BARs[0] = sim.BAR{Size: 0x80000, Polled: []sim.Range{pages}}
	case 2:
		c.BARs[2].Size *= 2
		c.BARs[2].Polled = append(c.BARs[2].Polled, pages)
	default:
		c.BARs[4] = sim.BAR{Size: uars, Polled: []sim.Range{pages}}
	}
	return c
}

// clear resets the card's own state. Keys, queue numbers and the epoch continue, so that leftovers from before the
// reset match nothing.
func (m *Model) clear() {
	m.pds, m.uars, m.ahs = zeroed(m.pds, maxPD), zeroed(m.uars, maxUAR), zeroed(m.ahs, maxAH)
	m.cqs, m.eqs, m.qps = zeroed(m.cqs, maxCQ), zeroed(m.eqs, maxEQ), zeroed(m.qps, maxQP)
	m.liveQPs, m.liveCQs = nil, nil
	m.llq = zeroed(m.llq, int(m.opt.llq/pageSize))
	m.mrs = map[uint32]*mr{}
	m.epoch++
	m.peers, m.peerOrder, m.ops, m.loop, m.out = map[[16]byte]*peer{}, nil, nil, nil, nil
	m.Host.Zero(2)
	m.Host.Zero(m.opt.doorbells)
}

// zeroed returns a table of n zero entries in the memory of table.
func zeroed[T any](table []T, n int) []T {
	if len(table) != n {
		return make([]T, n)
	}
	clear(table)
	return table
}

// SetLink does nothing: the device reports no link, and its port is always active.
func (m *Model) SetLink(bool) {}

// ReadBAR reads a register. All registers are 32 bits wide.
func (m *Model) ReadBAR(bar int, off uint64, p []byte) error {
	m.Lock()
	defer m.Unlock()
	switch {
	case m.isBell(bar, off):
		return fmt.Errorf("doorbells are write only")
	case bar == 2:
		return fmt.Errorf("LLQ memory is write only")
	case bar != 0:
		return fmt.Errorf("BAR %d has doorbells and nothing else", bar)
	case len(p) != 4:
		return fmt.Errorf("access of %d bytes: registers have 4", len(p))
	case off >= amazon.BARSize:
		return fmt.Errorf("no such register")
	}
	v, err := m.ReadRegister(amazon.Reg(off))
	le.PutUint32(p, v)
	return err
}

func (m *Model) isBell(bar int, off uint64) bool {
	return bar == m.opt.doorbells && off >= m.uarBase() && off < m.uarBase()+maxUAR*uarSize
}

// WriteBAR writes a register, a doorbell or LLQ memory.
func (m *Model) WriteBAR(bar int, off uint64, p []byte) error {
	m.Lock()
	defer m.Unlock()
	switch {
	case m.isBell(bar, off) && len(p) != 4:
		return fmt.Errorf("access of %d bytes: doorbells have 4", len(p))
	case m.isBell(bar, off):
		return m.ring(off, le.Uint32(p))
	case bar == 2:
		return m.pushed(off, p)
	case bar != 0:
		return fmt.Errorf("BAR %d has doorbells and nothing else", bar)
	case len(p) != 4:
		return fmt.Errorf("access of %d bytes: registers have 4", len(p))
	case off >= amazon.BARSize:
		return fmt.Errorf("no such register")
	}
	return m.WriteRegister(amazon.Reg(off), le.Uint32(p))
}

// write handles a write to one of the card's own registers.
func (m *Model) write(r amazon.Reg, v uint32) (own bool, err error) {
	if r == regEQDB {
		return true, m.eqDoorbell(v)
	}
	return false, nil
}

// inReset ignores acknowledgements of an interrupt handler from before a reset.
func (m *Model) inReset(r amazon.Reg) (allowed, lost bool) {
	return r == amazon.RegINTRMASK, r == regEQDB
}

// Step advances the adapter.
func (m *Model) Step() bool {
	m.Lock()
	defer m.Unlock()
	busy, running := m.Controller.Step()
	if !running {
		return busy
	}
	m.stepClock()
	busy = m.stepDoorbells() || busy
	for _, i := range m.liveQPs {
		busy = m.stepSQ(&m.qps[i]) || busy
	}
	busy = m.stepLoop() || busy
	busy = m.stepOps() || busy
	m.flushWire()
	return busy
}

// stepDoorbells finds doorbells that were rung by pointer, those of send queues first. A driver posts buffers, and
// reports what it has consumed, before it sends, so whatever it rang before a send that is seen here is seen after it.
func (m *Model) stepDoorbells() (busy bool) {
	shadow := m.Host.Shadow(m.opt.doorbells)
	look := func(off uint64, last uint32, ring func(v uint32) error) {
		if v := sim.Load32(shadow[off:]); v != last {
			busy = true
			m.Host.CountMMIOWrite(1)
			m.report(ring(v))
		}
	}
	for _, i := range m.liveQPs {
		q := &m.qps[i]
		look(m.sqBell(i), q.sq.bell, func(v uint32) error { return m.sqDoorbell(q, v, false) })
	}
	for _, i := range m.liveQPs {
		q := &m.qps[i]
		look(m.rqBell(i), q.rq.bell, func(v uint32) error { return m.rqDoorbell(q, v) })
	}
	for _, i := range m.liveCQs {
		if q := &m.cqs[i]; q.hasBell {
			look(m.cqBell(i), q.bell, func(v uint32) error { return m.cqDoorbell(i, v) })
		}
	}
	return busy
}

// setBell sets the stored value of a doorbell without ringing it.
func (m *Model) setBell(off uint64, v uint32) {
	le.PutUint32(m.Host.Shadow(m.opt.doorbells)[off:], v)
}

// report records a violation that has no caller to return to.
func (m *Model) report(err error) { sim.Report(m.Host, err) }
