package enasim

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/kit"
)

// Options is what an adapter is made of, and what is wrong with it. The zero value with a MAC is a healthy 1d0f:ec20.
type Options struct {
	MAC    [6]byte
	Device uint16 // PCI device ID; 0 for ec20
	Queues int    // transmit and receive queues; 0 for 8, which is the most
	MaxMTU uint32 // 0 for 9216
	Seed   uint64 // decides what is out of order

	NoLLQ      bool   // the LLQ feature is not offered
	NoMemBAR   bool   // BAR 2 is missing, though the feature is offered
	LLQSizes   uint16 // supported entry sizes, ena_admin_llq_ring_entry_size; 0 for 128 and 256 bytes
	PreferWide bool   // entries of 256 bytes are recommended
	NoMeta     bool   // accelerated LLQ: meta descriptors are not cached, every frame brings one
	NeedMeta   bool   // every frame in an LLQ brings one, though nothing announces it (iPXE c1badf71c: newer generations)
	Burst      uint16 // accelerated LLQ: at most this many bytes between two doorbells; 0 for no limit

	MSIXBAR     int    // BAR of the MSI-X table: 0; 1, with 8 KB for each of BAR 0 and 1; or 4, of 64 KB
	NoRxChecks  bool   // receive checksums and hash are not offered, nor are checksums of IPv6 sent
	BasicQueues bool   // queue limits by MAX_QUEUES_NUM only
	Unsupported uint32 // features (bits) that are not offered
	NoMetrics   bool   // no customer metrics: ENI statistics only
	NoReadless  bool   // registers are read by MMIO only: PCI revision 1
	Width       int    // DMA address bits; 0 for 48
	Version     uint32 // VERSION; 0 for 0.10, which every device in public logs shows
	Controller  uint32 // CONTROLLER_VERSION; 0 for 0.0.1
	NotReady    bool   // DEV_STS.READY stays clear
	AnyDriver   bool   // firmware before c6i's: completion queues without host information, and with an empty vector
	RxOffset    uint8  // frames begin here in their first buffer, for drivers that take it
	Hints       Hints

	AdminDelay      time.Duration // admin commands complete so late
	AdminOutOfOrder bool
	TxOutOfOrder    bool
	RxOutOfOrder    bool

	Recorded kit.Answers // of a real device; nil for the model's own
}

// Hints is ena_admin_ena_hw_hints. Zero leaves a choice to the driver.
type Hints struct {
	MMIOReadTimeout, Watchdog, MissingTx, MissingTxCount, AdminTimeout, NetdevWatchdog, MaxTxSGL, MaxRxSGL uint16
}

// Model is one adapter. It implements sim.Model. Knobs may be turned from any goroutine at any time.
type Model struct {
	opt  Options
	host sim.Host
	rng  *rand.Rand
	mu   sync.Mutex // knobs come from other goroutines than the host's calls

	val     [regBARSize / 4]uint32
	reset   resetState
	reasons []int
	wire    bool // the wire's other end is there

	aq    adminQueue
	aenq  eventQueue
	feat  features
	cq    []cq
	tx    []txQueue
	rx    []rxQueue
	vec   []vector
	knob  knobs
	count Counters
}

// resetState is where the reset protocol is: requested by DEV_CTL, seen by DEV_STS some accesses or Steps later.
type resetState struct {
	wanted  bool
	pending int // accesses or Steps until DEV_STS follows
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
	m := &Model{opt: o, rng: rand.New(rand.NewPCG(o.Seed, 6))}
	m.cq, m.tx, m.rx, m.vec = make([]cq, 2*o.Queues), make([]txQueue, o.Queues), make([]rxQueue, o.Queues), make([]vector, m.vectors())
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
	c.BARs[0] = sim.BAR{Size: regBARSize, Polled: []sim.Range{{Off: uint64(regTxDB), Len: 0x1000}}}
	switch m.opt.MSIXBAR {
	case 0:
		c.MSIXTable, c.MSIXPBA = msixTable, msixPBA
	case 1:
		c.BARs[0].Size, c.BARs[1].Size = msixTable, msixTable
	case 4:
		c.BARs[4].Size = 64 << 10
	}
	if !m.opt.NoMemBAR {
		c.BARs[2] = sim.BAR{Size: memSize, Prefetchable: true, Polled: []sim.Range{{Len: memSize}}}
	}
	if m.opt.NoReadless {
		c.Revision = 1
	}
	return c
}

// memSize is BAR 2's: LLQ memory of the most queues there can be.
const memSize = 8 * llqStride

// Attach gives the model its host.
func (m *Model) Attach(h sim.Host) { m.host = h }

// Reset is power-on or a function-level reset.
func (m *Model) Reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.clear()
	m.reset, m.aenq.gone = resetState{}, false
}

// clear is what any reset does to all but the reset protocol itself.
func (m *Model) clear() {
	regTable.Reset(m.val[:])
	m.aq, m.aenq = adminQueue{}, eventQueue{gone: m.aenq.enabled || m.aenq.gone}
	m.feat = features{mtu: m.opt.MaxMTU, rxEnabled: m.rxOffloads(), key: defaultKey}
	// iPXE sets no MTU and announces what the longest one takes, and DPDK sets one only if asked to: a device starts with the longest.
	clear(m.cq)
	clear(m.tx)
	clear(m.rx)
	clear(m.vec)
	m.knob.fatal = false
	clear(m.host.Shadow(0)[regTxDB:][:0x1000])
	if !m.opt.NoMemBAR {
		clear(m.host.Shadow(2)[:memSize])
	}
}

// SetLink tells that the wire's other end came or went.
func (m *Model) SetLink(up bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wire = up
	m.postLink()
}

// ReadBAR reads a register. All are 32 bits wide.
func (m *Model) ReadBAR(bar int, off uint64, p []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
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
	v, err := m.read(reg(off))
	le.PutUint32(p, v)
	return err
}

// read is a read by MMIO or by DMA response.
func (m *Model) read(r reg) (uint32, error) {
	m.settleReset()
	if _, err := regTable.Read(r); err != nil {
		return all, err
	}
	switch r {
	case regVERSION:
		return m.opt.Version, nil
	case regCTRLVERSION:
		return m.opt.Controller, nil
	case regCAPS:
		return capsContiguous | 10<<capsResetShift | uint32(m.opt.Width)<<capsWidthShift | 10<<capsAdminTOShift, nil
	case regACQTAIL:
		return uint32(m.aq.done), nil
	case regAENQTAIL:
		return uint32(m.aenq.tail), nil
	case regDEVSTS:
		v := m.val[regDEVSTS/4]
		if !m.opt.NotReady && !m.reset.wanted {
			v |= stsReady // again as soon as the reset has taken place, though DEV_CTL still requests it
		}
		if m.knob.fatal {
			v |= stsFatal
		}
		return v, nil
	}
	return m.val[r/4], nil
}

// WriteBAR writes a register, a doorbell or LLQ memory.
func (m *Model) WriteBAR(bar int, off uint64, p []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
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
	m.settleReset()
	return m.write(reg(off), le.Uint32(p))
}

func (m *Model) write(r reg, v uint32) error {
	resetting := m.reset.wanted || m.val[regDEVSTS/4]&stsResetProgress != 0
	if r == regAENQHEADDB && (resetting || m.aenq.gone && m.val[regAENQCAPS/4] == 0) {
		return nil // Linux's interrupt handler acknowledges events that came before; there is no queue any more
	}
	if resetting && r >= regAQBASELO && r <= regAENQBASEHI && !m.reset.wanted {
		// iPXE of before 2021 takes a reset for one that ends by itself, and ran on the devices of its time.
		m.host.Warnf("write to %v before DEV_CTL.RESET was cleared and DEV_STS.RESET_IN_PROGRESS was seen to clear", r)
		m.val[regDEVCTL/4], m.val[regDEVSTS/4] = 0, stsResetFinished
	} else if resetting && r != regDEVCTL && r != regREADREQ && r != regRESPLO && r != regRESPHI {
		return fmt.Errorf("write to %v before DEV_STS.RESET_IN_PROGRESS was seen to clear", r)
	}
	old := m.val[r/4]
	v, _, err := regTable.Write(m.host, r, v, old, regTable.Bits(r), old)
	if err != nil {
		return err
	}
	switch {
	case r >= regUnmask && r < regTxDB:
		return m.unmask(int(r-regUnmask)/4, v)
	case r >= regTxDB && r < regRxDB:
		return m.txDoorbell(int(r-regTxDB)/4, v, true)
	case r >= regRxDB:
		return m.rxDoorbell(int(r-regRxDB)/4, v)
	}
	switch r {
	case regAQDB:
		return m.adminDoorbell(v)
	case regAENQHEADDB:
		return m.aenqDoorbell(v)
	case regDEVCTL:
		return m.writeCTL(v)
	case regREADREQ:
		return m.readless(v)
	case regAQBASELO, regAQBASEHI, regAQCAPS, regACQBASELO, regACQBASEHI, regACQCAPS:
		if m.aq.tail != 0 && v == 0 && (r == regAQCAPS || r == regACQCAPS) { // iPXE takes leave so
			m.host.Warnf("write of 0 to %v after the first admin command: a reset ends the queues", r)
			m.aq.tail, m.aq.late = m.aq.head, nil
		} else if m.aq.tail != 0 {
			return fmt.Errorf("write of %#x to %v after the first admin command: a reset comes first", v, r)
		}
	case regAENQBASELO, regAENQBASEHI, regAENQCAPS:
		if m.aenq.enabled {
			return fmt.Errorf("write of %#x to %v after the first AENQ doorbell: a reset comes first", v, r)
		}
	}
	m.val[r/4] = v
	switch {
	case r == regRESPLO && v&7 != 0:
		return fmt.Errorf("MMIO_RESP_LO = %#x: the response has 8 bytes and is aligned to them", v)
	case r == regRESPHI:
		return m.width("MMIO_RESP", m.pair(regRESPLO))
	}
	return nil
}

// pair is a register pair that holds an address.
func (m *Model) pair(lo reg) uint64 { return uint64(m.val[lo/4+1])<<32 | uint64(m.val[lo/4]) }

// width checks an address against CAPS.DMA_ADDR_WIDTH.
func (m *Model) width(what string, a uint64) error {
	if a>>m.opt.Width != 0 {
		return fmt.Errorf("%s address %#x has more than the %d bits of CAPS.DMA_ADDR_WIDTH", what, a, m.opt.Width)
	}
	return nil
}

// writeCTL starts and ends the reset protocol.
func (m *Model) writeCTL(v uint32) error {
	if v&ctlUnsupported != 0 {
		return fmt.Errorf("DEV_CTL = %#x: bits %#x (AQ restart, quiescence, reserved) are not supported", v, v&ctlUnsupported)
	}
	inReset := m.val[regDEVSTS/4]&stsResetProgress != 0
	switch {
	case v&ctlReset != 0 && (inReset || m.reset.wanted):
		return fmt.Errorf("DEV_CTL = %#x while a reset is under way", v)
	case v&ctlReset != 0:
		m.reasons = append(m.reasons, int(v>>ctlReason|v>>ctlReasonExt&0xf<<4))
		if len(m.reasons) > 1000 {
			m.reasons = m.reasons[1:]
		}
		m.clear()
		m.val[regDEVCTL/4] = v
		m.reset = resetState{wanted: true, pending: 2}
	case inReset:
		m.val[regDEVCTL/4] = v
		m.reset = resetState{pending: 2}
	case m.reset.wanted:
		return fmt.Errorf("DEV_CTL = %#x before DEV_STS.RESET_IN_PROGRESS was seen set", v)
	default:
		m.val[regDEVCTL/4] = v
	}
	return nil
}

// settleReset lets DEV_STS follow DEV_CTL.
func (m *Model) settleReset() {
	if m.reset.pending == 0 {
		return
	}
	if m.reset.pending--; m.reset.pending > 0 {
		return
	}
	if m.reset.wanted {
		m.val[regDEVSTS/4] = stsResetProgress
	} else {
		m.val[regDEVSTS/4] = stsResetFinished
	}
	m.reset.wanted = false
}

// readless answers a read request by DMA, ena_admin_ena_mmio_req_read_less_resp.
func (m *Model) readless(v uint32) error {
	at := m.pair(regRESPLO)
	switch {
	case m.opt.NoReadless:
		return fmt.Errorf("MMIO_REG_READ = %#x: PCI revision 1 has no read-less reads", v)
	case at == 0:
		return fmt.Errorf("MMIO_REG_READ = %#x before MMIO_RESP holds an address", v)
	}
	if m.knob.mute {
		return nil
	}
	r := reg(v >> 16)
	x, err := m.read(r)
	var b [8]byte
	le.PutUint16(b[0:], uint16(v))
	le.PutUint16(b[2:], uint16(r))
	le.PutUint32(b[4:], x)
	m.host.DMAWrite(at, b[:])
	if err != nil {
		return fmt.Errorf("read of %v: %w", r, err)
	}
	return nil
}

// Step advances the adapter.
func (m *Model) Step() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	busy := m.reset.pending > 0
	m.settleReset()
	if m.val[regDEVSTS/4]&stsResetProgress != 0 || m.reset.wanted {
		return busy
	}
	busy = m.stepAdmin() || busy
	busy = m.stepEvents() || busy
	busy = m.stepDoorbells() || busy
	busy = m.stepTX() || busy
	busy = m.stepRX() || busy
	m.stepInterrupts()
	return busy
}

// stepDoorbells finds doorbells that came by pointer.
func (m *Model) stepDoorbells() (busy bool) {
	shadow := m.host.Shadow(0)
	for i := range m.tx {
		if v := sim.Load32(shadow[regTxDB+4*reg(i):]); v != uint32(m.tx[i].bell) {
			busy = true
			m.host.CountMMIOWrite(1)
			m.report(m.txDoorbell(i, v, false))
		}
	}
	for i := range m.rx {
		if v := sim.Load32(shadow[regRxDB+4*reg(i):]); v != uint32(m.rx[i].bell) {
			busy = true
			m.host.CountMMIOWrite(1)
			m.report(m.rxDoorbell(i, v))
		}
	}
	return busy
}

// report records a violation that has no caller to return to.
func (m *Model) report(err error) { sim.Report(m.host, err) }
