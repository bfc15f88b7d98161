package efa

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
	"unsafe"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/kit"
	"github.com/rebound-nic/rebound/nic/kit/amazonadmin"
)

const (
	adminDepth    = 32
	eventDepth    = 16
	adminTimeout  = 30 * time.Second
	minController = 1 // the published driver adds the version's three bytes up, and wants one or more
)

// leastAdmin is what a command has at least, whatever the device says. Tests raise it: the thread of a model may be
// delayed.
var leastAdmin time.Duration

// start brings the device from any state to polling. It makes all memory over again: a device that was reset in mid-traffic
// may not find old addresses.
func (d *Device) start(reason uint32) error {
	// Quiet first: nothing that is released below may be written any more.
	if err := d.card.Fn.SetBusMaster(false); err != nil {
		return err
	}
	d.card.AddressBits = 0 // not known before the device is asked
	if err := d.card.Allocate(1 << 20); err != nil {
		return err
	}
	var err error
	if d.regs, err = amazonadmin.NewRegs(d.card.Name, amazonadmin.EFA, 0, d.bar, d.card.Arena); err != nil {
		return err
	}
	d.regs.Trace(&d.card.Trace)
	if err := d.card.Fn.SetBusMaster(true); err != nil {
		return err
	}
	if err := d.card.Stages(
		kit.Stage{Name: "reset the device and start the admin queue", Do: func() error { return d.startAdmin(reason) }},
		kit.Stage{Name: "read features", Do: d.identify}, d.card.Evidence(d.evidence), kit.Learned,
		kit.Stage{Name: "create queues", Do: d.startQueues}); err != nil {
		return err
	}
	if err := d.peers.revive(d); err != nil {
		return err
	}
	d.counted = nil
	s, err := d.count()
	if err != nil {
		return err
	}
	d.counted = s.Extra
	for name, n := range map[string]uint64{"tx_bytes": s.TxBytes, "tx_pkts": s.TxFrames, "rx_bytes": s.RxBytes, "rx_pkts": s.RxFrames, "rx_drops": s.RxDropped} {
		d.counted[name] = n
	}
	return nil
}

// startAdmin resets the device and gives it its admin and event queues, in the order of the published driver.
func (d *Device) startAdmin(reason uint32) error {
	if err := d.regs.Reset(reason); err != nil {
		return err
	}
	version, err := d.regs.Read(amazonadmin.VERSION)
	if err != nil {
		return err
	}
	if version&0xFFFF < 1 {
		return d.card.Errorf("interface version %d.%d: this driver needs 0.1 or later", version>>8&0xFF, version&0xFF)
	}
	controller, err := d.regs.Read(amazonadmin.CONTROLLER_VERSION)
	if err != nil {
		return err
	}
	if controller>>16&0xFF|controller>>8&0xFF|controller&0xFF < minController {
		return d.card.Errorf("controller version %#x: this driver needs 0.0.1 or later", controller)
	}
	d.version = fmt.Sprintf("interface %d.%d, controller %d.%d.%d", version>>8&0xFF, version&0xFF, controller>>16&0xFF, controller>>8&0xFF,
		controller&0xFF)
	caps, err := d.regs.Read(amazonadmin.CAPS)
	if err != nil {
		return err
	}
	d.card.AddressBits = caps >> amazonadmin.CapsDMAWidthShift & amazonadmin.CapsDMAWidthMask
	if d.card.AddressBits < 32 || d.card.AddressBits > 64 {
		return d.card.Errorf("%w: CAPS is %#x: %d address bits, expected 32 to 64", amazonadmin.ErrDevice, caps, d.card.AddressBits)
	}
	status, err := d.regs.Read(amazonadmin.DEV_STS)
	if err != nil {
		return err
	}
	if status&amazonadmin.DevStsReady == 0 {
		return d.card.Errorf("%w: DEV_STS is %#x after the reset: the device is not ready", amazonadmin.ErrDevice, status)
	}
	timeout := time.Duration(caps>>amazonadmin.CapsAdminTimeoutShift&amazonadmin.CapsAdminTimeoutMask) * 100 * time.Millisecond
	if timeout == 0 {
		timeout = adminTimeout
	}
	if d.aq, err = amazonadmin.NewQueue(d.regs, d.card.Arena, adminDepth, max(timeout, leastAdmin)); err != nil {
		return err
	}
	d.regs.Write(amazonadmin.INTR_MASK, amazonadmin.Mask)
	if d.events, err = amazonadmin.NewEvents(d.regs, d.card.Arena, eventDepth); err != nil {
		return err
	}
	d.events.Start()
	return nil
}

// get reads a feature.
func get[T any](d *Device, name string, id uint8) (v T, err error) {
	c := feature{Header: amazonadmin.Header{Opcode: opGetFeature}, id: id}
	var r gotFeature
	if err := amazonadmin.Exec(d.aq, "get "+name, &c, &r); err != nil {
		return v, err
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&v)), unsafe.Sizeof(v)), r.data[:])
	return v, nil
}

func (d *Device) has(id uint8) bool { return d.attr.features>>id&1 != 0 }

// lacks notes a feature that the device refuses, where that costs no more than the feature.
func (d *Device) lacks(what string, err error) error {
	var refused *amazonadmin.CommandError
	if errors.As(err, &refused) {
		d.features = append(d.features, fmt.Sprintf("%s: %v", what, refused.Status))
		return nil
	}
	return err
}

// identify learns what the device is, and tells it who we are.
func (d *Device) identify() (err error) {
	d.features = nil
	if d.attr, err = get[deviceAttr](d, "device attributes", featDevice); err != nil {
		return err
	}
	if d.attr.adminAPI < 1 {
		return d.card.Errorf("admin interface version %d: this driver needs 1 or later", d.attr.adminAPI)
	}
	if d.db, err = d.card.Fn.BAR(int(d.attr.doorbellBAR)); err != nil {
		return d.card.Errorf("the device has its doorbells in BAR %d: %w", d.attr.doorbellBAR, err)
	}
	if d.queue, err = get[queueAttr1](d, "queue attributes", featQueues1); err != nil {
		return err
	}
	d.inline = d.queue.inline
	if d.has(featQueues2) {
		more, err := get[queueAttr2](d, "more queue attributes", featQueues2)
		if err := d.lacks("more queue attributes", err); err != nil {
			return err
		}
		d.inline = max(d.inline, uint32(more.inlineEx))
	}
	network, err := get[networkAttr](d, "network attributes", featNetwork)
	if err != nil {
		return err
	}
	d.gid = netip.AddrFrom16(network.gid)
	if d.gid.IsUnspecified() {
		return d.card.Errorf("%w: the device has no GID", amazonadmin.ErrDevice)
	}
	if err := d.setMTU(network.mtu); err != nil {
		return err
	}
	if err := d.limits(); err != nil {
		return err
	}
	if d.has(featHints) {
		if _, err := get[hints](d, "hardware hints", featHints); d.lacks("hardware hints", err) != nil {
			return err
		}
	}
	if err := d.enableEvents(); err != nil {
		return err
	}
	return d.tellHost()
}

func (d *Device) setMTU(most uint32) error {
	d.card.MTU = d.card.Options.MTU
	if d.card.MTU == 0 {
		d.card.MTU = int(min(most, uint32(limits.MaxMTU)))
	}
	if d.card.MTU < limits.MinMTU || d.card.MTU > int(min(most, uint32(limits.MaxMTU))) {
		return d.card.Errorf("messages of up to %d bytes: the device allows %d to %d", d.card.MTU, limits.MinMTU, min(most, uint32(limits.MaxMTU)))
	}
	return nil
}

// limits chooses sizes of what the device allows.
func (d *Device) limits() error {
	a, pairs := &d.queue, len(d.own.Services)
	queues := d.card.Options.Queues
	switch {
	case int(a.maxQP) < queues*pairs || int(a.maxCQ) < 2*queues:
		return d.card.Errorf("%d queues of %d queue pairs and two completion queues asked for, the device has %d and %d", queues, pairs, a.maxQP, a.maxCQ)
	case a.subCQs == 0 || a.subCQs > maxSubs:
		return d.card.Errorf("%w: completion queues of %d rings, this driver knows 1 to %d", amazonadmin.ErrDevice, a.subCQs, maxSubs)
	case d.ring > int(a.maxRQDepth):
		return d.card.Errorf("ring size %d, the device takes up to %d", d.ring, a.maxRQDepth)
	case d.inline == 0 && a.maxLLQ == 0:
		return d.card.Errorf("the device has no low-latency queues: an EFA sends in no other way")
	}
	// An entry of 128 bytes where it is known to be taken, and wanted for what it holds.
	const small, large = 64, 128
	d.entry = small
	push := d.inline
	if d.own.MaxInline > 0 {
		push = min(push, uint32(d.own.MaxInline))
	}
	if d.own.Push == "off" {
		push = 0
	}
	if push > small-metaSize {
		d.entry = large
		push = min(push, large-metaSize)
	}
	depth := uint32(d.ring)
	for depth > a.maxSQDepth || a.maxLLQ != 0 && depth*d.entry > a.maxLLQ {
		depth /= 2
	}
	if depth < uint32(a.minSQDepth) {
		depth = 1
		for depth < uint32(a.minSQDepth) {
			depth *= 2
		}
	}
	if depth == 0 || depth > a.maxSQDepth || a.maxLLQ != 0 && depth*d.entry > a.maxLLQ {
		return d.card.Errorf("%w: send queues of %d to %d entries in %d bytes", amazonadmin.ErrDevice, a.minSQDepth, a.maxSQDepth, a.maxLLQ)
	}
	d.sqDepth, d.inline = depth, push
	most := func(n int) int { // entries of a completion ring for n completions
		size := 1
		for size < n {
			size *= 2
		}
		return size
	}
	if n := most(pairs * d.ring); n > int(a.maxCQDepth) {
		return d.card.Errorf("ring size %d for %d queue pairs needs a completion queue of %d entries, the device has up to %d", d.ring, pairs, n, a.maxCQDepth)
	}
	return nil
}

// The groups of events (efa_admin_aenq_group).
const (
	groupFatal        = 1
	groupWarning      = 2
	groupNotification = 3
	groupKeepAlive    = 4
)

func (d *Device) enableEvents() error {
	a, err := get[aenqFeature](d, "event groups", featAENQ)
	if err != nil {
		return err
	}
	a.enabled = a.supported & (1<<groupFatal | 1<<groupWarning | 1<<groupNotification | 1<<groupKeepAlive)
	c := feature{Header: amazonadmin.Header{Opcode: opSetFeature}, id: featAENQ}
	copy(c.data[:], unsafe.Slice((*byte)(unsafe.Pointer(&a)), unsafe.Sizeof(a)))
	return amazonadmin.Exec(d.aq, "set event groups", &c, new(amazonadmin.Completion))
}

// tellHost sends the device a page on its host. ENA's firmware is known to want one before it makes completion queues.
func (d *Device) tellHost() (err error) {
	if !d.has(featHost) {
		return nil
	}
	if d.host, err = d.card.Block(4096, 4096); err != nil {
		return err
	}
	h := (*hostInfo)(kit.Pointer(d.host))
	// As the driver in Linux's tree: no separate version.
	*h = hostInfo{bdf: address(d.card.Fn.Name()), specVersion: specVersion, flags: inTree}
	copy(h.distribution[:], "Rebound")
	c := feature{Header: amazonadmin.Header{Opcode: opSetFeature, Flags: amazonadmin.FlagCtrlData}, id: featHost,
		length: uint32(unsafe.Sizeof(*h)), addr: amazonadmin.PutAddr(d.host.IOVA)}
	return d.lacks("host information", amazonadmin.Exec(d.aq, "set host information", &c, new(amazonadmin.Completion)))
}

const inTree = 1 << 0

// address is a function's bus, device and function, 0 for a name that has none.
func address(name string) (bdf uint16) {
	var domain, bus, device, function uint16
	if n, _ := fmt.Sscanf(name, "%x:%x:%x.%x", &domain, &bus, &device, &function); n == 4 {
		bdf = bus<<8 | device&31<<3 | function&7
	}
	return bdf
}

// endpoint is a queue pair as others find it.
func (d *Device) endpoint(queue int, s nic.Service, number uint32) nic.Endpoint {
	return nic.Endpoint{Address: nic.Address{GID: d.gid, QPN: number, QKey: d.own.QKey}, Queue: queue, Service: s}
}
