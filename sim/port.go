package sim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic/bus/dma"
)

// Tick is how far one Step advances the clock of a port that is not free-running.
const Tick = time.Microsecond

// rxBurst bounds how many frames one Step takes from the wire.
const rxBurst = 64

// Options are the options of a Port.
type Options struct {
	Name string // "ixgbe"; the function's name is "sim:ixgbe"
	Seed uint64 // chooses the IOVA bases; 0 for a random seed
}

// Port hosts one Model: it serialises calls, keeps configuration space, DMA mappings and shadow memory, and connects
// the model to a Wire. A driver in this process opens a Function; package vfioserver serves the port to other
// processes. All methods may be called from any goroutine.
type Port struct {
	name string

	mu      sync.Mutex
	model   Model
	conf    Config
	space   space
	dma     table
	rng     *rand.Rand
	shadow  [6]shadow
	msix    []byte // the MSI-X table as the driver last wrote it, 16 bytes per vector
	wire    Wire
	arrived [][]byte // frames of one Step, between the wire and the model
	up      bool     // link state last reported to the model
	counts  Counts
	faults  []violation       // oldest first
	dropped [2]int            // violations beyond maxViolations, by grade
	drops   map[string]uint64 // frames that the device dropped, by reason
	rec     *recorder         // nil unless StartTrace was called
	irq     func(v int)
	clock   time.Duration
	owner   *Function // in this process, while open
	started time.Time // when Start was called; the zero time while stepped
	budget  int       // accesses until the device is unplugged; negative for no limit
	closed  bool
	open    bool // open by a Function or a vfio-user client
	cut     bool // bus mastering was turned off, and the driver has written to no BAR since

	run sync.Mutex // held by Start and Stop
	end chan struct{}
	ran chan struct{}
}

type shadow struct {
	mem []byte
	fd  int
}

// zero clears a range by returning its pages to the kernel: of megabytes of doorbells, few are ever written.
func (s *shadow) zero(r Range) {
	if unix.Fallocate(s.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(r.Off), int64(r.Len)) != nil {
		clear(s.mem[r.Off : r.Off+r.Len])
	}
}

// ErrOpen means that another driver has opened the port.
var ErrOpen = errors.New("sim: function is open already")

// New returns a powered-on port for m.
func New(m Model, o Options) (*Port, error) {
	if o.Seed == 0 {
		o.Seed = rand.Uint64()
	}
	p := &Port{name: o.Name, model: m, conf: m.Config(), rng: rand.New(rand.NewPCG(o.Seed, 1)), budget: -1}
	var err error
	if p.space, err = newSpace(p.conf); err != nil {
		return nil, fmt.Errorf("sim:%s: %w", o.Name, err)
	}
	p.msix = make([]byte, 16*p.conf.MSIXVectors)
	for i := range p.conf.BARs {
		if err := p.newShadow(i); err != nil {
			p.freeShadow()
			return nil, fmt.Errorf("sim:%s: %w", o.Name, err)
		}
	}
	m.Attach((*host)(p))
	p.reset()
	return p, nil
}

func (p *Port) newShadow(bar int) error {
	b := p.conf.BARs[bar]
	p.shadow[bar].fd = -1
	for _, r := range b.Polled {
		if r.Off+r.Len > b.Size || r.Off+r.Len < r.Off {
			return fmt.Errorf("BAR %d of %#x bytes has a polled range %#x+%#x", bar, b.Size, r.Off, r.Len)
		}
	}
	if len(b.Polled) == 0 {
		return nil
	}
	size := (b.Size + 0xfff) &^ 0xfff
	fd, err := unix.MemfdCreate("rebound-bar", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return fmt.Errorf("shadow memory of BAR %d: %w", bar, err)
	}
	if err = unix.Ftruncate(fd, int64(size)); err == nil {
		// Processes that map the file can rely on its size.
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL)
	}
	if err == nil {
		var mem []byte
		if mem, err = unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
			p.shadow[bar] = shadow{mem: mem[:b.Size], fd: fd}
			return nil
		}
	}
	unix.Close(fd)
	return fmt.Errorf("shadow memory of BAR %d, %#x bytes: %w", bar, size, err)
}

func (p *Port) freeShadow() {
	for i := range p.shadow {
		if s := &p.shadow[i]; s.mem != nil {
			unix.Munmap(s.mem[:cap(s.mem)])
			unix.Close(s.fd)
			*s = shadow{fd: -1}
		}
	}
}

// Name returns the function's name: "sim:" and the model's name.
func (p *Port) Name() string { return "sim:" + p.name }

// Config returns the model's Config.
func (p *Port) Config() Config { return p.conf }

// Close stops the port, drops its driver and frees its shadow memory. Drivers must no longer use pointers into a BAR.
// The wire stays open.
func (p *Port) Close() error {
	p.Stop()
	p.Drop()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.budget = 0
	p.freeShadow()
	return nil
}

// Reset performs a function-level reset: configuration space and model return to their defaults, mappings stay.
func (p *Port) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reset()
}

func (p *Port) reset() {
	if p.closed {
		return
	}
	p.forgetConfig()
	for i := range p.conf.BARs {
		(*host)(p).Zero(i)
	}
	if p.rec != nil {
		p.event(Event{Kind: resetEvent})
		p.rec.stale = true
	}
	p.model.Reset()
	p.model.SetLink(p.up)
}

func (p *Port) forgetConfig() {
	p.cut = false
	p.space.reset()
	clear(p.msix)
	for i := 0; i < len(p.msix); i += 16 {
		p.msix[i+12] = 1 // Vector Control: masked (PCIe 6.0 §7.7.2.8)
	}
}

// Drop does what the kernel does to a function whose process died: bus mastering off, all mappings removed, function
// reset. The port can then be opened again.
func (p *Port) Drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.space.setCommand(cmdBusMaster, false)
	p.dma.drop()
	p.irq = nil
	p.reset()
	p.open = false
	if p.owner != nil {
		p.owner.orphan.Store(true)
		p.owner = nil
	}
}

// Acquire reserves the port for one driver until Drop. It returns ErrOpen if another has it.
func (p *Port) Acquire() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open {
		return ErrOpen
	}
	p.open = true
	return nil
}

// Unplug removes the device from its slot: every read yields all ones, every write is lost, and the device does nothing
// more.
func (p *Port) Unplug() { p.UnplugAfter(0) }

// UnplugAfter unplugs the device after n more accesses to BARs and configuration space.
func (p *Port) UnplugAfter(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.budget = n
}

// present counts one access and reports whether the device is still plugged in.
func (p *Port) present() bool {
	if p.budget > 0 {
		p.budget--
		return true
	}
	return p.budget < 0
}

// SetInterrupt sets the function that is called for interrupts, with the port's lock held; nil for none.
func (p *Port) SetInterrupt(f func(v int)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.irq = f
}

// ReadBAR is one read by the driver. It fails only if the access itself is impossible: a bad size, or outside of the
// BAR. Everything that the model rejects is a violation and reads as all ones.
func (p *Port) ReadBAR(bar int, off uint64, b []byte) error {
	if err := p.checkBAR(bar, off, b); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts.MMIORead++
	if !p.present() {
		ones(b)
		return nil
	}
	if !p.space.decodes() {
		ones(b)
		p.violation(Error, "read of %s while memory space is disabled", p.where(bar, off))
		return nil
	}
	if mem := p.msixAt(bar, off, len(b)); mem != nil {
		copy(b, mem)
		return nil
	}
	err := p.model.ReadBAR(bar, off, b)
	if err != nil && gradeOf(err) == Error {
		ones(b)
	}
	if p.rec != nil {
		p.access(readEvent, bar, off, b)
	}
	if err != nil {
		p.violation(gradeOf(err), "read of %s: %v", p.where(bar, off), err)
	}
	return nil
}

// WriteBAR is one write by the driver. It fails like ReadBAR.
func (p *Port) WriteBAR(bar int, off uint64, b []byte) error {
	if err := p.checkBAR(bar, off, b); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts.MMIOWrite++
	if !p.present() {
		return nil
	}
	if p.rec != nil {
		p.access(writeEvent, bar, off, b)
	}
	if !p.space.decodes() {
		p.violation(Error, "write of %s while memory space is disabled", p.written(bar, off, b))
		return nil
	}
	if mem := p.msixAt(bar, off, len(b)); mem != nil {
		copy(mem, b)
		return nil
	}
	p.cut = false
	if p.polled(bar, off, uint64(len(b))) {
		copy(p.shadow[bar].mem[off:], b)
	}
	if err := p.model.WriteBAR(bar, off, b); err != nil {
		p.violation(gradeOf(err), "write of %s: %v", p.written(bar, off, b), err)
	}
	return nil
}

func (p *Port) checkBAR(bar int, off uint64, b []byte) error {
	n := uint64(len(b))
	if n != 1 && n != 2 && n != 4 && n != 8 || off%n != 0 {
		return fmt.Errorf("%s: access of %d bytes at %#x in BAR %d", p.Name(), n, off, bar)
	}
	if bar < 0 || bar > 5 || off >= p.conf.BARs[bar].Size {
		return fmt.Errorf("%s: access at %#x in BAR %d, which ends before", p.Name(), off, bar)
	}
	return nil
}

// polled reports whether n bytes at off of the BAR are in a range that the model polls.
func (p *Port) polled(bar int, off, n uint64) bool {
	for _, r := range p.conf.BARs[bar].Polled {
		if off >= r.Off && off+n <= r.Off+r.Len {
			return true
		}
	}
	return false
}

// msixAt returns the part of the MSI-X table or of the pending bits that the access covers, or nil.
func (p *Port) msixAt(bar int, off uint64, n int) []byte {
	if p.conf.MSIXVectors == 0 || bar != p.conf.MSIXBAR {
		return nil
	}
	if i := int64(off) - int64(p.conf.MSIXTable); i >= 0 && i < int64(len(p.msix)) {
		return p.msix[i : i+int64(n)]
	}
	if i := int64(off) - int64(p.conf.MSIXPBA); i >= 0 && i < int64((p.conf.MSIXVectors+63)/64*8) {
		return make([]byte, n) // never pending: interrupts are delivered at once
	}
	return nil
}

// Map maps memory for the device at iova. It fails if it overlaps another mapping.
func (p *Port) Map(iova uint64, m Mapping) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dma.add(iova, m)
}

// MapAnywhere is Map at a random address.
func (p *Port) MapAnywhere(m Mapping) (iova uint64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for range 1000 {
		// Above 4 GiB and below 2^47, so that a driver that truncates an address to 32 bits or sign-extends it fails.
		iova = (p.rng.Uint64N(1<<47-1<<33) + 1<<32) &^ (1<<21 - 1)
		if err = p.dma.add(iova, m); err == nil {
			return iova, nil
		}
	}
	return 0, err
}

// Unmap removes all mappings within size bytes from iova and returns their total size. It fails, and removes nothing,
// if a mapping lies only partly in the range.
func (p *Port) Unmap(iova, size uint64) (uint64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dma.remove(iova, size)
}

// UnmapAll removes every mapping.
func (p *Port) UnmapAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dma.drop()
}

// Mappings returns the number of DMA mappings: 0 after a driver closed.
func (p *Port) Mappings() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.dma.maps)
}

// LinkUp reports whether the model was last told that its link is up.
func (p *Port) LinkUp() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.up
}

// BusMaster reports whether the device may do DMA.
func (p *Port) BusMaster() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.space.command()&cmdBusMaster != 0
}

// ShadowFD returns the memfd behind a BAR's shadow memory, which has the BAR's size in whole pages, or -1 if no range
// of the BAR is polled. The port keeps ownership.
func (p *Port) ShadowFD(bar int) int { return p.shadow[bar].fd }

// Counts returns the PCIe transactions so far.
func (p *Port) Counts() Counts {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts
}

func ones(b []byte) {
	for i := range b {
		b[i] = 0xff
	}
}

// Counts are PCIe transactions by kind, as the device sees them.
type Counts struct {
	MMIORead   uint64 `json:"mmio_read"`
	MMIOWrite  uint64 `json:"mmio_write"`
	DMARead    uint64 `json:"dma_read"`
	DMAWrite   uint64 `json:"dma_write"`
	Interrupts uint64 `json:"interrupts"`
}

// Since returns the difference to an earlier count.
func (c Counts) Since(old Counts) Counts {
	return Counts{c.MMIORead - old.MMIORead, c.MMIOWrite - old.MMIOWrite, c.DMARead - old.DMARead,
		c.DMAWrite - old.DMAWrite, c.Interrupts - old.Interrupts}
}

var _ dma.Mapper = (*Function)(nil)
