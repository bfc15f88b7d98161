package mlx5sim

import (
	"fmt"

	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/parts"
)

// Options configures a function and its faults.
type Options struct {
	MAC     [6]byte // of a virtual function, may be zero: its host assigned none
	Profile Profile // ConnectX4 if zero
	// InitPages is how many pages the firmware requests before INIT_HCA; 512 if zero. The recorded ConnectX-4 requests
	// 12868.
	InitPages int

	// Initializing is how many reads of the initialization segment's "initializing" dword show the firmware still
	// booting; negative for an unlimited number.
	Initializing int
	// InterfaceRev is shown as cmd_interface_rev; 5 if zero.
	InterfaceRev uint16
	// Status, if set, is called before each command. A status other than 0 is returned instead of executing the
	// command. EmbeddedCPU makes the function that of a BlueField's own processor.
	EmbeddedCPU bool
	Status      func(opcode uint16) (status uint8, syndrome uint32)
	// Withhold, if set, is called for each command. If it returns true, the command is not executed, and its completion
	// is lost.
	Withhold func(opcode uint16) bool
	// HostPages means that the physical function's driver supplies the pages of a virtual function, which is not asked
	// for any.
	HostPages bool
	// NoLoopback makes the vport start with local loopback off.
	NoLoopback bool
	// Clock is the clock of completion timestamps; the profile's default if zero.
	Clock Clock
	// RefuseRegister, if set, rejects ACCESS_REG of the registers for which it returns true, as cards in closed systems
	// do.
	RefuseRegister func(id uint32, write bool) bool
	// LoseInterrupt, if set, loses each interrupt for which it returns true. Its event is written.
	LoseInterrupt func(vector int) bool
	// NoUCTX turns off the user contexts that a ConnectX-5 and later cards have (mlxconfig UCTX_EN=0). ICMP enables a
	// parser that knows type and code of ICMP and ICMPv6 (FLEX_PARSER_PROFILE_ENABLE=2).
	NoUCTX, ICMP bool
	// NoIPVersion is older firmware, whose flow groups match the EtherType and not the IP version.
	NoIPVersion bool
	// Module is the number of the port's module in its card: 1 for the second port.
	Module uint8
	// NoPages rejects the driver's pages, as firmware without resources does.
	NoPages bool
	// Recorded has the replies of a real device, and Firmware its version; the profile's if zero.
	Recorded parts.Answers
	Firmware [3]uint16
}

// Clock is the timestamp configuration of a function's firmware (capabilities sq_ts_format, rq_ts_format,
// qp_ts_format).
type Clock uint32

// Queues request one of the formats with ts_format. Formats that a function does not support are rejected: real
// firmware in real-time mode responds to 0 (free running) with status 3, syndrome d61c0bh.
const (
	FreeRunning Clock = 1 + iota // cycles of the free-running timer; ts_format 0 only, as before the field existed
	RealTime                     // seconds and nanoseconds; ts_format 1 (default) or 2 (real time)
	BothClocks                   // ts_format 0, or 1 or 2 for real time
)

// Model is one function of a ConnectX adapter. It implements sim.Model.
type Model struct {
	opt  Options
	prof *profile
	host sim.Host
	ops  map[uint16]*command

	iseg
	cmdq
	pages      pagePool
	caps       capSet
	hca        hcaState
	issi       uint32
	obj        objects
	flow       steering
	congestion congestion
	roce       roce
	vport      vport
	port       port
	gateway    gateway
	count      counters
	fault      faults
	lose       func(frame []byte) bool // drops RoCE packets in tests
	memic      deviceMemory
	uars       uint32 // number of doorbell pages
	sqsMade    uint64 // send queues that were ever created
	uid        uint32 // user context of the current command; 0 for the driver's own
}

// New returns a function that is not yet powered on.
func New(o Options) *Model {
	if o.InterfaceRev == 0 {
		o.InterfaceRev = cmdInterfaceRev
	}
	if o.InitPages == 0 {
		o.InitPages = 512
	}
	m := &Model{opt: o, prof: profiles[o.Profile], uars: uars}
	m.ops = commandTable()
	return m
}

// Config is the function's configuration space. Initialization segment, MSI-X table and UARs are all in BAR 0.
func (m *Model) Config() sim.Config {
	c := sim.Config{
		Vendor: 0x15b3, Device: m.prof.device, SubVendor: 0x15b3, SubDevice: 0x0008, Class: 0x020000,
		BARs: [6]sim.BAR{
			0: {Size: m.prof.barSize(), Is64: true, Prefetchable: true,
				Polled: []sim.Range{{Off: firstUAR * uarSize, Len: uint64(m.uars) * uarSize}}},
		},
		MSIXVectors: m.prof.vectors, MSIXBAR: 0, MSIXTable: 0x2000, MSIXPBA: 0x3000,
		PCIeDevCap: 1<<28 | 1<<15 | 2, LinkSpeed: 3, LinkWidth: 16,
		NoPM: m.prof.virtual, PMC: 0x81c3, // PME in D3cold, 375 mA
		ARI: true,
	}
	if !m.prof.virtual {
		c.AER, c.VendorSize = 2, vscSize
		c.VPD = sim.VPD(m.prof.device, m.opt.MAC, [2]string{"V0", "PCIeGen3 x16"},
			[2]string{"V3", fmt.Sprintf("%x", m.opt.MAC)}) // Linux displays V3 as the board ID
	}
	return c
}

// Attach gives the model its host.
func (m *Model) Attach(h sim.Host) { m.host = h }

// Reset is power-on or a function-level reset: no object, no page, no queue survives.
func (m *Model) Reset() {
	m.iseg = iseg{booting: m.opt.Initializing}
	m.cmdq = cmdq{}
	m.pages = pagePool{}
	m.caps = m.newCaps()
	m.hca, m.issi = hcaDisabled, 0
	m.obj = newObjects(m.uars, &m.uid)
	m.flow = newSteering()
	m.congestion = newCongestion()
	m.roce = roce{}
	m.gateway = gateway{}
	m.vport = m.newVport()
	m.port.reset(m.prof.virtual)
	m.count = counters{}
	m.fault.reset()
	m.memic = deviceMemory{}
}

// SetLink notifies the model that the other end of the wire was connected or disconnected.
func (m *Model) SetLink(up bool) {
	m.port.wire = up
	m.linkChanged()
}

// Pause stops the transmitter, as a pause frame does.
func (m *Model) Pause(on bool) { m.port.paused = on }

// ReadBAR reads the initialization segment, or device memory. UAR pages are write-only: they read as zero.
func (m *Model) ReadBAR(bar int, off uint64, p []byte) error {
	switch {
	case off < isegSize:
		return m.readISeg(off, p)
	case off >= firstUAR*uarSize && off < m.uarEnd():
		clear(p)
		return nil
	case m.prof.memic && off >= m.prof.memicAt():
		from, err := m.memicBytes(off, len(p))
		copy(p, from)
		return err
	}
	return fmt.Errorf("nothing is there: the initialization segment ends at %xh, UAR pages are %xh to %xh", isegSize,
		firstUAR*uarSize, m.uarEnd())
}

// WriteBAR writes the initialization segment or device memory, or rings a doorbell.
func (m *Model) WriteBAR(bar int, off uint64, p []byte) error {
	switch {
	case off < isegSize:
		return m.writeISeg(off, p)
	case off >= firstUAR*uarSize && off < m.uarEnd():
		return m.writeUAR(uint32(off/uarSize), off%uarSize, p)
	case m.prof.memic && off >= m.prof.memicAt():
		to, err := m.memicBytes(off, len(p))
		copy(to, p)
		return err
	}
	return fmt.Errorf("nothing is there: the initialization segment ends at %xh, UAR pages are %xh to %xh", isegSize,
		firstUAR*uarSize, m.uarEnd())
}

// Step executes commands, detects doorbells, and processes queues, each by a bounded amount.
func (m *Model) Step() bool {
	if s := m.fault.die.Swap(0); s != 0 {
		m.fault.fatal, m.health.syndrome = true, uint8(s)
	}
	if m.dead() {
		return false
	}
	m.health.counter++
	if n := m.fault.ask.Swap(0); n != 0 {
		m.RequestPages(int(n))
	}
	busy := m.stepCommands()
	busy = m.stepUARs() || busy
	turned := m.roce.turned
	m.roce.turned = nil
	for _, f := range turned {
		m.take(f, nil)
		busy = true
	}
	busy = m.stepSQs() || busy
	busy = m.stepSessions() || busy
	busy = m.stepEvents() || busy
	return busy
}
