package toy

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/kit"
)

const (
	vendor, device = 0x1b36, 0x7ec4
	maxBuffer      = 16384 // bytes
)

var limits = kit.Limits{
	Driver: "toy", Ring: 256, MinRing: 2 * maxBatch, MaxRing: 4096, MTU: 1500, MinMTU: 68, MaxMTU: 9000, Queues: 1,
}

// Supports reports whether the package drives a function with this identity, and returns its name.
func Supports(id pci.ID) (name string, ok bool) {
	return "toy", id.Vendor == vendor && id.Device == device
}

// Device is an open toy.
type Device struct {
	card  kit.Card // common to all drivers
	bar   *mmio.Window
	queue *Queue
	hung  kit.Progress
	wide  [4]kit.Wide // its counters have 32 bits
}

// Open resets the device, programs it and starts its queue. The device owns fn: Close closes it, and so does an Open
// that fails.
func Open(fn pci.Function, o nic.Options) (*Device, error) {
	d := &Device{}
	if err := d.card.Open(fn, o, limits, kit.Hooks{Open: d.open, Check: d.check, Count: d.counts, Stats: d.stats,
		Restart: d.restart, Release: d.release}); err != nil {
		return nil, err
	}
	return d, nil
}

func (d *Device) read(r reg) uint32     { return d.bar.Read32(uint64(r)) }
func (d *Device) write(r reg, v uint32) { d.bar.Write32(uint64(r), v) }

// open identifies the function, allocates memory, and starts. One-time steps are here; steps that a restart repeats are
// in start.
func (d *Device) open() (err error) {
	if _, ok := Supports(d.card.Fn.ID()); !ok {
		return d.card.Errorf("%w: %v is no toy", nic.ErrNoDevice, d.card.Fn.ID())
	}
	if d.bar, err = d.card.Fn.BAR(0); err != nil {
		return err
	}
	if err := d.here(); err != nil {
		return err
	}
	d.write(regCONTROL, controlReset) // stop the device before its memory is allocated
	if d.card.MAC == [6]byte{} {
		binary.LittleEndian.PutUint32(d.card.MAC[:], d.read(regMACLO))
		binary.LittleEndian.PutUint16(d.card.MAC[4:], uint16(d.read(regMACHI)))
	}
	if err := kit.CheckMAC(d.card.MAC); err != nil {
		return d.card.Errorf("%w", err)
	}
	if err := d.allocate(); err != nil {
		return err
	}
	return d.start()
}

// here returns nic.ErrGone where registers read all ones.
func (d *Device) here() error {
	if v := d.read(regMAGIC); v == ^uint32(0) {
		return d.card.Gone("MAGIC")
	} else if v != magic {
		return d.card.Errorf("%w: MAGIC (%#02x) reads %#x, expected %#x", nic.ErrHardware, uint32(regMAGIC), v,
			uint32(magic))
	}
	return nil
}

func (d *Device) allocate() error {
	ring := d.card.Options.RingSize
	stride := kit.Stride(max(d.card.MaxFrame(), fastpath.MinBuffer))
	if err := d.card.Allocate(2*ring*int(stride) + 2*ring*descSize + 4*4096); err != nil {
		return err
	}
	q := &Queue{mask: uint32(ring - 1), stride: stride, size: stride, pend: kit.Words(ring)}
	memory := kit.Rings{Card: &d.card}
	q.rx, q.rxIOVA = memory.Page(ring * descSize)
	q.tx, q.txIOVA = memory.Page(ring * descSize)
	q.buf, q.iova = memory.Page(ring * int(stride))
	q.sendBuf, q.sendIOVA = memory.Page(ring * int(stride))
	if memory.Err != nil {
		return memory.Err
	}
	bells, err := d.card.Fn.BAR(2)
	if err != nil {
		return err
	}
	rx, err := bells.Pointer(bellRX, 4)
	if err != nil {
		return err
	}
	tx, err := bells.Pointer(bellTX, 4)
	if err != nil {
		return err
	}
	q.rxBell, q.txBell = (*uint32)(rx), (*uint32)(tx)
	d.queue = q
	return nil
}

// start brings the device from any state to polling, in the order given by its datasheet. Each wait is bounded, and its
// error names the register.
func (d *Device) start() error {
	if err := d.card.Fn.SetBusMaster(false); err != nil {
		return err
	}
	d.write(regCONTROL, controlReset)
	d.write(regMACLO, binary.LittleEndian.Uint32(d.card.MAC[:]))
	d.write(regMACHI, uint32(binary.LittleEndian.Uint16(d.card.MAC[4:])))
	q := d.queue
	for i, v := range []uint32{uint32(q.rxIOVA), uint32(q.rxIOVA >> 32), q.mask + 1, q.size} {
		d.write(regRXLO+reg(4*i), v)
	}
	for i, v := range []uint32{uint32(q.txIOVA), uint32(q.txIOVA >> 32), q.mask + 1} {
		d.write(regTXLO+reg(4*i), v)
	}
	if err := d.card.Fn.SetBusMaster(true); err != nil {
		return err
	}
	d.write(regCONTROL, controlEnable)
	for end := kit.NewDeadline(100*time.Millisecond, 100); d.read(regCONTROL) != controlEnable; time.Sleep(
		20 * time.Microsecond) {
		if err := d.here(); err != nil {
			return err
		}
		if end.Over() {
			return d.card.Errorf("%w: CONTROL (%#02x) is %#x, expected %#x", nic.ErrTimeout, uint32(regCONTROL),
				d.read(regCONTROL), controlEnable)
		}
	}
	q.reset()
	return nil
}

// Info describes the device.
func (d *Device) Info() nic.Info {
	return d.card.Info(fmt.Sprintf("toy (%v)", d.card.Fn.ID()), "doorbell")
}

// Queue returns the rings of queue n, for benchmarks and stepped tests that call Poll themselves.
func (d *Device) Queue(int) *Queue { return d.queue }

// Serve polls queue until stop is set. It is repeated in each driver, because a call of Poll through an interface, a
// closure or a type parameter would add an indirect call to each pass.
func (d *Device) Serve(queue int, stop *atomic.Bool, r *fastpath.Responder) error {
	if err := d.card.Enter(queue); err != nil {
		return err
	}
	defer d.card.Gate.Leave()
	q := d.queue
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

// Send posts a copy of frame immediately.
func (d *Device) Send(frame []byte) error {
	if err := d.card.Sending(frame); err != nil {
		return err
	}
	return d.queue.send(frame)
}

// Recv copies the next frame into buf.
func (d *Device) Recv(buf []byte) (int, int64, error) {
	if err := d.card.Gate.Call(); err != nil {
		return 0, 0, err
	}
	n, at := d.queue.recv(buf)
	return d.card.Received(buf, n, at)
}

// Link reads STATUS.
func (d *Device) Link() (l nic.Link, err error) {
	err = d.card.Ask(func() error {
		if err := d.here(); err != nil {
			return err
		}
		if d.read(regSTATUS)&statusLink != 0 {
			l = nic.Link{Up: true, Speed: 10000}
		}
		return nil
	})
	return l, err
}

// ReadStats implements nic.Device.
func (d *Device) ReadStats(out *nic.Stats) error { return d.card.ReadStats(out) }

// stats reads the device's counters and the queue's own. The device counts no bytes.
func (d *Device) stats(out *nic.Stats) error {
	var err error
	if *out, err = d.card.Stats(); err != nil {
		return err
	}
	q := d.queue
	out.RxBytes, out.TxBytes = q.rxBytes.Load(), q.txBytes.Load()
	out.TxDropped, out.RxErrors = q.txFull.Load(), q.badRx.Load()
	return nil
}

func (d *Device) counts() (nic.Stats, error) {
	rx, tx, missed, bad := d.read(regRXCOUNT), d.read(regTXCOUNT), d.read(regMISSED), d.read(regTXERROR)
	if err := d.here(); err != nil { // after the reads: if the device was removed, all of them are ones
		return nic.Stats{}, err
	}
	w := &d.wide
	return nic.Stats{RxFrames: w[0].Read(rx), TxFrames: w[1].Read(tx), RxDropped: w[2].Read(missed),
		TxErrors: w[3].Read(bad)}, nil
}

// Close stops the device and releases everything.
func (d *Device) Close() error { return d.card.Close() }

// check detects a device that lost its state, and transmits that stall.
func (d *Device) check(polled bool) (*kit.Symptom, error) {
	if !polled {
		return nil, nil
	}
	if d.read(regCONTROL) != controlEnable {
		return kit.Foreign("CONTROL is not as it was left"), nil
	}
	if d.read(regSTATUS)&statusLink != 0 && d.hung.Waiting(&d.queue.txDone, &d.queue.txTail) > time.Second {
		return &kit.Symptom{Reason: "tx_hang", Suspect: &d.hung, Why: "the transmit ring stalls"}, nil
	}
	return nil, nil
}

// restart starts the device while no loop uses its queue. Frames on the rings are lost.
func (d *Device) restart(*kit.Symptom) error {
	d.hung, d.wide = kit.Progress{}, [4]kit.Wide{}
	return d.start()
}

// release stops DMA before the memory is freed: by the device's own switch, and by disabling bus mastering in case the
// device did not respond.
func (d *Device) release() error {
	if d.bar != nil {
		d.write(regCONTROL, 0)
	}
	if err := d.card.Fn.SetBusMaster(false); err != nil && !pci.Gone(d.card.Fn) {
		d.card.Log.Warn("bus mastering stays on", "err", err)
	}
	return d.card.Deallocate()
}
