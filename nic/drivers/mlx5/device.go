package mlx5

import (
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/bus/verbs"
	"github.com/rebound-nic/rebound/nic/kit"
	"github.com/rebound-nic/rebound/nic/kit/beside"
	"github.com/rebound-nic/rebound/nic/kit/mlxkit"
)

const (
	vendorMellanox = 0x15B3

	maxPages = 256 << 10 // 1 GiB: what firmware may request
)

var limits = kit.Limits{
	Driver: "mlx5", Ring: 512, MinRing: 64, MaxRing: 4096,
	MTU: 1500, MinMTU: 68, MaxMTU: 9978 /* frames of 10000 bytes with two tags */, Queues: 64,
}

// models are the supported devices; a virtual function shares everything except the port's registers with its physical
// one.
var models = map[uint16]struct {
	name    string
	virtual bool
}{
	0x1013: {"ConnectX-4", false}, 0x1014: {"ConnectX-4 VF", true},
	0x1015: {"ConnectX-4 Lx", false}, 0x1016: {"ConnectX-4 Lx VF", true},
	0x1017: {"ConnectX-5", false}, 0x1018: {"ConnectX-5 VF", true},
	0x1019: {"ConnectX-5 Ex", false}, 0x101A: {"ConnectX-5 Ex VF", true},
	0x101B: {"ConnectX-6", false}, 0x101C: {"ConnectX-6 VF", true},
	0x101D: {"ConnectX-6 Dx", false}, 0x101E: {"ConnectX VF", true},
	0x101F: {"ConnectX-6 Lx", false},
	0x1021: {"ConnectX-7", false},
	0xA2D2: {"BlueField", false}, 0xA2D3: {"BlueField VF", true},
	0xA2D6: {"BlueField-2", false},
	0xA2DC: {"BlueField-3", false},
}

// Supports reports whether the package drives a function with this identity, and returns its name.
func Supports(id pci.ID) (name string, ok bool) {
	m, ok := models[id.Device]
	return "NVIDIA " + m.name, ok && id.Vendor == vendorMellanox
}

// Device is an open ConnectX.
type Device struct {
	card      kit.Card
	own       Options
	bar, wc   *mmio.Window // initialization segment; doorbells
	barSize   uint64
	model     string
	virtual   bool
	maxInline int
	fw        firmware
	make      maker

	commands *commandQueue
	pages    *pagePool
	steps    mlxkit.Steps
	lacks    []string // missing capabilities, for Notes

	// Information from the device, and the objects created on it.
	caps             capabilities
	minInline        uint32
	uar              uar
	pd, td, tis      uint32
	lkey, counterSet uint32
	l2Entries        int
	events           eventQueue
	queues           []*Queue
	steering         steering
	stamps           stamps

	wanted         atomic.Pointer[kit.Symptom] // what an event reported
	sends          []kit.Progress
	beat           kit.Progress // of the health counter
	syndrome       uint32       // as the watchdog last saw it
	sendRecoveries atomic.Uint64
	outOfBuffer    kit.Wide
}

// Open resets the function, programs it and starts its queues. A verbs.Function stays with the kernel's driver, and
// queues are added to the kernel's. The device owns fn: Close closes it, and so does an Open that fails. The link need
// not be up.
func Open(fn pci.Function, o nic.Options, own Options) (*Device, error) {
	d := &Device{own: own}
	d.fw, d.make = owned{d}, byCommand{d}
	if v := verbs.Of(fn); v != nil {
		d.fw = &shared{Device: d, fn: v, port: &beside.Port{Fn: v, Limits: limits}}
	}
	if err := d.card.Open(fn, o, limits, kit.Hooks{Open: d.open, Check: d.check, Count: d.fw.counts, Stats: d.stats,
		Restart: d.restart, Release: d.fw.release}); err != nil {
		return nil, err
	}
	return d, nil
}

func (d *Device) open() error {
	if err := d.find(); err != nil {
		return err
	}
	if err := d.start(); err != nil {
		return err
	}
	t, err := d.fw.counts()
	d.card.Totals.Start(t) // exclude counts from before
	return err
}

// find checks the function's identity and the options, and finds the registers.
func (d *Device) find() error {
	id := d.card.Fn.ID()
	var ok bool
	if d.model, ok = Supports(id); !ok {
		return d.card.Errorf("%w: %v is not a ConnectX-4 or later", nic.ErrNoDevice, id)
	}
	d.virtual = models[id.Device].virtual
	if err := d.own.check(); err != nil {
		return d.card.Errorf("%w", err)
	}
	if err := d.fw.prepare(); err != nil {
		return err
	}
	d.sends = make([]kit.Progress, d.card.Options.Queues)
	return nil
}

// Info describes the device.
func (d *Device) Info() (i nic.Info) {
	d.card.BetweenRestarts(func() {
		n := d.card.Options.RingSize
		i = d.card.Info(fmt.Sprintf("%s (%v), firmware %s", d.model, d.card.Fn.ID(), d.fw.version()),
			d.pushName(), slices.Concat(d.lacks, d.fw.notes(), d.pushNotes(),
				[]string{fmt.Sprintf("queues of %d slots and %d blocks, a completion of sends "+
					"asked for once in %d blocks, completions neither compressed nor moderated", n, n*maxBlocks,
					d.queues[0].askEvery)})...)
		i.NoByteCounter = i.Via != ""
	})
	return i
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
		t = r.Loop.Pass(t, q.Poll(r))
		if d.card.Gate.Closed() {
			if err := d.card.Gate.Park(); err != nil {
				return err
			}
			t = r.Loop.Begin()
		}
	}
	return nil
}

// Send pushes or posts a copy of frame on queue 0 immediately.
func (d *Device) Send(frame []byte) error {
	if err := d.card.Sending(frame); err != nil {
		return err
	}
	if err := d.queues[0].send(frame); err != nil {
		return err
	}
	d.stamps.sends++
	return nil
}

// Recv copies the next frame of queue 0 into buf.
func (d *Device) Recv(buf []byte) (int, int64, error) {
	if err := d.card.Gate.Call(); err != nil {
		return 0, 0, err
	}
	n, at := d.queues[0].recv(buf)
	return d.card.Received(buf, n, at)
}

// Close stops the device and releases everything.
func (d *Device) Close() error { return d.card.Close() }
