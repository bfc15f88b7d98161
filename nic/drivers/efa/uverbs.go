package efa

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/bus/verbs"
	"github.com/rebound-nic/rebound/nic/bus/verbs/abi"
	"github.com/rebound-nic/rebound/nic/kit"
)

// uverbs controls a device that belongs to the kernel's driver. The kernel allocates the rings, which this process
// maps, and the objects are destroyed with its context.
type uverbs struct {
	d   *Device
	fn  *verbs.Function
	ctx *verbs.Context

	mu      sync.Mutex
	handles map[uint16]uint32 // the kernel's handles, by the device's number of an address handle
	unknown atomic.Uint64     // events
}

func (u *uverbs) open() error { return nil }

// start opens another context. The device itself is not reset: the kernel's driver and other processes use it.
func (u *uverbs) start(uint32) error {
	if u.ctx != nil { // a restart
		return u.d.card.AwaitKernel(u.startOnce)
	}
	return u.startOnce()
}

func (u *uverbs) startOnce() error {
	if err := errors.Join(u.fn.Stop(), u.d.card.Deallocate()); err != nil {
		return err
	}
	return u.d.card.Stages(kit.Stage{Name: "open a context", Do: u.begin},
		kit.Stage{Name: "read features", Do: u.identify}, kit.Learned)
}

func (u *uverbs) begin() error {
	if err := u.fn.Start(); err != nil {
		return err
	}
	d := u.d
	u.ctx, u.handles = u.fn.Context(), map[uint16]uint32{}
	ask := abi.EFAAllocUcontextCmd{SupportedCaps: abi.EFAAllocUcontextCmdSuppCapsTxBatch |
		abi.EFAAllocUcontextCmdSuppCapsMinSQWR}
	var r abi.EFAAllocUcontextResp
	if err := u.ctx.Begin(verbs.Bytes(&ask), verbs.Bytes(&r)); err != nil {
		return d.card.Errorf("%w", err)
	}
	if r.CmdsSuppUdataMask&abi.EFAUserCmdsSuppUdataCreateAH == 0 {
		return d.card.Errorf("%w: the kernel's driver does not return the numbers of address handles (a newer kernel does)", errors.ErrUnsupported)
	}
	d.inline = max(uint32(r.InlineBufSize), uint32(r.InlineBufSizeEx))
	d.queue = queueAttr1{subCQs: r.SubCQsPerCQ, maxLLQ: r.MaxLLQSize, maxBatch: r.MaxTxBatch, minSQDepth: r.MinSQWR}
	return nil
}

// identify reads the limits of the device and the port through the kernel. It fails if senders that are not known yet
// could not be identified.
func (u *uverbs) identify() error {
	d := u.d
	d.features = nil
	var own abi.EFAExQueryDeviceResp
	r, err := u.ctx.QueryDevice(verbs.Bytes(&own))
	if err != nil {
		return d.card.Errorf("query the device: %w", err)
	}
	if own.DeviceCaps&abi.EFAQueryDeviceCapsCQWithSGID == 0 {
		return d.card.Errorf("%w: the device, or the kernel's driver, does not report the GIDs of unknown senders (Linux 6.1 or later does; or "+
			"drive the function itself: rebound-responder bind %s)", errors.ErrUnsupported, u.fn.Function.Address)
	}
	q := &d.queue
	q.maxQP, q.maxCQ, q.maxCQDepth, q.maxAH = r.MaxQP, r.MaxCQ, r.MaxCQE, r.MaxAH
	q.maxSQDepth, q.maxRQDepth = own.MaxSQWR, own.MaxRQWR
	port, err := u.ctx.QueryPort(1)
	if err != nil {
		return d.card.Errorf("query the port: %w", err)
	}
	if err := d.setMTU(port.MaxMsgSz); err != nil {
		return err
	}
	d.gid, err = netip.ParseAddr(u.fn.Text("ports/1/gids/0"))
	if err != nil || d.gid.IsUnspecified() {
		return d.card.Errorf("%s has no GID: %w", u.fn.Found.Name, errors.Join(err, nic.ErrNoDevice))
	}
	d.attr = deviceAttr{}
	if own.DeviceCaps&abi.EFAQueryDeviceCapsRNRRetry != 0 {
		d.attr.caps |= capRNRRetry
	}
	fmt.Sscan(u.fn.Text("ports/1/rate"), &d.attr.linkSpeed) // "100 Gb/sec (4X EDR)"
	d.version = "kernel driver " + u.fn.Function.Driver
	return d.limits()
}

func (u *uverbs) protect() error {
	var r abi.EFAAllocPDResp
	if err := u.ctx.AllocPD(verbs.Bytes(&r)); err != nil {
		return u.d.card.Errorf("%w", err)
	}
	return nil
}

// register allocates the memory of all messages, which the kernel has registered with a key.
func (u *uverbs) register(size int) (b dma.Block, key uint32, err error) {
	d := u.d
	if err := d.card.Allocate(size); err != nil {
		return b, 0, err
	}
	if b, err = d.card.Block(size, 4096); err != nil {
		return b, 0, err
	}
	_, _, key, err = u.fn.Region(b.IOVA)
	return b, key, err
}

func (u *uverbs) createCQ(name string, depth uint32, entry int) (made createdRings, err error) {
	ask := abi.EFACreateCQ{CQEntrySize: uint32(entry), NumSubCQs: u.d.queue.subCQs}
	if entry == rxCQE {
		ask.Flags = abi.EFACreateCQWithSGID
	}
	var r abi.EFACreateCQResp
	handle, size, err := u.ctx.CreateCQ(depth, verbs.Bytes(&ask), verbs.Bytes(&r))
	if err != nil {
		return made, u.d.card.Errorf("%s: %w", name, err)
	}
	if need := int(depth) * entry * int(u.d.queue.subCQs); size != depth || r.QMmapSize < uint64(need) {
		return made, u.d.card.Errorf("%w: %s: %d entries in %d bytes, expected %d in %d or more", nic.ErrHardware, name,
			size, r.QMmapSize, depth, need)
	}
	made.index = handle
	if made.at, err = u.mapped(r.QMmapKey, int(r.QMmapSize), false); err != nil {
		return made, u.d.card.Errorf("%s: %w", name, err)
	}
	if r.CompMask&abi.EFACreateCQRespDBOff != 0 {
		made.doorbell, err = u.doorbell(r.DBMmapKey, r.DBOff)
	}
	return made, err
}

func (u *uverbs) mapped(key uint64, size int, write bool) (unsafe.Pointer, error) {
	b, err := u.ctx.Mapped(key, size, write)
	if err != nil {
		return nil, err
	}
	return unsafe.Pointer(&b[0]), nil
}

// doorbell maps the page identified by key, and returns the doorbell at off.
func (u *uverbs) doorbell(key uint64, off uint32) (*uint32, error) {
	if off%4 != 0 || int(off) >= os.Getpagesize() {
		return nil, u.d.card.Errorf("%w: doorbell at %#x of a page", nic.ErrHardware, off)
	}
	p, err := u.mapped(key, os.Getpagesize(), true)
	if err != nil {
		return nil, u.d.card.Errorf("doorbell: %w", err)
	}
	return (*uint32)(unsafe.Add(p, off)), nil
}

func (u *uverbs) createQP(p *pair, s nic.Service, rx, tx uint32) error {
	d := u.d
	q := abi.CreateQP{SendCQHandle: tx, RecvCQHandle: rx, MaxSendWR: d.sqDepth, MaxRecvWR: uint32(d.ring),
		MaxSendSGE: 1, MaxRecvSGE: 1,
		MaxInlineData: d.inline, QPType: verbs.QPTypeDriver}
	if !s.Reliable() {
		q.QPType = verbs.QPTypeUD
	}
	ask := abi.EFACreateQP{RQRingSize: uint32(d.ring * descSize), SQRingSize: d.sqDepth * d.entry,
		DriverQPType: abi.EFAQPDriverTypeSRD}
	var r abi.EFACreateQPResp
	made, err := u.ctx.CreateQP(q, verbs.Bytes(&ask), verbs.Bytes(&r))
	if err != nil {
		err = d.card.Errorf("create queue pair: %w", err)
		if d.entry > 64 {
			return fmt.Errorf("%w: %w", errNarrow, err)
		}
		return err
	}
	p.number = made.QPN
	if uint32(r.SendSubCQIdx) >= uint32(d.queue.subCQs) || uint32(r.RecvSubCQIdx) >= uint32(d.queue.subCQs) {
		return d.card.Errorf("%w: queue pair %d goes by rings %d and %d of %d", nic.ErrHardware, p.number,
			r.SendSubCQIdx, r.RecvSubCQIdx, d.queue.subCQs)
	}
	if r.LLQDescOffset%64 != 0 || int(r.LLQDescOffset) >= os.Getpagesize() || r.RQMmapSize < uint64(ask.RQRingSize) {
		return d.card.Errorf("%w: queue pair %d: send queue at %#x of a page, receive queue of %d bytes",
			nic.ErrHardware, p.number, r.LLQDescOffset, r.RQMmapSize)
	}
	if p.rq, err = u.mapped(r.RQMmapKey, int(r.RQMmapSize), true); err != nil {
		return d.card.Errorf("receive queue: %w", err)
	}
	llq, err := u.mapped(r.LLQDescMmapKey, int(r.LLQDescOffset+ask.SQRingSize), true)
	if err != nil {
		return d.card.Errorf("send queue: %w", err)
	}
	p.llq = unsafe.Add(llq, r.LLQDescOffset)
	if p.sqDB, err = u.doorbell(r.SQDBMmapKey, r.SQDBOffset); err != nil {
		return err
	}
	if p.rqDB, err = u.doorbell(r.RQDBMmapKey, r.RQDBOffset); err != nil {
		return err
	}
	ready := uint32(verbs.QPMaskState | verbs.QPMaskSQPSN)
	if d.limitsRetries(s) {
		ready |= verbs.QPMaskRNRRetry // RNRRetry is 0
	}
	for _, m := range []abi.ModifyQP{
		{AttrMask: verbs.QPMaskState | verbs.QPMaskPKeyIndex | verbs.QPMaskPort | verbs.QPMaskQKey, QPState: verbs.QPStateInit, PortNum: 1, QKey: d.own.QKey},
		{AttrMask: verbs.QPMaskState, QPState: verbs.QPStateRTR},
		{AttrMask: ready, QPState: verbs.QPStateRTS},
	} {
		m.QPHandle = made.QPHandle
		switch err := u.ctx.ModifyQP(m); {
		case errors.Is(err, unix.EPERM):
			return d.card.Errorf("%w: nic.qkey %#x: %w: a Q_Key with the highest bit set takes CAP_NET_RAW",
				nic.ErrRights, d.own.QKey, err)
		case err != nil:
			return d.card.Errorf("modify queue pair to state %d: %w", m.QPState, err)
		}
	}
	return nil
}

func (u *uverbs) createAH(gid netip.Addr) (uint16, error) {
	var r abi.EFACreateAHResp
	handle, err := u.ctx.CreateAH(gid, verbs.Bytes(&r))
	if err != nil {
		return 0, u.d.card.Errorf("create address handle of %v: %w", gid, err)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.handles[r.EFAAddressHandle] = handle
	return r.EFAAddressHandle, nil
}

func (u *uverbs) destroyAH(number uint16) error {
	u.mu.Lock()
	handle, ok := u.handles[number]
	delete(u.handles, number)
	u.mu.Unlock()
	if !ok {
		return u.d.card.Errorf("address handle %d is not there", number)
	}
	return u.ctx.DestroyAH(handle)
}

// count returns the device's counters, which include the traffic of all of its users.
func (u *uverbs) count() (s nic.Stats, err error) {
	s.Extra, err = u.fn.Counters("ports/1/hw_counters")
	return s, err
}

func (u *uverbs) events(extra map[string]uint64) { extra["unknown_events"] = u.unknown.Load() }

// check processes pending asynchronous events.
func (u *uverbs) check(bool) (*kit.Symptom, error) {
	for {
		e, ok := u.ctx.Event()
		switch {
		case !ok:
			return nil, nil
		case e.EventType == verbs.EventDeviceFatal:
			return symptom("device_fatal", resetGeneric, "the kernel removed or reset the device"), nil
		case e.EventType == verbs.EventQPFatal:
			return symptom("queue_pair_error", resetGeneric, "the kernel reports a queue pair in error"), nil
		default:
			u.d.card.Log.Info("the kernel reports an event of the device", "type", e.EventType)
			u.unknown.Add(1)
		}
	}
}

func (u *uverbs) answers() error { return nil }

func (u *uverbs) revive() error { return nil } // start waits for it

// release destroys the created objects by closing the context, and then frees the memory.
func (u *uverbs) release() error { return errors.Join(u.fn.Stop(), u.d.card.Deallocate()) }
