package mlx5sim

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"iter"
	"slices"
)

var isegNames = map[uint64]string{
	isegFWRev: "fw_rev", isegCmdIfRev: "cmd_interface_rev", isegCmdqHigh: "cmdq_phy_addr_h", isegCmdqLow: "cmdq_phy_addr_l",
	isegDoorbell: "command_doorbell_vector", isegInitializing: "initializing", isegCmdTimeout: "cmd_timeout",
	isegInitTimeout: "init_timeout", isegTimerHigh: "internal_timer_h", isegTimerLow: "internal_timer_l",
	isegClearInt: "clear_int", isegHealthCount: "health_counter", isegRealTimeHigh: "real_time_h", isegRealTimeLow: "real_time_l", isegClockType: "clock_type",
}

// RegisterName implements sim.Namer.
func (m *Model) RegisterName(bar int, off uint64) (string, binary.ByteOrder) {
	switch page, at := off/uarSize, off%uarSize; {
	case bar != 0:
		return "", be
	case off >= isegHealth && off < isegHealth+0x40:
		return fmt.Sprintf("health_buffer[%02xh]", off-isegHealth), be
	case page < firstUAR:
		return isegNames[off], be
	case at == uarCQ:
		return fmt.Sprintf("UAR[%d].cq", page), be
	case at == uarEQArm:
		return fmt.Sprintf("UAR[%d].eq_arm", page), be
	case at == uarEQ:
		return fmt.Sprintf("UAR[%d].eq", page), be
	case at >= uarBF:
		return fmt.Sprintf("UAR[%d].bf[%d][%02xh]", page, (at-uarBF)/bfHalf, (at-uarBF)%bfHalf), be
	}
	return "", be
}

// given is a command's name with what it is about, and its input's fields in the order of the manual.
func (m *Model) given(in []byte) (name string, fields iter.Seq2[string, uint64]) {
	opcode := be.Uint16(in)
	k := m.ops[opcode]
	if k == nil {
		return m.opName(opcode), func(func(string, uint64) bool) {}
	}
	name = k.name
	if _, has := k.in.fields["register_id"]; has {
		if r := registers[msg{in, k.in}.u32("register_id")]; r != nil {
			name += " " + r.name
			reg := lay(r.size+16, "").with(16, r.layout)
			return name, msg{in, reg}.each
		}
	}
	return name, msg{in, k.in}.each
}

// each calls yield for each field, in order, but for the opcode. A field wider than 64 bits comes as the dwords that are not
// zero.
func (m msg) each(yield func(string, uint64) bool) {
	type named struct {
		name string
		bits
	}
	var all []named
	for name, b := range m.fields {
		all = append(all, named{name, b})
	}
	slices.SortFunc(all, func(a, b named) int { return cmp.Or(cmp.Compare(a.off, b.off), cmp.Compare(b.lo, a.lo)) })
	for _, f := range all {
		switch {
		case f.name == "opcode":
		case f.n == 0 || f.n == 2:
			if !yield(f.name, m.u(f.name)) {
				return
			}
		default:
			for i, b := 0, m.bytes(f.name); i+4 <= len(b); i += 4 {
				if v := be.Uint32(b[i:]); v != 0 && !yield(fmt.Sprintf("%s[%d]", f.name, i/4), uint64(v)) {
					return
				}
			}
		}
	}
}
