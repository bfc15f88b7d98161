package mlx5

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
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

// Timeouts. Firmware may take seconds to initialize, and to zero and map the pages it was given.
var (
	// as Linux before the first command: a BlueField, or a card whose firmware recovers, takes longer than a minute
	initTimeout    = 120 * time.Second
	commandTimeout = 60 * time.Second
)

// leastLooks is the minimum number of polls before a timeout counts (kit.Deadline).
var leastLooks = 500

// CommandError reports that firmware refused a command. It wraps nic.ErrHardware.
type CommandError struct {
	op       opcode
	opMod    uint32
	Status   Status
	Syndrome uint32 // firmware's code for the reason, for NVIDIA's support
}

func (e *CommandError) Error() string {
	return fmt.Sprintf("%v, op_mod %d: status %v, syndrome %#08x", e.op, e.opMod, e.Status, e.Syndrome)
}

func (e *CommandError) Unwrap() error { return nic.ErrHardware }

// Command queue entry (PRM, Command Queue Entry Layout). Offsets in bytes.
const (
	entryType      = 0x00 // 7: PCIe
	entryInLen     = 0x04 // input bytes, including the inline part
	entryInPtr     = 0x08 // first input mailbox
	entryIn        = 0x10 // first 16 bytes of input
	entryOut       = 0x20 // first 16 bytes of output
	entryOutPtr    = 0x30
	entryOutLen    = 0x38
	entryToken     = 0x3C
	entrySignature = 0x3D
	entryStatus    = 0x3F // delivery status 7:1, ownership 0
	entrySize      = 0x40

	entryPCIe    = 7
	ownedByHW    = 1
	entryInline  = 16 // bytes of input and of output in the entry itself
	commandArea  = 4096
	slotCommand  = 0 // index of the entry for all commands but page management
	mailboxes    = 9 // input and output each: the longest messages are capabilities, 16 + 8 * 512 bytes
	mailboxPitch = 1024
)

// Command mailbox (PRM, Command Interface Mailbox Block). Offsets in bytes.
const (
	boxData      = 512
	boxNext      = 0x230
	boxNumber    = 0x238
	boxToken     = 0x23D
	boxCtrlSig   = 0x23E
	boxSignature = 0x23F
	boxSize      = 0x240

	maxMessage = entryInline + (mailboxes-1)*boxData
)

// commandQueue sends commands to firmware, one at a time, and polls for their completion. Page management uses a
// separate entry: firmware may request pages before it completes another command.
type commandQueue struct {
	name   string
	trace  *cmdtrace.Ring
	regs   *mmio.Window
	base   dma.Block
	stride uint32
	slots  [2]slot
	alive  func() error // returns why the function does not respond

	// waiting is called while a command other than page management is in progress, because firmware may need pages for
	// it.
	waiting func()
	sick    func() bool // the device requests a reset
	// health describes the device's health, for timeout errors.
	health func() string

	dead  atomic.Pointer[error] // why no more commands are sent
	token atomic.Uint32
}

// slot is one entry with its mailboxes.
type slot struct {
	mu    sync.Mutex
	index uint32
	boxes dma.Block // input mailboxes, then output mailboxes
}

// swap converts a register or field between device and host byte order.
func swap(v uint32) uint32 { return bits.ReverseBytes32(v) }

func (c *commandQueue) read(r reg) uint32     { return swap(c.regs.Read32(uint64(r))) }
func (c *commandQueue) write(r reg, v uint32) { c.regs.Write32(uint64(r), swap(v)) }

// ready waits until firmware has initialized.
func (c *commandQueue) ready(limit time.Duration) error {
	var v uint32
	for end := kit.NewDeadline(limit, leastLooks); ; time.Sleep(time.Millisecond) {
		late := end.Over()
		v = c.read(regInitializing)
		if v != ^uint32(0) && v&initializing == 0 {
			return nil
		}
		if v == ^uint32(0) {
			if err := c.alive(); err != nil {
				return err
			}
		}
		if late {
			return fmt.Errorf("%s: %w: firmware is still initializing after %v (initialization segment, %#x is %#08x)",
				c.name,
				nic.ErrTimeout, limit, uint32(regInitializing), v)
		}
	}
}

// start sets up the command queue (PRM, Initialization Segment).
func (c *commandQueue) start(arena *dma.Arena) error {
	if err := c.ready(initTimeout); err != nil {
		return err
	}
	if v := c.read(regCmdifRev) >> 16; v != cmdifRev {
		if err := c.alive(); err != nil {
			return err
		}
		return fmt.Errorf("%s: %w: firmware has command interface revision %d, this driver knows %d", c.name,
			nic.ErrHardware, v, cmdifRev)
	}
	low := c.read(regCmdqAddrLow)
	logSize, logStride := low>>4&15, low&15
	if logSize < 1 || logSize > 5 || logStride < 6 || logSize+logStride > 12 {
		return fmt.Errorf("%s: %w: a command queue of 2^%d entries, 2^%d bytes apart, is not within 2 to 32 entries in one page", c.name,
			nic.ErrHardware, logSize, logStride)
	}
	c.stride = 1 << logStride
	var err error
	if c.base, err = arena.Alloc(commandArea, 4096); err != nil {
		return err
	}
	c.slots[0].index, c.slots[1].index = slotCommand, 1<<logSize-1
	for i := range c.slots {
		if c.slots[i].boxes, err = arena.Alloc(2*mailboxes*mailboxPitch, 4096); err != nil {
			return err
		}
	}
	c.write(regCmdqAddrHigh, uint32(c.base.IOVA>>32))
	c.write(regCmdqAddrLow, uint32(c.base.IOVA)) // nic_interface 0: the full driver
	return c.ready(commandTimeout)
}

// exec sends a command and returns its output, of at least outLen bytes.
func (c *commandQueue) exec(in message, outLen int) (message, error) {
	began := time.Now()
	out, err := c.send(in, outLen)
	e := cmdtrace.Entry{Kind: cmdtrace.Command, Name: in.opcode().String(), Opcode: uint32(in.opcode()),
		OpMod: in.opMod(), In: cmdtrace.Bytes(in),
		Out: cmdtrace.Bytes(out), Took: time.Since(began)}
	if len(out) >= 8 {
		e.Status, e.Syndrome = out.get(0x00, 31, 24), out.get(0x04, 31, 0)
	}
	if err != nil {
		e.Err = err.Error()
	}
	c.trace.Add(e)
	return out, err
}

// send executes one command and returns its answer of outLen bytes. Page management has a second slot, because firmware
// may ask for pages while another command is in progress. After a time-out every call returns the same error.
func (c *commandQueue) send(in message, outLen int) (message, error) {
	s := &c.slots[0]
	if in.opcode() == opManagePages {
		s = &c.slots[1]
	}
	kit.Hold(s.mu.TryLock)
	defer s.mu.Unlock()
	if err := c.dead.Load(); err != nil {
		return nil, *err
	}
	if len(in) > maxMessage || outLen > maxMessage {
		panic(fmt.Sprintf("mlx5: %v of %d bytes with an answer of %d", in.opcode(), len(in), outLen))
	}
	outLen = max(outLen, entryInline)
	token := uint8(c.token.Add(1)%255 + 1)
	entry := c.base.Bytes[s.index*c.stride:][:entrySize]
	clear(entry)
	entry[entryType] = entryPCIe
	binary.BigEndian.PutUint32(entry[entryInLen:], uint32(len(in)))
	binary.BigEndian.PutUint32(entry[entryOutLen:], uint32(outLen))
	copy(entry[entryIn:entryOut], in)
	entry[entryToken] = token
	if len(in) > entryInline {
		binary.BigEndian.PutUint64(entry[entryInPtr:], s.chain(0, token, in[entryInline:], len(in)-entryInline))
	}
	if outLen > entryInline {
		binary.BigEndian.PutUint64(entry[entryOutPtr:], s.chain(mailboxes, token, nil, outLen-entryInline))
	}
	entry[entryStatus] = ownedByHW
	entry[entrySignature] = ^xor(entry)
	mmio.WriteBarrier() // nic/memory-order.md: command, then its doorbell
	c.write(regCmdDoorbell, 1<<s.index)
	if err := c.wait(in, entry); err != nil {
		return nil, err
	}
	if d := delivery(entry[entryStatus] >> 1); d != 0 {
		return nil, fmt.Errorf("%s: %v, op_mod %d: %w: command was not delivered: %v", c.name, in.opcode(), in.opMod(),
			nic.ErrHardware, d)
	}
	if entry[entryToken] != token {
		return nil, fmt.Errorf("%s: %v: %w: answer has token %#02x, the command %#02x", c.name, in.opcode(),
			nic.ErrHardware,
			entry[entryToken], token)
	}
	out := append(make(message, 0, outLen), entry[entryOut:entryOutPtr]...)
	if status := Status(out.get(0x00, 31, 24)); status != 0 {
		return out, fmt.Errorf("%s: %w", c.name, &CommandError{in.opcode(), in.opMod(), status, out.get(0x04, 31, 0)})
	}
	return s.gather(c.name, in.opcode(), out, outLen, token)
}

// wait polls the entry until firmware returns it. After a timeout no further command is sent, because firmware may
// still write to the mailboxes.
func (c *commandQueue) wait(in message, entry []byte) error {
	status := (*uint32)(unsafe.Pointer(&entry[entryToken])) // token, signature, reserved, status and ownership
	began := time.Now()
	for n := 0; ; n++ {
		// taken before the poll, so that a thread descheduled past the timeout still sees a completion
		waited := time.Since(began)
		if atomic.LoadUint32(status)>>24&ownedByHW == 0 {
			return nil
		}
		if n < 100 {
			continue
		}
		if in.opcode() != opManagePages && c.waiting != nil {
			c.waiting()
		}
		var err error
		if n%64 == 0 {
			err = c.alive()
		}
		if err != nil {
			err = fmt.Errorf("%v: %w", in.opcode(), err)
		} else if n%64 == 0 && c.sick() { // this command will not complete either: restart without waiting
			err = fmt.Errorf("%s: %v, op_mod %d: %w: the device asks to be reset: %s", c.name, in.opcode(), in.opMod(),
				nic.ErrHardware, c.health())
		} else if waited > commandTimeout && n > leastLooks {
			err = fmt.Errorf("%s: %v, op_mod %d: %w: firmware did not complete it within %v (%s)", c.name, in.opcode(),
				in.opMod(),
				nic.ErrTimeout, commandTimeout, c.health())
		}
		if err != nil {
			c.dead.CompareAndSwap(nil, &err)
			return err
		}
		time.Sleep(min(time.Microsecond+waited/4, time.Millisecond))
	}
}

// chain fills the mailboxes from first on with data, for n bytes, and returns the address of the first.
func (s *slot) chain(first int, token uint8, data []byte, n int) uint64 {
	at := s.boxes.IOVA + uint64(first)*mailboxPitch
	for i := 0; i*boxData < n; i++ {
		box := s.boxes.Bytes[(first+i)*mailboxPitch:][:boxSize]
		clear(box)
		if i*boxData < len(data) {
			copy(box[:boxData], data[i*boxData:])
		}
		if (i+1)*boxData < n {
			binary.BigEndian.PutUint64(box[boxNext:], at+uint64(i+1)*mailboxPitch)
		}
		binary.BigEndian.PutUint32(box[boxNumber:], uint32(i))
		box[boxToken] = token
		box[boxCtrlSig] = ^xor(box[boxData:boxCtrlSig])
		box[boxSignature] = ^xor(box[:boxSignature])
	}
	return at
}

// gather appends the contents of the output mailboxes to out. Firmware does not sign its output (the recorded output
// carries the driver's signature or none), but it keeps each block's token and number.
func (s *slot) gather(name string, op opcode, out message, outLen int, token uint8) (message, error) {
	for i := 0; len(out) < outLen; i++ {
		box := s.boxes.Bytes[(mailboxes+i)*mailboxPitch:][:boxSize]
		if n := binary.BigEndian.Uint32(box[boxNumber:]); n != uint32(i) || box[boxToken] != token {
			return nil, fmt.Errorf("%s: %v: %w: block %d of the answer has number %d and token %#02x, expected token %#02x", name, op,
				nic.ErrHardware, i, n, box[boxToken], token)
		}
		out = append(out, box[:min(boxData, outLen-len(out))]...)
	}
	return out, nil
}

// xor returns the exclusive or of all bytes. The signature makes that of an entry or mailbox 0xff.
func xor(b []byte) (sum uint8) {
	for _, v := range b {
		sum ^= v
	}
	return sum
}

// refused reports whether firmware answered err's command with an error status, and is therefore alive.
func refused(err error) bool {
	var e *CommandError
	var k *kernelRefusal
	return errors.As(err, &e) || errors.As(err, &k)
}
