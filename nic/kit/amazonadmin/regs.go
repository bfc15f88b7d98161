package amazonadmin

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/nic/kit"
	"github.com/rebound-nic/rebound/nic/kit/cmdtrace"
)

// Reg is the offset of a 32-bit register in BAR 0.
type Reg uint32

// The registers, all 32 bits wide.
const (
	VERSION            Reg = 0x00 // RO  interface version: minor 7:0, major 15:8
	CONTROLLER_VERSION Reg = 0x04 // RO  subminor 7:0, minor 15:8, major 23:16, implementation 31:24
	CAPS               Reg = 0x08 // RO  capabilities, see CapsXxx
	AQ_BASE_LO         Reg = 0x10 // WO  admin queue
	AQ_BASE_HI         Reg = 0x14
	AQ_CAPS            Reg = 0x18 // WO  depth 15:0, entry bytes 31:16
	ACQ_BASE_LO        Reg = 0x20 // WO  admin completion queue
	ACQ_BASE_HI        Reg = 0x24
	ACQ_CAPS           Reg = 0x28 // WO  depth 15:0, entry bytes 31:16
	AQ_DB              Reg = 0x2c // WO  admin queue tail, running freely
	AENQ_CAPS          Reg = 0x34 // WO  depth 15:0, entry bytes 31:16
	AENQ_BASE_LO       Reg = 0x38 // WO  event queue
	AENQ_BASE_HI       Reg = 0x3c
	AENQ_HEAD_DB       Reg = 0x40 // WO  events consumed, running freely, from the depth on (ENA) or from 0 (EFA)
	INTR_MASK          Reg = 0x4c // WO  bit 0 masks the admin interrupt
	DEV_CTL            Reg = 0x54 // WO  see DevCtlXxx
	DEV_STS            Reg = 0x58 // RO  see DevStsXxx
	MMIO_REG_READ      Reg = 0x5c // WO  request number 15:0, register 31:16
	MMIO_RESP_LO       Reg = 0x60 // WO  address of the answers to MMIO_REG_READ
	MMIO_RESP_HI       Reg = 0x64
)

const (
	CapsResetTimeoutShift = 1 // 5 bits, in 100 ms
	CapsResetTimeoutMask  = 0x1f
	CapsDMAWidthShift     = 8 // 8 bits, address bits
	CapsDMAWidthMask      = 0xff
	CapsAdminTimeoutShift = 16 // 4 bits, in 100 ms; 0 for the driver's own choice
	CapsAdminTimeoutMask  = 0xf

	DevCtlReset       = 1 << 0
	DevCtlReasonShift = 28 // 4 bits

	DevStsReady           = 1 << 0
	DevStsResetInProgress = 1 << 3
	DevStsFatalError      = 1 << 5
)

// Mask is INTR_MASK's bit: the queues are polled.
const Mask = 1

// leastLooks is the number of polls before a timeout counts (kit.Deadline).
const leastLooks = 500

// ErrDevice means that the device reported an error, or violated its interface.
var ErrDevice = errors.New("device violated its interface")

// readLess is the answer to MMIO_REG_READ, written by the device: the number last.
type readLess struct {
	req uint16 // the request's number
	off uint16 // the register
	val uint32
}

// Regs are a device's registers. A read is answered by DMA, because an MMIO read stalls the processor for a round trip
// on the bus, and for longer if the device is gone. Writes are MMIO.
type Regs struct {
	name    string
	trace   *cmdtrace.Ring
	dialect Dialect
	bar     *mmio.Window
	direct  bool // the device answers MMIO reads only

	mu   sync.Mutex
	resp *readLess
	iova uint64
	seq  uint16
}

// NoReadLess is the bit of an ENA's PCI revision that says that registers are read by MMIO only.
const NoReadLess = 1 << 0

// newRegs sets the address of the answers to register reads. revision is the function's PCI revision.
func newRegs(name string, dialect Dialect, revision uint8, bar *mmio.Window, a *dma.Arena) (*Regs, error) {
	b, err := a.Alloc(int(unsafe.Sizeof(readLess{})), 64)
	if err != nil {
		return nil, err
	}
	r := &Regs{name: name, dialect: dialect, bar: bar, direct: dialect.MMIOReads && revision&NoReadLess != 0,
		resp: (*readLess)(kit.Pointer(b)), iova: b.IOVA}
	r.Announce()
	return r, nil
}

// Attach stops the device's DMA, frees the memory of an earlier start, allocates some again, and returns the registers
// with DMA running. Memory is allocated at each start, because a device that was reset under traffic may still use old
// addresses.
func Attach(c *kit.Card, dialect Dialect, bar *mmio.Window) (*Regs, error) {
	if err := c.Fn.SetBusMaster(false); err != nil {
		return nil, err
	}
	if err := c.Allocate(1 << 20); err != nil {
		return nil, err
	}
	r, err := newRegs(c.Name, dialect, c.Fn.ID().Revision, bar, c.Arena)
	if err != nil {
		return nil, err
	}
	r.Trace(&c.Trace)
	return r, c.Fn.SetBusMaster(true)
}

// Version is the version of a device's interface, and CONTROLLER_VERSION.
type Version struct {
	Major, Minor uint8
	Controller   uint32
}

func (v Version) String() string {
	c := v.Controller
	return fmt.Sprintf("interface %d.%d, controller %d.%d.%d", v.Major, v.Minor, c>>16&0xFF, c>>8&0xFF, c&0xFF)
}

// Version reads both versions. The published drivers refuse controllers before 0.0.1.
func (r *Regs) Version() (v Version, err error) {
	n, err := r.Read(VERSION)
	if err != nil {
		return v, err
	}
	v.Major, v.Minor = uint8(n>>8), uint8(n)
	if v.Controller, err = r.Read(CONTROLLER_VERSION); err == nil && v.Controller&0xFFFFFF == 0 {
		err = fmt.Errorf("%s: controller version %#x: this driver needs 0.0.1 or later", r.name, v.Controller)
	}
	return v, err
}

// AdminTimeout is the time for an admin command in CAPS, 0 if the device leaves it to the driver.
func AdminTimeout(caps uint32) time.Duration {
	return time.Duration(caps>>CapsAdminTimeoutShift&CapsAdminTimeoutMask) * 100 * time.Millisecond
}

// Trace has the registers' reads, and the commands of every queue on them, recorded in t.
func (r *Regs) Trace(t *cmdtrace.Ring) { r.trace = t }

// Announce sets the address of the answers, which a reset clears.
func (r *Regs) Announce() { r.writeAddr(MMIO_RESP_LO, MMIO_RESP_HI, r.iova) }

// Write writes a register.
func (r *Regs) Write(reg Reg, v uint32) { r.bar.Write32(uint64(reg), v) }

func (r *Regs) writeAddr(lo, hi Reg, iova uint64) {
	r.Write(lo, uint32(iova))
	r.Write(hi, uint32(iova>>32))
}

// Read reads a register. If the device does not answer, the error is ErrGone if it has left the bus, otherwise
// ErrTimeout.
func (r *Regs) Read(reg Reg) (uint32, error) {
	v, err := r.read(reg)
	e := cmdtrace.Entry{Kind: cmdtrace.Read, Name: fmt.Sprintf("register+%#x", uint32(reg)), Value: uint64(v), Width: 4}
	if err != nil {
		e.Err = err.Error()
	}
	r.trace.Add(e)
	return v, err
}

// read reads a register: directly, or by a request whose answer the device writes to memory. It fails if the device
// is gone, does not answer in time, or answers for another register.
func (r *Regs) read(reg Reg) (uint32, error) {
	if r.direct {
		v := r.bar.Read32(uint64(reg))
		if v == ^uint32(0) {
			return 0, fmt.Errorf("%s: %w: register %#x reads all ones", r.name, nic.ErrGone, uint32(reg))
		}
		return v, nil
	}
	kit.Hold(r.mu.TryLock)
	defer r.mu.Unlock()
	r.seq++
	atomic.StoreUint32(r.head(), uint32(^r.seq)) // any number but the request's
	r.Write(MMIO_REG_READ, uint32(r.seq)|uint32(reg)<<16)
	for end := kit.NewDeadline(r.dialect.ReadTimeout, leastLooks); ; time.Sleep(5 * time.Microsecond) {
		late := end.Over()
		if head := atomic.LoadUint32(r.head()); uint16(head) == r.seq {
			if off := uint16(head >> 16); off != uint16(reg) {
				return 0, fmt.Errorf("%s: %w: register %#x was read, the answer is for %#x", r.name, ErrDevice,
					uint32(reg), off)
			}
			return r.resp.val, nil
		}
		if late {
			break
		}
	}
	if r.Gone() {
		return 0, fmt.Errorf("%s: %w: register %#x reads all ones", r.name, nic.ErrGone, uint32(reg))
	}
	return 0, fmt.Errorf("%s: %w: no answer to the read of register %#x in %v", r.name, nic.ErrTimeout, uint32(reg),
		r.dialect.ReadTimeout)
}

// Gone reports whether the device has left the bus. It costs an MMIO read.
func (r *Regs) Gone() bool { return r.bar.Read32(uint64(VERSION)) == ^uint32(0) }

// head is the request's number and the register as one word.
func (r *Regs) head() *uint32 { return (*uint32)(unsafe.Pointer(r.resp)) }

// Reset resets the device with a reason, and waits until it is ready again. All queues are gone then.
func (r *Regs) Reset(reason uint32) error {
	status, err := r.Read(DEV_STS)
	if err != nil {
		return err
	}
	if status&DevStsReady == 0 {
		return fmt.Errorf("%s: %w: DEV_STS is %#x: the device is not ready", r.name, ErrDevice, status)
	}
	caps, err := r.Read(CAPS)
	if err != nil {
		return err
	}
	limit := time.Duration(caps>>CapsResetTimeoutShift&CapsResetTimeoutMask) * 100 * time.Millisecond
	if limit == 0 {
		return fmt.Errorf("%s: %w: CAPS is %#x: no timeout for a reset", r.name, ErrDevice, caps)
	}
	r.Write(DEV_CTL, DevCtlReset|reason<<DevCtlReasonShift)
	r.Announce()
	if err := r.wait(DevStsResetInProgress, limit); err != nil {
		return err
	}
	r.Write(DEV_CTL, 0)
	return r.wait(0, limit)
}

// wait polls DEV_STS until its reset bit reads want.
func (r *Regs) wait(want uint32, limit time.Duration) error {
	for end := kit.NewDeadline(limit, leastLooks); ; time.Sleep(100 * time.Microsecond) {
		late := end.Over()
		v, err := r.Read(DEV_STS)
		if err != nil {
			return err
		}
		if v&DevStsResetInProgress == want {
			return nil
		}
		if late {
			return fmt.Errorf("%s: %w: DEV_STS is %#x after %v, RESET_IN_PROGRESS (bit 3) should be %d", r.name,
				nic.ErrTimeout, v, limit, want>>3)
		}
	}
}

// PutAddr encodes a device address as commands carry it: 48 bits, low word first, the upper 16 reserved.
func PutAddr(iova uint64) (a Addr) {
	binary.LittleEndian.PutUint64(a[:], iova&(1<<48-1))
	return a
}

// Addr is a device address in a command.
type Addr [8]byte
