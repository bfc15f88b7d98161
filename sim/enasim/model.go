package enasim

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/amazon"
	"github.com/rebound-nic/rebound/sim/parts"
)

// Options describes an adapter and its faults. The zero value with a MAC is a healthy 1d0f:ec20.
type Options struct {
	MAC    [6]byte
	Device uint16 // PCI device ID; 0 for ec20
	Queues int    // transmit and receive queues, at most 16; 0 for 8
	MaxMTU uint32 // 0 for 9216
	Seed   uint64 // decides the order of completions

	NoLLQ      bool   // the LLQ feature is not offered
	NoMemBAR   bool   // BAR 2 is missing, though the feature is offered
	LLQSizes   uint16 // supported entry sizes, ena_admin_llq_ring_entry_size; 0 for 128 and 256 bytes
	WideDepth  uint16 // most wide LLQ entries; 0 for half as many as of 128 bytes
	ShortCQ    uint16 // completion queues have at most so many entries, which the answer says; 0 for no limit
	PreferWide bool   // entries of 256 bytes are recommended
	NoMeta     bool   // accelerated LLQ: meta descriptors are not cached, every frame needs one
	// every frame in an LLQ needs one, though nothing announces it (iPXE c1badf71c: newer generations)
	NeedMeta bool
	Burst    uint16 // accelerated LLQ: at most this many bytes between two doorbells; 0 for no limit

	MSIXBAR     int    // BAR of the MSI-X table: 0; 1, with 8 KB each for BAR 0 and 1; or 4, of 64 KB
	NoRxChecks  bool   // receive checksums, hash, and IPv6 transmit checksums are not offered
	BasicQueues bool   // queue limits by MAX_QUEUES_NUM only
	Unsupported uint32 // features (bits) that are not offered
	NoMetrics   bool   // no customer metrics: ENI statistics only
	NoReadless  bool   // registers are read by MMIO only: PCI revision 1
	Width       int    // DMA address bits; 0 for 48
	Version     uint32 // VERSION; 0 for 0.10, as in all public logs
	Controller  uint32 // CONTROLLER_VERSION; 0 for 0.0.1
	NotReady    bool   // DEV_STS.READY stays clear
	AnyDriver   bool   // firmware before c6i's: completion queues without host information, and with an empty vector
	// a frame needs a buffer in the part of the receive ring that its hash chooses, of so many, or is lost uncounted
	// (iPXE b2e846821); 0 for one
	Parts    int
	Overruns bool  // a frame without a buffer is counted as an overrun, not as dropped
	Lasting  bool  // a reset does not clear the basic statistics
	RxOffset uint8 // offset of frames in their first buffer, for drivers that accept one
	Hints    Hints

	AdminDelay      time.Duration // from an admin command to its completion
	AdminOutOfOrder bool
	TxOutOfOrder    bool
	RxOutOfOrder    bool

	Recorded parts.Answers // answers of a real device; nil for those of the model
}

// Hints is ena_admin_ena_hw_hints. Zero leaves a choice to the driver.
type Hints struct {
	MMIOReadTimeout, Watchdog, MissingTx, MissingTxCount, AdminTimeout, NetdevWatchdog, MaxTxSGL, MaxRxSGL uint16
}

// Model is one adapter. It implements sim.Model. Knobs may be turned from any goroutine at any time.
type Model struct {
	amazon.Controller
	opt  Options
	wire bool // the wire's other end is there

	feat  features
	cq    []cq
	tx    []txQueue
	rx    []rxQueue
	vec   []vector
	hold  bool
	count Counters
	since Counters // count when the basic statistics were last cleared
}

var le, be = binary.LittleEndian, binary.BigEndian

// New returns an adapter that is not yet powered on.
func New(o Options) *Model {
	def := func(v *uint32, d uint32) {
		if *v == 0 {
			*v = d
		}
	}
	if o.Device == 0 {
		o.Device = 0xec20
	}
	if o.Queues == 0 {
		o.Queues = 8
	}
	if o.LLQSizes == 0 {
		o.LLQSizes = llq128 | llq256
	}
	if o.Width == 0 {
		o.Width = 48
	}
	def(&o.MaxMTU, 9216)
	def(&o.Version, 0x00a)
	def(&o.Controller, 0x01000001)
	m := &Model{opt: o}
	m.Init(amazon.Card{
		Registers: regTable, Command: command, Features: featNames,
		Version: o.Version, Controller: o.Controller, Width: o.Width, AdminTimeout: 10,
		ExtendedReasons: true, EventsFromDepth: true, NoReadByDMA: o.NoReadless,
		NotReady: o.NotReady, AdminDelay: o.AdminDelay, AdminOutOfOrder: o.AdminOutOfOrder, Recorded: o.Recorded,
		Clear: m.clear, Execute: m.execute, Write: m.write, InReset: m.inReset, Enabled: m.postLink,
		KeepAlive: m.keepAlive,
	}, rand.New(rand.NewPCG(o.Seed, 6)))
	m.cq, m.tx, m.rx, m.vec = make([]cq, 2*o.Queues), make([]txQueue, o.Queues), make([]rxQueue, o.Queues),
		make([]vector, m.vectors())
	return m
}

func (m *Model) vectors() int { return 1 + 2*m.opt.Queues }

// Config is the function's configuration space.
func (m *Model) Config() sim.Config {
	c := sim.Config{
		Vendor: 0x1d0f, Device: m.opt.Device, SubVendor: 0x1d0f, SubDevice: m.opt.Device, Class: 0x020000,
		MSIXVectors: m.vectors(), MSIXBAR: m.opt.MSIXBAR, MSIXTable: 0, MSIXPBA: msixPBA - msixTable,
		PCIeDevCap: 1<<28 | 1<<15 | 2, LinkSpeed: 3, LinkWidth: 8,
	}
	c.BARs[0] = sim.BAR{Size: amazon.BARSize, Polled: []sim.Range{{Off: uint64(regTxDB), Len: 0x1000}}}
	switch m.opt.MSIXBAR {
	case 0:
		c.MSIXTable, c.MSIXPBA = msixTable, msixPBA
	case 1:
		c.BARs[0].Size, c.BARs[1].Size = msixTable, msixTable
	case 4:
		c.BARs[4].Size = 64 << 10
	}
	if !m.opt.NoMemBAR {
		size := m.memSize()
		c.BARs[2] = sim.BAR{Size: size, Prefetchable: true, Polled: []sim.Range{{Len: size}}}
	}
	if m.opt.NoReadless {
		c.Revision = 1
	}
	return c
}

const maxQueues = 16

// memSize is the size of BAR 2: LLQ memory of the queues, and at least the 1 MB of public logs.
func (m *Model) memSize() uint64 { return uint64(max(m.opt.Queues, 8)) * llqStride }

// clear applies any kind of reset to the card.
func (m *Model) clear() {
	m.feat = features{mtu: m.opt.MaxMTU, rxEnabled: m.rxOffloads(), key: defaultKey}
	if !m.opt.Lasting {
		m.since = m.count
	}
	// iPXE sets no MTU and announces buffers for the longest, and DPDK sets one only on request, so a device starts
	// with the longest.
	clear(m.cq)
	clear(m.tx)
	clear(m.rx)
	clear(m.vec)
	m.Host.Zero(0)
	m.Host.Zero(2)
}

// SetLink reports that the wire's other end was connected or disconnected.
func (m *Model) SetLink(up bool) {
	m.Lock()
	defer m.Unlock()
	m.wire = up
	m.postLink()
}

// ReadBAR reads a register. All are 32 bits wide.
func (m *Model) ReadBAR(bar int, off uint64, p []byte) error {
	m.Lock()
	defer m.Unlock()
	switch bar {
	case 0:
	case 2:
		return fmt.Errorf("LLQ memory is write only")
	default:
		return fmt.Errorf("BAR %d has the MSI-X table and nothing else", bar)
	}
	if len(p) != 4 {
		return fmt.Errorf("access of %d bytes: registers have 4", len(p))
	}
	v, err := m.ReadRegister(amazon.Reg(off))
	le.PutUint32(p, v)
	return err
}

// WriteBAR writes a register, a doorbell or LLQ memory.
func (m *Model) WriteBAR(bar int, off uint64, p []byte) error {
	m.Lock()
	defer m.Unlock()
	switch bar {
	case 0:
	case 2:
		return m.pushed(off, p)
	default:
		return fmt.Errorf("BAR %d has the MSI-X table and nothing else", bar)
	}
	if len(p) != 4 {
		return fmt.Errorf("access of %d bytes: registers have 4", len(p))
	}
	return m.WriteRegister(amazon.Reg(off), le.Uint32(p))
}

// write handles a write to one of the card's own registers.
func (m *Model) write(r amazon.Reg, v uint32) (own bool, err error) {
	switch {
	case r >= regUnmask && r < regTxDB:
		return true, m.unmask(int(r-regUnmask)/4, v)
	case r >= regTxDB && r < regRxDB:
		return true, m.txDoorbell(int(r-regTxDB)/4, v, true)
	case r >= regRxDB:
		return true, m.rxDoorbell(int(r-regRxDB)/4, v)
	}
	return false, nil
}

// inReset tolerates iPXE from before 2021, which expects a reset to finish by itself, and worked on the devices of its
// time.
func (m *Model) inReset(r amazon.Reg) (allowed, lost bool) {
	if r < amazon.RegAQBASELO || r > amazon.RegAENQBASEHI || !m.EndReset() {
		return false, false
	}
	m.Host.Warnf("write to %s before DEV_CTL.RESET was cleared and DEV_STS.RESET_IN_PROGRESS was seen to clear",
		regTable.Label(r))
	return true, false
}

// postLink reports the link's state.
func (m *Model) postLink() {
	e := amazon.Event{Group: amazon.GroupLink}
	if m.wire {
		e.Data[0] = 1
	}
	m.PostLocked(e)
}

func (m *Model) keepAlive() amazon.Event {
	e := amazon.Event{Group: amazon.GroupKeepAlive}
	b := m.basic()
	for i, v := range b[4:] {
		le.PutUint64(e.Data[8*i:], v)
	}
	return e
}

// Step advances the adapter.
func (m *Model) Step() bool {
	m.Lock()
	defer m.Unlock()
	busy, running := m.Controller.Step()
	if !running {
		return busy
	}
	busy = m.stepDoorbells() || busy
	busy = m.stepTX() || busy
	busy = m.stepRX() || busy
	m.stepInterrupts()
	return busy
}

// stepDoorbells finds doorbells that were written through a pointer.
func (m *Model) stepDoorbells() (busy bool) {
	shadow := m.Host.Shadow(0)
	for i := range m.tx {
		if v := sim.Load32(shadow[regTxDB+4*amazon.Reg(i):]); v != uint32(m.tx[i].bell) {
			busy = true
			m.Host.CountMMIOWrite(1)
			m.report(m.txDoorbell(i, v, false))
		}
	}
	for i := range m.rx {
		if v := sim.Load32(shadow[regRxDB+4*amazon.Reg(i):]); v != uint32(m.rx[i].bell) {
			busy = true
			m.Host.CountMMIOWrite(1)
			m.report(m.rxDoorbell(i, v))
		}
	}
	return busy
}

// report records a violation that has no caller to return to.
func (m *Model) report(err error) { sim.Report(m.Host, err) }
