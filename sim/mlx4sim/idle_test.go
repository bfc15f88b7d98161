package mlx4sim

import (
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/sim/rdma"
)

// What a driver may set, a card acts on, and the model does not: the command succeeds, with a warning.
func TestAcceptedWithoutEffect(t *testing.T) {
	const setPort = 0x00c
	port := func(w ...uint32) func(x *rig) {
		return func(x *rig) { x.do(setPort, 1, setGeneral<<8|1, dwords(64, w...), false) }
	}
	calc := func(w ...uint32) func(x *rig) {
		return func(x *rig) { x.do(setPort, 1, setRQPCalc<<8|1, with(x.rqpCalc(), w...), false) }
	}
	qp := func(w ...uint32) func(x *rig) {
		return func(x *rig) {
			x.do(0x021, 3, testQP, nil, false)
			x.do(0x019, 0, testQP, with(x.qpContext(), w...), false)
		}
	}
	mpt := func(at int, v uint32) func(x *rig) {
		return func(x *rig) {
			c := with(x.mptContext(), 8, testMPT+1)
			be.PutUint32(c[at:], be.Uint32(c[at:])|v)
			x.do(0x00d, 0, testMPT+1, c, false)
		}
	}
	eq := func(v uint32) func(x *rig) {
		return func(x *rig) { x.do(0x013, 0, testEQ+1, with(x.eqContext(), 0x10, v), false) }
	}
	srq := func(w ...uint32) func(x *rig) {
		return func(x *rig) {
			c := dwords(64, 0, 4<<24|64, 4, 0, 0x14, x.mtt(64, x.eq, 1), 0x18, testPD)
			x.do(0x035, 0, 64, with(c, w...), false)
		}
	}
	frame := func(first, second, flags uint32) func(x *rig) {
		return func(x *rig) {
			x.wqe(opSend|first, sendFlags|flags, x.data(0, toPeer(64)))
			be.PutUint32(x.sq.Bytes[4:], be.Uint32(x.sq.Bytes[4:])|second)
			x.ring()
		}
	}
	for _, c := range []struct {
		what string
		do   func(x *rig)
		text string
	}{
		{"roce_mode", port(4, 1<<24), "SET_PORT (0ch) of general parameters: roce_mode is accepted and has no effect"},
		{"phv_en", port(0x14, 1<<24), "phv_en is accepted"},
		{"user_mac", port(0, 0x40<<8, 0x20, 1), "user_mac is accepted"},
		{"intra_no_vlan", calc(0xc, 1<<31), "intra_no_vlan is accepted"},
		{"intra_miss", calc(0xc, 1<<15), "intra_miss is accepted"},
		{"no_vlan_prio", calc(0x10, 3), "no_vlan_prio is accepted"},
		{"mc_by_vlan", calc(0x18, 2<<30|1<<29|testQP), "mc_by_vlan is accepted"},
		{"group table", calc(0x18, 1<<30|testQP), "mc_promisc_mode 1: the multicast group table has no effect"},
		{"VLAN table", func(x *rig) {
			x.do(setPort, 1, setVLANTable<<8|1, dwords(512, 0, 1<<31|42), false)
			x.Clean()
			calc(4, 7<<16|7<<8)(x)
		}, "the VLAN table selects no queues"},
		{"priority map", func(x *rig) { x.do(setPort, 1, setPrioMap<<8|1, dwords(64), false) }, "the priority map is accepted"},
		{"eb", mpt(0, 1<<15), "SW2HW_MPT (dh): eb is accepted"},
		{"rae", mpt(0xc, 1<<28), "rae is accepted"},
		{"fre of a region", mpt(0xc, 1<<27), "fre is accepted"},
		{"nce", mpt(0xc, 1<<26), "nce is accepted"},
		{"w_dif", mpt(0xc, 1<<29), "w_dif is accepted"},
		{"qpn", mpt(4, 1<<8), "qpn is accepted"},
		{"bqp", mpt(4, 1<<7), "bqp is accepted"},
		{"win_cnt", mpt(0x24, 1), "win_cnt is accepted"},
		{"eq_period", eq(1 << 16), "SW2HW_EQ (13h): eq_period is accepted"},
		{"eq_max_count", eq(1), "eq_max_count is accepted"},
		{"lwm", srq(0x1c, 1<<16), "SW2HW_SRQ (35h): lwm is accepted"},
		{"xrcd of an SRQ", srq(4, 1), "xrcd is accepted"},
		{"rate_limit", qp(8+0xbc, 1<<16), "RST2INIT_QP (19h): rate_limit is accepted"},
		{"qos_vport", qp(8+0xbc, 1), "qos_vport is accepted"},
		{"mkey_rmp", qp(8+0xc0, 1<<31), "mkey_rmp is accepted"},
		{"inline_scatter", qp(8+0xc0, 1<<25), "inline_scatter is accepted"},
		{"hs", qp(8+0xc0, 1<<24), "hs is accepted"},
		{"tunnel", qp(8+0xac, 1<<28), "tunnel is accepted"},
		{"xrcd", qp(8+0x98, 1), "xrcd is accepted"},
		{"roce_mode of a QP", qp(0x10, 0xff<<24|testLogRQ<<19|testLogSQ<<11|2<<8|2), "roce_mode is accepted"},
		{"vlan_control", qp(8+0x18, 1<<16), "vlan_control is accepted"},
		{"vlan_index", qp(8+0x38, 0x83<<24|1<<16), "vlan_index is accepted"},
		{"fvl_rx", qp(8+0x38, 0x83<<24|1), "fvl_rx is accepted"},
		{"fl", qp(8+0x18, 1<<24), "fl is accepted"},
		{"counter_index", func(x *rig) {
			qp()(x)
			x.do(0x01a, 0, testQP, with(x.qpContext(), 8+0x1c, 3<<24), false)
		}, "INIT2RTR_QP (1ah): counter_index is accepted"},
		{"alternate path", func(x *rig) {
			x.do(0x01c, 0, testQP, with(x.qpContext(), 0, optAltPath|optQKey), false)
		}, "RTS2RTS_QP (1ch): optional parameters 0x1 are accepted"},
		{"event", func(x *rig) {
			x.do(0x01c, 0, 1<<31|testQP, with(x.qpContext(), 0, optQKey), false)
		}, "RTS2RTS_QP (1ch): an event of a drained queue is asked for"},
		{"special QPs", func(x *rig) { x.do(0x023, 2, 64, nil, false) }, "CONF_SPECIAL_QP: op_modifier 2"},
		{"static configuration", func(x *rig) { x.do(0x034, 1, 8, uint64(5), false) }, "MOD_STAT_CFG: the setting is accepted"},
		{"page size", func(x *rig) { x.do(0x034, 1, 0, uint64(1<<40|13<<32), false) }, "log_pg_sz is 13"},
		{"static configuration by mailbox", func(x *rig) {
			x.do(0x034, 0, 0, dwords(0x100, 0, 1<<8, 0x40, 1), false)
		}, "MOD_STAT_CFG: the setting is accepted"},
		{"opcode's bits", frame(1<<29, 0, 0), "reserved bits are set in a control segment"},
		{"size's bits", frame(0, 1<<7, 0), "reserved bits are set in a control segment"},
		{"flags' bits", frame(0, 0, 1<<6), "reserved bits are set in a control segment"},
		{"forced priority", func(x *rig) {
			x.do(0x021, 3, testQP, nil, false)
			x.restart(testQP, with(x.qpContext(), 8+0x38, 0x83<<24|forceUP<<8))
			x.sendFrame()
			x.Clean()
			x.send(opSend, sendFlags, x.data(0, tagged(toPeer(64))))
		}, "feup forces a priority"},
	} {
		t.Run(c.what, func(t *testing.T) {
			x := openRig(t, Options{})
			c.do(x)
			x.ExpectWarning(c.text)
		})
	}
}

// INIT_HCA's settings that no capability offers.
func TestInitWithoutEffect(t *testing.T) {
	for name, w := range map[string][]uint32{"recoverable_error_event": {0x18, 1 << 31}, "mw_enabled": {0xf8, 1<<31 | 10},
		"pfto": {0xf8, 1<<8 | 10}, "fs_a0": {0x1e8, 1<<30 | 4}, "flags 0x20": {0x14, 1 | 1<<5}} {
		t.Run(name, func(t *testing.T) {
			x := newRig(t, Options{})
			x.firmware()
			x.context()
			x.do(0x007, 0, 0, with(x.initHCA(), w...), false)
			x.ExpectWarning(name)
		})
	}
	x := newRig(t, Options{})
	x.firmware()
	x.do(0x034, 0, 0, dwords(0x100, 0, 1<<8), false) // Linux's
	x.do(0x034, 1, 0, uint64(1<<40|12<<32), false)
	x.Clean()
	x.context()
	x.fails(3, 0x007, 0, 0, with(x.initHCA(), 0x14, 1|hcaIPoIBChecksum), false, "checksums of IPoIB")
}

// Rules of InfiniBand by QP number, and datagrams with a VLAN tag.
func TestTransportWithoutEffect(t *testing.T) {
	x := openIB(t, hcaDeviceManaged)
	rule := func(w ...uint32) []byte {
		return append(dwords(16, 4, 1, 8, testQP), with(dwords(48, 0, 12<<24|specIB), w...)...)
	}
	x.do(0x065, 0, 16, rule(12, 0xffffff), false)
	x.ExpectWarning("FLOW_STEERING_ATTACH of an InfiniBand header: qpn_mask is accepted")
	x.do(0x065, 0, 16, rule(8, 1), false)
	x.ExpectWarning("l3_qpn is accepted")

	for _, c := range []struct {
		vlan uint32
		tag  byte
	}{{42, 0}, {0xffff, insertCVLAN}} {
		x := openRig(t, Options{})
		x.reconnect(x.udContext())
		seg := with(datagramTo(0, testQP, testQKey, make([]byte, 16)), 0x28, c.vlan<<16)
		x.wqe(opSend, 3<<2, seg, x.data(128<<10, toPeer(64)))
		x.sq.Bytes[6] |= c.tag
		x.ring()
		x.ExpectWarning("a VLAN tag is asked for")
	}
}

// What a subnet manager or a driver may set on an InfiniBand port.
func TestPortWithoutEffect(t *testing.T) {
	x := openIB(t, 0)
	set := func(name string, v uint64, text string) {
		t.Helper()
		i := x.portInfo()
		i.Set(name, v)
		i.Set("state", 0)
		i.Set("mkey", 1)
		if s, _ := x.madBy(3, 1, 2, attrPortInfo, 1, i.B); s != 0 {
			t.Errorf("%s: status %x", name, s)
		}
		x.ExpectWarning(text)
	}
	set("width_enabled", 1, "width_enabled 0x1, speed_enabled 0x7: the link stays")
	set("speed_enabled", 1, "speed_enabled 0x1: the link stays")
	set("phys_state", 3, "the physical state Disabled is accepted")
	set("lease", 5, "never ends in this model")
	x.mad(1, 2, attrVLArb, 1<<16, make([]byte, 64))
	x.ExpectWarning("VLArbitrationTable is kept")
	x.do(0x00c, 0, 1, dwords(64, 0, 1<<20, 4, 0x02514868, 0x28, 64<<16), false)
	x.ExpectWarning("a P_Key table of 64 is accepted")
	x.do(0x00c, 0, 1, dwords(64, 0, 1<<18, 4, 0x02514868), false)
	x.ExpectWarning("flags 00040000 are accepted")
}

// What a manager sets is shown: limits, the LED, and the number of lanes that a driver allows.
func TestPortShowsSettings(t *testing.T) {
	x := openIB(t, 0)
	i := x.portInfo()
	i.Set("state", 0)
	for _, f := range keptFields {
		i.Set(f, 1)
	}
	x.mad(1, 2, attrPortInfo, 1, i.B)
	i = x.portInfo()
	for _, f := range keptFields {
		check.Equal(t, i.U(f), 1, f+" is %d")
	}
	led := make([]byte, 64)
	for _, on := range []byte{0x80, 0} {
		led[0] = on
		x.mad(1, 2, attrLED, 0, led)
		_, b := x.mad(1, 1, attrLED, 0, nil)
		check.Equal(t, b[0], on, "the LED is %02x")
	}
	x.do(0x00c, 0, 1, dwords(64, 0, 1<<21|2<<4, 4, 0x02514868), false)
	i = x.portInfo()
	if i.U("vl_cap") != 2 || i.U("oper_vls") != 2 {
		t.Errorf("two lanes: vl_cap %d, oper_vls %d", i.U("vl_cap"), i.U("oper_vls"))
	}
	if s, _ := x.exec(0x00c, 0, 1, dwords(64, 0, 1<<21|9<<4), false); s != stLimit {
		t.Errorf("nine lanes: status %xh", s)
	}
}

// A service level selects a lane. Packets for a lane that is not in use are dropped.
func TestLanes(t *testing.T) {
	x, y := openPair(t, 0)
	x.activate(1)
	y.activate(2)
	y.post(0, 4)
	lanes := make([]byte, 64)
	copy(lanes, []byte{0x01, 0x23, 0x4f}) // of service levels 0 to 5: 0 to 3, which are in use, 4 and 15
	x.mad(1, 2, attrSL2VL, 0, lanes)
	var seen []byte
	x.m.fault.lose = func(b []byte) bool {
		seen = append(seen, b[0]>>4)
		return false
	}
	for sl := range uint32(6) {
		x.send(opSend, 3<<2, with(datagramTo(2, testQP, testQKey, nil), 0xc, sl<<28), x.data(128<<10, toPeer(64)))
	}
	check.Same(t, seen, []byte{0, 1, 2, 3}, "the lanes are %d")
	y.Port.Settle(10)
	n := 0
	for ; y.cqe() != nil; n++ {
	}
	check.Equal(t, n, 4, "%d packets arrived")
}

// Performance management's counters of errors, and how a manager clears them.
func TestErrorCounters(t *testing.T) {
	x, y := openPair(t, 0)
	x.activate(1)
	count := func(method uint8, choice uint16) (down, errors, dropped, lane15 uint16) {
		in := make([]byte, 64)
		in[1] = 1
		be.PutUint16(in[2:], choice)
		_, b := x.mad(classPerf, method, attrPortCount, 0, in)
		return uint16(b[7]), be.Uint16(b[8:]), be.Uint16(b[14:]), be.Uint16(b[22:])
	}
	y.m.host.Transmit(make([]byte, 64)) // not a packet
	x.Port.Settle(5)
	x.Far.SetUp(false)
	x.Port.Settle(5)
	x.send(opSend, 3<<2, datagramTo(2, testQP, testQKey, nil), x.data(128<<10, toPeer(64)))
	for range 3 { // nothing is posted
		x.m.datagram(x.m.findQP(testQP),
			&packet{Packet: rdma.Packet{PKey: 0xffff}, vl: managementVL, qkey: testQKey}, 0)
	}
	if a, b, c, d := count(methodSet, 1<<perfReceiveErrors); a != 1 || b != 1 || c != 1 || d != 3 {
		t.Errorf("counters %d, %d, %d, %d", a, b, c, d)
	}
	if a, b, c, d := count(methodGet, 0); a != 1 || b != 0 || c != 1 || d != 3 {
		t.Errorf("after one was cleared: %d, %d, %d, %d", a, b, c, d)
	}
}

// A driver that asks for it learns when a queue has completed what it began.
func TestDrainedEvent(t *testing.T) {
	x, y := openRC(t)
	x.do(0x012, 0, testEQ, uint64(1<<eventSQDrained), false)
	y.post(0, 4)
	for _, asked := range []uint32{0, 1 << 31} {
		x.wqe(opSend, 3<<2, x.data(128<<10, toPeer(64)))
		x.door(testUAR, 0x14, testQP<<8)
		x.Port.Step() // it is sent, and not acknowledged
		x.do(0x01f, 0, asked|testQP, x.rcContext(2), false)
		if e := x.eqe(); e != nil || x.cqe() != nil {
			t.Errorf("before the acknowledgement: event %x", e)
		}
		settle(x, y)
		x.completed(opSend)
		if e := x.eqe(); (e != nil) != (asked != 0) || e != nil && (e[1] != eventSQDrained || w32(e, 4) != testQP) {
			t.Errorf("asked for %x: event %x", asked, e)
		}
		x.do(0x020, 0, testQP, x.rcContext(2), false)
	}
}

// DIAG_RPRT counts errors in completions and the transport's events.
func TestDiagnostics(t *testing.T) {
	x, y := openRC(t)
	report := func(r *rig, at int) uint32 {
		t.Helper()
		r.do(0x030, 2, 1, nil, true)
		return be.Uint32(r.out.Bytes[at:])
	}
	x.send(opWrite, 3<<2, raddr(y, 0, 0x999<<8), x.data(128<<10, toPeer(64))) // a key that is not there
	settle(x, y)
	x.failed(syndRemoteAccess)
	x.send(opSend, 3<<2, x.data(128<<10, toPeer(64))) // flushed
	x.cqe()
	y.Port.ForgetViolations()
	for _, c := range []struct {
		r    *rig
		at   int
		what string
	}{{x, 0x4c, "sq_num_rae"}, {x, 0x24, "sq_num_wrfe"}, {y, 0x50, "rq_num_rae"}} {
		check.Equal(t, report(c.r, c.at), 1, c.what+" is %d")
	}

	x, y = openRC(t)
	x.send(opSend, 3<<2, x.data(128<<10, toPeer(64))) // nothing is posted there
	settle(x, y)
	if n := report(x, 0x6c); n == 0 || report(y, 0x68) != n {
		t.Errorf("sq_num_rnr is %d, rq_num_rnr %d", n, report(y, 0x68))
	}

	x, y = openPair(t, 0)
	x.activate(1)
	y.activate(2)
	x.send(opSend, 3<<2, datagramTo(2, testQP, testQKey, nil), x.data(128<<10, toPeer(64)))
	y.Port.Settle(5)
	check.Equal(t, report(y, 0x118), 1, "rq_num_udsdprd is %d")
}

// Of rules with one priority, the first wins, unless the second is to be in front.
func TestRuleOrder(t *testing.T) {
	x := newRig(t, Options{})
	x.flags = hcaDeviceManaged
	x.open()
	x.spreads(rssIPv4, hashToeplitz) // for a second QP
	x.ruleFor(0x5000, 0, testQP, testMAC[:])
	x.ruleFor(0x5000, 0, testQP+1, testMAC[:])
	x.steers("behind", frameOf(64), testQP)
	e := make([]byte, 48)
	e[0], e[2], e[3] = 12, 0xe0, 0x01
	copy(e[10:], testMAC[:])
	copy(e[18:], []byte{255, 255, 255, 255, 255, 255})
	x.do(0x065, 0, 16, append(dwords(16, 0, 0x5000<<16|1, 4, 1, 8, testQP+1), e...), false)
	x.steers("in front", frameOf(64), testQP+1)
}
