package mlx5sim

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/rebound-nic/rebound/sim/parts"
)

// Command status, PRM "Command Return Status".
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
	stNoRes       = 0x0f
	stInLen       = 0x50
	stOutLen      = 0x51
)

// hcaState is the initialization state of the function.
type hcaState uint8

const (
	hcaDisabled hcaState = iota
	hcaEnabled           // ENABLE_HCA
	hcaReady             // INIT_HCA
)

func (s hcaState) String() string { return [...]string{"disabled", "enabled", "initialized"}[s] }

type command struct {
	name    string
	in, out *parts.Layout
	from    hcaState // lowest state in which it is permitted
	run     func(m *Model, c *call) *refusal
	tail    bool   // input continues after the layout, as an array
	idle    string // what a card does then and the model does not: accepted with a warning
}

type call struct {
	*command
	opcode  uint16
	in, out msg
}

type refusal struct {
	status   uint8
	text     string
	syndrome uint32 // of real firmware, if known
	quiet    bool   // not the driver's fault
}

func refuse(status uint8, format string, args ...any) *refusal {
	return &refusal{status: status, text: fmt.Sprintf(format, args...)}
}

// with sets the syndrome that real firmware was observed to return.
func (r *refusal) with(syndrome uint32) *refusal {
	r.syndrome = syndrome
	return r
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

// command executes a command and returns its output, of n bytes.
func (m *Model) command(in []byte, n int) []byte {
	out := make([]byte, n)
	defer func() {
		name, given := m.fields(in)
		m.host.Command(name, out[0], given)
	}()
	opcode := be.Uint16(in)
	if m.opt.Status != nil {
		if status, syndrome := m.opt.Status(opcode); status != 0 {
			out[0] = status
			be.PutUint32(out[4:], syndrome)
			return out
		}
	}
	register := uint32(0)
	if opcode == opAccessReg && len(in) >= 12 {
		register = uint32(be.Uint16(in[10:]))
	}
	rec := m.opt.Recorded.Next(uint32(opcode), uint32(be.Uint16(in[6:])), register)
	if rec != nil && rec.Status != 0 {
		out[0] = rec.Status
		be.PutUint32(out[4:], rec.Syndrome)
		return out
	}
	r := m.dispatch(opcode, in, out)
	if r == nil {
		if rec != nil {
			m.answerAs(rec.Out, opcode, in, out)
		}
		return out
	}
	clear(out)
	out[0] = r.status
	// Syndromes of real firmware are opaque. If the real one is unknown, a fixed value is used that depends on command
	// and status.
	be.PutUint32(out[4:], cmp.Or(r.syndrome, uint32(opcode)<<8|uint32(r.status)|0x100000))
	if !r.quiet {
		m.host.Errorf("%s: %s (status %xh)", m.opName(opcode), r.text, r.status)
	}
	return out
}

// Opcodes whose recorded replies are used.
const (
	opQueryCap     = 0x100
	opQueryAdapter = 0x101
	opAccessReg    = 0x805
)

// answerAs replies to a query about the device with the recorded reply of another one, and uses its capabilities from
// then on.
func (m *Model) answerAs(recorded []byte, opcode uint16, in, out []byte) {
	if opcode != opQueryCap && opcode != opQueryAdapter || len(recorded) < len(out) {
		return
	}
	copy(out, recorded)
	if op := int(be.Uint16(in[6:])); opcode == opQueryCap && op>>1 < capTypes && len(recorded) >= 16+capBytes {
		to := m.caps.max
		if op&1 == 1 {
			to = m.caps.cur
		}
		to[op>>1] = append([]byte(nil), recorded[16:16+capBytes]...)
	}
}

func (m *Model) dispatch(opcode uint16, in, out []byte) *refusal {
	k := m.ops[opcode]
	switch {
	case k == nil:
		return refuse(stBadOp, "no such command in this model")
	case m.hca < k.from:
		return refuse(stBadSysState, "the function is %v, it has to be %v", m.hca, k.from)
	case len(in) < k.in.Size:
		return refuse(stInLen, "input is %d bytes, expected %d", len(in), k.in.Size)
	case len(in) > k.in.Size && !k.tail && slices.ContainsFunc(in[k.in.Size:], func(b byte) bool { return b != 0 }): // zeros are accepted
		return refuse(stInLen, "input is %d bytes, expected %d", len(in), k.in.Size)
	case len(out) < k.out.End():
		return refuse(stOutLen, "output is %d bytes, expected %d", len(out), k.out.End())
	}
	if off, set, found := k.in.Stray(in); found {
		m.host.Warnf("%s: reserved bits %08x set in the dword at %02xh of the input", m.opName(opcode), set, off)
	}
	c := &call{command: k, opcode: opcode, in: as(in, k.in), out: as(out, k.out)}
	if r := m.enterUCTX(c); r != nil {
		return r
	}
	defer func() { m.uid = 0 }()
	r := k.run(m, c)
	if r == nil && k.idle != "" {
		m.host.Warnf("%s: accepted without effect: a card %s", m.opName(opcode), k.idle)
	}
	return r
}

// Inputs and outputs shared by many commands.
const head = "00.31:16 opcode 00.15:0 uid 04.15:0 op_mod "

var (
	plainIn  = lay(16, head)
	plainOut = lay(16, "")
)

// byID is the input of a command on one object.
func byID(name string) *parts.Layout { return lay(16, head+"08.23:0 "+name) }

// newID is the output of a command that creates an object.
func newID(name string) *parts.Layout { return lay(16, "08.23:0 "+name) }

func commandTable() map[uint16]*command {
	t := map[uint16]*command{}
	for _, part := range []map[uint16]*command{hcaCommands(), resourceCommands(), queueCommands(), steeringCommands(),
		vportCommands(), congestionCommands(), srqCommands(), qpCommands(), roceCommands(), umemCommands(),
		uctxCommands(), flowCounterCommands(), memicCommands()} {
		for op, c := range part {
			t[op] = c
		}
	}
	return t
}
