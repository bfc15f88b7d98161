package enasim

import (
	"github.com/rebound-nic/rebound/sim/amazon"
	"github.com/rebound-nic/rebound/sim/parts"
)

// Commands by opcode. Addresses are ena_common_mem_addr: 48 bits.
var commands = map[uint8]amazon.Command{
	opCreateSQ: amazon.Lay("CREATE_SQ", 36, "04.7:5 sq_direction 04.19:16 placement_policy 04.22:20 completion_policy "+
		"04.24 is_physically_contiguous 08.15:0 cq_idx 08.31:16 sq_depth 0c.31:0 sq_ba_low 10.15:0 sq_ba_high"),
	opDestroySQ: amazon.Lay("DESTROY_SQ", 8, "04.15:0 sq_idx 04.23:21 sq_direction"),
	opCreateCQ: amazon.Lay("CREATE_CQ", 20,
		"04.5 interrupt_mode_enabled 04.12:8 cq_entry_size_words 04.31:16 cq_depth "+
			"08.31:0 msix_vector 0c.31:0 cq_ba_low 10.15:0 cq_ba_high"),
	opDestroyCQ: amazon.Lay("DESTROY_CQ", 8, "04.15:0 cq_idx"),
	opGetFeature: amazon.Lay("GET_FEATURE", amazon.Entry, control+
		"10.1:0 select 10.15:8 feature_id 10.23:16 feature_version 14*11 body"),
	opSetFeature: amazon.Lay("SET_FEATURE", amazon.Entry, control+
		"10.1:0 select 10.15:8 feature_id 10.23:16 feature_version 14*11 body"),
	opGetStats: amazon.Lay("GET_STATS", amazon.Entry, control+"10.7:0 type 10.15:8 scope "+
		"14.15:0 queue_idx 14.31:16 device_id 18*2 requested_metrics 20*8 rest"),
}

func command(opcode uint8) (amazon.Command, bool) {
	c, known := commands[opcode]
	return c, known
}

const control = "04.31:0 control_length 08.31:0 control_low 0c.15:0 control_high "

// address reads ena_common_mem_addr.
func (m *Model) address(c *amazon.Message, what string, at int) (uint64, error) {
	if x := le.Uint16(c[at+6:]); x != 0 && at >= 0x14 { // in a body, which the layout does not check
		m.Host.Warnf("%s: bits 63:48 of the address are %#x, must be zero", what, x)
	}
	a := uint64(le.Uint16(c[at+4:]))<<32 | uint64(le.Uint32(c[at:]))
	return a, m.CheckWidth(what, a)
}

// execute runs a command.
func (m *Model) execute(c *amazon.Message, in parts.Msg, r []byte) (status byte, err error) {
	switch c.Opcode() {
	case opCreateCQ:
		status, err = m.createCQ(c, in, r)
	case opDestroyCQ:
		status, err = m.destroyCQ(in)
	case opCreateSQ:
		status, err = m.createSQ(c, in, r)
	case opDestroySQ:
		status, err = m.destroySQ(in)
	case opGetFeature:
		status, err = m.getFeature(c, r)
	case opSetFeature:
		status, err = m.setFeature(c, r)
	case opGetStats:
		status, err = m.getStats(c, r)
	}
	if err != nil && status == statusOK {
		status = statusIllegal
	}
	return status, err
}
