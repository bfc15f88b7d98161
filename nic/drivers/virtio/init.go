package virtio

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/kit"
)

func (d *Device) read8(r reg) uint8   { return d.regs.common.bar.Read8(d.regs.common.at + uint64(r)) }
func (d *Device) read16(r reg) uint16 { return d.regs.common.bar.Read16(d.regs.common.at + uint64(r)) }
func (d *Device) read32(r reg) uint32 { return d.regs.common.bar.Read32(d.regs.common.at + uint64(r)) }
func (d *Device) writeStatus(v uint8) {
	d.card.Trace.Register(true, "common", uint32(regDeviceStatus), uint64(v), 1)
	d.regs.common.bar.Write8(d.regs.common.at+uint64(regDeviceStatus), v)
}
func (d *Device) write16(r reg, v uint16) {
	d.card.Trace.Register(true, "common", uint32(r), uint64(v), 2)
	d.regs.common.bar.Write16(d.regs.common.at+uint64(r), v)
}
func (d *Device) write32(r reg, v uint32) {
	d.card.Trace.Register(true, "common", uint32(r), uint64(v), 4)
	d.regs.common.bar.Write32(d.regs.common.at+uint64(r), v)
}
func (d *Device) write64(r reg, v uint64) {
	d.write32(r, uint32(v))
	d.write32(r+4, uint32(v>>32))
}

// conf16 and conf32 read a field of the device configuration, which exists only with its feature.
func (d *Device) conf16(off uint64) uint16 { return d.regs.config.bar.Read16(d.regs.config.at + off) }
func (d *Device) conf32(off uint64) uint32 { return d.regs.config.bar.Read32(d.regs.config.at + off) }

func (d *Device) has(f feature) bool { return d.features&f != 0 }

func (d *Device) gone() bool { return d.read8(regDeviceStatus) == statusGone }

// reset stops the device and waits until it has stopped (§2.4, §4.1.4.3.2): afterwards it accesses no memory.
func (d *Device) reset() error {
	if d.gone() {
		return d.card.Gone("device_status")
	}
	d.writeStatus(0)
	for end := kit.NewDeadline(time.Second, 100); ; time.Sleep(20 * time.Microsecond) {
		last := end.Over()
		switch s := d.read8(regDeviceStatus); {
		case s == 0:
			return nil
		case s == statusGone:
			return d.card.Gone("device_status")
		case last:
			return d.card.Errorf("%w: device_status is %#02x a second after a reset, should be 0", nic.ErrTimeout, s)
		}
	}
}

// readFeatures reads the device's features (§2.2).
func (d *Device) readFeatures() feature {
	d.write32(regDeviceFeatureSelect, 0)
	f := feature(d.read32(regDeviceFeature))
	d.write32(regDeviceFeatureSelect, 1)
	return f | feature(d.read32(regDeviceFeature))<<32
}

// negotiate makes the device accept d.features (§3.1.1, steps 2 to 6).
func (d *Device) negotiate() error {
	d.writeStatus(statusAcknowledge)
	d.writeStatus(statusAcknowledge | statusDriver)
	d.write32(regDriverFeatureSelect, 0)
	d.write32(regDriverFeature, uint32(d.features))
	d.write32(regDriverFeatureSelect, 1)
	d.write32(regDriverFeature, uint32(d.features>>32))
	d.writeStatus(statusAcknowledge | statusDriver | statusFeaturesOK)
	switch s := d.read8(regDeviceStatus); {
	case s == statusGone:
		return d.card.Gone("device_status")
	case s&statusFeaturesOK == 0:
		return d.card.Errorf("%w: the device refuses features %#x of its %#x: device_status is %#02x, FEATURES_OK should be set",
			nic.ErrHardware, uint64(d.features), uint64(d.readFeatures()), s)
	}
	return nil
}

// start brings the device from any state to polling (§3.1.1).
func (d *Device) start() error {
	if err := d.reset(); err != nil {
		return err
	}
	if err := d.negotiate(); err != nil {
		return err
	}
	for _, q := range d.queues {
		q.reset()
		for _, r := range []*ring{&q.rx, &q.tx} {
			if err := d.enable(r); err != nil {
				return err
			}
		}
	}
	if d.control != nil {
		d.control.reset()
		if err := d.enable(&d.control.ring); err != nil {
			return err
		}
	}
	const running = statusAcknowledge | statusDriver | statusFeaturesOK | statusDriverOK
	d.writeStatus(running)
	switch s := d.read8(regDeviceStatus); {
	case s == statusGone:
		return d.card.Gone("device_status")
	case s != running:
		return d.card.Errorf("%w: device_status is %#02x after DRIVER_OK, should be %#02x", nic.ErrHardware, s, running)
	}
	for _, q := range d.queues {
		q.rx.notify() // there are buffers
	}
	return d.configure()
}

// size returns the largest number of entries of virtqueue index, 0 if there is no such queue. Call it after feature
// negotiation and before the queue is set up.
func (d *Device) size(index uint32) int {
	d.write16(regQueueSelect, uint16(index))
	return int(d.read16(regQueueSize))
}

// enable tells the device a ring's addresses (§4.1.5.1.3), and finds its notification address (§4.1.4.4).
func (d *Device) enable(r *ring) error {
	d.write16(regQueueSelect, uint16(r.index))
	d.write16(regQueueSize, uint16(r.mask+1))
	if got := d.read16(regQueueSize); got != uint16(r.mask+1) {
		return d.card.Errorf("%w: queue_size of virtqueue %d is %d, %d was written", nic.ErrHardware, r.index, got,
			r.mask+1)
	}
	d.write64(regQueueDesc, r.iova[0])
	d.write64(regQueueDriver, r.iova[1])
	d.write64(regQueueDevice, r.iova[2])
	width := uint64(2)
	if r.data {
		width = 4
	}
	n := &d.regs.notify
	off := uint64(d.read16(regQueueNotifyOff)) * d.regs.multiplier
	if off+width > n.size || (n.at+off)%width != 0 {
		return d.card.Errorf("%w: virtqueue %d is notified by %d bytes at %#x of a structure of %#x bytes at %#x",
			nic.ErrHardware, r.index, width, off, n.size, n.at)
	}
	bell, err := n.bar.Pointer(n.at+off, width)
	if err != nil {
		return err
	}
	r.bell = bell
	d.write16(regQueueEnable, 1)
	return nil
}

// configure sends the commands that a running device needs: number of queue pairs, MAC address, filters.
func (d *Device) configure() error {
	if len(d.queues) > 1 {
		err := d.control.command(d, "MQ_VQ_PAIRS_SET", ctrlPairs,
			binary.LittleEndian.AppendUint16(nil, uint16(len(d.queues))))
		if errors.Is(err, errRefused) { // the device stays with the first pair (§5.1.6.5.5)
			d.card.FallBackToOne("%v", err)
		} else if err != nil {
			return err
		}
	}
	if d.foreignMAC {
		if err := d.control.command(d, "MAC_ADDR_SET", ctrlAddress, d.card.MAC[:]); err != nil {
			return err
		}
	}
	if !d.has(featCtrlRX) {
		return nil // such a device receives everything
	}
	// §5.1.6.5.2: the unicast table, empty because our own address is implied, and the multicast table.
	table := binary.LittleEndian.AppendUint32(make([]byte, 4), uint32(len(d.groups)))
	for _, g := range d.groups {
		table = append(table, g[:]...)
	}
	all := byte(0)
	if d.allMulticast {
		all = 1
	}
	err := d.control.command(d, "MAC_TABLE_SET", ctrlTable, table)
	if err == nil {
		err = d.control.command(d, "RX_ALLMULTI", ctrlAllMulti, []byte{all})
	}
	if err == nil {
		err = d.control.command(d, "RX_PROMISC", ctrlPromisc, []byte{0})
	}
	if errors.Is(err, errRefused) {
		// Without the filter only unwanted frames arrive in addition.
		d.card.FallBack("filters by address", "all frames, which the loop filters", "%v", err)
		err = d.control.command(d, "RX_PROMISC", ctrlPromisc, []byte{1})
	}
	return err
}
