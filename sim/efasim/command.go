package efasim

import (
	"fmt"

	"github.com/rebound-nic/rebound/sim/amazon"
	"github.com/rebound-nic/rebound/sim/parts"
)

// refusal is the reason why a command failed. err is nil where a driver may try: the status is returned without a
// violation.
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

// unreachable is the result of a failed DMA: the host has reported the violation.
var unreachable = &refusal{status: statusIllegal}

// full is the result when no more objects of a kind are available.
var full = &refusal{status: statusNoResource}

// kind is one admin command and the function that executes it.
type kind struct {
	amazon.Command
	do func(m *Model, in parts.Msg, r []byte) *refusal
}

// Commands by opcode.
var kinds = map[uint8]kind{
	opCreateQP: {amazon.Lay("CREATE_QP", 64,
		"04.15:0 pd 04.23:16 qp_type 04.24 sq_virt 04.25 rq_virt 04.26 unsolicited_write_recv "+
			"08*2 sq_base_addr 10*2 rq_base_addr 18.31:0 send_cq_idx 1c.31:0 recv_cq_idx 20.31:0 sq_l_key 24.31:0 rq_l_key "+
			"28.31:0 send_queue_ring_size 2c.31:0 send_queue_depth 30.31:0 recv_queue_ring_size 34.31:0 recv_queue_depth "+
			"38.15:0 uar 38.23:16 sl"), (*Model).createQP},
	opModifyQP: {amazon.Lay("MODIFY_QP", 32,
		"04.5:0 modify_mask 08.31:0 qp_handle 0c.31:0 qp_state 10.31:0 cur_qp_state 14.31:0 qkey "+
			"18.31:0 sq_psn 1c.7:0 sq_drained_async_notify 1c.15:8 rnr_retry"), (*Model).modifyQP},
	opQueryQP:   {amazon.Lay("QUERY_QP", 8, "04.31:0 qp_handle"), (*Model).queryQP},
	opDestroyQP: {amazon.Lay("DESTROY_QP", 8, "04.31:0 qp_handle"), (*Model).destroyQP},
	opCreateAH:  {amazon.Lay("CREATE_AH", 24, "04*4 dest_addr 14.15:0 pd"), (*Model).createAH},
	opDestroyAH: {amazon.Lay("DESTROY_AH", 8, "04.15:0 ah 04.31:16 pd"), (*Model).destroyAH},
	opRegMR: {amazon.Lay("REG_MR", 64,
		"04.15:0 pd 08*8 pbl 28*2 mr_length 30.5:0 phys_page_size_shift 30.7 mem_addr_phy_mode_en "+
			"30.8 local_write_enable 30.9 remote_write_enable 30.10 remote_read_enable 34.31:0 page_num 38*2 iova"), (*Model).regMR},
	opDeregMR: {amazon.Lay("DEREG_MR", 8, "04.31:0 l_key"), (*Model).deregMR},
	opCreateCQ: {amazon.Lay("CREATE_CQ", 28,
		"04.5 interrupt_mode_enabled 04.6 virt 04.12:8 cq_entry_size_words 04.13 set_src_addr "+
			"04.31:16 sub_cq_depth 08.15:0 eqn 0c*2 cq_ba 14.31:0 l_key 18.15:0 num_sub_cqs 18.31:16 uar"), (*Model).createCQ},
	opDestroyCQ: {amazon.Lay("DESTROY_CQ", 8, "04.15:0 cq_idx"), (*Model).destroyCQ},
	// no feature is answered in a control buffer, and no counters are
	opGetFeature: {amazon.Lay("GET_FEATURE", amazon.Entry, feature).Without("control_length", "control_addr"),
		(*Model).getFeature},
	opSetFeature: {amazon.Lay("SET_FEATURE", amazon.Entry, feature), (*Model).setFeature},
	opGetStats: {amazon.Lay("GET_STATS", 20, "04.31:0 control_length 08*2 control_addr 10.7:0 type 10.15:8 scope "+
		"10.31:16 scope_modifier").Without("control_length", "control_addr"), (*Model).getStats},
	opAllocPD:    {amazon.Lay("ALLOC_PD", 4, ""), (*Model).allocPD},
	opDeallocPD:  {amazon.Lay("DEALLOC_PD", 8, "04.15:0 pd"), (*Model).deallocPD},
	opAllocUAR:   {amazon.Lay("ALLOC_UAR", 4, ""), (*Model).allocUAR},
	opDeallocUAR: {amazon.Lay("DEALLOC_UAR", 8, "04.15:0 uar"), (*Model).deallocUAR},
	opCreateEQ: {amazon.Lay("CREATE_EQ", 24, "04.15:0 depth 04.23:16 msix_vec 04.28:24 entry_size_words 08*2 ba "+
		"10.0 completion_events"), (*Model).createEQ},
	opDestroyEQ: {amazon.Lay("DESTROY_EQ", 8, "04.15:0 eqn"), (*Model).destroyEQ},
}

const feature = "04.31:0 control_length 08*2 control_addr 10.15:8 feature_id 14*11 body"

func command(opcode uint8) (amazon.Command, bool) {
	k, known := kinds[opcode]
	return k.Command, known
}

// execute runs a command.
func (m *Model) execute(_ *amazon.Message, in parts.Msg, r []byte) (byte, error) {
	if no := kinds[in.B[2]].do(m, in, r); no != nil {
		return no.status, no.err
	}
	return statusOK, nil
}

// flags returns the flags of the command's header.
func flags(in parts.Msg) byte { return in.B[3] }

// control returns the address of a command's control buffer, which must have at least n bytes.
func (m *Model) control(in parts.Msg, n int) (uint64, *refusal) {
	a := in.U("control_addr")
	if flags(in)&cmdCtrlData == 0 || flags(in)&cmdCtrlIndir != 0 {
		m.Host.Warnf("flags %#02x with a control buffer: ctrl_data alone is expected", flags(in))
	}
	if a == 0 || in.U32("control_length") < uint32(n) {
		return 0, illegal("control buffer of %d bytes at %#x, %d are expected", in.U32("control_length"), a, n)
	}
	if err := m.CheckWidth("control buffer", a); err != nil {
		return 0, illegal("%v", err)
	}
	return a, nil
}
