package ixgbe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"rebound/fastpath"
	"rebound/nic"
	"rebound/nic/bus/dma"
	"rebound/nic/bus/mmio"
	"rebound/nic/bus/pci"
	"rebound/nic/kit/netif"
	"rebound/polling"
)

const (
	vendorIntel = 0x8086

	minBAR      = 0x20000 // BAR 0 is 128 KiB or more (§8.1)
	maxMTU      = 9500
	maxQueues   = 16 // what RSS reaches (§7.1.2.8)
	defaultRing = 512
	minRing     = 128 // more than one pass and one refill
	maxRing     = 4096
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

var models = map[uint16]struct {
	name   string
	family family
}{
	0x10FB: {"Intel 82599ES SFP+", i82599},
	0x10F7: {"Intel 82599 KX4 backplane", i82599},
	0x10F8: {"Intel 82599 combined backplane", i82599},
	0x10FC: {"Intel 82599 XAUI", i82599},
	0x1528: {"Intel X540-AT2", x540},
}

// Supports reports whether the package drives a function with this identity, and under what name.
func Supports(id pci.ID) (name string, ok bool) {
	m, ok := models[id.Device]
	return m.name, ok && id.Vendor == vendorIntel
}

// Device is an open 82599.
type Device struct {
	fn     pci.Function
	bar    *mmio.Window
	arena  *dma.Arena
	family family
	phy    uint32 // X540: MDIO address of the PHY
	name   string
	mac    [6]byte
	mtu    int
	queues []*Queue
	log    *slog.Logger

	groups       [][6]byte // multicast to let in
	allMulticast bool

	gate            nic.Gate
	endWatch, ended chan struct{}

	statsMu sync.Mutex
	stats   counters
}

// Open resets the function, programs it and starts its queues. It takes fn over: Close closes it, and so does an Open that
// fails. The link need not be up.
func Open(fn pci.Function, o nic.Options) (*Device, error) {
	d, err := open(fn, o)
	if err != nil {
		return nil, errors.Join(err, fn.Close())
	}
	return d, nil
}

func open(fn pci.Function, o nic.Options) (_ *Device, err error) {
	m, ok := models[fn.ID().Device]
	if !ok || fn.ID().Vendor != vendorIntel {
		return nil, fmt.Errorf("ixgbe %s: %w: %v is not an 82599 or X540", fn.Name(), nic.ErrNoDevice, fn.ID())
	}
	d := &Device{fn: fn, family: m.family, name: m.name, mtu: o.MTU, log: o.Log}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	if d.mtu == 0 {
		d.mtu = 1500
	}
	ring := o.RingSize
	if ring == 0 {
		ring = defaultRing
	}
	queues := max(o.Queues, 1)
	switch {
	case d.mtu < 68 || d.mtu > maxMTU:
		return nil, fmt.Errorf("ixgbe %s: MTU %d is not within 68 to %d", fn.Name(), d.mtu, maxMTU)
	case ring&(ring-1) != 0 || ring < minRing || ring > maxRing:
		return nil, fmt.Errorf("ixgbe %s: ring size %d is not a power of two within %d to %d", fn.Name(), ring, minRing, maxRing)
	case queues > maxQueues:
		return nil, fmt.Errorf("ixgbe %s: %d queue pairs asked for, RSS reaches %d", fn.Name(), queues, maxQueues)
	}
	if d.bar, err = fn.BAR(0); err != nil {
		return nil, err
	}
	if d.bar.Size() < minBAR {
		return nil, fmt.Errorf("ixgbe %s: BAR 0 is %#x bytes, expected %#x or more", fn.Name(), d.bar.Size(), minBAR)
	}
	if err := d.reset(); err != nil { // quiet before its memory comes and its mastering is on
		return nil, err
	}
	if err := d.checkEEPROM(); err != nil {
		return nil, err
	}
	if d.mac = o.MAC; d.mac == [6]byte{} {
		d.mac = d.permanentMAC()
	}
	if d.mac == [6]byte{} || d.mac[0]&1 != 0 {
		return nil, fmt.Errorf("ixgbe %s: address %v is not one of a station", fn.Name(), net.HardwareAddr(d.mac[:]))
	}
	d.groups, d.allMulticast = netif.Groups(o)
	defer func() {
		if err != nil {
			d.quiesce()
		}
	}()
	if err := d.allocate(queues, ring); err != nil {
		return nil, err
	}
	if err := fn.SetBusMaster(true); err != nil {
		return nil, err
	}
	if err := d.start(); err != nil {
		return nil, err
	}
	d.stats = counters{} // what was counted before is not ours
	d.endWatch, d.ended = make(chan struct{}), make(chan struct{})
	go d.watch()
	return d, nil
}

// permanentMAC is the address that the reset loaded from the EEPROM into the first receive address (§4.6.2).
func (d *Device) permanentMAC() (mac [6]byte) {
	binary.LittleEndian.PutUint32(mac[:], d.read(regRAL(0)))
	binary.LittleEndian.PutUint16(mac[4:], uint16(d.read(regRAH(0))))
	return mac
}

// maxFrame is the longest frame without CRC: header and two VLAN tags around the MTU.
func (d *Device) maxFrame() int { return d.mtu + 14 + 8 }

// allocate makes the rings and buffers in one arena. Ring bases are 128-byte aligned (§7.1.9), buffers whole KB (SRRCTL)
// and cache lines.
func (d *Device) allocate(queues, ring int) (err error) {
	bufSize := max(2048, (d.maxFrame()+1023)&^1023)
	stride := bufSize + 64
	perQueue := 2*ring*descSize + ring*stride
	if d.arena, err = dma.NewArena(d.fn, queues*(perQueue+5<<12)+ring*stride+1<<12); err != nil {
		return err
	}
	for i := range queues {
		q := &Queue{
			bufSize: uint32(bufSize), stride: uint32(stride), mask: uint32(ring - 1),
			pend: words(ring), batch: words(ring),
		}
		block := func(size int) (unsafe.Pointer, uint64) {
			var b dma.Block
			if err == nil {
				b, err = d.arena.Alloc(size, 4096)
			}
			if errors.Is(err, dma.ErrNoRoom) { // pages that do not lie side by side for the device leave gaps
				if err = d.arena.Grow(size); err == nil {
					b, err = d.arena.Alloc(size, 4096)
				}
			}
			if err != nil {
				err = fmt.Errorf("ixgbe %s: %d bytes side by side: %w (behind an IOMMU any page will do; without one, larger "+
					"huge pages or a smaller ring)", d.fn.Name(), size, err)
				return nil, 0
			}
			return unsafe.Pointer(&b.Bytes[0]), b.IOVA
		}
		q.rx, q.rxIOVA = block(ring * descSize)
		q.tx, q.txIOVA = block(ring * descSize)
		q.buf, q.iova = block(ring * stride)
		if i == 0 {
			q.sendBuf, q.sendIOVA = block(ring * stride)
		}
		if err != nil {
			return err
		}
		rdt, err := d.bar.Pointer(uint64(regRDT(i)), 4)
		if err != nil {
			return err
		}
		tdt, err := d.bar.Pointer(uint64(regTDT(i)), 4)
		if err != nil {
			return err
		}
		q.rdt, q.tdt = (*uint32)(rdt), (*uint32)(tdt)
		d.queues = append(d.queues, q)
	}
	return nil
}

func words(n int) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(make([]uint32, n))) }

// Info describes the device.
func (d *Device) Info() nic.Info {
	backend := nic.Silicon
	if d.fn.Simulated() {
		backend = nic.Sim
	}
	return nic.Info{
		Driver:  "ixgbe",
		Device:  d.fn.Name(),
		Model:   fmt.Sprintf("%s (%v)", d.name, d.fn.ID()),
		MAC:     net.HardwareAddr(d.mac[:]).String(),
		MTU:     d.mtu,
		Queues:  len(d.queues),
		Backend: backend,
		Push:    "tail",
		Notes: slices.Concat(pci.Notes(d.fn), d.arena.Notes(), []string{
			"link mode: " + d.linkMode(),
			fmt.Sprintf("rings of %d, buffers of %d bytes", d.queues[0].mask+1, d.queues[0].bufSize),
			"write-back at once (WTHRESH 0), interrupts masked, flow control and receive side coalescing off",
		}),
	}
}

// Queue returns the rings of queue n, for benchmarks and stepped tests that call Poll themselves.
func (d *Device) Queue(n int) *Queue { return d.queues[n] }

// Serve polls queue until stop is set.
func (d *Device) Serve(queue int, stop *atomic.Bool, r *fastpath.Responder) error {
	if queue < 0 || queue >= len(d.queues) {
		return fmt.Errorf("ixgbe %s: queue %d of %d", d.fn.Name(), queue, len(d.queues))
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

// Send posts a copy of frame on queue 0 now.
func (d *Device) Send(frame []byte) error {
	if err := nic.CheckFrame(frame, d.mtu); err != nil {
		return fmt.Errorf("ixgbe %s: %w", d.fn.Name(), err)
	}
	if err := d.gate.Call(); err != nil {
		return err
	}
	return d.queues[0].send(frame)
}

// Recv copies the next frame of queue 0 into buf.
func (d *Device) Recv(buf []byte) (n int, at int64, err error) {
	if err := d.gate.Call(); err != nil {
		return 0, 0, err
	}
	return d.queues[0].recv(buf)
}

// Close stops the device and gives everything back.
func (d *Device) Close() error {
	close(d.endWatch)
	<-d.ended
	d.quiesce()
	return d.fn.Close()
}

// quiesce stops DMA before the memory goes: by the device's own reset, and by bus mastering off in case it did not listen.
func (d *Device) quiesce() {
	if d.bar != nil && !d.gone() {
		if err := d.reset(); err != nil {
			d.log.Warn("reset at close failed", "err", err)
		}
		d.clear(regCTRLEXT, ctrlExtDrvLoad)
	}
	if err := d.fn.SetBusMaster(false); err != nil && !d.gone() {
		d.log.Warn("bus mastering stays on", "err", err)
	}
	if d.arena != nil {
		if err := d.arena.Close(); err != nil {
			d.log.Warn("DMA memory", "err", err)
		}
		d.arena = nil
	}
}
