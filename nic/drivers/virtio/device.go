package virtio

import (
	"fmt"
	"math/bits"
	"net"
	"sync/atomic"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/kit"
	"github.com/rebound-nic/rebound/nic/kit/netif"
)

const (
	vendorVirtio = 0x1AF4
	defaultRing  = 256
	minRing      = 2 * refillBatch // more than one pass and one refill
	maxRing      = 4096
	maxMTU       = 9500
)

var limits = kit.Limits{
	Driver: "virtio", Ring: defaultRing, MinRing: minRing, MaxRing: maxRing,
	MinMTU: 68, MaxMTU: maxMTU, Queues: 64,
}

var models = map[uint16]string{
	0x1041: "virtio network device",
	0x1000: "virtio network device, transitional",
}

// Supports reports whether the package drives a function with this identity, and returns its name.
func Supports(id pci.ID) (name string, ok bool) {
	name, ok = models[id.Device]
	return name, ok && id.Vendor == vendorVirtio
}

// Device is an open virtio network device.
type Device struct {
	card     kit.Card
	regs     layout
	features feature // negotiated
	queues   []*Queue
	control  *control       // nil without a control queue
	hung     []kit.Progress // transmit rings
	ring     int            // entries that the options request, 0 for the default
	sizes    sizes

	foreignMAC   bool      // the address is not the device's own
	groups       [][6]byte // multicast to receive
	allMulticast bool
	linkUp       bool // as the watch saw it last
}

// Open resets the device, negotiates features and starts its queues. It owns fn: Close closes it, and so does a failed
// Open. The link need not be up. If no MTU is requested, the device's is used.
func Open(fn pci.Function, o nic.Options) (*Device, error) {
	d := &Device{ring: o.RingSize}
	if err := d.card.Open(fn, o, limits, kit.Hooks{Open: d.open, Check: d.check, Stats: d.stats, Restart: d.restart,
		Release: d.release}); err != nil {
		return nil, err
	}
	return d, nil
}

func (d *Device) open() (err error) {
	id := d.card.Fn.ID()
	if _, ok := Supports(id); !ok {
		return d.card.Errorf("%w: %v is no virtio network device (1af4:1041, 1af4:1000)", nic.ErrNoDevice, id)
	}
	if d.regs, err = d.find(); err != nil {
		return err
	}
	if err := d.card.Stages(
		kit.Stage{Name: "reset the device", Do: d.reset}, // before it gets memory and bus mastering
		kit.Stage{Name: "choose features", Do: d.choose}); err != nil {
		return err
	}
	d.groups, d.allMulticast = netif.Groups(d.card.Options)
	if err := d.card.Stages(
		kit.Stage{Name: "negotiate features", Do: d.negotiate}, // the number and length of the queues depends on it
		d.card.Evidence(d.evidence), kit.Learned, kit.Stage{Name: "size the queues", Do: d.negotiateSizes},
		kit.Stage{Name: "allocate queues", Do: d.allocate}); err != nil {
		return err
	}
	if err := d.card.Fn.SetBusMaster(true); err != nil {
		return err
	}
	d.linkUp = true
	return d.card.Do("start queues", d.start)
}

// choose selects the features, the MTU and the MAC address from the device's offer and o.
func (d *Device) choose() error {
	offered, queues, o := d.readFeatures(), d.card.Options.Queues, &d.card.Options
	if d.gone() {
		return d.card.Gone("device_status")
	}
	if offered&featVersion1 == 0 {
		return d.card.Errorf("%w: features %#x lack VIRTIO_F_VERSION_1 (bit 32): a legacy device", nic.ErrNoDevice,
			uint64(offered))
	}
	if offered&featPlatform == 0 && pci.Translated(d.card.Fn) {
		return d.card.Errorf("%w: the device does not offer VIRTIO_F_ACCESS_PLATFORM, so it would take the IOMMU's addresses for "+
			"physical ones, and write over memory that is not ours: give it iommu_platform=on (QEMU), or boot without an IOMMU and set unsafe_no_iommu",
			nic.ErrHardware)
	}
	d.features = offered & accepted
	if offered&featCtrlVQ == 0 {
		d.features &^= featCtrlRX | featCtrlMAC
	}
	if queues > 1 {
		pairs := 1
		if offered&(featMQ|featCtrlVQ) == featMQ|featCtrlVQ {
			pairs = int(d.conf16(confMaxPairs))
			d.features |= featMQ
		}
		if queues > pairs {
			return d.card.Errorf("%d queue pairs requested, the device has %d", queues, pairs)
		}
	}

	most, usual := maxMTU, 1500
	if d.has(featMTU) { // the MTU of the network, as configured by its owner
		most = min(most, int(d.conf16(confMTU)))
		usual = most
	}
	if d.card.MTU == 0 {
		d.card.MTU = usual
	}
	if d.card.MTU < limits.MinMTU || d.card.MTU > most {
		return d.card.Errorf("MTU %d is not within %d to %d, what the device takes", d.card.MTU, limits.MinMTU, most)
	}

	var own [6]byte
	if d.has(featMAC) {
		own = d.permanentMAC()
	}
	if d.card.MAC = o.MAC; d.card.MAC == [6]byte{} {
		d.card.MAC = own
	}
	d.foreignMAC = d.card.MAC != own
	switch {
	case d.card.MAC == [6]byte{}:
		return d.card.Errorf("the device has no MAC address (VIRTIO_NET_F_MAC); set nic.mac")
	case d.foreignMAC && d.has(featCtrlRX) && !d.has(featCtrlMAC):
		return d.card.Errorf("address %v is asked for, and the device, which has %v, takes no other (VIRTIO_NET_F_CTRL_MAC_ADDR)",
			net.HardwareAddr(d.card.MAC[:]), net.HardwareAddr(own[:]))
	}
	d.foreignMAC = d.foreignMAC && d.has(featCtrlMAC)
	if err := kit.CheckMAC(d.card.MAC); err != nil {
		return d.card.Errorf("%w", err)
	}
	return nil
}

// permanentMAC reads the address byte by byte, again if the configuration changed meanwhile (§2.5.1).
func (d *Device) permanentMAC() (mac [6]byte) {
	for range 10 {
		before := d.read8(regConfigGeneration)
		for i := range mac {
			mac[i] = d.regs.config.bar.Read8(d.regs.config.at + confMAC + uint64(i))
		}
		if d.read8(regConfigGeneration) == before {
			break
		}
	}
	return mac
}

// sizes are the rings' numbers of entries.
type sizes struct {
	entries                      int
	controlIndex, controlEntries int // no entries without a control queue
}

// negotiateSizes agrees with the device on the sizes of its rings.
func (d *Device) negotiateSizes() (err error) {
	d.sizes = sizes{}
	if d.sizes.entries, err = d.entries(2 * d.card.Options.Queues); err != nil || !d.has(featCtrlVQ) {
		return err
	}
	index := 2 // §5.1.2: after all pairs that the device has, if multiqueue is negotiated
	if d.has(featMQ) {
		index = 2 * int(d.conf16(confMaxPairs))
	}
	n := min(d.size(uint32(index)), controlRing)
	if n < 2 {
		return d.card.Errorf("%w: the control queue, virtqueue %d, has %d entries, 2 are needed", nic.ErrHardware,
			index, n)
	}
	n = powerOfTwo(n)
	if got := d.writeSize(uint32(index), n); got != n {
		if got < 2 || got > maxRing || got != powerOfTwo(got) {
			return d.card.Errorf("%w: the control queue, virtqueue %d, keeps its %d entries", nic.ErrHardware, index,
				got)
		}
		n = got
	}
	d.sizes.controlIndex, d.sizes.controlEntries = index, n
	return nil
}

// allocate makes the rings and buffers in one arena. All rings have one size, so that a buffer has one number in all of
// them.
func (d *Device) allocate() error {
	bufLen := d.card.MaxFrame() + headerLen
	stride := kit.Stride(max(bufLen, headerLen+fastpath.MinBuffer))
	buffers := d.sizes.entries * int(stride)
	d.hung = make([]kit.Progress, d.card.Options.Queues)
	return d.card.Lay(func(memory *kit.Rings) {
		newRing := func(index, size int) ring {
			r := ring{index: uint32(index), mask: uint32(size - 1), shift: uint8(bits.TrailingZeros(uint(size))),
				packed: d.has(featPacked), data: d.has(featNotifyData)}
			a := r.areas()
			r.desc, r.iova[0] = memory.Whole(a[0])
			r.driver, r.iova[1] = memory.Whole(a[1])
			r.device, r.iova[2] = memory.Whole(a[2])
			return r
		}
		d.queues, d.control = nil, nil
		for i := range d.card.Options.Queues {
			q := &Queue{bufLen: uint32(bufLen), stride: stride}
			q.rx, q.tx = newRing(2*i, d.sizes.entries), newRing(2*i+1, d.sizes.entries)
			q.buf, q.iova = memory.Page(buffers)
			if i == 0 {
				q.sendBuf, q.sendIOVA = memory.Page(buffers)
			}
			q.owner = memory.Table(d.sizes.entries)
			d.queues = append(d.queues, q)
		}
		if n := d.sizes.controlEntries; n > 0 {
			d.control = &control{ring: newRing(d.sizes.controlIndex, n)}
			d.control.buf, d.control.iova = memory.Page(controlBuf)
		}
	})
}

// entries returns the number of entries per ring: the number that the first n virtqueues all support, limited by the
// options.
func (d *Device) entries(n int) (int, error) {
	most := maxRing
	for i := range uint32(n) {
		size := d.size(i)
		if size == 0 {
			return 0, d.card.Errorf("%w: virtqueue %d of %d is missing: its queue_size is 0", nic.ErrHardware, i, n)
		}
		most = min(most, size)
	}
	most = powerOfTwo(most)
	switch {
	case d.gone():
		return 0, d.card.Gone("device_status")
	case most < minRing:
		return 0, d.card.Errorf("%w: the device's rings take %d entries, %d are needed", nic.ErrHardware, most, minRing)
	case d.ring > most:
		return 0, d.card.Errorf("ring size %d is not a power of two within %d to %d, what the device takes", d.ring,
			minRing, most)
	}
	size := d.ring
	if size == 0 {
		size = min(most, defaultRing)
	}
	return d.negotiateSize(n, size)
}

// writeSize writes the size of a virtqueue and returns the size that the device then has.
func (d *Device) writeSize(index uint32, size int) int {
	d.write16(regQueueSelect, uint16(index))
	d.write16(regQueueSize, uint16(size))
	return int(d.read16(regQueueSize))
}

// negotiateSize writes the size of the first n virtqueues. A device may keep its own sizes: DPDK and others never write
// them. Then these are used, if they are the same for all queues and fit the driver.
func (d *Device) negotiateSize(n, size int) (int, error) {
	own := d.writeSize(0, size)
	for i := range uint32(n) {
		if got := d.writeSize(i, size); got != own {
			return 0, d.card.Errorf("%w: queue_size of virtqueues 0 and %d is %d and %d, %d was written",
				nic.ErrHardware, i, own, got, size)
		}
	}
	switch {
	case own == size:
	case own < minRing || own > maxRing || own != powerOfTwo(own):
		return 0, d.card.Errorf(
			"%w: the device keeps its queue_size of %d, powers of two within %d to %d are supported", nic.ErrHardware,
			own, minRing, maxRing)
	default:
		d.card.FallBack(fmt.Sprintf("rings of %d entries", size), fmt.Sprintf("rings of %d", own),
			"the device keeps its queue_size")
	}
	return own, nil
}

// powerOfTwo returns the largest power of two up to n: a packed ring's limit may be any number.
func powerOfTwo(n int) int { return 1 << (bits.Len(uint(n)) - 1) }

// Info describes the device.
func (d *Device) Info() nic.Info {
	q := d.queues[0]
	kind := "split"
	if q.rx.packed {
		kind = "packed"
	}
	name, _ := Supports(d.card.Fn.ID())
	i := d.card.Info(fmt.Sprintf("%s (%v)", name, d.card.Fn.ID()), kind+" ring",
		fmt.Sprintf("features %#x", uint64(d.features)),
		fmt.Sprintf("%s rings of %d, buffers of %d bytes", kind, q.rx.mask+1, q.bufLen),
		"no interrupts, no event index, no offloads")
	if i.Backend == nic.Silicon {
		i.Backend = nic.Virtual
	}
	i.NoDropCounter = true // VIRTIO 1.2 has none
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

// Send posts a copy of frame on queue 0 now.
func (d *Device) Send(frame []byte) error {
	if err := d.card.Sending(frame); err != nil {
		return err
	}
	return d.queues[0].send(frame)
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

// release stops DMA before memory is freed: by a device reset, and by turning bus mastering off in case the reset did
// not work.
func (d *Device) release() error {
	if d.regs.common.bar != nil && !d.gone() {
		if err := d.reset(); err != nil {
			d.card.Log.Warn("reset at close failed", "err", err)
		}
	}
	return d.card.Release()
}
