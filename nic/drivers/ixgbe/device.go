package ixgbe

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/kit"
	"github.com/rebound-nic/rebound/nic/kit/netif"
)

const (
	vendorIntel = 0x8086
	minBAR      = 0x20000 // BAR 0 is 128 KiB or more (§8.1)
)

type family uint8

const (
	i82599 family = iota
	x540
)

// rxBuffer is the receive packet buffer in bytes: 512 KB (§8.2.3.8.9), 384 KB on the X540.
func (f family) rxBuffer() uint32 {
	if f == x540 {
		return 384 << 10
	}
	return 512 << 10
}

// cage is a board's kind of module cage.
type cage uint8

const (
	none cage = iota
	sfp
	qsfp // its management bus is shared, and its modules have no rate select
)

var models = map[uint16]struct {
	name   string
	family family
	cage   cage
}{
	0x10FB: {"Intel 82599ES SFP+", i82599, sfp},
	0x1507: {"Intel 82599 SFP+ mezzanine", i82599, sfp},
	0x1529: {"Intel 82599 SFP+ FCoE", i82599, sfp},
	0x154A: {"Intel 82599 four-port SFP+", i82599, sfp},
	0x154D: {"Intel 82599 SFP+ (X520)", i82599, sfp},
	0x1557: {"Intel 82599EN SFP+", i82599, sfp},
	0x1558: {"Intel 82599 QSFP+", i82599, qsfp},
	0x10F7: {"Intel 82599 KX4 backplane", i82599, none},
	0x10F9: {"Intel 82599 CX4", i82599, none},
	0x1514: {"Intel 82599 KX4 mezzanine", i82599, none},
	0x1517: {"Intel 82599 KR backplane", i82599, none},
	0x152A: {"Intel 82599 backplane FCoE", i82599, none},
	0x10F8: {"Intel 82599 combined backplane", i82599, none},
	0x10FC: {"Intel 82599 XAUI", i82599, none},
	0x1528: {"Intel X540-AT2", x540, none},
	0x1560: {"Intel X540-AT1", x540, none},
}

// Supports reports whether the package drives a function with this identity, and returns its name.
func Supports(id pci.ID) (name string, ok bool) {
	m, ok := models[id.Device]
	return m.name, ok && id.Vendor == vendorIntel
}

// Device is an open 82599.
type Device struct {
	card   kit.Card
	own    Options
	bar    *mmio.Window
	model  string
	family family
	phy    uint32 // X540: MDIO address of the PHY
	medium string // for Notes
	cage   cage
	module module
	full   bool // the link counts as up only while SDP2 reports a module in the cage
	queues []*Queue
	hung   []kit.Progress // transmit rings

	groups       [][6]byte // multicast to receive
	allMulticast bool
	linkUp       bool       // as the watch saw it last
	linkDown     int        // for how many of its checks
	infoMutex    sync.Mutex // module, which the watch may change
	stamps       stamps
}

var limits = kit.Limits{
	Driver: "ixgbe", Ring: 512, MinRing: 128 /* more than one pass and one refill */, MaxRing: 4096,
	MTU: 1500, MinMTU: 68, MaxMTU: 9500, Queues: 16, /* what RSS reaches (§7.1.2.8) */
}

// Options are for finding out why a card does not work. The zero Options change nothing.
type Options struct {
	// SkipEEPROM opens a card whose EEPROM has a wrong checksum.
	SkipEEPROM bool
	// LinkMode is AUTOC.LMS, "0" to "7", instead of the choice of the EEPROM or the driver; "" and "auto" keep that
	// choice. The X540 has none.
	LinkMode string
	// NoSteering receives every frame, on queue 0.
	NoSteering bool
}

// Open resets the function, programs it and starts its queues. It takes fn over: Close closes it, and so does an Open
// that fails. The link need not be up.
func Open(fn pci.Function, o nic.Options) (*Device, error) { return OpenWith(fn, o, Options{}) }

// OpenWith is Open with this driver's options.
func OpenWith(fn pci.Function, o nic.Options, own Options) (*Device, error) {
	d := &Device{own: own}
	if err := d.card.Open(fn, o, limits, kit.Hooks{Open: d.open, Check: d.check, Count: d.count, Stats: d.stats,
		Restart: d.restart, Release: d.release}); err != nil {
		return nil, err
	}
	return d, nil
}

func (d *Device) open() (err error) {
	if err := d.identify(); err != nil {
		return err
	}
	if err := d.card.Stages(
		kit.Stage{Name: "reset the device", Do: d.reset}, // before it gets memory and bus mastering
		kit.Stage{Name: "check the EEPROM", Do: d.checkEEPROM}, kit.Stage{Name: "read the address", Do: d.readAddress},
		d.card.Evidence(d.evidence), kit.Learned); err != nil {
		return err
	}
	if err := kit.CheckMAC(d.card.MAC); err != nil {
		return d.card.Errorf("%w", err)
	}
	d.groups, d.allMulticast = netif.Groups(d.card.Options)
	if err := d.allocate(); err != nil {
		return err
	}
	if err := d.card.Fn.SetBusMaster(true); err != nil {
		return err
	}
	d.linkUp = true
	return d.start()
}

// identify finds the model and its registers.
func (d *Device) identify() (err error) {
	id := d.card.Fn.ID()
	m, ok := models[id.Device]
	if !ok || id.Vendor != vendorIntel {
		return d.card.Errorf("%w: %v is not an 82599 or X540", nic.ErrNoDevice, id)
	}
	d.model, d.family, d.cage = m.name, m.family, m.cage
	bar, err := d.card.Fn.BAR(0)
	if err != nil {
		return err
	}
	if bar.Size() < minBAR {
		return d.card.Errorf("BAR 0 is %#x bytes, expected %#x or more", bar.Size(), minBAR)
	}
	d.bar = bar // release resets a device whose registers are all there
	return nil
}

func (d *Device) readAddress() error {
	if d.card.MAC == [6]byte{} {
		d.card.MAC = d.permanentMAC()
	}
	return nil
}

// permanentMAC is the address that the reset loaded from the EEPROM into the first receive address (§4.6.2).
func (d *Device) permanentMAC() (mac [6]byte) {
	binary.LittleEndian.PutUint32(mac[:], d.read(regRAL(0)))
	binary.LittleEndian.PutUint16(mac[4:], uint16(d.read(regRAH(0))))
	return mac
}

// allocate makes the rings and buffers in one arena. Ring bases are 128-byte aligned (§7.1.9), buffers whole KB
// (SRRCTL) and cache lines.
func (d *Device) allocate() error {
	ring := d.card.Options.RingSize
	bufSize := max(2048, (d.card.MaxFrame()+1023)&^1023)
	stride := kit.Stride(bufSize)
	err := d.card.Lay(func(memory *kit.Rings) {
		d.queues = nil
		for i := range d.card.Options.Queues {
			q := &Queue{bufSize: uint32(bufSize), stride: stride, mask: uint32(ring - 1)}
			q.rx, q.rxIOVA = memory.Page(ring * descSize)
			q.tx, q.txIOVA = memory.Page(ring * descSize)
			q.buf, q.iova = memory.Page(ring * int(stride))
			if i == 0 {
				q.sendBuf, q.sendIOVA = memory.Page(ring * int(stride))
			}
			q.batches = memory.Table(ring * batchSize)
			d.queues = append(d.queues, q)
		}
	})
	if err != nil {
		return err
	}
	for i, q := range d.queues {
		rdt, err := d.bar.Pointer(uint64(regRDT(i)), 4)
		if err != nil {
			return err
		}
		tdt, err := d.bar.Pointer(uint64(regTDT(i)), 4)
		if err != nil {
			return err
		}
		q.rdt, q.tdt = (*uint32)(rdt), (*uint32)(tdt)
	}
	d.hung = make([]kit.Progress, len(d.queues))
	return nil
}

// Info describes the device.
func (d *Device) Info() nic.Info {
	q := d.queues[0]
	link := "link mode: " + d.medium
	if d.cage == sfp {
		d.infoMutex.Lock()
		link += "; module: " + d.module.String()
		d.infoMutex.Unlock()
	}
	return d.card.Info(fmt.Sprintf("%s (%v)", d.model, d.card.Fn.ID()), "tail",
		link,
		fmt.Sprintf("rings of %d, buffers of %d bytes", q.mask+1, q.bufSize),
		"write-back at once (WTHRESH 0), interrupts masked, flow control and receive side coalescing off")
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

// Send posts a copy of frame on queue 0 now.
func (d *Device) Send(frame []byte) error {
	if err := d.card.Sending(frame); err != nil {
		return err
	}
	more := d.want()
	err := d.queues[0].send(frame, more)
	if err == nil {
		d.stamps.counted(more != 0)
	}
	return err
}

// Recv copies the next frame of queue 0 into buf.
func (d *Device) Recv(buf []byte) (int, int64, error) {
	if err := d.card.Gate.Call(); err != nil {
		return 0, 0, err
	}
	n, at, status := d.queues[0].recv(buf)
	if n > 0 && d.stamps.on() {
		d.received(status)
	}
	return d.card.Received(buf, n, at)
}

// Close stops the device and releases everything.
func (d *Device) Close() error { return d.card.Close() }

// release stops DMA before memory is freed: by a device reset, and by turning bus mastering off in case the reset did
// not work.
func (d *Device) release() error {
	if d.bar != nil && !d.gone() {
		if err := d.reset(); err != nil {
			d.card.Log.Warn("reset at close failed", "err", err)
		}
		d.clear(regCTRLEXT, ctrlExtDrvLoad)
	}
	return d.card.Release()
}
