package mlx5sim

import (
	"encoding/binary"
	"fmt"
	"iter"
)

// RegisterName implements sim.Namer.
func (m *Model) RegisterName(bar int, off uint64) (string, binary.ByteOrder) {
	switch page, at := off/uarSize, off%uarSize; {
	case bar != 0:
		return "", be
	case page < firstUAR:
		return isegTable.Name(uint32(off)), be
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

// fields returns a command's name with its subject, and its input's fields in the order of the manual.
func (m *Model) fields(in []byte) (name string, fields iter.Seq2[string, uint64]) {
	opcode := be.Uint16(in)
	k := m.ops[opcode]
	if k == nil {
		return m.opName(opcode), func(func(string, uint64) bool) {}
	}
	name = k.name
	if k.in.Has("register_id") {
		if r := registers[as(in, k.in).U32("register_id")]; r != nil {
			name += " " + r.name
			reg := lay(r.Size+16, "").With(16, r.Layout)
			return name, as(in, reg).Each
		}
	}
	return name, as(in, k.in).Each
}
