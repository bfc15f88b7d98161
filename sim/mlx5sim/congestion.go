package mlx5sim

// congestion is the state of RoCE's congestion control, by protocol: the drivers' settings are stored and returned. The
// model's wire has no congestion.
type congestion struct {
	enabled map[uint32]uint32    // by priority and protocol: enable and tag_enable
	params  map[uint32][256]byte // by protocol
}

// Congestion protocols, cong_protocol.
const (
	congestion8021QAU = 0
	congestionRP      = 1 // RoCE, reaction point
	congestionNP      = 2 // RoCE, notification point
)

// Commands for congestion control (capabilities cc_query_allowed, cc_modify_allowed).
func congestionCommands() map[uint16]*command {
	ready := func(c command) *command { c.from = hcaReady; return &c }
	const which = "00.31:16 opcode 04.15:0 op_mod 08.7:4 priority 08.3:0 cong_protocol "
	return map[uint16]*command{
		0x822: ready(command{name: "QUERY_CONG_STATUS", in: lay(16, which),
			out: lay(16, "0c.31 enable 0c.30 tag_enable"), run: (*Model).queryCongStatus}),
		0x823: ready(command{name: "MODIFY_CONG_STATUS", in: lay(16, which+"0c.31 enable 0c.30 tag_enable"),
			out: plainOut, run: (*Model).modifyCongStatus,
			idle: "marks and slows down RoCE traffic from now on, or stops that"}),
		0x824: ready(command{name: "QUERY_CONG_PARAMS", in: lay(16, which),
			out: lay(272, "10*64 congestion_parameters"), run: (*Model).queryCongParams}),
		0x825: ready(command{name: "MODIFY_CONG_PARAMS", in: lay(288,
			which+"0c.31:0 field_select 20*64 congestion_parameters"), out: plainOut, run: (*Model).modifyCongParams,
			idle: "changes its rates"}),
		0x826: ready(command{name: "QUERY_CONG_STATISTICS", in: lay(16, "00.31:16 opcode 04.15:0 op_mod 08.31 clear"),
			out: lay(272, "48*2 time_stamp"), run: (*Model).queryCongStatistics}),
	}
}

func newCongestion() congestion {
	return congestion{enabled: map[uint32]uint32{}, params: map[uint32][256]byte{}}
}

func congestionKey(c *call) (uint32, *refusal) {
	p := c.in.U32("cong_protocol")
	if p > congestionNP {
		return 0, refuse(stBadParam,
			"cong_protocol is %d, expected 0 (802.1Qau), 1 (reaction point) or 2 (notification point)", p)
	}
	return c.in.U32("priority")<<4 | p, nil
}

func (m *Model) queryCongStatus(c *call) *refusal {
	k, r := congestionKey(c)
	c.out.Set("enable", uint64(m.congestion.enabled[k]>>1))
	c.out.Set("tag_enable", uint64(m.congestion.enabled[k]&1))
	return r
}

func (m *Model) modifyCongStatus(c *call) *refusal {
	k, r := congestionKey(c)
	if r == nil {
		m.congestion.enabled[k] = c.in.U32("enable")<<1 | c.in.U32("tag_enable")
	}
	return r
}

func (m *Model) queryCongParams(c *call) *refusal {
	k, r := congestionKey(c)
	p := m.congestion.params[k&0xf]
	copy(c.out.Bytes("congestion_parameters"), p[:])
	return r
}

func (m *Model) modifyCongParams(c *call) *refusal {
	k, r := congestionKey(c)
	if r == nil {
		m.congestion.params[k&0xf] = [256]byte(c.in.Bytes("congestion_parameters"))
	}
	return r
}

// queryCongStatistics returns zeros and the time, in microseconds.
func (m *Model) queryCongStatistics(c *call) *refusal {
	c.out.Set("time_stamp", uint64(m.host.Now().Microseconds()))
	return nil
}
