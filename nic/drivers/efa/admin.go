package efa

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/nic/kit"
	"github.com/rebound-nic/rebound/nic/kit/amazonadmin"
)

const (
	adminDepth   = 32
	eventDepth   = 16
	adminTimeout = 30 * time.Second
)

// leastAdmin is the minimum timeout of a command, whatever the device specifies. Tests increase it, because a model's
// thread may be delayed.
var leastAdmin time.Duration

// admin controls a function that belongs to this process alone: registers, the admin queue and the event queue.
type admin struct {
	d   *Device
	bar *mmio.Window // registers, BAR 0
	mem *mmio.Window // LLQ entries, BAR 2
	db  *mmio.Window // doorbells, in the BAR that the device specifies

	regs    *amazonadmin.Regs
	aq      *amazonadmin.Queue
	aenq    *amazonadmin.Events
	host    dma.Block
	pd, uar uint16

	sinceReset int        // number of watchdog checks
	eventMu    sync.Mutex // held while processing events
	fatal      string     // the device's description of a fatal error
	keepAlives atomic.Uint64
	unknown    atomic.Uint64 // events
}

func (a *admin) open() (err error) {
	if a.bar, err = a.d.card.Fn.BAR(0); err != nil {
		return err
	}
	if a.bar.Size() < minBAR {
		return a.d.card.Errorf("BAR 0 is %#x bytes, expected %#x or more", a.bar.Size(), minBAR)
	}
	return nil
}

// mapBARs maps the entries and the doorbells. A page cannot be mapped both ways, and which pages of a BAR will be
// doorbells is not known before they are allocated: in one BAR, both are uncached.
func (a *admin) mapBARs() (err error) {
	d := a.d
	const entries = 2
	if d.besideDoorbells = int(d.attr.doorbellBAR) == entries; d.besideDoorbells {
		if a.mem, err = d.card.Fn.BAR(entries); err == nil && !d.card.Fn.Simulated() {
			d.card.FallBack("write combining in BAR 2", "uncached stores, one bus write for each 8 bytes",
				"the device has its doorbells in the same BAR")
		}
	} else if a.mem, err = d.card.Fn.BARWC(entries); err == nil && !kit.MeasurePush(d.card.Fn) {
		d.card.FallBackToUncached(entries, a.mem)
	}
	if err != nil {
		return d.card.Errorf("memory BAR 2, without which an EFA sends nothing: %w", err)
	}
	if a.db, err = d.card.Fn.BAR(int(d.attr.doorbellBAR)); err != nil {
		return d.card.Errorf("the device has its doorbells in BAR %d: %w", d.attr.doorbellBAR, err)
	}
	return nil
}

func (a *admin) start(reason uint32) error {
	d := a.d
	a.sinceReset = 0
	var err error
	if a.regs, err = amazonadmin.Attach(&d.card, amazonadmin.EFA, a.bar); err != nil {
		return err
	}
	return d.card.Stages(
		kit.Stage{Name: "reset the device and start the admin queue", Do: func() error { return a.startAdmin(reason) }},
		kit.Stage{Name: "read features", Do: a.identify}, d.card.Evidence(a.evidence), kit.Learned)
}

// startAdmin resets the device and sets up its admin and event queues, in the order of the published driver.
func (a *admin) startAdmin(reason uint32) error {
	d := a.d
	if err := a.regs.Reset(reason); err != nil {
		return err
	}
	version, err := a.regs.Version()
	if err != nil {
		return err
	}
	if version.Major == 0 && version.Minor == 0 {
		return d.card.Errorf("interface version 0.0: this driver needs 0.1 or later")
	}
	d.version = version.String()
	caps, err := a.regs.Read(amazonadmin.CAPS)
	if err != nil {
		return err
	}
	d.card.AddressBits = caps >> amazonadmin.CapsDMAWidthShift & amazonadmin.CapsDMAWidthMask
	if d.card.AddressBits < 32 || d.card.AddressBits > 64 {
		return d.card.Errorf("%w: CAPS is %#x: %d address bits, expected 32 to 64", amazonadmin.ErrDevice, caps,
			d.card.AddressBits)
	}
	status, err := a.regs.Read(amazonadmin.DEV_STS)
	if err != nil {
		return err
	}
	if status&amazonadmin.DevStsReady == 0 {
		return d.card.Errorf("%w: DEV_STS is %#x after the reset: the device is not ready", amazonadmin.ErrDevice,
			status)
	}
	timeout := cmp.Or(amazonadmin.AdminTimeout(caps), adminTimeout)
	if a.aq, err = amazonadmin.NewQueue(a.regs, d.card.Arena, adminDepth, max(timeout, leastAdmin)); err != nil {
		return err
	}
	a.regs.Write(amazonadmin.INTR_MASK, amazonadmin.Mask)
	if a.aenq, err = amazonadmin.NewEvents(a.regs, d.card.Arena, eventDepth); err != nil {
		return err
	}
	a.aenq.Start()
	return nil
}

func get[T any](a *admin, name string, id uint8) (v T, err error) {
	c := feature{Header: amazonadmin.Header{Opcode: opGetFeature}, id: id}
	var r gotFeature
	if err := amazonadmin.Exec(a.aq, "get "+name, &c, &r); err != nil {
		return v, err
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&v)), unsafe.Sizeof(v)), r.data[:])
	return v, nil
}

func (a *admin) has(id uint8) bool { return a.d.attr.features>>id&1 != 0 }

// lacks records a feature that the device refuses, if the driver can work without it.
func (a *admin) lacks(what string, err error) error {
	d := a.d
	var refused *amazonadmin.CommandError
	if errors.As(err, &refused) {
		d.features = append(d.features, fmt.Sprintf("%s: %v", what, refused.Status))
		return nil
	}
	return err
}

// identify reads the device's attributes, and sends it information about the host.
func (a *admin) identify() (err error) {
	d := a.d
	d.features = nil
	if d.attr, err = get[deviceAttr](a, "device attributes", featDevice); err != nil {
		return err
	}
	if d.attr.adminAPI < 1 {
		return d.card.Errorf("admin interface version %d: this driver needs 1 or later", d.attr.adminAPI)
	}
	if err := a.mapBARs(); err != nil {
		return err
	}
	if d.queue, err = get[queueAttr1](a, "queue attributes", featQueues1); err != nil {
		return err
	}
	d.inline = d.queue.inline
	if a.has(featQueues2) {
		more, err := get[queueAttr2](a, "more queue attributes", featQueues2)
		if err := a.lacks("more queue attributes", err); err != nil {
			return err
		}
		d.inline = max(d.inline, uint32(more.inlineEx))
	}
	network, err := get[networkAttr](a, "network attributes", featNetwork)
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
	if a.has(featHints) {
		if _, err := get[hints](a, "hardware hints", featHints); a.lacks("hardware hints", err) != nil {
			return err
		}
	}
	if err := a.enableEvents(); err != nil {
		return err
	}
	return a.tellHost()
}

// The groups of events (efa_admin_aenq_group).
const (
	groupFatal        = 1
	groupWarning      = 2
	groupNotification = 3
	groupKeepAlive    = 4
)

func (a *admin) enableEvents() error {
	f, err := get[aenqFeature](a, "event groups", featAENQ)
	if err != nil {
		return err
	}
	f.enabled = f.supported & (1<<groupFatal | 1<<groupWarning | 1<<groupNotification | 1<<groupKeepAlive)
	c := feature{Header: amazonadmin.Header{Opcode: opSetFeature}, id: featAENQ}
	copy(c.data[:], unsafe.Slice((*byte)(unsafe.Pointer(&f)), unsafe.Sizeof(f)))
	return amazonadmin.Exec(a.aq, "set event groups", &c, new(amazonadmin.Completion))
}

// tellHost gives the device a page with information about its host. ENA firmware is known to require one before it
// creates completion queues.
func (a *admin) tellHost() (err error) {
	d := a.d
	if !a.has(featHost) {
		return nil
	}
	if a.host, err = d.card.Block(4096, 4096); err != nil {
		return err
	}
	h := (*hostInfo)(kit.Pointer(a.host))
	// As in the driver of Linux's tree: no separate version, and the kernel's release instead of a distribution.
	*h = hostInfo{bdf: address(d.card.Fn.Name()), specVersion: specVersion, flags: inTree}
	h.setKernel()
	c := feature{Header: amazonadmin.Header{Opcode: opSetFeature, Flags: amazonadmin.FlagCtrlData}, id: featHost,
		length: uint32(unsafe.Sizeof(*h)), addr: amazonadmin.PutAddr(a.host.IOVA)}
	return a.lacks("host information", amazonadmin.Exec(a.aq, "set host information", &c, new(amazonadmin.Completion)))
}

const inTree = 1 << 0

// setKernel fills in the running kernel. The strings end with a zero.
func (h *hostInfo) setKernel() {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return
	}
	release := unix.ByteSliceToString(u.Release[:])
	copy(h.distribution[:len(h.distribution)-1], release)
	copy(h.kernel[:len(h.kernel)-1], unix.ByteSliceToString(u.Version[:]))
	var major, minor, patch uint32
	fmt.Sscanf(release, "%d.%d.%d", &major, &minor, &patch)
	h.kernelNumber = major<<16 | minor<<8 | min(patch, 255) // as LINUX_VERSION_CODE
}

// address is a function's bus, device and function, 0 for a name without them.
func address(name string) (bdf uint16) {
	var domain, bus, device, function uint16
	if n, _ := fmt.Sscanf(name, "%x:%x:%x.%x", &domain, &bus, &device, &function); n == 4 {
		bdf = bus<<8 | device<<3 | function
	}
	return bdf
}

// release stops the device, by its own reset and by disabling bus mastering in case it does not respond, and frees its
// memory.
func (a *admin) release() error {
	d := a.d
	if a.regs != nil && !a.regs.Gone() {
		a.regs.Announce() // another process's reset clears it
		if err := a.regs.Reset(resetShutdown); err != nil {
			d.card.Log.Warn("reset at close failed", "err", err)
		}
	}
	return d.card.Release()
}

func (a *admin) check(polled bool) (*kit.Symptom, error) {
	a.eventMu.Lock()
	a.serveEvents()
	fatal := a.fatal
	a.fatal = ""
	a.eventMu.Unlock()
	if fatal != "" {
		return symptom("fatal_error", resetGeneric, "%s", fatal), nil
	}
	if err := a.aq.Err(); err != nil {
		return symptom("admin_timeout", resetAdminTimeout, "%v", err), nil
	}
	if a.sinceReset++; polled && a.sinceReset%statusEvery == 0 {
		return a.status()
	}
	return nil, nil
}

// status reads the device's status. A device has no link and does not guarantee keep-alives, so this is how a hang is
// detected.
func (a *admin) status() (*kit.Symptom, error) {
	status, err := a.regs.Read(amazonadmin.DEV_STS)
	switch {
	case errors.Is(err, nic.ErrGone):
		return nil, err
	case err != nil:
		return symptom("admin_timeout", resetAdminTimeout, "%v", err), nil
	case status&amazonadmin.DevStsFatalError != 0:
		return symptom("fatal_error", resetGeneric, "DEV_STS is %#x: fatal error", status), nil
	case status&amazonadmin.DevStsReady == 0:
		return symptom("not_ready", resetGeneric, "DEV_STS is %#x: not ready", status), nil
	}
	return nil, nil
}

// serveEvents processes all pending events, with eventMu held. If an event requires a device reset, the reason is
// stored for the watchdog.
func (a *admin) serveEvents() {
	for {
		e, ok := a.aenq.Next()
		if !ok {
			break
		}
		switch e.Group {
		case groupKeepAlive:
			a.keepAlives.Add(1)
		case groupFatal:
			a.fatal = fmt.Sprintf("the device reports a fatal error, syndrome %d", e.Syndrome)
		case groupWarning:
			a.d.card.Log.Warn("the device warns", "syndrome", e.Syndrome)
		case groupNotification:
			a.d.card.Log.Info("the device notifies", "syndrome", e.Syndrome)
		default:
			a.d.card.Log.Warn("unknown event", "group", e.Group, "syndrome", e.Syndrome)
			a.unknown.Add(1)
		}
	}
	a.aenq.Done()
}

// count reads the device's counters. Older devices support only some of the groups.
func (a *admin) count() (s nic.Stats, err error) {
	s.Extra = map[string]uint64{}
	for _, g := range statGroups {
		if g.needs != 0 && a.d.attr.caps&g.needs == 0 {
			continue
		}
		c := getStats{Header: amazonadmin.Header{Opcode: opGetStats}, kind: g.kind}
		var r gotStats
		if err := amazonadmin.Exec(a.aq, "get "+g.name+" statistics", &c, &r); err != nil {
			if g.kind != 0 && refused(err) {
				continue
			}
			return s, err
		}
		for i, name := range g.values {
			s.Extra[name] = r.value[i]
		}
	}
	return s, nil
}

func (a *admin) events(extra map[string]uint64) {
	extra["unknown_events"] = a.unknown.Load()
	extra["keep_alives"] = a.keepAlives.Load()
}

func (a *admin) answers() error {
	if a.regs.Gone() {
		return a.d.card.Gone("VERSION")
	}
	return nil
}

// revive resets the function if another process's reset left its registers switched off.
func (a *admin) revive() error {
	if a.regs.Gone() {
		return a.d.card.Fn.Reset()
	}
	return nil
}
