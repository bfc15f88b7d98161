package efasim

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/rebound-nic/rebound/sim/kit"
)

// command is efa_admin_aq_entry.
type command [admin]byte

func (c *command) id() uint16    { return le.Uint16(c[0:]) }
func (c *command) opcode() uint8 { return c[2] }

// kind is one admin command: its fields, and what executes it.
type kind struct {
	name string
	*kit.Layout
	do func(m *Model, in kit.Msg, r []byte) *refusal
}

// refusal is why a command failed. Err is nil where a driver may try: the status is answered, and there is no violation.
type refusal struct {
	status uint8
	err    error
}

func illegal(format string, args ...any) *refusal {
	return &refusal{statusIllegal, fmt.Errorf(format, args...)}
}

func malformed(format string, args ...any) *refusal {
	return &refusal{statusMalformed, fmt.Errorf(format, args...)}
}

func busy(format string, args ...any) *refusal {
	return &refusal{statusBusy, fmt.Errorf(format, args...)}
}

// unreachable is DMA that failed: the host has told the violation.
var unreachable = &refusal{status: statusIllegal}

// full is the answer where there is no more of an object.
var full = &refusal{status: statusNoResource}

// Commands by opcode. What follows a short command is not its: drivers leave an older one there.
var kinds = map[uint8]kind{
	opCreateQP: {"CREATE_QP", lay(64, "04.15:0 pd 04.23:16 qp_type 04.24 sq_virt 04.25 rq_virt 04.26 unsolicited_write_recv "+
		"08*2 sq_base_addr 10*2 rq_base_addr 18.31:0 send_cq_idx 1c.31:0 recv_cq_idx 20.31:0 sq_l_key 24.31:0 rq_l_key "+
		"28.31:0 send_queue_ring_size 2c.31:0 send_queue_depth 30.31:0 recv_queue_ring_size 34.31:0 recv_queue_depth "+
		"38.15:0 uar 38.23:16 sl"), (*Model).createQP},
	opModifyQP: {"MODIFY_QP", lay(32, "04.5:0 modify_mask 08.31:0 qp_handle 0c.31:0 qp_state 10.31:0 cur_qp_state 14.31:0 qkey "+
		"18.31:0 sq_psn 1c.7:0 sq_drained_async_notify 1c.15:8 rnr_retry"), (*Model).modifyQP},
	opQueryQP:   {"QUERY_QP", lay(8, "04.31:0 qp_handle"), (*Model).queryQP},
	opDestroyQP: {"DESTROY_QP", lay(8, "04.31:0 qp_handle"), (*Model).destroyQP},
	opCreateAH:  {"CREATE_AH", lay(24, "04*4 dest_addr 14.15:0 pd"), (*Model).createAH},
	opDestroyAH: {"DESTROY_AH", lay(8, "04.15:0 ah 04.31:16 pd"), (*Model).destroyAH},
	opRegMR: {"REG_MR", lay(64, "04.15:0 pd 08*8 pbl 28*2 mr_length 30.5:0 phys_page_size_shift 30.7 mem_addr_phy_mode_en "+
		"30.8 local_write_enable 30.9 remote_write_enable 30.10 remote_read_enable 34.31:0 page_num 38*2 iova"), (*Model).regMR},
	opDeregMR: {"DEREG_MR", lay(8, "04.31:0 l_key"), (*Model).deregMR},
	opCreateCQ: {"CREATE_CQ", lay(28, "04.5 interrupt_mode_enabled 04.6 virt 04.12:8 cq_entry_size_words 04.13 set_src_addr "+
		"04.31:16 sub_cq_depth 08.15:0 eqn 0c*2 cq_ba 14.31:0 l_key 18.15:0 num_sub_cqs 18.31:16 uar"), (*Model).createCQ},
	opDestroyCQ:  {"DESTROY_CQ", lay(8, "04.15:0 cq_idx"), (*Model).destroyCQ},
	opGetFeature: {"GET_FEATURE", lay(admin, feature), (*Model).getFeature},
	opSetFeature: {"SET_FEATURE", lay(admin, feature), (*Model).setFeature},
	opGetStats: {"GET_STATS", lay(20, "04.31:0 control_length 08*2 control_addr 10.7:0 type 10.15:8 scope "+
		"10.31:16 scope_modifier"), (*Model).getStats},
	opAllocPD:    {"ALLOC_PD", lay(4, ""), (*Model).allocPD},
	opDeallocPD:  {"DEALLOC_PD", lay(8, "04.15:0 pd"), (*Model).deallocPD},
	opAllocUAR:   {"ALLOC_UAR", lay(4, ""), (*Model).allocUAR},
	opDeallocUAR: {"DEALLOC_UAR", lay(8, "04.15:0 uar"), (*Model).deallocUAR},
	opCreateEQ: {"CREATE_EQ", lay(24, "04.15:0 depth 04.23:16 msix_vec 04.28:24 entry_size_words 08*2 ba "+
		"10.0 completion_events"), (*Model).createEQ},
	opDestroyEQ: {"DESTROY_EQ", lay(8, "04.15:0 eqn"), (*Model).destroyEQ},
	opAllocMR:   {"ALLOC_MR", lay(12, "04.15:0 pd 08.31:0 max_pages"), (*Model).allocMR},
}

const feature = "04.31:0 control_length 08*2 control_addr 10.15:8 feature_id 14*11 body"

// lay is a layout whose first dword, the head, is checked with the entry.
func lay(size int, text string) *kit.Layout {
	return kit.Lay(binary.LittleEndian, size, "00.31:0 head "+text)
}

// msg is the command by its fields. An unknown opcode has none.
func (c *command) msg() kit.Msg {
	if k, known := kinds[c.opcode()]; known {
		return kit.Msg{B: c[:], Layout: k.Layout}
	}
	return kit.Msg{B: c[:], Layout: lay(4, "")}
}

// name is the command's, with the feature that it is about.
func (c *command) name() string {
	k, known := kinds[c.opcode()]
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

// execute runs a command and returns its completion.
func (m *Model) execute(c *command) (r [admin]byte) {
	le.PutUint16(r[0:], c.id()&0xfff)
	if c.id()&0xf000 != 0 || c[3]&^cmdFlagsKnown != 0 {
		m.host.Warnf("admin command %#04x, flags %#02x: reserved bits set", c.id(), c[3])
	}
	if off, bits, found := c.msg().Stray(c[:]); found {
		m.host.Warnf("admin command %d, %s: reserved bits %08x set in the dword at %02xh", c.id(), c.name(), bits, off)
	}
	no := &refusal{statusBadOpcode, errors.New("no such opcode")}
	feature := uint32(0)
	if op := c.opcode(); op == opGetFeature || op == opSetFeature {
		feature = uint32(c[17])
	}
	failed, rec := uint8(0), m.opt.Recorded.Next(uint32(c.opcode()), 0, feature)
	if rec != nil {
		failed = rec.Status
	}
	if m.knob.fail != nil {
		failed = cmp.Or(m.knob.fail(c.opcode()), failed)
	}
	if failed != 0 {
		no = &refusal{status: failed}
	} else if k, known := kinds[c.opcode()]; known {
		no = k.do(m, c.msg(), r[8:])
		if no == nil && rec != nil && c.opcode() == opGetFeature && len(rec.Out) == len(r) {
			copy(r[8:], rec.Out[8:])
		}
	}
	if no != nil {
		if no.err != nil {
			m.host.Errorf("admin command %d, %s (opcode %d): %v", c.id(), c.name(), c.opcode(), no.err)
		}
		clear(r[8:])
		r[2] = no.status
	}
	m.host.Command(c.name(), r[2], c.fields)
	return r
}

// flags are those of the command's header.
func flags(in kit.Msg) byte { return in.B[3] }

// control returns the control buffer of a command, which must have n bytes or more.
func (m *Model) control(in kit.Msg, n int) (uint64, *refusal) {
	a := in.U("control_addr")
	if flags(in)&cmdCtrlData == 0 || flags(in)&cmdCtrlIndir != 0 {
		m.host.Warnf("flags %#02x with a control buffer: ctrl_data alone is expected", flags(in))
	}
	if a == 0 || in.U32("control_length") < uint32(n) {
		return 0, illegal("control buffer of %d bytes at %#x, %d are expected", in.U32("control_length"), a, n)
	}
	if err := m.width("control buffer", a); err != nil {
		return 0, illegal("%v", err)
	}
	return a, nil
}
