package mlx4

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

const vendorMellanox = 0x15B3

// maxQueues keeps bits 7 and 6 of the send queues' numbers clear.
const maxQueues = 64

var limits = kit.Limits{
	Driver: "mlx4", Ring: 512, MinRing: 64, MaxRing: 4096,
	MTU: 1500, MinMTU: 68, MaxMTU: 9578 /* frames of 9600 bytes with two tags */, Queues: maxQueues,
}

var models = map[uint16]string{0x1003: "ConnectX-3", 0x1007: "ConnectX-3 Pro"}

// Supports reports whether the package drives a function with this identity, and returns its name.
func Supports(id pci.ID) (name string, ok bool) {
	m, ok := models[id.Device]
	return "Mellanox " + m, ok && id.Vendor == vendorMellanox
}

// Device is an open port of a ConnectX-3.
type Device struct {
	card      kit.Card
	own       Options
	ctl       control
	bar       *mmio.Window // registers
	uars      *mmio.Window // doorbells
	flames    *mmio.Window // BlueFlame pages; nil without
	barSize   uint64       // of BAR 2
	model     string
	board     string
	port      uint32
	inlineMax uint32
	// pushBlocks is the largest number of blocks of a pushed WQE; 0 if nothing is pushed.
	pushBlocks uint32

	commands *hcr
	owned    bool // the ownership register is ours
	steps    mlxkit.Steps
	lacks    []string // missing capabilities, for Notes

	// Capabilities of the device, and the objects created on it.
	fw       firmware
	caps     capabilities
	icm      icm
	pd, lkey uint32
	deflt    uint32 // the QP that frames for us go to: RSS, or the only queue's
	events   eventQueue
	queues   []*Queue
	steering steering

	subnet    *subnet        // of an InfiniBand port; nil on Ethernet
	datagrams *DatagramQueue // likewise
	chained   uint32         // entries of the group table that are chained to others
	mtuAsked  bool           // the user named an MTU
	flameless bool           // pushed WQEs were never sent: BlueFlame stays off

	wanted         atomic.Pointer[kit.Symptom] // what an event reported
	sends          []kit.Progress
	sendRecoveries atomic.Uint64
	wide           map[int]*kit.Wide // port counters of 32 bits, by their place
}

// Open resets the card, programs it and starts its queues. A verbs.Function stays with the kernel's driver, and queues
// are added to the kernel's. Open takes fn over: Close closes it, and so does an Open that fails. The link need not be
// up.
func Open(fn pci.Function, o nic.Options, own Options) (*Device, error) {
	d := &Device{own: own, mtuAsked: o.MTU != 0}
	d.ctl = owned{d}
	if v := verbs.Of(fn); v != nil {
		d.ctl = &shared{d: d, fn: v, port: &beside.Port{Fn: v, Limits: limits, Ports: true}}
	}
	if err := d.card.Open(fn, o, limits, kit.Hooks{Open: d.open, Check: d.check, Count: d.ctl.counts, Stats: d.stats,
		Restart: d.restart, Release: d.ctl.release}); err != nil {
		return nil, err
	}
	return d, nil
}

func (d *Device) open() error {
	if err := d.find(); err != nil {
		return err
	}
	if err := d.ctl.start(); err != nil {
		return err
	}
	t, err := d.ctl.counts()
	d.card.Totals.Start(t) // earlier counts are not ours
	return err
}

// find checks the function's identity and the options, and finds the registers.
func (d *Device) find() error {
	id := d.card.Fn.ID()
	var ok bool
	if d.model, ok = Supports(id); !ok {
		return d.card.Errorf("%w: %v is not a ConnectX-3", nic.ErrNoDevice, id)
	}
	if err := d.own.check(); err != nil {
		return d.card.Errorf("%w", err)
	}
	if err := d.ctl.prepare(); err != nil {
		return err
	}
	d.sends = make([]kit.Progress, d.card.Options.Queues)
	return nil
}

// Info describes the device. The MAC of an InfiniBand port, like those of all stations on it, is made up by the driver.
func (d *Device) Info() (i nic.Info) {
	d.card.BetweenRestarts(func() {
		n := d.card.Options.RingSize
		version, steering := d.ctl.describe()
		i = d.card.Info(fmt.Sprintf("%s (%v), %s", d.model, d.card.Fn.ID(), version),
			d.pushName(), slices.Concat(d.lacks, d.pushNotes(),
				[]string{steering, fmt.Sprintf("queues of %d slots and %d blocks, a completion of "+
					"sends asked for once in %d blocks, completions not moderated", n, n*maxBlocks,
					d.queues[0].askEvery)})...)
		// PortCounters do not include datagrams without a receive WQE (IBA vol. 1 §16.1.3.5).
		i.NoDropCounter = d.subnet != nil || i.Via != ""
		i.NoByteCounter = i.Via != ""
	})
	return i
}

// Queue returns the rings of queue n, for benchmarks and stepped tests that call Poll themselves. On an InfiniBand port
// use Poll of the DatagramQueue.
func (d *Device) Queue(n int) *Queue { return d.queues[n] }

// DatagramQueue is Queue for an InfiniBand port, nil on Ethernet.
func (d *Device) DatagramQueue() *DatagramQueue { return d.datagrams }

// Serve polls queue until stop is set.
func (d *Device) Serve(queue int, stop *atomic.Bool, r *fastpath.Responder) error {
	if err := d.card.Enter(queue); err != nil {
		return err
	}
	defer d.card.Gate.Leave()
	q, g := d.queues[queue], d.datagrams
	t := r.Loop.Begin()
	for !stop.Load() {
		var n int
		if g != nil {
			n = g.Poll(r)
		} else {
			n = q.Poll(r)
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
	if d.subnet != nil {
		return d.subnet.send(frame)
	}
	return d.queues[0].send(frame)
}

// Recv copies the next frame of queue 0 into buf.
func (d *Device) Recv(buf []byte) (int, int64, error) {
	if err := d.card.Gate.Call(); err != nil {
		return 0, 0, err
	}
	if d.subnet != nil {
		n, at := d.subnet.recv(buf)
		return d.card.Received(buf, n, at)
	}
	n, at := d.queues[0].recv(buf)
	return d.card.Received(buf, n, at)
}

// Close stops the device and releases everything.
func (d *Device) Close() error { return d.card.Close() }
