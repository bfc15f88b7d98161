package efa

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/bus/verbs"
	"github.com/rebound-nic/rebound/nic/kit"
)

const (
	vendorAmazon = 0x1D0F
	minBAR       = 0x6C // the registers up to EQ_DB
)

// The device's limits for these are known only after querying it. A ring is that of one queue pair.
var limits = kit.Limits{Driver: "efa", Ring: 256, MinRing: 32, MaxRing: 4096, MinMTU: 64, MaxMTU: 1<<16 - 1 - grh,
	Queues: 64}

// DefaultQKey is the Q_Key of ibv_ud_pingpong and perftest.
const DefaultQKey = 0x11111111

var models = map[uint16]string{
	0xEFA0: "Amazon EFA (efa0)",
	0xEFA1: "Amazon EFA (efa1)",
	0xEFA2: "Amazon EFA (efa2)",
	0xEFA3: "Amazon EFA (efa3)",
	0xEFA4: "Amazon EFA (efa4)",
}

// Options are the settings of this driver. A zero field selects the default.
type Options struct {
	// Push is "off" to make the device fetch every message from memory; "" and "auto" push messages that fit. Queue
	// entries are pushed in any case, because an EFA accepts them in no other way.
	Push string
	// MaxInline is the longest message in bytes that is pushed completely; 0 for the device's maximum.
	MaxInline int
	// Services are the queue pairs of each queue, in this order; UD and SRD echo if nil.
	Services []nic.Service
	QKey     uint32 // of all queue pairs; DefaultQKey if zero
}

func (o *Options) check() error {
	if err := kit.CheckPush(o.Push, o.MaxInline); err != nil {
		return err
	}
	if o.Services == nil {
		o.Services = []nic.Service{nic.EchoUD, nic.EchoSRD}
	}
	if len(o.Services) == 0 || len(o.Services) > maxPairs {
		return fmt.Errorf("%d services asked for, 1 to %d are possible", len(o.Services), maxPairs)
	}
	for i, s := range o.Services {
		if s >= nic.Services || slices.Contains(o.Services[:i], s) {
			return fmt.Errorf("%v is no service, or there twice", s)
		}
	}
	if o.QKey == 0 {
		o.QKey = DefaultQKey
	}
	return nil
}

// Supports reports whether the package drives a function with this identity, and returns its name.
func Supports(id pci.ID) (name string, ok bool) {
	name, ok = models[id.Device]
	return name, ok && id.Vendor == vendorAmazon
}

// Device is an open EFA.
type Device struct {
	card    kit.Card
	control control
	own     Options
	name    string

	// Information from the device, and the objects created on it.
	version  string
	attr     deviceAttr
	queue    queueAttr1
	inline   uint32 // maximum bytes in a queue entry
	gid      netip.Addr
	ring     int
	sqDepth  uint32
	entry    uint32
	narrow   bool     // it refused entries of 128 bytes
	features []string // features that the device lacks, for Notes
	queues   []*Queue

	endpoints atomic.Pointer[[]nic.Endpoint]
	peers     peers
	ended     chan struct{} // closed to end the goroutine that looks up unknown senders
	looking   sync.WaitGroup

	sends           [][]uint32 // for each queue: the words of its slots at the watchdog's last check
	looks           [][]uint16 // and for how many checks they were being sent
	missed          [][maxPairs]kit.Progress
	trials          []trials // of each queue
	besideDoorbells bool     // the entries are in the doorbells' BAR
	measured        kit.Measured
	counted         map[string]uint64 // by the device, before it was started
	abandoned       atomic.Uint64     // messages that their peers did not accept in time
}

var _ nic.Messenger = (*Device)(nil)

// Open resets the device, programs it and starts its queues. A verbs.Function is used beside the kernel's driver and
// not reset. The device owns fn: Close closes it, and so does an Open that fails.
func Open(fn pci.Function, o nic.Options, own Options) (*Device, error) {
	d := &Device{own: own, ended: make(chan struct{})}
	d.control = &admin{d: d}
	if beside := verbs.Of(fn); beside != nil {
		d.control = &uverbs{d: d, fn: beside}
	}
	if err := d.card.Open(fn, o, limits, kit.Hooks{Open: d.open, Check: d.check, Count: d.count, Stats: d.stats,
		Restart: d.restart, Release: d.control.release}); err != nil {
		return nil, err
	}
	d.looking.Go(d.lookUp)
	return d, nil
}

func (d *Device) open() (err error) {
	id := d.card.Fn.ID()
	var ok bool
	if d.name, ok = Supports(id); !ok {
		return d.card.Errorf("%w: %v is not an EFA", nic.ErrNoDevice, id)
	}
	if err := d.own.check(); err != nil {
		return d.card.Errorf("%w", err)
	}
	if d.card.Options.MAC != [6]byte{} {
		return d.card.Errorf("an EFA has no MAC address, %x was asked for", d.card.Options.MAC)
	}
	if d.card.Options.Steer != nil {
		return d.card.Errorf("an EFA carries messages: there are no frames to steer")
	}
	if err := d.control.open(); err != nil {
		return err
	}
	d.ring = d.card.Options.RingSize
	return d.start(resetNormal)
}

// Info describes the device.
func (d *Device) Info() (i nic.Info) {
	d.card.BetweenRestarts(func() {
		i = d.card.Info(fmt.Sprintf("%s (%v), %s", d.name, d.card.Fn.ID(), d.version), d.pushName(), d.notes()...)
		i.MAC = ""
	})
	return i
}

func (d *Device) pushName() string {
	if d.queues[0].maxInline == 0 {
		return fmt.Sprintf("llq %d, no data inline", d.entry)
	}
	return fmt.Sprintf("llq %d, up to %d bytes inline", d.entry, d.queues[0].maxInline)
}

func (d *Device) notes() []string {
	notes := slices.Clone(d.features)
	notes = append(notes, fmt.Sprintf(
		"messages up to %d bytes are pushed whole by %v; for longer ones, a pointer is pushed", d.queues[0].maxInline,
		mmio.PushMethod()))
	if d.measures() {
		notes = append(notes, d.measured.Notes(2)...)
	}
	return notes
}

// Queue returns the rings of queue n, for benchmarks and stepped tests that call Poll themselves.
func (d *Device) Queue(n int) *Queue { return d.queues[n] }

// Endpoints are the open queue pairs: for each queue, one per service.
func (d *Device) Endpoints() []nic.Endpoint { return slices.Clone(*d.endpoints.Load()) }

// Serve polls queue until stop is set.
func (d *Device) Serve(queue int, stop *atomic.Bool, r *fastpath.Responder) error {
	if err := d.card.Enter(queue); err != nil {
		return err
	}
	defer d.card.Gate.Leave()
	q := d.queues[queue]
	t := r.Loop.Begin()
	for !stop.Load() {
		t = r.Loop.Pass(t, q.Poll(r))
		if d.trials[queue].left > 0 {
			d.forward(queue)
		}
		if d.card.Gate.Closed() {
			if err := d.card.Gate.Park(); err != nil {
				return err
			}
			t = r.Loop.Begin()
		}
	}
	return nil
}

// Send pushes a copy of message through a queue pair of queue 0 immediately.
func (d *Device) Send(from nic.Service, to nic.Peer, message []byte) error {
	if len(message) > d.card.MTU {
		return d.card.Errorf("%w: a message of %d bytes, the device takes up to %d", nic.ErrFrameSize, len(message),
			d.card.MTU)
	}
	if err := d.card.Gate.Call(); err != nil {
		return err
	}
	p, err := d.peers.peer(to)
	if err != nil {
		return d.card.Errorf("%w", err)
	}
	pair := slices.Index(d.own.Services, from)
	if pair < 0 {
		return d.card.Errorf("no queue pair of %v is open", from)
	}
	handle := p.handle.Load().number.Load()
	if handle == noHandle || !d.queues[0].send(&d.queues[0].pairs[pair], message, uint64(handle)|uint64(p.QPN)<<16) {
		return nic.ErrFull
	}
	if d.trials[0].left > 0 {
		d.forward(0)
	}
	return nil
}

// trials are those of a queue's send queues; left is how many are not over.
type trials struct {
	left int
	of   [maxPairs]*kit.Trial
}

// measures reports whether there are trials: not if the entries are known to be uncached, beside the doorbells.
func (d *Device) measures() bool { return !d.besideDoorbells && kit.MeasurePush(d.card.Fn) }

// measure begins the trials of a queue.
func (d *Device) measure(q *Queue) (t trials) {
	if !d.measures() {
		return t
	}
	for i := range q.npairs {
		p := &q.pairs[i]
		t.of[i] = kit.NewTrial(p.llq, p.sqDB, q.sqMask+1, q.entry)
		p.llq, p.sqDB = t.of[i].Stand()
	}
	t.left = int(q.npairs)
	return t
}

// forward continues the trials of a queue.
func (d *Device) forward(queue int) {
	t := &d.trials[queue]
	for i, trial := range t.of {
		if trial == nil {
			continue
		}
		p := &d.queues[queue].pairs[i]
		if llq, bell, timing := trial.Forward(p.rung); timing != nil {
			p.llq, p.sqDB, t.of[i] = llq, bell, nil
			t.left--
			d.measured.Set(timing)
		}
	}
}

// Recv copies the next message of queue 0 into buf.
func (d *Device) Recv(buf []byte) (int, int64, error) {
	if err := d.card.Gate.Call(); err != nil {
		return 0, 0, err
	}
	n, at := d.queues[0].recv(buf)
	return d.card.Received(buf, n, at)
}

// From compares the sender in the completion of the last message: its address handle, or its GID if the device has no
// handle for it, and its queue pair.
func (d *Device) From(to nic.Peer) bool {
	p, err := d.peers.peer(to)
	if err != nil {
		return false
	}
	from := &d.queues[0].received
	if uint32(from.from>>16)&0xFFFF != p.QPN {
		return false
	}
	if handle := from.from & 0xFFFF; handle != noHandle {
		return handle == uint64(p.handle.Load().number.Load())
	}
	return netip.AddrFrom16(from.gid) == p.GID
}

// Link is up while the device responds, because it does not report a link.
func (d *Device) Link() (l nic.Link, err error) {
	err = d.card.Ask(func() error {
		if err := d.control.answers(); err != nil {
			return err
		}
		speed := int(d.attr.linkSpeed)
		if speed == 0 {
			speed = 100 // as the published driver assumes
		}
		l = nic.Link{Up: true, Speed: speed * 1000}
		return nil
	})
	return l, err
}

// Close stops the device and releases everything.
func (d *Device) Close() error {
	close(d.ended)
	d.looking.Wait()
	return d.card.Close()
}
