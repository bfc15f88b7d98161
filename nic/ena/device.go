package ena

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"rebound/fastpath"
	"rebound/nic"
	"rebound/nic/bus/dma"
	"rebound/nic/bus/mmio"
	"rebound/nic/bus/pci"
	"rebound/nic/kit"
	"rebound/nic/kit/amazonadmin"
	"rebound/polling"
)

const (
	vendorAmazon = 0x1D0F
	minBAR       = 0x80 // the registers before the doorbells
	defaultRing  = 512
	minRing      = 64
	maxRing      = 4096
	minMTU       = 128 // ENA_MIN_MTU
)

var models = map[uint16]string{
	0x0EC2: "Amazon ENA",
	0x1EC2: "Amazon ENA (reserved memory)",
	0xEC20: "Amazon ENA VF",
	0xEC21: "Amazon ENA VF (reserved memory)",
}

// Options are what this driver alone takes. A zero field means the default.
type Options struct {
	// Push chooses how replies reach the device: "llq" (low-latency queues, an error where there are none) or "off"; ""
	// and "auto" stand for the best it has.
	Push string
	// PushMax is the longest frame in bytes that is to be pushed whole; 0 for as long as the device takes.
	PushMax int
}

func (o Options) check() error {
	switch o.Push {
	case "", "auto", "off", "llq":
	default:
		return fmt.Errorf("push mode %q is none of auto, llq, off", o.Push)
	}
	if o.PushMax < 0 {
		return fmt.Errorf("the longest frame to push is %d bytes, want 0 or more", o.PushMax)
	}
	return nil
}

// Supports reports whether the package drives a function with this identity, and under what name.
func Supports(id pci.ID) (name string, ok bool) {
	name, ok = models[id.Device]
	return name, ok && id.Vendor == vendorAmazon
}

// Device is an open ENA.
type Device struct {
	fn   pci.Function
	bar  *mmio.Window // registers and doorbells, BAR 0
	mem  *mmio.Window // LLQ entries, BAR 2; nil without LLQ
	log  *slog.Logger
	opt  nic.Options
	own  Options
	name string
	gate kit.Gate

	// What the device said of itself.
	version    string
	attr       deviceAttr
	mac        [6]byte
	mtu        int
	headerMax  uint32
	llq        *llqFeature // as it was set; nil without
	pushMax    int
	ring       int
	txRing     int
	features   []string // what could not be had, for Notes
	linkSpeed  int
	queues     []*Queue
	rxSQ       []uint16 // the receive SQs' indices, for RSS
	arena      *dma.Arena
	regs       *amazonadmin.Regs
	aq         *amazonadmin.Queue
	events     *amazonadmin.Events
	times      times
	infoMemory dma.Block
	control    dma.Block // one page for commands' control buffers
	controlMu  sync.Mutex
	watchdog   watchdog
	endWatch   chan struct{}
	ended      chan struct{}

	// life is held to restart the device, which gives its memory back, and shared by ReadStats and Link.
	life sync.RWMutex

	suspended atomic.Bool
	link      atomic.Bool
	eventMu   sync.Mutex // held to take events
	fatal     string     // what the device said of a fatal error

	statsMu sync.Mutex
	resets  [resetReasons]uint64
	base    totals // what the queues and the device counted before the last reset
}

// Open resets the device, programs it and starts its queues. It takes fn over: Close closes it, and so does an Open that
// fails. The link need not be up.
func Open(fn pci.Function, o nic.Options, own Options) (*Device, error) {
	d := &Device{fn: fn, opt: o, own: own, log: o.Log}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	err := d.open()
	if err != nil {
		return nil, errors.Join(err, d.release(), fn.Close())
	}
	d.endWatch, d.ended = make(chan struct{}), make(chan struct{})
	go d.watch()
	return d, nil
}

func (d *Device) open() (err error) {
	id := d.fn.ID()
	var ok bool
	if d.name, ok = Supports(id); !ok {
		return fmt.Errorf("ena %s: %w: %v is not an ENA", d.fn.Name(), nic.ErrNoDevice, id)
	}
	d.ring = d.opt.RingSize
	if d.ring == 0 {
		d.ring = defaultRing
	}
	if d.ring&(d.ring-1) != 0 || d.ring < minRing || d.ring > maxRing {
		return fmt.Errorf("ena %s: ring size %d is not a power of two within %d to %d", d.fn.Name(), d.ring, minRing, maxRing)
	}
	if err := d.own.check(); err != nil {
		return fmt.Errorf("ena %s: %w", d.fn.Name(), err)
	}
	if d.bar, err = d.fn.BAR(0); err != nil {
		return err
	}
	if d.bar.Size() < minBAR {
		return fmt.Errorf("ena %s: BAR 0 is %#x bytes, expected %#x or more", d.fn.Name(), d.bar.Size(), minBAR)
	}
	return d.start(resetNormal)
}

// start brings the device from any state to polling. It makes all memory anew: a device that was reset in mid-traffic may
// not find old addresses.
func (d *Device) start(reason uint32) error {
	// Quiet first: nothing that is released below may be written any more.
	if err := d.fn.SetBusMaster(false); err != nil {
		return err
	}
	if err := d.releaseMemory(); err != nil {
		return err
	}
	var err error
	if d.arena, err = dma.NewArena(d.fn, 1<<20); err != nil {
		return err
	}
	if d.regs, err = amazonadmin.NewRegs("ena "+d.fn.Name(), d.fn.ID().Revision, d.bar, d.arena); err != nil {
		return err
	}
	if err := d.fn.SetBusMaster(true); err != nil {
		return err
	}
	if err := d.startAdmin(reason); err != nil {
		return err
	}
	if err := d.identify(); err != nil {
		return err
	}
	if err := d.startQueues(); err != nil {
		return err
	}
	if err := d.startRSS(); err != nil {
		return err
	}
	d.watchdog.alive(time.Now())
	d.events.Start()
	return nil
}

// Info describes the device.
func (d *Device) Info() nic.Info {
	backend := nic.Silicon
	if d.fn.Simulated() {
		backend = nic.Sim
	}
	return nic.Info{
		Driver: "ena", Device: d.fn.Name(), Model: fmt.Sprintf("%s (%v), %s", d.name, d.fn.ID(), d.version),
		MAC: net.HardwareAddr(d.mac[:]).String(), MTU: d.mtu, Queues: len(d.queues), Backend: backend,
		Push: d.pushName(), Notes: d.notes(),
	}
}

func (d *Device) pushName() string {
	if d.llq == nil {
		return "host descriptors"
	}
	return fmt.Sprintf("llq %d", d.queues[0].entry)
}

func (d *Device) notes() []string {
	notes := slices.Concat(pci.Notes(d.fn), d.arena.Notes(), d.features)
	if d.llq == nil {
		return append(notes, "no low-latency queues in force: the device fetches descriptor and frame of every reply")
	}
	notes = append(notes, fmt.Sprintf("frames up to %d bytes are pushed whole by %v; of longer ones the first %d", d.pushMax,
		mmio.PushMethod(), d.pushMax))
	if !d.mem.WriteCombining() && !d.fn.Simulated() {
		notes = append(notes, "the device's memory is mapped uncached, not write-combining: each push costs a bus write for every "+
			"8 bytes or per store (stock vfio-pci maps it so); see docs/bring-up-ena.md")
	}
	return notes
}

// Queue returns the rings of queue n, for benchmarks and stepped tests that call Poll themselves.
func (d *Device) Queue(n int) *Queue { return d.queues[n] }

// Serve polls queue until stop is set.
func (d *Device) Serve(queue int, stop *atomic.Bool, r *fastpath.Responder) error {
	if queue < 0 || queue >= len(d.queues) {
		return fmt.Errorf("ena %s: queue %d of %d", d.fn.Name(), queue, len(d.queues))
	}
	if err := d.gate.Enter(); err != nil {
		return err
	}
	defer d.gate.Leave()
	q := d.queues[queue]
	t := polling.TSC()
	for !stop.Load() {
		n := 0
		if !d.suspended.Load() {
			n = q.Poll(r)
		}
		t = r.Loop.Pass(t, n)
		if d.gate.Closed() {
			if err := d.gate.Park(); err != nil {
				return err
			}
			t = polling.TSC()
		}
	}
	return nil
}

// maxFrame is the longest frame without FCS: header and two VLAN tags around the MTU.
func (d *Device) maxFrame() int { return d.mtu + 14 + 8 }

// Send pushes or posts a copy of frame on queue 0 now.
func (d *Device) Send(frame []byte) error {
	if err := nic.CheckFrame(frame, d.mtu); err != nil {
		return fmt.Errorf("ena %s: %w", d.fn.Name(), err)
	}
	if err := d.gate.Call(); err != nil {
		return err
	}
	if d.suspended.Load() || !d.queues[0].send(frame) {
		return nic.ErrFull
	}
	return nil
}

// Recv copies the next frame of queue 0 into buf.
func (d *Device) Recv(buf []byte) (n int, at int64, err error) {
	if err := d.gate.Call(); err != nil {
		return 0, 0, err
	}
	n, tsc := d.queues[0].recv(buf)
	switch {
	case n < 0:
		return 0, 0, nil
	case n > len(buf):
		return 0, 0, fmt.Errorf("ena %s: %w: a frame of %d bytes for a buffer of %d", d.fn.Name(), nic.ErrFrameSize, n, len(buf))
	}
	return n, int64(tsc), nil
}

// Link is what the device last reported; it says nothing before its first event.
func (d *Device) Link() (nic.Link, error) {
	d.life.RLock()
	defer d.life.RUnlock()
	if d.regs.Gone() {
		return nic.Link{}, fmt.Errorf("ena %s: %w: VERSION reads all ones", d.fn.Name(), nic.ErrGone)
	}
	d.serveEvents()
	if !d.link.Load() {
		return nic.Link{}, nil
	}
	return nic.Link{Up: true, Speed: d.linkSpeed}, nil
}

// Close stops the device and gives everything back.
func (d *Device) Close() error {
	close(d.endWatch)
	<-d.ended
	return errors.Join(d.release(), d.fn.Close())
}

// release quiets the device, by its own reset and by bus mastering off in case it does not listen, and frees its memory.
func (d *Device) release() error {
	if d.regs != nil && !d.regs.Gone() && !d.regs.Forgot() {
		if err := d.regs.Reset(resetShutdown); err != nil {
			d.log.Warn("reset at close failed", "err", err)
		}
	}
	if err := d.fn.SetBusMaster(false); err != nil && (d.bar == nil || d.regs == nil || !d.regs.Gone()) {
		d.log.Warn("bus mastering stays on", "err", err)
	}
	return d.releaseMemory()
}

func (d *Device) releaseMemory() error {
	if d.arena == nil {
		return nil
	}
	a := d.arena
	d.arena = nil
	return a.Close()
}

// block allocates DMA memory, growing the arena where it is full.
func (d *Device) block(size, align int) (dma.Block, error) {
	b, err := d.arena.Alloc(size, align)
	if errors.Is(err, dma.ErrNoRoom) {
		if err = d.arena.Grow(size + align); err == nil {
			b, err = d.arena.Alloc(size, align)
		}
	}
	if err == nil && d.attr.physBits != 0 && (b.IOVA+uint64(size)-1)>>d.attr.physBits != 0 {
		return b, fmt.Errorf("ena %s: DMA address %#x is beyond the device's %d bits", d.fn.Name(), b.IOVA, d.attr.physBits)
	}
	return b, err
}

func pointer(b dma.Block) unsafe.Pointer { return unsafe.Pointer(&b.Bytes[0]) }
