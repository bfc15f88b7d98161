package mlx4

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/dma"
	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/nic/kit"
	"github.com/rebound-nic/rebound/nic/kit/cmdtrace"
)

// Timeouts. Linux allows a minute for every command (MLX4_CMD_TIME_CLASS_A to C).
var (
	commandTimeout = 60 * time.Second
	semTimeout     = 10 * time.Second      // for the flash semaphore
	resetSettle    = time.Second           // after a write to the reset register, before the first read
	resetTimeout   = 5 * time.Second       // for the function to answer again after that
	ownerPause     = time.Second           // after the ownership register was returned
	ownerTimeout   = 5 * time.Second       // for it to read 0 then
	resetLook      = 10 * time.Millisecond // between two looks meanwhile
	commandLook    = time.Millisecond      // longest polling interval of a command
)

// leastLooks is the number of polls before a timeout counts (kit.Deadline).
var leastLooks = 500

// CommandError reports that firmware refused a command. It wraps nic.ErrHardware.
type CommandError struct {
	op       opcode
	opMod    uint8
	modifier uint32
	Status   Status
}

func (e *CommandError) Error() string {
	return fmt.Sprintf("%v, opcode modifier %d, input modifier %#x: status %v", e.op, e.opMod, e.modifier, e.Status)
}

func (e *CommandError) Unwrap() error { return nic.ErrHardware }

// refused reports whether firmware answered err's command with a status, and so is alive.
func refused(err error) bool {
	var e *CommandError
	return errors.As(err, &e)
}

// says reports whether firmware answered err's command with this status.
func says(err error, status Status) bool {
	var e *CommandError
	return errors.As(err, &e) && e.Status == status
}

// mailbox is the input or output of a command beyond two parameters: up to a page, big-endian. Fields are named by
// their offset in bytes, as in Linux.
type mailbox []byte

const mailboxSize = 4096

func (m mailbox) u8(off int) uint8        { return m[off] }
func (m mailbox) u16(off int) uint16      { return binary.BigEndian.Uint16(m[off:]) }
func (m mailbox) u32(off int) uint32      { return binary.BigEndian.Uint32(m[off:]) }
func (m mailbox) u64(off int) uint64      { return binary.BigEndian.Uint64(m[off:]) }
func (m mailbox) set8(off int, v uint8)   { m[off] = v }
func (m mailbox) set16(off int, v uint16) { binary.BigEndian.PutUint16(m[off:], v) }
func (m mailbox) set32(off int, v uint32) { binary.BigEndian.PutUint32(m[off:], v) }
func (m mailbox) set64(off int, v uint64) { binary.BigEndian.PutUint64(m[off:], v) }

// command is a firmware command with its input.
type command struct {
	op       opcode
	opMod    uint8
	modifier uint32  // input modifier
	in       mailbox // input mailbox, or
	param    uint64  // the input parameter itself
	out      bool    // the answer is a mailbox, and not the output parameter itself
}

// hcr sends commands through the host command register, one at a time, and polls for their completion.
type hcr struct {
	name  string
	trace *cmdtrace.Ring
	regs  *mmio.Window
	alive func() error  // why the function does not answer, if it does not
	died  func() bool   // reports whether firmware has died
	state func() string // the device's own state, for timeout errors

	mu     sync.Mutex
	in     dma.Block
	out    dma.Block
	toggle uint32 // of the next command: hcrToggle or 0

	dead atomic.Pointer[error] // why no more commands are sent
}

// swap converts a register or field between the device's order and ours.
func swap(v uint32) uint32 { return bits.ReverseBytes32(v) }

func (h *hcr) read(r reg) uint32     { return swap(h.regs.Read32(uint64(r))) }
func (h *hcr) write(r reg, v uint32) { h.regs.Write32(uint64(r), swap(v)) }

// start allocates the mailboxes and reads the toggle bit from the device. After a reset it is 0, so the first command
// uses 1.
func (h *hcr) start(arena *dma.Arena) (err error) {
	if h.in, err = arena.Alloc(mailboxSize, 4096); err != nil {
		return err
	}
	if h.out, err = arena.Alloc(mailboxSize, 4096); err != nil {
		return err
	}
	began := kit.NewDeadline(commandTimeout, leastLooks)
	for {
		late := began.Over()
		v := h.read(hcrStatus)
		if v == ^uint32(0) {
			if err := h.alive(); err != nil {
				return err
			}
		} else if v&hcrGo == 0 {
			h.toggle = hcrToggle &^ v
			return nil
		}
		if late {
			return fmt.Errorf("%s: %w: the command register is still busy after %v (HCR dword 6, %#x, reads %#08x)",
				h.name, nic.ErrTimeout,
				commandTimeout, uint64(hcrStatus), v)
		}
		time.Sleep(commandLook)
	}
}

// run sends a command without output.
func (h *hcr) run(c command) error {
	_, _, err := h.exec(c)
	return err
}

// query sends a command and returns the mailbox that it answers with.
func (h *hcr) query(op opcode, modifier uint32) (mailbox, error) {
	m, _, err := h.exec(command{op: op, modifier: modifier, out: true})
	return m, err
}

// exec sends a command and returns its answer: a mailbox or the output parameter.
func (h *hcr) exec(c command) (mailbox, uint64, error) {
	began := time.Now()
	m, out, err := h.send(c)
	e := cmdtrace.Entry{Kind: cmdtrace.Command, Name: c.op.String(), Opcode: uint32(c.op), OpMod: uint32(c.opMod),
		Modifier: c.modifier,
		In:       cmdtrace.Bytes(c.in), Out: cmdtrace.Bytes(m), Took: time.Since(began)}
	if c.in == nil && c.param != 0 {
		e.In = binary.BigEndian.AppendUint64(nil, c.param)
	}
	if m == nil && err == nil {
		e.Out = binary.BigEndian.AppendUint64(nil, out)
	}
	var refusal *CommandError
	if errors.As(err, &refusal) {
		e.Status = uint32(refusal.Status)
	}
	if err != nil {
		e.Err = err.Error()
	}
	h.trace.Add(e)
	return m, out, err
}

// send executes one command. It returns the output mailbox, if the command has one, and the output parameter. After a
// time-out every call returns the same error.
func (h *hcr) send(c command) (mailbox, uint64, error) {
	kit.Hold(h.mu.TryLock)
	defer h.mu.Unlock()
	if err := h.dead.Load(); err != nil {
		return nil, 0, *err
	}
	in, out := c.param, uint64(0)
	if c.in != nil {
		clear(h.in.Bytes)
		copy(h.in.Bytes[:mailboxSize], c.in)
		in = h.in.IOVA
	}
	if c.out {
		clear(h.out.Bytes)
		out = h.out.IOVA
	}
	h.write(hcrInHigh, uint32(in>>32))
	h.write(hcrInLow, uint32(in))
	h.write(hcrModifier, c.modifier)
	h.write(hcrOutHigh, uint32(out>>32))
	h.write(hcrOutLow, uint32(out))
	h.write(hcrToken, pollToken<<16)
	mmio.WriteBarrier() // nic/memory-order.md: command, then its doorbell
	h.write(hcrStatus, hcrGo|h.toggle|uint32(c.opMod)<<12|uint32(c.op))
	h.toggle ^= hcrToggle
	status, err := h.wait(c)
	switch {
	case err != nil:
		h.dead.Store(&err)
		return nil, 0, err
	case status != 0:
		return nil, 0, fmt.Errorf("%s: %w", h.name, &CommandError{c.op, c.opMod, c.modifier, status})
	case c.out:
		return append(mailbox(nil), h.out.Bytes[:mailboxSize]...), 0, nil
	}
	return nil, uint64(h.read(hcrOutHigh))<<32 | uint64(h.read(hcrOutLow)), nil
}

// wait polls until firmware took the go bit back, with the toggle of this command. A command that firmware does not
// complete is the last: its mailboxes may be written at any time.
func (h *hcr) wait(c command) (Status, error) {
	began := time.Now()
	for n := 0; ; n++ {
		// before the poll, so that a thread that was descheduled for the whole timeout still sees what firmware did
		waited := time.Since(began)
		v := h.read(hcrStatus)
		if v == ^uint32(0) {
			if err := h.alive(); err != nil {
				return 0, fmt.Errorf("%v: %w", c.op, err)
			}
		} else if v&hcrGo == 0 && v&hcrToggle != h.toggle {
			return Status(v >> 24), nil
		}
		if n < 100 {
			continue
		}
		if n%64 == 0 {
			if err := h.alive(); err != nil {
				return 0, fmt.Errorf("%v: %w", c.op, err)
			}
			if h.died() { // it will not complete this one either: the restart need not wait for it
				return 0, fmt.Errorf("%s: %v: %w: the firmware died: %s", h.name, c.op, nic.ErrHardware, h.state())
			}
		}
		if waited > commandTimeout && n > leastLooks {
			return 0, fmt.Errorf("%s: %v, opcode modifier %d, input modifier %#x: %w: firmware did not complete it within %v (HCR dword 6 reads %#08x; %s)",
				h.name, c.op, c.opMod, c.modifier, nic.ErrTimeout, commandTimeout, v, h.state())
		}
		time.Sleep(min(time.Microsecond+waited/4, commandLook))
	}
}
