package mlx4sim

import (
	"fmt"
	"iter"

	"github.com/rebound-nic/rebound/sim/parts"
)

// Command status.
const (
	stOK          = 0x00
	stInternal    = 0x01
	stBadOp       = 0x02
	stBadParam    = 0x03
	stBadSysState = 0x04
	stBadRes      = 0x05
	stResBusy     = 0x06
	stLimit       = 0x08
	stBadResState = 0x09
	stBadIndex    = 0x0a
	stICM         = 0x0c
	stBadQPState  = 0x10
	stNotPresent  = 0x22
	stBadPacket   = 0x30
	stBadSize     = 0x40
)

// stage is the device's start-up state.
type stage uint8

const (
	stageReset   stage = iota
	stageRunning       // RUN_FW
	stageReady         // INIT_HCA
)

func (s stage) String() string {
	return [...]string{"reset", "running its firmware", "initialized"}[s]
}

// command is a firmware command. Its input is a mailbox with layout in or, with imm, the HCR's in_param itself;
// likewise its output.
type command struct {
	name   string
	in     *parts.Layout
	imm    bool
	tail   bool // the input mailbox continues after the layout; in_modifier gives its length
	out    *parts.Layout
	outImm bool
	size   int // of an input or output mailbox without layout
	from   stage
	mods   uint32 // bits of in_modifier that may be set
	opMods uint16 // supported op modifiers, one bit each; 0 for only 0
	run    func(m *Model, c *call) *refusal
}

// call is one execution of a command.
type call struct {
	*command
	opcode   uint16
	mod      uint32 // in_modifier
	opMod    uint8
	in, out  msg
	inParam  uint64
	outParam uint64
}

// refusal is a command's failure.
type refusal struct {
	status uint8
	text   string
	quiet  bool // no fault of the driver
}

func (r *refusal) Error() string { return r.text }

func refuse(status uint8, format string, args ...any) *refusal {
	return &refusal{status: status, text: fmt.Sprintf(format, args...)}
}

// cannot is a refusal that is not the driver's fault.
func cannot(status uint8, format string, args ...any) *refusal {
	return &refusal{status: status, text: fmt.Sprintf(format, args...), quiet: true}
}

func (m *Model) opName(opcode uint16) string {
	if c := m.ops[opcode]; c != nil {
		return fmt.Sprintf("%s (%xh)", c.name, opcode)
	}
	return fmt.Sprintf("opcode %xh", opcode)
}

const mailboxSize = 4096

func commandTable() map[uint16]*command {
	t := map[uint16]*command{}
	for _, part := range []map[uint16]*command{firmwareCommands(), icmCommands(), hcaCommands(), mptCommands(),
		eqCommands(), cqCommands(),
		qpCommands(), srqCommands(), portCommands(), steeringCommands()} {
		for op, c := range part {
			if t[op] != nil {
				panic("mlx4sim: two commands with one opcode")
			}
			t[op] = c
		}
	}
	return t
}

// writeHCR handles a write to a dword of the command register. The last one starts the command.
func (m *Model) writeHCR(i int, v uint32) error {
	h := &m.regs.hcr
	if h[hcrStatus]&hcrGo != 0 {
		return fmt.Errorf("the go bit is set: the device owns the register")
	}
	if i != hcrStatus {
		h[i] = v
		return nil
	}
	old := h[i]
	h[i] = v
	if v&hcrGo == 0 {
		h[i] = old
		return fmt.Errorf("%08x has the go bit clear: only the device clears it", v)
	}
	if v&(0xff<<24) != 0 {
		m.host.Warnf("HCR: %08x sets bits of the status, which only the device writes", v)
	}
	if (v^old)&hcrToggle == 0 {
		m.host.Warnf("HCR: %s: the toggle bit is %d as in the last command: it must change", m.opName(uint16(v&0xfff)),
			v/hcrToggle&1)
	}
	// stores made before the command arrive before it, including those that are found only by polling
	if !m.fault.dead {
		m.servePushes()
		m.stepUARs()
	}
	m.regs.pending = true
	return nil
}

// stepCommand executes the command in the HCR.
func (m *Model) stepCommand() bool {
	if !m.regs.pending {
		return false
	}
	m.regs.pending = false
	h := &m.regs.hcr
	word := h[hcrStatus]
	c := &call{opcode: uint16(word & 0xfff), opMod: uint8(word >> 12 & 15), mod: h[2],
		inParam: uint64(h[0])<<32 | uint64(h[1]), outParam: uint64(h[3])<<32 | uint64(h[4])}
	if m.opt.Withhold != nil && m.opt.Withhold(c.opcode) {
		return true
	}
	event := word&hcrEvent != 0 && m.mapped(eventCommand)
	if word&hcrEvent != 0 && !event {
		m.host.Errorf("%s: completion by event is asked for, but no EQ is mapped to command events (type 0ah)",
			m.opName(c.opcode))
	}
	status := m.execute(c)
	if m.fault.dead {
		return true
	}
	h[3], h[4] = uint32(c.outParam>>32), uint32(c.outParam)
	h[hcrStatus] = word&^(hcrGo|0xff<<24) | uint32(status)<<24
	if event {
		var d [eventData]byte
		be.PutUint16(d[2:], uint16(h[5]>>16))
		d[11] = status
		be.PutUint64(d[12:], c.outParam)
		m.event(eventCommand, 0, d[:])
	}
	return true
}

// execute runs one command and returns its status.
func (m *Model) execute(c *call) (status uint8) {
	c.command = m.ops[c.opcode]
	if m.opt.Status != nil {
		if s := m.opt.Status(c.opcode); s != 0 {
			return s
		}
	}
	rec := m.opt.Recorded.Next(uint32(c.opcode), uint32(c.opMod), c.mod)
	if rec != nil && rec.Status != 0 {
		return rec.Status
	}
	r := m.dispatch(c)
	if r == nil && rec != nil && len(rec.Out) >= len(c.out.B) {
		c.answerAs(rec.Out)
	}
	if r == nil && c.out.B != nil && m.host.DMAWrite(c.outParam, c.out.B) != nil {
		r = refuse(stBadParam, "out_param %#x cannot be written", c.outParam)
	}
	if r != nil {
		status = r.status
		if !r.quiet {
			m.host.Errorf("%s: %s (status %xh)", m.opName(c.opcode), r.text, r.status)
		}
	}
	name := fmt.Sprintf("opcode %xh", c.opcode)
	if c.command != nil {
		name = c.command.name
	}
	m.host.Command(name, status, c.fields())
	return status
}

// answerAs replaces the answer about the device with a recorded one.
func (c *call) answerAs(recorded []byte) {
	switch c.command.name {
	case "QUERY_DEV_CAP", "QUERY_ADAPTER":
		copy(c.out.B, recorded)
	case "QUERY_FW": // its addresses are the model's own
		for _, name := range []string{"fw_rev_major", "fw_rev_minor", "fw_rev_subminor"} {
			c.out.Set(name, as(recorded, c.command.out).U(name))
		}
	}
}

// dispatch checks a command's common fields, reads its mailbox, and runs it.
func (m *Model) dispatch(c *call) *refusal {
	k := c.command
	switch {
	case k == nil:
		return refuse(stBadOp, "no such command in this model")
	case m.fw.stage < k.from:
		return refuse(stBadSysState, "the device is %v, it has to be %v", m.fw.stage, k.from)
	case c.mod&^k.mods != 0:
		return refuse(stBadParam, "in_modifier is %#x, bits %#x mean nothing", c.mod, c.mod&^k.mods)
	case c.opMod != 0 && k.opMods&(1<<c.opMod) == 0:
		return refuse(stBadParam, "op_modifier is %d", c.opMod)
	}
	if k.in != nil && !k.imm {
		n := k.in.Size
		if k.tail {
			n = mailboxSize
		}
		b := make([]byte, n)
		if c.inParam&0xff != 0 {
			return refuse(stBadParam, "in_param is %#x: mailboxes are aligned to 256 bytes", c.inParam)
		}
		if m.host.DMARead(c.inParam, b) != nil {
			return refuse(stBadParam, "in_param %#x cannot be read", c.inParam)
		}
		c.in = as(b, k.in)
		if off, set, found := k.in.Stray(b); found {
			m.host.Warnf("%s: reserved bits %08x set in the dword at %02xh of the mailbox", m.opName(c.opcode), set,
				off)
		}
		c.in.WarnIdle(m.host, m.opName(c.opcode))
	} else if !k.imm && c.inParam != 0 {
		m.host.Warnf("%s: in_param is %#x, the command has no input", m.opName(c.opcode), c.inParam)
	}
	switch quiet := k.opMods&quietOut != 0; {
	case k.out != nil && quiet && c.opMod == 0 && c.outParam == 0:
		// iPXE omits the mailbox this way, and works on cards: they write nothing, especially not to address 0.
		m.host.Warnf("%s: out_param is 0, op_modifier 1 leaves the output out", m.opName(c.opcode))
	case k.out != nil && !(quiet && c.opMod == 1):
		if c.outParam&0xff != 0 {
			return refuse(stBadParam, "out_param is %#x: mailboxes are aligned to 256 bytes", c.outParam)
		}
		c.out = as(make([]byte, k.out.Size), k.out)
	case !k.outImm && c.outParam != 0:
		m.host.Warnf("%s: out_param is %#x, the command has no output", m.opName(c.opcode), c.outParam)
	}
	return k.run(m, c)
}

// quietOut, in the mask of op modifiers, means that with op modifier 1 a command writes no output mailbox: HW2SW.
const quietOut = 1 << 15

// fields are the command's fields for a trace.
func (c *call) fields() iter.Seq2[string, uint64] {
	return func(yield func(string, uint64) bool) {
		if !yield("in_modifier", uint64(c.mod)) || !yield("op_modifier", uint64(c.opMod)) {
			return
		}
		switch {
		case c.command != nil && c.imm:
			yield("in_param", c.inParam)
		case c.in.B != nil:
			c.in.Each(yield)
		}
	}
}
