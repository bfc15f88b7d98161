package mlx4sim

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim/rdma"
)

const testQKey = 0x1234

// mad passes a datagram to the agent by MAD_IFC and returns the answer's status and data.
func (x *rig) mad(class, method uint8, attr uint16, mod uint32, data []byte) (status uint16, out []byte) {
	x.Helper()
	return x.madBy(3, class, method, attr, mod, data)
}

// madBy is mad with an op modifier: with bits 0 and 1, the agent does not check the M_Key and the B_Key.
func (x *rig) madBy(opMod uint32, class, method uint8, attr uint16, mod uint32, data []byte) (status uint16,
	out []byte) {
	x.Helper()
	b := dwords(256, 0, 1<<24|uint32(class)<<16|1<<8|uint32(method), 16, uint32(attr)<<16, 20, mod)
	copy(b[64:], data)
	x.do(0x024, opMod, 1, b, true)
	check.Equal(x, x.out.Bytes[3], 0x81, "the answer's method is %02x")
	return be.Uint16(x.out.Bytes[4:]), bytes.Clone(x.out.Bytes[64:128])
}

func (x *rig) portInfo() msg {
	_, b := x.mad(1, 1, attrPortInfo, 1, nil)
	return as(b, portInfo)
}

func (x *rig) udContext() []byte {
	return with(x.qpContext(), 8, 3<<16|3<<11, 0x10, 5<<29|31<<24|testLogRQ<<19|testLogSQ<<11|2<<8, 8+0xa8, testQKey)
}

// openIB creates one object of each kind on an InfiniBand port with a LID from a subnet manager.
func openIB(t *testing.T, flags uint32) *rig {
	x := newRig(t, Options{Link: InfiniBand})
	x.flags = flags
	x.boot()
	x.rings()
	x.invalidate()
	x.ready(testQP, x.udContext())
	x.do(0x00c, 0, 1, dwords(64, 0, 1<<22|1<<21|5<<12|4<<4, 4, 0x02514868), false)
	x.do(0x009, 0, 1, nil, false)
	x.Clean()
	return x
}

// openPair opens two devices on one wire.
func openPair(t *testing.T, flags uint32) (x, y *rig) {
	x, y = openIB(t, flags), openIB(t, flags)
	y.Port.Connect(x.Far)
	x.Port.Settle(5)
	y.Port.Settle(5)
	return x, y
}

// restart takes a QP that is in reset to ready to send, with empty rings.
func (x *rig) restart(qpn uint32, context []byte) {
	x.Helper()
	x.head = 0
	binary.BigEndian.PutUint32(x.rec.Bytes, 0)
	x.invalidate()
	x.ready(qpn, context)
}

func (x *rig) activate(lid uint16) {
	x.Helper()
	i := x.portInfo()
	if i.U("state") != stateInit || i.U("phys_state") != 5 || i.U("lid") != 0 {
		x.Fatalf("the port is in state %d (%d), LID %#x", i.U("state"), i.U("phys_state"), i.U("lid"))
	}
	i.Set("lid", uint64(lid))
	i.Set("sm_lid", 1)
	i.Set("neighbor_mtu", 4)
	for _, s := range []uint64{stateArmed, stateActive} {
		i.Set("state", s)
		if status, _ := x.mad(1, 2, attrPortInfo, 1, i.B); status != 0 {
			x.Fatalf("state %d: status %x", s, status)
		}
	}
	must.Equal(x, x.portInfo().U("state"), stateActive, "the port is in state %d")
}

func datagramTo(lid uint16, qpn, qkey uint32, gid []byte) []byte {
	s := dwords(48, 0, 1<<24|testPD, 4, uint32(lid), 0xc, 3<<28, 0x20, qpn, 0x24, qkey)
	if gid != nil {
		s[5] |= 0x80
		copy(s[16:], gid)
	}
	return s
}

// The agent answers for the node and its port, and a subnet manager's changes are reported by events.
func TestAgent(t *testing.T) {
	x := openIB(t, 0)
	_, node := x.mad(1, 1, attrNodeInfo, 0, nil)
	if node[2] != 1 || node[3] != 1 || be.Uint16(node[30:]) != 0x1003 || be.Uint64(node[20:]) != x.m.guid(1) ||
		node[37] != 0 || be.Uint16(node[38:]) != 0x02c9 {
		t.Errorf("NodeInfo %x", node[:40])
	}
	x.activate(7)
	seen := map[string]bool{}
	for e := x.eqe(); e != nil; e = x.eqe() {
		switch {
		case e[1] == 9 && e[3] == 4:
			seen["active"] = true
		case e[1] == 0x1d && e[3] == 0x15 && e[7] == 1 && be.Uint16(e[10:]) == 7 && be.Uint32(e[12:])&changedLID != 0:
			seen["LID"] = true
		}
	}
	if !seen["active"] || !seen["LID"] {
		t.Errorf("events: %v", seen)
	}
	keys := make([]byte, 64)
	copy(keys, []byte{0xff, 0xff, 0x80, 0x01})
	x.mad(1, 2, attrPKeys, 0, keys)
	if e := x.eqe(); e == nil || e[1] != 0x1d || e[3] != 0x16 {
		t.Errorf("event %x after a change of P_Keys", e)
	}
	if _, b := x.mad(0x81, 1, attrPKeys, 0, nil); !bytes.Equal(b, keys) {
		t.Errorf("P_Keys %x", b)
	}
	for _, c := range []struct {
		method uint8
		attr   uint16
		mod    uint32
		status uint16
	}{{1, 0x99, 0, statusBadAttr}, {2, attrNodeInfo, 0, statusBadAttr}, {3, attrPortInfo, 1, statusBadMethod},
		{1, attrPortInfo, 2, statusBadField}, {1, attrPKeys, 4, statusBadField}} {
		if s, _ := x.mad(1, c.method, c.attr, c.mod, nil); s != c.status {
			t.Errorf("method %x of attribute %x: status %x, expected %x", c.method, c.attr, s, c.status)
		}
	}
	i := x.portInfo()
	i.Set("state", stateArmed)
	if s, _ := x.mad(1, 2, attrPortInfo, 1, i.B); s != statusBadField {
		t.Errorf("from active to armed: status %x", s)
	}
	x.Far.SetUp(false)
	x.Port.Settle(5)
	check.Equal(t, x.portInfo().U("state"), stateDown, "without a wire the port is in state %d")
	if e := x.eqe(); e == nil || e[1] != 9 || e[3] != 1 {
		t.Errorf("event %x, expected that the port went down", e)
	}
}

// Two devices on one wire: datagrams by LID, with and without a GRH; keys and numbers that do not fit are dropped;
// groups.
func TestDatagrams(t *testing.T) {
	for _, flags := range []uint32{0, hcaDeviceManaged} {
		x, y := openPair(t, flags)
		x.activate(1)
		y.activate(2)
		y.post(0, 8)
		body := toPeer(101)
		send := func(seg []byte) []byte {
			x.send(opSend, 3<<2, seg, x.data(128<<10, body))
			y.Port.Settle(10)
			x.completed(opSend)
			return y.cqe()
		}
		e := send(datagramTo(2, testQP, testQKey, nil))
		if e == nil || w32(e, 0x14) != 40+101 || w32(e, 8) != testQP || w32(e, 0xc) != 3<<28|1 {
			t.Fatalf("completion %x", e)
		}
		if !bytes.Equal(y.fb.Bytes[40:141], body) {
			t.Errorf("received %x", y.fb.Bytes[:141])
		}
		gid := binary.BigEndian.AppendUint64([]byte{0xfe, 0x80, 0, 0, 0, 0, 0, 0}, y.m.guid(1))
		e = send(datagramTo(2, testQP, testQKey, gid))
		if e == nil || w32(e, 8) != 1<<31|testQP || !bytes.Equal(y.fb.Bytes[2048+24:2048+40], gid) ||
			be.Uint64(y.fb.Bytes[2048+16:]) != x.m.guid(1) {
			t.Errorf("with a GRH: completion %x, %x", e, y.fb.Bytes[2048:2048+40])
		}
		for what, seg := range map[string][]byte{"LID": datagramTo(3, testQP, testQKey, nil),
			"Q_Key": datagramTo(2, testQP, testQKey+1, nil), "number": datagramTo(2, testQP+1, testQKey, nil)} {
			if e := send(seg); e != nil {
				t.Errorf("the %s is wrong, and the datagram arrives: %x", what, e)
			}
		}
		group := []byte{0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff}
		if e := send(datagramTo(0xc001, multicastQP, testQKey, group)); e != nil {
			t.Errorf("without having joined: %x", e)
		}
		if flags == 0 {
			h := y.do(0x027, 0, 0, group, false)
			entry := dwords(1024, 4, 1, 32, testQP)
			copy(entry[16:], group)
			y.do(0x026, 0, uint32(h), entry, false)
			y.do(0x025, 0, uint32(h), nil, true)
			check.Same(t, y.out.Bytes[:64], entry[:64], "the entry reads %x")
		} else {
			rule := dwords(64, 4, 1, 8, testQP, 16, 12<<24|0xe005)
			copy(rule[32:], group)
			copy(rule[48:], bytes.Repeat([]byte{0xff}, 16))
			y.do(0x065, 0, 16, rule, false)
		}
		if e := send(datagramTo(0xc001, multicastQP, testQKey, group)); e == nil || w32(e, 8) != 1<<31|testQP {
			t.Errorf("to a group: completion %x", e)
		}
		if e := send(datagramTo(1, testQP, testQKey, nil)); e != nil || x.m.count.rxOverflow == 0 {
			t.Errorf("to itself: %x arrives at the other, %+v", e, x.m.count.rxOverflow)
		}
		for synd, seg := range map[byte][]byte{
			2: with(datagramTo(2, testQP, testQKey, nil), 0, 2<<24|testPD), // another port
			4: with(datagramTo(2, testQP, testQKey, nil), 0, 1<<24|9),      // another protection domain
		} {
			z := openIB(t, flags)
			z.activate(1)
			z.send(opSend, 3<<2, seg, z.data(128<<10, body))
			z.failed(synd)
			z.ExpectError("the address vector")
		}
	}
}

// Management datagrams go over QP0 while the ports are not active yet, and over QP1 when they are; the driver builds
// their headers.
func TestSpecialQPs(t *testing.T) {
	x, y := openPair(t, 0)
	const base = 264
	for _, r := range []*rig{x, y} {
		r.do(0x023, 0, base, nil, false)
		r.do(0x021, 3, testQP, nil, false)
	}
	packet := func(vl byte, dlid uint16, qpn, qkey uint32) []byte {
		b := make([]byte, 8+12+8+256+4)
		b[0], b[1] = vl<<4, 2
		be.PutUint16(b[2:], dlid)
		b[8] = rdma.UDSend
		be.PutUint16(b[10:], 0xffff)
		be.PutUint32(b[12:], qpn)
		be.PutUint32(b[20:], qkey)
		be.PutUint32(b[24:], qpn)
		return b
	}
	for _, special := range []uint32{0, 1} {
		qpn := base + 2*special
		for _, r := range []*rig{x, y} {
			r.restart(qpn, with(r.udContext(), 8, 7<<16|3<<11, 0x18, qpn))
			r.post(0, 1)
		}
		vl, dlid, flags := byte(15), uint16(0xffff), uint32(mlxVL15|mlxSLR|3<<2)
		if special == 1 {
			x.activate(1)
			y.activate(2)
			vl, dlid, flags = 0, 2, 3<<2
		}
		x.wqe(opSend, flags, x.data(128<<10, packet(vl, dlid, special, wellKnownQKey)))
		be.PutUint16(x.sq.Bytes[12:], dlid)
		x.door(testUAR, 0x14, qpn<<8)
		x.Port.Settle(10)
		y.Port.Settle(10)
		x.completed(opSend)
		if e := y.cqe(); e == nil || w32(e, 0) != qpn || w32(e, 0x14) != 296 || w32(e, 8) != special || special == 1 &&
			w32(e, 12) != 1 {
			t.Errorf("QP%d: completion %x", special, e)
		}
		for _, r := range []*rig{x, y} {
			r.do(0x021, 3, qpn, nil, false)
		}
	}
}

// A port whose capabilities change sends its subnet manager a trap, which QP0 receives until it is repressed.
func TestNotices(t *testing.T) {
	x := openIB(t, 0)
	const base = 264
	x.do(0x023, 0, base, nil, false)
	x.do(0x021, 3, testQP, nil, false)
	x.ready(base, with(x.udContext(), 8, 7<<16|3<<11, 0x18, base))
	x.post(0, 16)
	caps := func(v uint32) {
		x.do(0x00c, 0, 1, dwords(64, 0, 1<<22|1<<21|5<<12|4<<4, 4, v), false)
	}
	caps(0x0251486a)
	x.Port.Settle(10)
	if e := x.cqe(); e != nil {
		t.Fatalf("without a subnet manager: %x", e)
	}
	x.activate(7)
	caps(0x02514868)
	for i := range 2 {
		x.steps(5)
		e := x.cqe()
		b := x.fb.Bytes[2048*i+40:]
		if e == nil || w32(e, 8)&0xffffff != 0 || w32(e, 12)&0xffff != 0 || b[3] != methodTrap ||
			be.Uint16(b[16:]) != attrNotice || be.Uint16(b[68:]) != trapChange ||
			be.Uint16(b[70:]) != 7 || w32(b, 80) != 0x02514868 {
			t.Fatalf("trap %d: completion %x, %x: %+v", i, e, b[:128], x.m.Counters().InfiniBand)
		}
	}
	repress := bytes.Clone(x.fb.Bytes[40:][:256])
	repress[3] = methodTrapRepress
	x.do(0x024, 3, 1, repress, true)
	for x.cqe() != nil {
	}
	x.steps(50)
	if e := x.cqe(); e != nil {
		t.Errorf("repressed, and it comes again: %x", e)
	}
	desc := make([]byte, 64)
	copy(desc, "somebody")
	x.mad(1, 2, attrNodeDesc, 0, desc)
	x.steps(1)
	if e := x.cqe(); e == nil {
		t.Error("the description changed, and no trap tells")
	}
	x.steps(200)
	n := 0
	for ; x.cqe() != nil; n++ {
	}
	if n > noticeAttempts {
		t.Errorf("%d traps, and nobody represses them", n)
	}
}

// An attribute with a value that a subnet manager may not set is refused as a whole.
func TestPortInfoIsChecked(t *testing.T) {
	x := openIB(t, 0)
	for field, v := range map[string]uint64{"lid": 0xc000, "sm_lid": 0xffff, "state": 7, "neighbor_mtu": 6,
		"oper_vls": 5} {
		i := x.portInfo()
		i.Set("lid", 4)
		i.Set(field, v)
		if s, _ := x.mad(1, 2, attrPortInfo, 1, i.B); s != statusBadField || x.portInfo().U("lid") != 0 {
			t.Errorf("%s %#x: status %#x, LID %d", field, v, s, x.portInfo().U("lid"))
		}
	}
	i := x.portInfo()
	i.Set("state", 0)
	i.Set("lid", 5)
	i.Set("lmc", 1)
	if s, _ := x.mad(1, 2, attrPortInfo, 1, i.B); s != statusBadField {
		t.Errorf("LID 5 with two paths: status %#x", s)
	}
	i.Set("lid", 4)
	i.Set("mkey", 0x1234)
	if s, _ := x.mad(1, 2, attrPortInfo, 1, i.B); s != 0 {
		t.Errorf("LID 4: status %#x", s)
	}
	s, _ := x.madBy(0, 1, 2, attrPortInfo, 1, i.B)
	check.Equal(t, s, statusBadField, "without the M_Key: status %#x")
	check.Equal(t, x.portInfo().U("bad_mkeys"), 1, "%d wrong M_Keys")
}

// FuzzPacket receives the input on an InfiniBand port, with a valid ICRC.
func FuzzPacket(f *testing.F) {
	f.Add(make([]byte, 30), true)
	f.Fuzz(func(t *testing.T, b []byte, grh bool) {
		for len(b) < 28 || len(b)&3 != 0 {
			b = append(b, 0)
		}
		if b = bytes.Clone(b[:min(len(b), 4096)]); grh {
			b[1] |= 3
		} else {
			b[1] = b[1]&^1 | 2
		}
		p, ok := parsePacket(finish(b))
		if ok && (len(p.payload) > len(b) || p.grh == nil == (b[1]&3 == 3)) {
			t.Errorf("%x is %+v", b, p)
		}
	})
}

// Requests of infiniband-diags to a ConnectX-3: smpquery mepi and ibportstate, vendstat -N, perfquery -x.
func TestVendorAttributes(t *testing.T) {
	x := openIB(t, 0)
	if s, b := x.mad(1, 1, 0xff90, 1, nil); s != 0 || b[7] != 1 || b[11] != 1 || b[15] != 0 {
		t.Errorf("ExtendedPortInfo: status %x, %x", s, b[:16])
	}
	if s, _ := x.mad(1, 2, 0xff90, 1, nil); s != statusBadAttr { // the effect of a Set on a card is unknown
		t.Errorf("Set of ExtendedPortInfo: status %x", s)
	}
	if s, b := x.mad(0x0a, 1, 1, 0, nil); s != 0 || b[0] != 1 || b[1] != 1 {
		t.Errorf("ClassPortInfo of the vendor's class: status %x, %x", s, b)
	}
	s, _ := x.mad(0x0a, 1, 0x17, 0, nil)
	info := x.out.Bytes[24+8:]
	if s != 0 || be.Uint16(info[2:]) != 0x1003 || be.Uint32(info[68:]) != 2 || be.Uint32(info[72:]) != 42 ||
		be.Uint32(info[76:]) != 5000 || !bytes.HasPrefix(info[48:], []byte("MT_1090120019\x00")) {
		t.Errorf("general information: status %x, %x", s, info[:100])
	}
	if s, b := x.mad(classPerf, 1, 1, 0, nil); s != 0 || be.Uint16(b[2:])&0x200 == 0 {
		t.Errorf("performance management does not announce extended counters: status %x, %x", s, b)
	}
	x.m.transmitPacket(make([]byte, 100))
	s, b := x.mad(classPerf, 1, 0x1d, 0, nil)
	if s != 0 || b[1] != 1 || be.Uint64(b[8:]) != 25 || be.Uint64(b[24:]) != 1 {
		t.Errorf("PortCountersExtended: status %x, %x", s, b)
	}
	if s, b := x.mad(classPerf, 1, attrPortCount, 0, nil); s != 0 || be.Uint32(b[24:]) != 25 || be.Uint32(b[32:]) != 1 {
		t.Errorf("PortCounters: status %x, %x", s, b)
	}
	x.mad(classPerf, 2, attrPortCount, 0, []byte{0, 1, 0x10, 0}) // PortXmitData
	if s, b := x.mad(classPerf, 1, attrPortCount, 0, nil); s != 0 || be.Uint32(b[24:]) != 0 || be.Uint32(b[32:]) != 1 {
		t.Errorf("PortCounters after PortXmitData was cleared: status %x, %x", s, b)
	}
}

// The agent reads the module on either kind of port, and refuses addresses that no module has.
func TestModule(t *testing.T) {
	for _, link := range []Link{Ethernet, InfiniBand} {
		x := newRig(t, Options{Link: link})
		x.boot()
		ask := func(i2c, page byte, at, size uint16) (uint16, []byte) {
			b := make([]byte, 64)
			b[0], b[1] = i2c, page
			binary.BigEndian.PutUint16(b[2:], at)
			binary.BigEndian.PutUint16(b[6:], size)
			return x.mad(1, 1, attrModule, 0, b)
		}
		if s, b := ask(0x50, 0, 148, 16); s != 0 || !bytes.HasPrefix(b[16:], []byte("REBOUND  ")) || b[32] != 0 {
			t.Errorf("status %x, %x", s, b)
		}
		for _, c := range []struct {
			i2c, page byte
			at, size  uint16
			status    uint16
		}{{0x51, 0, 0, 16, cableI2C}, {0x50, 16, 0, 16, cablePage}, {0x50, 0, 0, 0, cableAddress},
			{0x50, 0, 0, 49, cableAddress}, {0x50, 0, 250, 16, cableAddress}} {
			if s, _ := ask(c.i2c, c.page, c.at, c.size); s != c.status {
				t.Errorf("%+v: status %x", c, s)
			}
		}
		x.Port.Connect(nil)
		x.Port.Settle(5)
		s, _ := ask(0x50, 0, 0, 1)
		check.Equal(t, s, cableNotConnected, "without a cable: status %x")
	}
}
