package ena

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/kit"
	"github.com/rebound-nic/rebound/nic/kit/amazonadmin"
)

const (
	vendorAmazon = 0x1D0F
	minBAR       = 0x80 // the registers before the doorbells
)

// The device may allow less; Open queries it.
var limits = kit.Limits{
	Driver: "ena", Ring: 512, MinRing: 64, MaxRing: 4096,
	MinMTU: 128 /* ENA_MIN_MTU */, MaxMTU: 9216, Queues: 128,
}

var models = map[uint16]string{
	0x0051: "Amazon ENA (0051)",
	0x0EC2: "Amazon ENA",
	0x1EC2: "Amazon ENA (reserved memory)",
	0xEC20: "Amazon ENA VF",
	0xEC21: "Amazon ENA VF (reserved memory)",
}

// Options are the settings of this driver. A zero field selects the default.
type Options struct {
	// Push selects how replies reach the device: "llq" (low-latency queues; an error if there are none) or "off". ""
	// and "auto" select the best that the device supports.
	Push string
	// MaxInline is the longest frame in bytes that is pushed whole; 0 for the device's maximum.
	MaxInline int
	Debug     Debug
}

// Debug is for finding out why a device does not work. The zero Debug changes nothing.
type Debug struct {
	HostVersion uint32 // the driver version's major number in the host information; 0 for 2
	OSType      uint32 // the operating system there (ena_admin_os_type); 0 for Linux
	Vector      bool   // completion queues name interrupt vector 0, not all ones
	OmitMeta    bool   // no meta descriptor in LLQ entries, unless the device announces that it needs one
}

func (o Options) check() error { return kit.CheckPush(o.Push, o.MaxInline, "llq") }

// Supports reports whether the package drives a function with this identity, and returns its name.
func Supports(id pci.ID) (name string, ok bool) {
	name, ok = models[id.Device]
	return name, ok && id.Vendor == vendorAmazon
}

// Device is an open ENA.
type Device struct {
	card kit.Card
	own  Options
	bar  *mmio.Window // registers and doorbells, BAR 0
	mem  *mmio.Window // LLQ entries, BAR 2; nil without LLQ
	name string

	// Capabilities of the device, and the objects created on it.
	version   string
	attr      deviceAttr
	headerMax uint32
	llq       *llqFeature // as it was set; nil without
	noLLQ     string      // why
	// Why the device made no queue of wide entries, or of any in its memory: later starts do not try again.
	refusedWide, refusedLLQ string

	maxInline int
	ring      int
	ringAsked bool // or the device's maximum
	// entries of the shortest completion queue that the device made instead of a longer one; 0 if it made none
	cqMax      uint32
	txRing     int
	features   []string // missing features, for Notes
	linkSpeed  int
	queues     []*Queue
	trials     []*kit.Trial // of each queue's LLQ, nil when over
	measured   kit.Measured
	rxSQ       []uint16 // the receive SQs' indices, for RSS
	regs       *amazonadmin.Regs
	aq         *amazonadmin.Queue
	events     *amazonadmin.Events
	infoMemory dma.Block
	control    dma.Block // one page for commands' control buffers
	controlMu  sync.Mutex

	suspended atomic.Bool
	up        atomic.Bool
	watchdog  watchdog
	missed    []kit.Progress // transmits of each queue

	eventMu     sync.Mutex // held to read events
	times       times      // which an event may change
	fatal       string     // the device's report of a fatal error
	suspendedAt time.Time  // while suspended

	unknown atomic.Uint64 // events
}

// Open resets the device, programs it and starts its queues. It takes fn over: Close closes it, and so does an Open
// that fails. The link need not be up.
func Open(fn pci.Function, o nic.Options, own Options) (*Device, error) {
	d := &Device{own: own, ringAsked: o.RingSize != 0}
	if err := d.card.Open(fn, o, limits, kit.Hooks{Open: d.open, Check: d.check, Count: d.count, Stats: d.stats,
		Restart: d.restart, Release: d.release}); err != nil {
		return nil, err
	}
	return d, nil
}

func (d *Device) open() (err error) {
	if err := d.find(); err != nil {
		return err
	}
	d.ring = d.card.Options.RingSize
	if err := d.start(resetNormal); err != nil {
		return err
	}
	if now, err := d.count(); err == nil {
		d.card.Totals.Start(now) // what was counted before is not ours
	}
	return nil
}

// find checks the function's identity and the options, and finds the registers.
func (d *Device) find() (err error) {
	id := d.card.Fn.ID()
	var ok bool
	if d.name, ok = Supports(id); !ok {
		return d.card.Errorf("%w: %v is not an ENA", nic.ErrNoDevice, id)
	}
	if err := d.own.check(); err != nil {
		return d.card.Errorf("%w", err)
	}
	if d.bar, err = d.card.Fn.BAR(0); err != nil {
		return err
	}
	if d.bar.Size() < minBAR {
		return d.card.Errorf("BAR 0 is %#x bytes, expected %#x or more", d.bar.Size(), minBAR)
	}
	d.missed = make([]kit.Progress, d.card.Options.Queues)
	return nil
}

// start brings the device from any state to polling, by the fastest way to transmit that it does not refuse.
func (d *Device) start(reason uint32) (err error) {
	for err = d.tryStart(reason); errors.Is(err, errNextStep); err = d.tryStart(resetInit) {
		d.card.Log.Info("starting the device again", "why", err)
	}
	return err
}

// tryStart brings the device from any state to polling, unless it refuses a way to transmit.
func (d *Device) tryStart(reason uint32) error {
	var err error
	if d.regs, err = amazonadmin.Attach(&d.card, amazonadmin.ENA, d.bar); err != nil {
		return err
	}
	if err := d.card.Stages(
		kit.Stage{Name: "reset the device and start the admin queue", Do: func() error { return d.startAdmin(reason) }},
		kit.Stage{Name: "read features", Do: d.identify}, d.card.Evidence(d.evidence), kit.Learned,
		kit.Stage{Name: "create queues", Do: d.startQueues}); err != nil {
		return err
	}
	if err := d.card.Do("spread flows over the queues", d.startRSS); err != nil {
		return err
	}
	d.watchdog.alive(time.Now())
	d.events.Start()
	return nil
}

// Info describes the device.
func (d *Device) Info() (i nic.Info) {
	d.card.BetweenRestarts(func() {
		i = d.card.Info(fmt.Sprintf("%s (%v), %s", d.name, d.card.Fn.ID(), d.version), d.pushName(), d.notes()...)
	})
	return i
}

func (d *Device) pushName() string {
	if d.llq == nil {
		return "host descriptors"
	}
	return fmt.Sprintf("llq %d", d.queues[0].entry)
}

func (d *Device) notes() []string {
	notes := slices.Clone(d.features)
	if d.llq == nil {
		return append(notes, "no low-latency queues in force: the device fetches descriptor and frame of every reply")
	}
	notes = append(notes, fmt.Sprintf("frames up to %d bytes are pushed whole by %v; of longer ones the first %d",
		d.maxInline,
		mmio.PushMethod(), d.maxInline))
	if kit.MeasurePush(d.card.Fn) {
		notes = append(notes, d.measured.Notes(2)...)
	}
	return append(notes, d.notRecommended()...)
}

// Queue returns the rings of queue n, for benchmarks and stepped tests that call Poll themselves.
func (d *Device) Queue(n int) *Queue { return d.queues[n] }

// Serve polls queue until stop is set.
func (d *Device) Serve(queue int, stop *atomic.Bool, r *fastpath.Responder) error {
	if err := d.card.Enter(queue); err != nil {
		return err
	}
	defer d.card.Gate.Leave()
	q := d.queues[queue]
	t := r.Loop.Begin()
	for !stop.Load() {
		n := 0
		if !d.suspended.Load() {
			n = q.Poll(r)
		}
		if d.trials[queue] != nil {
			d.forward(queue)
		}
		t = r.Loop.Pass(t, n)
		if d.card.Gate.Closed() {
			if err := d.card.Gate.Park(); err != nil {
				return err
			}
			t = r.Loop.Begin()
		}
	}
	return nil
}

// Send pushes or posts a copy of frame on queue 0 now.
func (d *Device) Send(frame []byte) error {
	if err := d.card.Sending(frame); err != nil {
		return err
	}
	if d.suspended.Load() || !d.queues[0].send(frame) {
		return nic.ErrFull
	}
	if d.trials[0] != nil {
		d.forward(0)
	}
	return nil
}

// forward continues the trial of a queue's LLQ.
func (d *Device) forward(queue int) {
	q := d.queues[queue]
	llq, bell, timing := d.trials[queue].Forward(q.txRung)
	if timing == nil {
		return
	}
	q.llq, q.txDB, d.trials[queue] = llq, bell, nil
	d.measured.Set(timing)
}

// Recv copies the next frame of queue 0 into buf.
func (d *Device) Recv(buf []byte) (int, int64, error) {
	if err := d.card.Gate.Call(); err != nil {
		return 0, 0, err
	}
	n, at := d.queues[0].recv(buf)
	return d.card.Received(buf, n, at)
}

// Link returns the link state that the device last reported. Before its first event there is none.
func (d *Device) Link() (l nic.Link, err error) {
	err = d.card.Ask(func() error {
		if d.regs.Gone() {
			return d.card.Gone("VERSION")
		}
		d.eventMu.Lock()
		defer d.eventMu.Unlock()
		d.serveEvents()
		if d.up.Load() {
			l = nic.Link{Up: true, Speed: d.linkSpeed}
		}
		return nil
	})
	return l, err
}

// Close stops the device and releases everything.
func (d *Device) Close() error { return d.card.Close() }

// release quiets the device, by its own reset and by bus mastering off in case it does not listen, and frees its
// memory.
func (d *Device) release() error {
	// After a reset by another process bus mastering is off: the device is quiet, and cannot answer.
	if on, err := pci.BusMastering(d.card.Fn); d.regs != nil && err == nil && on && !d.regs.Gone() {
		d.regs.Announce() // any reset makes it forget where to answer
		if err := d.regs.Reset(resetShutdown); err != nil {
			d.card.Log.Warn("reset at close failed", "err", err)
		}
	}
	return d.card.Release()
}
