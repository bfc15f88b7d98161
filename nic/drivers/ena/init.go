package ena

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"runtime"
	"time"
	"unsafe"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/kit"
	"github.com/rebound-nic/rebound/nic/kit/amazonadmin"
)

const (
	adminDepth     = 32
	eventDepth     = 16
	adminTimeout   = 3 * time.Second
	knownInterface = 2 // the major version that these definitions are of
)

// leastAdmin is the minimum timeout of a command, whatever the device requests. Tests raise it, because the thread of a
// model may be descheduled.
var leastAdmin time.Duration

// startAdmin resets the device and sets up its admin and event queues.
func (d *Device) startAdmin(reason uint32) error {
	version, err := d.regs.Version()
	if err != nil {
		return err
	}
	if version.Major > knownInterface {
		return d.card.Errorf("interface version %d.%d: this driver knows up to %d", version.Major, version.Minor,
			knownInterface)
	}
	d.version = version.String()
	if err := d.regs.Reset(reason); err != nil {
		return err
	}
	caps, err := d.regs.Read(amazonadmin.CAPS)
	if err != nil {
		return err
	}
	width := caps >> amazonadmin.CapsDMAWidthShift & amazonadmin.CapsDMAWidthMask
	if width < 32 || width > 48 {
		return d.card.Errorf("%w: CAPS is %#x: %d address bits, expected 32 to 48", amazonadmin.ErrDevice, caps, width)
	}
	d.card.AddressBits = width
	timeout := cmp.Or(amazonadmin.AdminTimeout(caps), adminTimeout)
	if d.aq, err = amazonadmin.NewQueue(d.regs, d.card.Arena, adminDepth, max(timeout, leastAdmin)); err != nil {
		return err
	}
	if d.events, err = amazonadmin.NewEvents(d.regs, d.card.Arena, eventDepth); err != nil {
		return err
	}
	d.regs.Write(amazonadmin.INTR_MASK, amazonadmin.Mask)
	if d.control, err = d.card.Block(4096, 4096); err != nil {
		return err
	}
	d.infoMemory, err = d.card.Block(4096, 4096)
	return err
}

// get reads a feature. With a control buffer the command says "indirect", although it points to the buffer itself: all
// published drivers do this, so it works.
func (d *Device) get(name string, id, version uint8, control uint32) (gotFeature, error) {
	c := feature{Header: amazonadmin.Header{Opcode: opGetFeature}, flags: selectCurrent, id: id, version: version}
	if control > 0 {
		c.Flags, c.length, c.addr = amazonadmin.FlagCtrlIndirect, control, amazonadmin.PutAddr(d.control.IOVA)
	}
	var r gotFeature
	return r, amazonadmin.Exec(d.aq, "get "+name, &c, &r)
}

// set writes a feature whose data is v.
func set[T any](d *Device, name string, id uint8, control uint32, v *T) error {
	c := feature{Header: amazonadmin.Header{Opcode: opSetFeature}, id: id}
	if control > 0 {
		c.Flags, c.length, c.addr = amazonadmin.FlagCtrlIndirect, control, amazonadmin.PutAddr(d.control.IOVA)
	}
	copy(c.data[:], unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v)))
	return amazonadmin.Exec(d.aq, "set "+name, &c, new(amazonadmin.Completion))
}

func as[T any](r *gotFeature) (v T) {
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&v)), unsafe.Sizeof(v)), r.data[:])
	return v
}

func (d *Device) has(id uint8) bool { return d.attr.features>>id&1 != 0 }

// lacks notes a feature that the device refuses, if the driver can continue without it.
func (d *Device) lacks(what string, err error) error {
	var e *amazonadmin.CommandError
	if errors.As(err, &e) {
		d.features = append(d.features, fmt.Sprintf("%s: %v", what, e.Status))
		return nil
	}
	return err
}

func refused(err error) bool {
	var e *amazonadmin.CommandError
	return errors.As(err, &e)
}

// identify sends the host information, reads the device's attributes, and sets device-wide features.
func (d *Device) identify() error {
	d.features = nil
	if err := d.tellHost(); err != nil {
		return err
	}
	r, err := d.get("device attributes", featDevice, 0, 0)
	if err != nil {
		return err
	}
	d.attr = as[deviceAttr](&r) // its address width is unused: published drivers use the one in CAPS
	d.card.MAC = d.attr.mac
	if err := kit.CheckMAC(d.card.MAC); err != nil {
		return d.card.Errorf("%w: %w", amazonadmin.ErrDevice, err)
	}
	if d.card.Options.MAC != [6]byte{} && d.card.Options.MAC != d.card.MAC {
		return d.card.Errorf("the network delivers to %x only, %x was asked for", d.card.MAC, d.card.Options.MAC)
	}
	if err := d.setMTU(); err != nil {
		return err
	}
	if err := d.limits(); err != nil {
		return err
	}
	if err := d.enableEvents(); err != nil {
		return err
	}
	d.times.apply(hints{})
	if d.has(featHints) {
		r, err := d.get("hardware hints", featHints, 0, 0)
		if err := d.lacks("hardware hints", err); err != nil {
			return err
		}
		d.times.apply(as[hints](&r))
	}
	d.linkSpeed = 0
	if d.has(featLink) {
		if r, err := d.get("link", featLink, 0, 0); err == nil {
			d.linkSpeed = int(as[linkFeature](&r).speed)
		}
	}
	return d.setLLQ()
}

func (d *Device) tellHost() error {
	clear(d.infoMemory.Bytes)
	h := (*hostInfo)(kit.Pointer(d.infoMemory))
	*h = hostInfo{osType: osLinux, specVersion: specVersion, cpus: uint16(runtime.NumCPU()), driverVersion: driverMajor}
	if v := d.own.Debug.HostVersion; v != 0 {
		h.driverVersion = v
	}
	if v := d.own.Debug.OSType; v != 0 {
		h.osType = v
	}
	copy(h.osDist[:], "Rebound")
	return d.lacks("host attributes", set(d, "host attributes", featHost, 0,
		&hostAttr{info: amazonadmin.PutAddr(d.infoMemory.IOVA)}))
}

func (d *Device) setMTU() error {
	d.card.MTU = d.card.Options.MTU
	if d.card.MTU == 0 {
		d.card.MTU = min(1500, int(d.attr.maxMTU))
	}
	if d.card.MTU < limits.MinMTU || d.card.MTU > int(d.attr.maxMTU) {
		return d.card.Errorf("MTU %d is not within %d to %d, which the device allows", d.card.MTU, limits.MinMTU,
			d.attr.maxMTU)
	}
	mtu := uint32(d.card.MTU)
	if !d.has(featMTU) {
		return nil
	}
	return set(d, "MTU", featMTU, 0, &mtu)
}

// limits limits queues and rings to what the device supports.
func (d *Device) limits() error {
	var queues, depth, txDepth uint32
	if d.has(featMaxQueuesX) {
		r, err := d.get("queue limits", featMaxQueuesX, maxQueuesXVers, 0)
		if err != nil {
			return err
		}
		m := as[maxQueuesX](&r)
		queues, depth, txDepth = min(m.txSQ, m.txCQ, m.rxSQ, m.rxCQ), min(m.rxSQDepth, m.rxCQDepth),
			min(m.txSQDepth, m.txCQDepth)
		d.headerMax = m.header
	} else {
		r, err := d.get("queue limits", featMaxQueues, 0, 0)
		if err != nil {
			return err
		}
		m := as[maxQueues](&r)
		queues, depth, txDepth, d.headerMax = min(m.sq, m.cq), min(m.sqDepth, m.cqDepth), min(m.sqDepth, m.cqDepth),
			m.header
	}
	d.headerMax = min(d.headerMax, 255) // maximum of the descriptor's field
	if want := d.card.Options.Queues; uint32(want) > queues {
		return d.card.Errorf("%d queue pairs requested, the device has %d", want, queues)
	}
	if d.cqMax != 0 {
		depth = min(depth, d.cqMax)
	}
	d.txRing = d.ring
	if uint32(d.ring) > min(depth, txDepth) {
		if d.ringAsked {
			return d.card.Errorf("ring size %d, the device takes up to %d", d.ring, min(depth, txDepth))
		}
		d.ring = 1 << (bits.Len32(min(depth, txDepth)) - 1)
		d.txRing = d.ring
	}
	return nil
}

// The groups of events (ena_admin_aenq_group).
const (
	groupLink         = 0
	groupFatal        = 1
	groupWarning      = 2
	groupNotification = 3
	groupKeepAlive    = 4
)

func (d *Device) enableEvents() error {
	r, err := d.get("event groups", featAENQ, 0, 0)
	if err != nil {
		return err
	}
	a := as[aenqFeature](&r)
	a.enabled = a.supported & (1<<groupLink | 1<<groupFatal | 1<<groupWarning | 1<<groupNotification |
		1<<groupKeepAlive)
	d.watchdog.enabled = a.enabled>>groupKeepAlive&1 != 0
	if !d.watchdog.enabled {
		d.features = append(d.features,
			"the device sends no keep-alive: a device that hangs shows only by transmits that stall")
	}
	return set(d, "event groups", featAENQ, 0, &a)
}

const normalEntry, wideEntry = 128, 256

// errNextStep means that the device must be started again, without what it refused.
var errNextStep = errors.New("the device refuses this form of queue")

// nextStep notes that the device refused to make a low-latency queue: the next start uses smaller entries, or none.
func (d *Device) nextStep(err error) error {
	if d.llq.entrySet == llqEntry256 && d.llq.entryHave&llqEntry128 != 0 {
		d.refusedWide = err.Error()
		d.withoutWide(d.refusedWide)
	} else {
		d.refusedLLQ = err.Error()
	}
	return fmt.Errorf("%w: %w", errNextStep, err)
}

// startQueues makes the queue pairs.
func (d *Device) startQueues() error {
	if err := d.allocate(); err != nil {
		return err
	}
	d.rxSQ, d.trials = nil, make([]*kit.Trial, len(d.queues))
	for i, q := range d.queues {
		if err := d.create(q); err != nil {
			return fmt.Errorf("queue %d: %w", i, err)
		}
		if d.llq != nil && kit.MeasurePush(d.card.Fn) {
			d.trials[i] = kit.NewTrial(q.llq, q.txDB, q.txMask+1, q.entry)
			q.llq, q.txDB = d.trials[i].Stand()
		}
		q.reset()
	}
	return nil
}

// allocate makes the rings, buffers and tables of the queue pairs. A loop keeps its Queue over restarts.
func (d *Device) allocate() error {
	for len(d.queues) < d.card.Options.Queues {
		d.queues = append(d.queues, &Queue{})
	}
	return d.card.Lay(func(memory *kit.Rings) {
		for _, q := range d.queues {
			q.size = uint32(d.card.MaxFrame())
			q.stride = kit.Stride(room + d.card.MaxFrame())
			q.mask, q.txMask = uint32(d.ring-1), uint32(d.txRing-1)
			q.shift, q.txShift = uint32(bits.TrailingZeros(uint(d.ring))), uint32(bits.TrailingZeros(uint(d.txRing)))
			q.headerMax = d.headerMax
			q.buf, q.iova = memory.Page((d.ring + d.txRing) * int(q.stride))
			q.txCQ, q.txCQIOVA = memory.Page(d.txRing * txCQE)
			q.txSQ, q.txSQIOVA, q.llq = nil, 0, nil
			if d.llq == nil {
				q.txSQ, q.txSQIOVA = memory.Page(d.txRing * descSize)
			}
			q.rxCQ, q.rxCQIOVA = memory.Page(d.ring * descSize)
			q.rxSQ, q.rxSQIOVA = memory.Page(d.ring * descSize)
			q.posted, q.free, q.txHeld = memory.Table(d.ring), memory.Table(2*(d.ring+1)), memory.Table(2*d.txRing)
		}
	})
}

// registers are where a queue pair's registers are in BAR 0, and its LLQ entries in BAR 2. The device chooses them.
type registers struct {
	rxDB, txDB, llq uint32
	rxHead, txHead  uint32 // 0 if there is none
}

// create makes a queue pair of the device: completion queue before submission queue, transmit before receive.
func (d *Device) create(q *Queue) error {
	tx, err := d.createCQ(q.txMask+1, txCQE, q.txCQIOVA)
	if err != nil {
		return err
	}
	sent, err := d.createTxSQ(q, tx.index)
	if err != nil {
		return err
	}
	rx, err := d.createCQ(q.mask+1, descSize, q.rxCQIOVA)
	if err != nil {
		return err
	}
	received, err := d.createSQ("create receive SQ", createSQ{identity: dirRx, placement: placeHost, caps3: contiguous,
		cq:    rx.index,
		depth: uint16(d.ring), base: amazonadmin.PutAddr(q.rxSQIOVA)})
	if err != nil {
		return err
	}
	d.rxSQ = append(d.rxSQ, received.index)
	return d.locate(q, registers{rxDB: received.doorbell, txDB: sent.doorbell, llq: sent.llqDescs, rxHead: rx.headDB,
		txHead: tx.headDB})
}

func (d *Device) createCQ(depth uint32, entry int, iova uint64) (r createdCQ, err error) {
	c := createCQ{Header: amazonadmin.Header{Opcode: opCreateCQ}, entryWord: uint8(entry / 4), depth: uint16(depth),
		vector: noVector, base: amazonadmin.PutAddr(iova)}
	if d.own.Debug.Vector {
		c.vector = 0
	}
	err = amazonadmin.Exec(d.aq, "create CQ", &c, &r)
	if got := uint32(r.depth); err == nil && got < depth && got&(got-1) == 0 && int(got) >= limits.MinRing {
		d.cqMax = got // the answer decides (iPXE 856ffe000)
		return r, fmt.Errorf("%w: completion queue of %d entries where %d were asked for", errNextStep, got, depth)
	}
	if err == nil && uint32(r.depth) != depth {
		err = d.card.Errorf("%w: CQ of %d entries where %d were asked for", amazonadmin.ErrDevice, r.depth, depth)
	}
	return r, err
}

func (d *Device) createSQ(name string, c createSQ) (r createdSQ, err error) {
	c.Opcode = opCreateSQ
	return r, amazonadmin.Exec(d.aq, name, &c, &r)
}

func (d *Device) createTxSQ(q *Queue, cq uint16) (createdSQ, error) {
	c := createSQ{identity: dirTx, placement: placeHost, caps3: contiguous, cq: cq, depth: uint16(d.txRing),
		base: amazonadmin.PutAddr(q.txSQIOVA)}
	if d.llq != nil {
		c.placement = placeDevice
	}
	r, err := d.createSQ("create transmit SQ", c)
	if refused(err) && d.llq != nil {
		err = d.nextStep(err)
	} else if refused(err) && d.noLLQ != "" {
		err = fmt.Errorf("%w (without low-latency queues: %s)", err, d.noLLQ)
	}
	return r, err
}

// locate finds the registers of a queue pair, and its LLQ entries.
func (d *Device) locate(q *Queue, at registers) error {
	for _, r := range []struct {
		to       **uint32
		at       uint32
		optional bool
	}{{&q.rxDB, at.rxDB, false}, {&q.txDB, at.txDB, false}, {&q.rxHeadDB, at.rxHead, true},
		{&q.txHeadDB, at.txHead, true}} {
		*r.to = nil
		if r.at == 0 && r.optional {
			continue
		}
		var err error
		if *r.to, err = d.doorbell(r.at); err != nil {
			return err
		}
	}
	if d.llq == nil {
		return nil
	}
	q.entry, q.maxInline = uint32(d.maxInline+room), uint32(d.maxInline)
	q.omitMeta = d.own.Debug.OmitMeta && d.llq.accel&accelNoMetaCache == 0
	q.burst = 0
	if d.llq.accel&accelLimitTxBurst != 0 {
		q.burst = uint32(d.llq.maxBurst) / q.entry
		if q.burst == 0 {
			return d.card.Errorf("%w: bursts of %d bytes hold no entry of %d", amazonadmin.ErrDevice, d.llq.maxBurst,
				q.entry)
		}
	}
	size := uint64(q.entry) * uint64(d.txRing)
	if uint64(at.llq)+size > d.mem.Size() || at.llq%64 != 0 {
		return d.card.Errorf("%w: LLQ at %#x of %#x bytes, BAR 2 has %#x", amazonadmin.ErrDevice, at.llq, size,
			d.mem.Size())
	}
	var err error
	q.llq, err = d.mem.Pointer(uint64(at.llq), size)
	return err
}

// doorbell returns the pointer to the register at off in BAR 0.
func (d *Device) doorbell(off uint32) (*uint32, error) {
	if uint64(off)+4 > d.bar.Size() || off%4 != 0 {
		return nil, d.card.Errorf("%w: doorbell at %#x, BAR 0 has %#x bytes", amazonadmin.ErrDevice, off, d.bar.Size())
	}
	p, err := d.bar.Pointer(uint64(off), 4)
	return (*uint32)(p), err
}

// Protocols and fields of RSS (ena_admin_flow_hash_proto, ena_admin_flow_hash_fields), and the functions.
const (
	protoUDP4, protoUDP6, protoIP4, protoIP6 = 1, 3, 4, 5
	fieldL3, fieldL4                         = 1<<2 | 1<<3, 1<<4 | 1<<5
	hashToeplitz, hashCRC32                  = 1, 2
	keyParts                                 = 10
)

// startRSS spreads flows over the queues by L3 and, for UDP, L4 source and destination. A device without a choice of
// function or input keeps its own. One that refuses our table may deliver to any queue, and all are polled.
func (d *Device) startRSS() error {
	if len(d.queues) == 1 {
		return nil
	}
	if !d.has(featRSSTable) {
		d.card.FallBackToOne("the device has no RSS table")
		return nil
	}
	err := d.spread()
	if refused(err) {
		d.card.FallBackToOne("%v", err)
		return nil
	}
	return err
}

// spread sets up receive side scaling: a hash that is the same in both directions of a flow, and the table of queues.
// A device that refuses a part keeps its default, and a note says so.
func (d *Device) spread() error {
	kit.Hold(d.controlMu.TryLock)
	defer d.controlMu.Unlock()
	page := d.control.Bytes
	if d.has(featRSSHash) {
		r, err := d.get("RSS hash function", featRSSHash, 0, 8+4*keyParts)
		if err == nil {
			f := as[hashFunction](&r)
			if f.selected = hashToeplitz; f.supported&hashToeplitz == 0 {
				f.selected = hashCRC32
			}
			clear(page)
			binary.LittleEndian.PutUint32(page, keyParts)
			for i := range keyParts { // this key makes both directions of a flow hash alike
				binary.LittleEndian.PutUint32(page[8+4*i:], 0x6D5A6D5A)
			}
			err = set(d, "RSS hash function", featRSSHash, 8+4*keyParts, &f)
		}
		if err := d.lacks("RSS hash function cannot be set; using the device's default", err); err != nil {
			return err
		}
	}
	if d.has(featRSSInput) {
		clear(page)
		for proto, fields := range map[int]uint16{protoIP4: fieldL3, protoIP6: fieldL3, protoUDP4: fieldL3 | fieldL4,
			protoUDP6: fieldL3 | fieldL4} {
			binary.LittleEndian.PutUint16(page[4*(16+proto):], fields) // the second of four arrays of 16: selected
		}
		if err := d.lacks("RSS hash input stays the device's",
			set(d, "RSS hash input", featRSSInput, 4*4*16, &struct{ have, enabled uint16 }{})); err != nil {
			return err
		}
	}
	r, err := d.get("RSS table", featRSSTable, 0, 0)
	if err != nil {
		return err
	}
	t := as[hashTable](&r)
	size := min(max(t.min, 7), t.max)
	if size < t.min || size > 10 {
		return d.card.Errorf("%w: RSS tables of 2^%d to 2^%d entries", nic.ErrHardware, t.min, t.max)
	}
	clear(page)
	for i := range 1 << size {
		binary.LittleEndian.PutUint16(page[4*i:], d.rxSQ[i%len(d.rxSQ)])
	}
	return set(d, "RSS table", featRSSTable, 4<<size, &hashTable{size: size, inline: ^uint32(0)})
}
