package enasim

import (
	"encoding/binary"
	"fmt"

	"github.com/rebound-nic/rebound/sim/kit"
)

// command is ena_admin_aq_entry.
type command [admin]byte

func (c *command) id() uint16    { return le.Uint16(c[0:]) }
func (c *command) opcode() uint8 { return c[2] }

// Commands by opcode, without the head. Addresses are ena_common_mem_addr: 48 bits. What follows a short command is
// not its: drivers leave an older one there.
var commands = map[uint8]struct {
	name string
	*kit.Layout
}{
	opCreateSQ: {"CREATE_SQ", lay(36, "04.7:5 sq_direction 04.19:16 placement_policy 04.22:20 completion_policy "+
		"04.24 is_physically_contiguous 08.15:0 cq_idx 08.31:16 sq_depth 0c.31:0 sq_ba_low 10.15:0 sq_ba_high")},
	opDestroySQ: {"DESTROY_SQ", lay(8, "04.15:0 sq_idx 04.23:21 sq_direction")},
	opCreateCQ: {"CREATE_CQ", lay(20, "04.5 interrupt_mode_enabled 04.12:8 cq_entry_size_words 04.31:16 cq_depth "+
		"08.31:0 msix_vector 0c.31:0 cq_ba_low 10.15:0 cq_ba_high")},
	opDestroyCQ:  {"DESTROY_CQ", lay(8, "04.15:0 cq_idx")},
	opGetFeature: {"GET_FEATURE", lay(admin, control+"10.1:0 select 10.15:8 feature_id 10.23:16 feature_version 14*11 body")},
	opSetFeature: {"SET_FEATURE", lay(admin, control+"10.1:0 select 10.15:8 feature_id 10.23:16 feature_version 14*11 body")},
	opGetStats: {"GET_STATS", lay(admin, control+"10.7:0 type 10.15:8 scope "+
		"14.15:0 queue_idx 14.31:16 device_id 18*2 requested_metrics 20*8 rest")},
}

const control = "04.31:0 control_length 08.31:0 control_low 0c.15:0 control_high "

// lay is a layout whose first dword, the head, is checked with the entry.
func lay(size int, text string) *kit.Layout {
	return kit.Lay(binary.LittleEndian, size, "00.31:0 head "+text)
}

// msg is the command by its fields. An unknown opcode has none.
func (c *command) msg() kit.Msg {
	if k, known := commands[c.opcode()]; known {
		return kit.Msg{B: c[:], Layout: k.Layout}
	}
	return kit.Msg{B: c[:], Layout: lay(4, "")}
}

// name is the command's, with the feature that it is about.
func (c *command) name() string {
	k, known := commands[c.opcode()]
	if !known {
		return fmt.Sprintf("opcode %d", c.opcode())
	}
	if op := c.opcode(); op == opGetFeature || op == opSetFeature {
		if f, known := featNames[c[17]]; known {
			return k.name + " " + f
		}
		return fmt.Sprintf("%s %d", k.name, c[17])
	}
	return k.name
}

// fields is what traces show: the fields without the head.
func (c *command) fields(yield func(string, uint64) bool) {
	c.msg().Each(func(name string, v uint64) bool { return name == "head" || yield(name, v) })
}

// address reads ena_common_mem_addr.
func (m *Model) address(c *command, what string, at int) (uint64, error) {
	if x := le.Uint16(c[at+6:]); x != 0 && at >= 0x14 { // in a body, which the layout does not look into
		m.host.Warnf("%s: bits 63:48 of the address are %#x, must be zero", what, x)
	}
	a := uint64(le.Uint16(c[at+4:]))<<32 | uint64(le.Uint32(c[at:]))
	return a, m.width(what, a)
}

// execute runs a command and returns its completion.
func (m *Model) execute(c *command) (r [admin]byte) {
	le.PutUint16(r[0:], c.id())
	var err error
	status := byte(statusOK)
	if c.id()&0xf000 != 0 || c[3]&^7 != 0 {
		m.host.Warnf("admin command %#04x, flags %#02x: reserved bits set", c.id(), c[3])
	}
	if off, bits, found := c.msg().Stray(c[:]); found {
		m.host.Warnf("admin command %d, %s: reserved bits %08x set in the dword at %02xh", c.id(), c.name(), bits, off)
	}
	feature := uint32(0)
	if op := c.opcode(); op == opGetFeature || op == opSetFeature {
		feature = uint32(c[17])
	}
	rec := m.opt.Recorded.Next(uint32(c.opcode()), 0, feature)
	if rec != nil && rec.Status != 0 {
		r[2] = rec.Status
		m.host.Command(c.name(), r[2], c.fields)
		return r
	}
	if m.knob.fail != nil {
		if r[2] = m.knob.fail(c.name()); r[2] != 0 {
			m.host.Command(c.name(), r[2], c.fields)
			return r
		}
	}
	switch c.opcode() {
	case opCreateCQ:
		status, err = m.createCQ(c, r[8:])
	case opDestroyCQ:
		status, err = m.destroyCQ(c)
	case opCreateSQ:
		status, err = m.createSQ(c, r[8:])
	case opDestroySQ:
		status, err = m.destroySQ(c)
	case opGetFeature:
		status, err = m.getFeature(c, r[8:])
		if rec != nil && status == statusOK && len(rec.Out) == len(r) {
			copy(r[8:], rec.Out[8:])
		}
	case opSetFeature:
		status, err = m.setFeature(c, r[8:])
	case opGetStats:
		status, err = m.getStats(c, r[8:])
	default:
		status, err = statusBadOpcode, fmt.Errorf("no such opcode")
	}
	if err != nil {
		m.host.Errorf("admin command %d, %s (opcode %d): %v", c.id(), c.name(), c.opcode(), err)
		if status == statusOK {
			status = statusIllegal
		}
	}
	r[2] = status
	m.host.Command(c.name(), status, c.fields)
	return r
}
