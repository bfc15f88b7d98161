// Package virtiosim is a virtio network device with faults that no hypervisor's device can inject, for the driver's
// conformance suite and for fault campaigns. It models no particular device: QEMU's device is used for that in the lab.
// It is written from Virtual I/O Device (VIRTIO) Version 1.2 (sections in comments), shares no constant with the
// driver, and is strict about the specification.
//
// It polls its rings and needs no notifications. It has no MSI-X and raises no interrupts.
package virtiosim

import (
	"encoding/binary"
	"fmt"

	"github.com/rebound-nic/rebound/sim"
)

// Options describes what the device offers.
type Options struct {
	MAC              [6]byte // 02:00:00:00:00:09 if zero
	Packed           bool    // RING_PACKED
	NotificationData bool    // NOTIFICATION_DATA
	Lacks            uint64  // features to remove from those of the model
	Offered          uint64  // the features to offer instead of those of the model; 0 for those of the model
	MTU              uint16  // 9000 if zero
	Pairs            uint16  // of queues, at most 16; 4 if zero
	Limit            uint16  // entries of each queue; 256, the most, if zero
	// queue_size cannot be changed: DPDK never writes it, so a device without that works with DPDK
	Fixed bool
}

// Model is one device. Its knobs may be set from any goroutine.
type Model struct {
	opt Options
	knobs
	host         sim.Host
	link, paused bool
	state
}

// state is what a reset clears.
type state struct {
	status         uint8
	sel            [2]uint32 // device_feature_select, driver_feature_select
	accepted       uint64
	queueSelect    uint16
	queues         [maxVQ]vq
	pairs          int
	mac            [6]byte
	promisc, multi bool
	groups         map[[6]byte]bool
	turn           int // the transmit queue with which the next Step begins
}

type vq struct {
	size    uint16
	area    [3]uint64
	enabled bool
	avail   uint32 // entries taken
	used    uint32 // entries used
}

const (
	vqPairs   = 16 // at most
	maxVQ     = 2*vqPairs + 1
	vqMax     = 256
	commonAt  = 0x0000
	deviceAt  = 0x2000
	notifyAt  = 0x3000
	notifyMul = 4
)

var le = binary.LittleEndian

// Bits returns a set of features, given by number.
func Bits(n ...uint) (v uint64) {
	for _, b := range n {
		v |= 1 << b
	}
	return v
}

// offered returns MTU, MAC, STATUS, CTRL_VQ, CTRL_RX, MQ, CTRL_MAC_ADDR, VERSION_1, SPEED_DUPLEX, and features that our
// driver does not use: CSUM, GUEST_CSUM, MRG_RXBUF, INDIRECT_DESC, EVENT_IDX, IN_ORDER.
func (m *Model) offered() uint64 {
	v := Bits(3, 5, 16, 17, 18, 22, 23, 32, 63, 0, 1, 15, 28, 29, 35)
	if m.opt.Packed {
		v |= Bits(34)
	}
	if m.opt.NotificationData {
		v |= Bits(38)
	}
	if m.opt.Offered != 0 {
		v = m.opt.Offered
	}
	return v &^ m.opt.Lacks
}

func (m *Model) has(bit uint) bool { return m.accepted>>bit&1 != 0 }

func (m *Model) Config() sim.Config {
	return sim.Config{
		Vendor: 0x1af4, Device: 0x1041, SubVendor: 0x1af4, SubDevice: 0x1100, Revision: 1, Class: 0x020000,
		BARs:       [6]sim.BAR{4: {Size: 0x4000, Is64: true, Prefetchable: true, Polled: []sim.Range{{Off: notifyAt, Len: maxVQ * notifyMul}}}},
		PCIeDevCap: 1 << 28, LinkSpeed: 1, LinkWidth: 1,
		VendorParts: [][]byte{ // §4.1.4: cap_len, cfg_type, bar, id, padding, offset, length
			{16, 1, 4, 0, 0, 0, 0, commonAt >> 8, 0, 0, 0x38, 0, 0, 0},
			{16, 4, 4, 0, 0, 0, 0, deviceAt >> 8, 0, 0, 0x20, 0, 0, 0},
			{20, 2, 4, 0, 0, 0, 0, notifyAt >> 8, 0, 0, maxVQ * notifyMul, 0, 0, 0, notifyMul, 0, 0, 0},
		},
	}
}

// New returns a device that is not yet powered on.
func New(o Options) *Model {
	if o.MTU == 0 {
		o.MTU = 9000
	}
	if o.Pairs == 0 {
		o.Pairs = 4
	}
	if o.Limit == 0 {
		o.Limit = vqMax
	}
	if o.MAC == [6]byte{} {
		o.MAC = [6]byte{2, 0, 0, 0, 0, 9}
	}
	return &Model{opt: o}
}

func (m *Model) Attach(h sim.Host) { m.host = h }
func (m *Model) SetLink(up bool)   { m.link = up }
func (m *Model) Pause(on bool)     { m.paused = on }

func (m *Model) Reset() {
	m.state = state{mac: m.opt.MAC, pairs: 1, promisc: true}
	for i := range m.queues {
		m.queues[i].size = m.opt.Limit
	}
	m.needsReset.Store(false)
	m.stall.Store(false)
}

// field returns a field of the common configuration (§4.1.4.3) and its width in bytes.
func (m *Model) field(off uint64) (width int, value uint64, write func(v uint64) error) {
	q := &m.queues[min(int(m.queueSelect), maxVQ-1)]
	part := func(p *uint64, shift int) (int, uint64, func(uint64) error) {
		return 4, *p >> shift & 0xffff_ffff, func(v uint64) error {
			*p = *p&^(0xffff_ffff<<shift) | v<<shift
			return nil
		}
	}
	switch off {
	case 0x00, 0x08:
		p := &m.sel[off/8]
		return 4, uint64(*p), func(v uint64) error { *p = uint32(v); return nil }
	case 0x04:
		return 4, m.half(m.offered(), m.sel[0]), nil
	case 0x0c:
		return 4, m.half(m.accepted, m.sel[1]), func(v uint64) error {
			if m.status&8 != 0 {
				return fmt.Errorf("driver_feature written after FEATURES_OK")
			}
			shift := 32 * (m.sel[1] & 1)
			m.accepted = m.accepted&^(0xffff_ffff<<shift) | v<<shift
			return nil
		}
	case 0x12:
		return 2, 2*uint64(m.opt.Pairs) + 1, nil
	case 0x14:
		if m.needsReset.Load() {
			m.status |= 64
		}
		return 1, uint64(m.status), m.writeStatus
	case 0x15:
		return 1, 0, nil
	case 0x16:
		return 2, uint64(m.queueSelect), func(v uint64) error { m.queueSelect = uint16(v); return nil }
	case 0x18:
		if int(m.queueSelect) > 2*int(m.opt.Pairs) || m.status&8 == 0 {
			return 2, 0, nil
		}
		return 2, uint64(q.size), func(v uint64) error {
			if v == 0 || v > vqMax || !m.has(34) && v&(v-1) != 0 {
				return fmt.Errorf("queue_size %d", v)
			}
			if !m.opt.Fixed {
				q.size = uint16(v)
			}
			return nil
		}
	case 0x1c:
		e := uint64(0)
		if q.enabled {
			e = 1
		}
		return 2, e, func(v uint64) error {
			if v != 1 || m.status&8 == 0 || m.status&4 != 0 {
				return fmt.Errorf("queue_enable = %d at status %#x", v, m.status)
			}
			if q.area[0]%16 != 0 || q.area[1]%4 != 0 || q.area[2]%4 != 0 {
				return fmt.Errorf("queue areas at %#x are not aligned", q.area)
			}
			q.enabled = true
			return nil
		}
	case 0x1e:
		return 2, uint64(m.queueSelect), nil
	case 0x20, 0x28, 0x30:
		return part(&q.area[(off-0x20)/8], 0)
	case 0x24, 0x2c, 0x34:
		return part(&q.area[(off-0x20)/8], 32)
	}
	return 0, 0, nil
}

func (m *Model) half(v uint64, sel uint32) uint64 {
	if sel > 1 {
		return 0
	}
	return v >> (32 * sel) & 0xffff_ffff
}

func (m *Model) writeStatus(v uint64) error {
	s := uint8(v)
	switch {
	case s == 0:
		m.Reset()
		return nil
	case m.status&^s != 0:
		return fmt.Errorf("device_status %#x takes bits of %#x back", s, m.status)
	}
	if s&8 != 0 && m.status&8 == 0 && (m.accepted&^m.offered() != 0 || !m.has(32) || m.picky.Load()) {
		s &^= 8 // §3.1.1: the device does not accept the features
	}
	if s&4 != 0 && s&8 == 0 {
		return fmt.Errorf("DRIVER_OK without FEATURES_OK")
	}
	m.status = s
	return nil
}

func (m *Model) ReadBAR(bar int, off uint64, p []byte) error {
	switch {
	case off >= notifyAt:
		clear(p)
		return nil
	case off >= deviceAt:
		var conf [0x20]byte
		copy(conf[:], m.mac[:])
		if m.link && m.knobs.link.Load() == 0 {
			conf[6] = 1
		}
		le.PutUint16(conf[8:], m.opt.Pairs)
		le.PutUint16(conf[10:], m.opt.MTU)
		le.PutUint32(conf[12:], 10000)
		at := off - deviceAt
		want := map[uint64]int{6: 2, 8: 2, 10: 2, 12: 4, 16: 1}[at]
		if at < 6 {
			want = 1
		}
		if len(p) != want {
			return fmt.Errorf("%d bytes of device configuration at %d, a field has %d", len(p), at, want)
		}
		copy(p, conf[at:])
		return nil
	}
	width, v, _ := m.field(off)
	if width != len(p) {
		return fmt.Errorf("read of %d bytes, the field has %d", len(p), width)
	}
	var b [8]byte
	le.PutUint64(b[:], v)
	copy(p, b[:])
	return nil
}

func (m *Model) WriteBAR(bar int, off uint64, p []byte) error {
	if off >= notifyAt {
		return nil
	}
	width, _, write := m.field(off)
	if off >= deviceAt || write == nil || width != len(p) {
		return fmt.Errorf("write of %d bytes, the field has %d", len(p), width)
	}
	var b [8]byte
	copy(b[:], p)
	return write(le.Uint64(b[:]))
}

func (m *Model) Receive(frame []byte) bool {
	if m.status&4 == 0 || !m.link || !m.wanted(frame) {
		return false
	}
	q := &m.queues[2*(flowOf(frame)%m.pairs)]
	before := *q
	chain, ok := m.take(q)
	if !ok {
		m.missed.Add(1)
		return false
	}
	d := append(make([]byte, 12), frame...)
	d[10] = 1
	if len(chain) != 1 || chain[0].flags&2 == 0 {
		m.host.Errorf("a receive buffer of %d descriptors, flags %#x", len(chain), chain[0].flags)
		return false
	}
	if len(d) > int(chain[0].len) {
		*q = before
		m.missed.Add(1)
		return false
	}
	if m.host.DMAWrite(chain[0].addr, d) != nil {
		return false
	}
	m.use(q, chain, uint32(len(d)))
	return true
}

// flowOf returns a number that all frames of a flow share, from addresses and UDP ports.
func flowOf(frame []byte) (sum int) {
	from, ports, udp := 26, 34, len(frame) > 38 && frame[23] == 17
	if len(frame) > 58 && frame[12] == 0x86 {
		from, ports, udp = 22, 54, frame[20] == 17
	}
	if udp {
		ports += 4
	}
	for _, b := range frame[min(from, len(frame)):min(ports, len(frame))] {
		sum += int(b)
	}
	return sum
}

// wanted applies the receive filter (§5.1.6.5.1, §5.1.6.5.2).
func (m *Model) wanted(frame []byte) bool {
	to := [6]byte(frame)
	return m.promisc || to == m.mac || to == [6]byte{255, 255, 255, 255, 255, 255} || to[0]&1 != 0 &&
		(m.multi || m.groups[to])
}

func (m *Model) Step() bool {
	if m.status&4 == 0 {
		return false
	}
	control := 2
	if m.has(22) {
		control = 2 * int(m.opt.Pairs)
	}
	if q := &m.queues[control]; m.has(17) && !m.forgetControl.Load() {
		if chain, ok := m.take(q); ok {
			m.command(q, chain)
			return true
		}
	}
	if m.paused || m.stall.Load() {
		return false
	}
	for range m.pairs {
		m.turn = (m.turn + 1) % m.pairs
		q := &m.queues[2*m.turn+1]
		if chain, ok := m.take(q); ok {
			m.transmit(q, chain)
			return true
		}
	}
	return false
}

func (m *Model) transmit(q *vq, chain []piece) {
	if len(chain) != 1 || chain[0].flags&2 != 0 || chain[0].len < 12+14 || chain[0].len > 12+22+uint32(m.opt.MTU) {
		m.host.Errorf("a frame of %d descriptors, %d bytes, flags %#x", len(chain), chain[0].len, chain[0].flags)
		return
	}
	d := make([]byte, chain[0].len)
	if m.host.DMARead(chain[0].addr, d) == nil && m.link {
		if [12]byte(d) != [12]byte{} {
			m.host.Errorf("header %x of a frame that wants nothing", d[:12])
		}
		m.host.Transmit(d[12:])
	}
	m.use(q, chain, 0)
}

func (m *Model) command(q *vq, chain []piece) {
	if len(chain) != 2 || chain[0].flags&2 != 0 || chain[1].flags&2 == 0 || chain[1].len != 1 || chain[0].len < 3 ||
		chain[0].len > 4096 {
		m.host.Errorf("control command of %d descriptors", len(chain))
		return
	}
	c := make([]byte, chain[0].len)
	if m.host.DMARead(chain[0].addr, c) != nil {
		return
	}
	ack, data := byte(0), c[2:]
	switch [2]byte(c) {
	case [2]byte{0, 0}:
		m.promisc = data[0] != 0
	case [2]byte{0, 1}:
		m.multi = data[0] != 0
	case [2]byte{1, 0}:
		m.groups = map[[6]byte]bool{}
		for b := data[8+6*le.Uint32(data):]; len(b) >= 6; b = b[6:] {
			m.groups[[6]byte(b)] = true
		}
	case [2]byte{1, 1}:
		copy(m.mac[:], data)
	case [2]byte{4, 0}:
		if m.pairs = int(le.Uint16(data)); m.pairs < 1 || m.pairs > int(m.opt.Pairs) {
			m.pairs, ack = 1, 1
		}
	default:
		ack = 1
	}
	if m.refuse.Load() && c[0] == 1 {
		ack = 1
	}
	if m.refusePairs.Load() && c[0] == 4 {
		m.pairs, ack = 1, 1
	}
	m.host.DMAWrite(chain[1].addr, []byte{ack})
	m.use(q, chain, 1)
}
