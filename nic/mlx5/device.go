package mlx5

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"

	"rebound/fastpath"
	"rebound/nic"
	"rebound/nic/bus/dma"
	"rebound/nic/bus/mmio"
	"rebound/nic/bus/pci"
	"rebound/nic/kit"
	"rebound/polling"
)

const (
	vendorMellanox = 0x15B3

	defaultRing = 512
	minRing     = 64
	maxRing     = 4096
	maxQueues   = 64
	minMTU      = 68
	maxMTU      = 9978      // frames of 10000 bytes with two tags
	maxPages    = 256 << 10 // 1 GiB: what firmware may ask for
)

// models are what the package drives; a virtual function shares all but the port's registers with its physical one.
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

// Supports reports whether the package drives a function with this identity, and under what name.
func Supports(id pci.ID) (name string, ok bool) {
	m, ok := models[id.Device]
	return "NVIDIA " + m.name, ok && id.Vendor == vendorMellanox
}

// Device is an open ConnectX.
type Device struct {
	fn      pci.Function
	bar, wc *mmio.Window // initialization segment; doorbells
	barSize uint64
	log     *slog.Logger
	opt     nic.Options
	own     Options
	name    string
	virtual bool
	ring    int
	mtu     int
	pushMax int

	arena    *dma.Arena
	commands *commandQueue
	pages    *pagePool
	steps    []step
	lacks    []string // what could not be had, for Notes

	// What the device said of itself, and what was made on it.
	caps             capabilities
	mac              [6]byte
	minInline        uint32
	uar              uar
	pd, td, tis      uint32
	lkey, counterSet uint32
	l2Entries        int
	events           eventQueue
	queues           []*Queue
	steering         steering

	gate            kit.Gate
	wanted          atomic.Pointer[wish]
	endWatch, ended chan struct{}

	// life is held to restart the device and by Assign, and shared by whoever else sends commands.
	life sync.RWMutex

	statsMu sync.Mutex
	base    totals // since Open, less what the device counts now
	last    totals // what the device counted when it was last asked
	resets  uint64
	mended  uint64
}

// Open resets the function, programs it and starts its queues. It takes fn over: Close closes it, and so does an Open that
// fails. The link need not be up.
func Open(fn pci.Function, o nic.Options, own Options) (*Device, error) {
	d := &Device{fn: fn, opt: o, own: own, log: o.Log}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	d.steering.apps = map[app]*application{}
	if err := d.open(); err != nil {
		if pci.Gone(fn) && !errors.Is(err, nic.ErrGone) {
			err = fmt.Errorf("mlx5 %s: %w: %w", fn.Name(), nic.ErrGone, err)
		}
		return nil, errors.Join(err, d.release(), fn.Close())
	}
	d.endWatch, d.ended = make(chan struct{}), make(chan struct{})
	go d.watch()
	return d, nil
}

func (d *Device) open() (err error) {
	id := d.fn.ID()
	name, ok := Supports(id)
	if !ok {
		return fmt.Errorf("mlx5 %s: %w: %v is not a ConnectX-4 or later", d.fn.Name(), nic.ErrNoDevice, id)
	}
	d.name, d.virtual = name, models[id.Device].virtual
	if d.ring = d.opt.RingSize; d.ring == 0 {
		d.ring = defaultRing
	}
	if d.mtu = d.opt.MTU; d.mtu == 0 {
		d.mtu = 1500
	}
	switch queues := max(d.opt.Queues, 1); {
	case d.ring&(d.ring-1) != 0 || d.ring < minRing || d.ring > maxRing:
		return fmt.Errorf("mlx5 %s: ring size %d is not a power of two within %d to %d", d.fn.Name(), d.ring, minRing, maxRing)
	case d.mtu < minMTU || d.mtu > maxMTU:
		return fmt.Errorf("mlx5 %s: MTU %d is not within %d to %d", d.fn.Name(), d.mtu, minMTU, maxMTU)
	case queues > maxQueues:
		return fmt.Errorf("mlx5 %s: %d queue pairs asked for, up to %d are possible", d.fn.Name(), queues, maxQueues)
	}
	if err := d.own.check(); err != nil {
		return fmt.Errorf("mlx5 %s: %w", d.fn.Name(), err)
	}
	d.listen(d.opt)
	if err := pci.SplitWC(d.fn, 0, firstUAR); err != nil {
		return err
	}
	if d.bar, err = d.fn.BAR(0); err != nil {
		return err
	}
	if d.wc, err = d.fn.BARWC(0); err != nil {
		return err
	}
	d.barSize = d.wc.Size()
	if d.barSize < firstUAR+uarPage {
		return fmt.Errorf("mlx5 %s: BAR 0 is %#x bytes, expected %#x or more", d.fn.Name(), d.barSize, firstUAR+uarPage)
	}
	if err := d.start(); err != nil {
		return err
	}
	t, err := d.counts()
	d.base, d.last = totals{}.less(t), t // what was counted before is not ours
	return err
}

// window is where a UAR is mapped.
func (d *Device) window(u uar) *mmio.Window {
	if u.off < firstUAR {
		return d.bar
	}
	return d.wc
}

// maxFrame is the longest frame without FCS: header and two VLAN tags around the MTU.
func (d *Device) maxFrame() int { return d.mtu + 14 + 8 }

// Info describes the device.
func (d *Device) Info() nic.Info {
	d.life.RLock()
	defer d.life.RUnlock()
	backend := nic.Silicon
	if d.fn.Simulated() {
		backend = nic.Sim
	}
	v := d.commands.read(regFwRev)
	notes := append(append([]string{}, d.lacks...), d.pushNotes()...)
	notes = append(notes, fmt.Sprintf("queues of %d slots and %d blocks, a completion of sends asked for once in %d blocks, completions neither compressed nor moderated",
		d.ring, d.ring*maxBlocks, d.queues[0].askEvery))
	notes = append(append(notes, pci.Notes(d.fn)...), d.arena.Notes()...)
	return nic.Info{
		Driver:  "mlx5",
		Device:  d.fn.Name(),
		Model:   fmt.Sprintf("%s (%v), firmware %d.%d.%04d", d.name, d.fn.ID(), v&0xFFFF, v>>16, d.commands.read(regCmdifRev)&0xFFFF),
		MAC:     net.HardwareAddr(d.mac[:]).String(),
		MTU:     d.mtu,
		Queues:  len(d.queues),
		Backend: backend,
		Push:    d.pushName(),
		Notes:   notes,
	}
}

// Queue returns the rings of queue n, for benchmarks and stepped tests that call Poll themselves.
func (d *Device) Queue(n int) *Queue { return d.queues[n] }

// Serve polls queue until stop is set.
func (d *Device) Serve(queue int, stop *atomic.Bool, r *fastpath.Responder) error {
	if queue < 0 || queue >= len(d.queues) {
		return fmt.Errorf("mlx5 %s: queue %d of %d", d.fn.Name(), queue, len(d.queues))
	}
	if err := d.gate.Enter(); err != nil {
		return err
	}
	defer d.gate.Leave()
	q := d.queues[queue]
	t := polling.TSC()
	for !stop.Load() {
		t = r.Loop.Pass(t, q.Poll(r))
		if d.gate.Closed() {
			if err := d.gate.Park(); err != nil {
				return err
			}
			t = polling.TSC()
		}
	}
	return nil
}

// Send pushes or posts a copy of frame on queue 0 now.
func (d *Device) Send(frame []byte) error {
	if err := nic.CheckFrame(frame, d.mtu); err != nil {
		return fmt.Errorf("mlx5 %s: %w", d.fn.Name(), err)
	}
	if err := d.gate.Call(); err != nil {
		return err
	}
	return d.queues[0].send(frame)
}

// Recv copies the next frame of queue 0 into buf.
func (d *Device) Recv(buf []byte) (int, int64, error) {
	if err := d.gate.Call(); err != nil {
		return 0, 0, err
	}
	n, at := d.queues[0].recv(buf)
	switch {
	case n < 0:
		return 0, 0, nil
	case n > len(buf):
		return 0, 0, fmt.Errorf("mlx5 %s: %w: a frame of %d bytes for a buffer of %d", d.fn.Name(), nic.ErrFrameSize, n, len(buf))
	}
	return n, at, nil
}

// Close stops the device and gives everything back.
func (d *Device) Close() error {
	close(d.endWatch)
	<-d.ended
	return errors.Join(d.release(), d.fn.Close())
}

// alloc allocates from an arena, growing it where it is full.
func alloc(a *dma.Arena, size, align int) (dma.Block, error) {
	b, err := a.Alloc(size, align)
	if errors.Is(err, dma.ErrNoRoom) {
		if err = a.Grow(size + align); err == nil {
			b, err = a.Alloc(size, align)
		}
	}
	return b, err
}
