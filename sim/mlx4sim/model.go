package mlx4sim

import (
	"sync/atomic"
	"time"

	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/parts"
)

// Link is the configured link layer of a port, as set in the flash by the vendor's tools (LINK_TYPE).
type Link uint8

const (
	Ethernet Link = iota // the default of this model
	InfiniBand
	AnyLink // VPI: both are offered, and the port senses Ethernet
)

// Steering is the set of steering modes that the firmware offers.
type Steering uint8

const (
	// DeviceManaged firmware accepts flow rules (FLOW_STEERING_ATTACH), like ConnectX-3's; the driver may still use the
	// MAC table.
	DeviceManaged Steering = iota
	// MACTable firmware supports only the MAC table: "A0".
	MACTable
)

// Options configures a function and its faults.
type Options struct {
	MAC     [6]byte
	Profile Profile // ConnectX3 if zero
	Link    Link
	// Steering is offered in the capabilities.
	Steering Steering

	// InterfaceRev is the command interface's revision in QUERY_FW; 3 if zero.
	InterfaceRev uint16
	// Owned means that another process owns the device, SemaphoreHeld that the semaphore against updates of the flash
	// is held.
	Owned, SemaphoreHeld bool
	// BootReads is the number of reads of BAR 0 that return all ones after a reset, of the function or by the register.
	BootReads int
	// Abandoned models a killed driver that left the ownership register taken, also across resets. The register reads 0
	// only after it was released, and this many reads later.
	Abandoned int
	// Status, if set, is called before each command. A status other than 0 is returned instead of executing the
	// command.
	Status func(opcode uint16) uint8
	// Withhold, if set, keeps the go bit of each command that it returns true for; the command is not executed.
	Withhold func(opcode uint16) bool
	// LoseInterrupt, if set, loses each interrupt that it returns true for. Its event is written.
	LoseInterrupt func(vector int) bool
	// NoPortEvents models firmware that does not report a subnet manager's changes.
	NoPortEvents bool
	// NoICM refuses memory that a driver maps, with status 0ch.
	NoICM bool
	// Recorded has the answers of a real device.
	Recorded parts.Answers
}

// Model is a ConnectX-3 with one port. It implements sim.Model.
type Model struct {
	paused  atomic.Bool // the transmitter, by a test
	stalled atomic.Bool // the host takes no frames, by a test
	opt     Options
	prof    *profile
	host    sim.Host
	ops     map[uint16]*command

	regs  registers
	deaf  int // reads of BAR 0 that still return all ones
	on    bool
	left  int // reads of the ownership register that still return another driver's
	fw    firmware
	icm   icm
	hca   hca
	obj   objects
	uar   uarPages
	port  port
	rules steering
	fault faults
	count counters
	diag  diagnostics
}

// New returns a device that is not yet powered on.
func New(o Options) *Model {
	if o.InterfaceRev == 0 {
		o.InterfaceRev = 3
	}
	m := &Model{left: o.Abandoned, opt: o, prof: profiles[o.Profile]}
	m.ops = commandTable()
	return m
}

// Config is the function's configuration space: BAR 0 has the registers and the MSI-X table, BAR 2 doorbells (UARs),
// followed by as many BlueFlame pages.
func (m *Model) Config() sim.Config {
	return sim.Config{
		Vendor: 0x15b3, Device: m.prof.device, SubVendor: 0x15b3, SubDevice: m.prof.subsystem, Class: m.class(),
		BARs: [6]sim.BAR{
			0: {Size: barSize0, Is64: true},
			2: {Size: 2 * uars * uarSize, Is64: true, Prefetchable: true, Polled: []sim.Range{{Off: 0, Len: 2 * uars * uarSize}}},
		},
		MSIXVectors: vectors, MSIXBAR: 0, MSIXTable: msixTable, MSIXPBA: msixPBA,
		PCIeDevCap: 1<<28 | 1<<15 | 2, LinkSpeed: 3, LinkWidth: 8,
		SerialNumber: m.guid(0), AER: 2, ARI: true,
		VPD: sim.VPD(m.prof.device, m.opt.MAC, [2]string{"V0", "PCIeGen3 x8"}),
	}
}

// class is network controller: Ethernet, or InfiniBand.
func (m *Model) class() uint32 {
	if m.opt.Link == Ethernet {
		return 0x020000
	}
	return 0x020700
}

// guid returns the GUID of the node (0), the port (1) or the system (3), derived from the MAC address.
func (m *Model) guid(of int) uint64 {
	a := m.opt.MAC
	return uint64(a[0])<<56 | uint64(a[1])<<48 | uint64(a[2])<<40 | uint64(of)<<32 | 3<<24 | uint64(a[3])<<16 | uint64(
		a[4])<<8 | uint64(a[5])
}

// Attach connects the model to its host.
func (m *Model) Attach(h sim.Host) { m.host = h }

// Reset is power-on or a function-level reset: no state survives.
func (m *Model) Reset() {
	m.regs.owned = false
	m.forget()
	if m.deaf = 0; m.on {
		m.deaf = m.opt.BootReads
	}
	m.on = true
}

// softReset performs a reset requested by the reset register. A card loses its configuration space too.
func (m *Model) softReset() {
	if h, ok := m.host.(interface{ ForgetConfig() }); ok {
		h.ForgetConfig()
	}
	m.forget()
	m.deaf = m.opt.BootReads
}

func (m *Model) forget() {
	m.regs.reset()
	m.fw = firmware{}
	m.icm = newICM()
	m.hca = hca{}
	m.obj = newObjects()
	m.uar.reset(m)
	m.port.reset(m.opt.Link)
	m.port.ib = m.newIBPort()
	m.rules = newSteering()
	m.count = counters{}
	m.diag = diagnostics{}
	m.fault.reset()
}

// SetLink reports that the wire's other end was connected or disconnected.
func (m *Model) SetLink(up bool) {
	m.port.wire = up
	m.linkChanged()
}

// Pause stops or resumes the transmitter, like a pause frame. It may be called from any goroutine.
func (m *Model) Pause(on bool) { m.paused.Store(on) }

// clock returns the core clock: cycles since power-on.
func (m *Model) clock() uint64 {
	ns := uint64(m.host.Now())
	return ns/1000*coreMHz + ns%1000*coreMHz/1000
}

// Step executes commands, finds doorbells, and moves queues, each by a bounded amount.
func (m *Model) Step() bool {
	if c := m.fault.die.Swap(0); c != 0 {
		m.catastrophe(c)
	}
	if m.fault.dead {
		return false
	}
	busy := m.stepCommand()
	busy = m.stepUARs() || busy
	busy = m.stepFlow() || busy
	turned := m.port.turned
	m.port.turned = nil
	for _, f := range turned {
		if isRoCE(f) && m.port.link == Ethernet {
			m.takeRoCE(f)
		} else if m.port.link == Ethernet {
			m.take(f)
		} else if p, ok := parsePacket(f); ok {
			m.takePacket(&p)
		}
		busy = true
	}
	busy = m.stepQueues() || busy
	m.stepNotice()
	return m.stepModeration() || busy
}

// coreMHz is the core clock of a ConnectX-3 (seen: hca_core_clock 427000 kHz).
const coreMHz = 427

const microsecond = time.Microsecond
