package ib

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

var (
	ourGID = NewGID(0xFE80000000000000, 0x0002C90300123457)
	farGID = NewGID(0xFE80000000000000, 0x0002C90300ABCDE1)
)

func hexed(t *testing.T, s string) []byte {
	t.Helper()
	return must.Get(hex.DecodeString(strings.Join(strings.Fields(s), "")))(t)
}

func TestRequests(t *testing.T) {
	const tid = 0x1122334455667788
	header := func(class, version, method, attribute string, modifier string) string {
		return "01" + class + version + method + "0000 0000 1122334455667788" + attribute + "0000" + modifier
	}
	sa := func(method, attribute, mask string) string {
		return header("03", "02", method, attribute, "00000000") + strings.Repeat("00", 12+8+4) + "00000000" + mask
	}
	ours, far := "fe80000000000000 0002c90300123457", "fe80000000000000 0002c90300abcde1"
	like := Group{QKey: 0x0B1B, MTU: 2048, TrafficClass: 7, PKey: 0xFFFF, Rate: 3, SL: 4, FlowLabel: 0xABCDE,
		HopLimit: 1, Scope: 2}
	broadcast := BroadcastGroup(ScopeLink, 0x7FFF)
	for name, c := range map[string]struct {
		got  []byte
		want string
	}{
		"PortInfo":   {Query(AttrPortInfo, 1, tid), header("01", "01", "01", "0015", "00000001")},
		"P_KeyTable": {Query(AttrPKeyTable, 2, tid), header("01", "01", "01", "0016", "00000002")},
		"join": {join(broadcast, ourGID, 0xFFFF, tid),
			sa("02", "0038", "00010083") + "ff12401bffff00000000 0000ffffffff" + ours +
				"00000000 0000 00 00 ffff 00 00 00000000 01"},
		"create": {joinOrCreate(GID{0xFF, 0x12, 0x40, 0x1B}, ourGID, like, tid),
			sa("02", "0038", "000173f7") + "ff12401b000000000000000000000000" + ours +
				"00000b1b 0000 84 07 ffff 83 00 4abcde01 21"},
		"join to send": {joinToSend(broadcast, ourGID, 0xFFFF, tid),
			sa("02", "0038", "00010083") + "ff12401bffff00000000 0000ffffffff" + ours +
				"00000000 0000 00 00 ffff 00 00 00000000 04"},
		"counters": {QueryCounters(AttrPortCountersExtended, 2, tid), header("04", "01", "01", "001d", "00000000") + strings.Repeat("00", 40) + "0002"},
		"leave": {leave(broadcast, ourGID, tid),
			sa("15", "0038", "00010003") + "ff12401bffff00000000 0000ffffffff" + ours +
				"00000000 0000 00 00 0000 00 00 00000000 01"},
		"path": {findPath(ourGID, farGID, 0x8001, tid), sa("01", "0035", "0000380c") + "0000000000000000" + far + ours + "0000 0000 00000000 00 81 8001"},
	} {
		check.Same(t, c.got, append(hexed(t, c.want), make([]byte, MADSize)...)[:MADSize], name+":\n% x")
	}
}

func answer(request []byte, at int, record []byte) []byte {
	b := bytes.Clone(request)
	b[3] |= 0x80
	if request[3] == uint8(Set) {
		b[3] = uint8(GetResp)
	}
	copy(b[at:], record)
	return b
}

func TestPortInfo(t *testing.T) {
	q := Query(AttrPortInfo, 2, 9)
	d := make([]byte, 64)
	binary.BigEndian.PutUint64(d[8:], 0xFE80000000000000)
	copy(d[16:], []byte{0, 7, 0, 1}) // LID, SM's LID
	copy(d[20:], []byte{0x02, 0x51, 0x48, 0x68})
	copy(d[31:], []byte{2, 0x14, 0, 0x02, 0x41, 0x43})
	want := PortInfo{GIDPrefix: 0xFE80000000000000, LID: 7, LMC: 2, SMLID: 1, SMSL: 3, State: PortActive, MTU: 2048,
		Width: 4, LaneSpeed: 10000, Capabilities: 0x02514868}
	check.Equal(t, must.Get(ParsePortInfo(answer(q, smpData, d), 2, 9))(t), want, "%+v")
	d[62] = 1 << 4 // an extended speed takes precedence
	want.LaneSpeed = 14062
	check.Equal(t, must.Get(ParsePortInfo(answer(q, smpData, d), 2, 9))(t), want, "%+v")
	var names []string
	for s := range PortState(6) {
		names = append(names, s.String())
	}
	check.Equal(t, strings.Join(names, ", "), "state 0, down, initialized: no subnet manager has configured the port, armed, "+
		"active, state 5", "%s")
	coded := func(at int, shift uint, of func(PortInfo) int) (all []int) {
		for code := range byte(9) {
			b := make([]byte, 64)
			b[at] = code << shift
			all = append(all, of(must.Get(ParsePortInfo(answer(q, smpData, b), 2, 9))(t)))
		}
		return all
	}
	check.Same(t, coded(31, 0, func(p PortInfo) int { return p.Width }), []int{0, 1, 4, 0, 8, 0, 0, 0, 12}, "widths %v")
	speed := func(p PortInfo) int { return p.LaneSpeed }
	check.Same(t, coded(35, 4, speed), []int{0, 2500, 5000, 0, 10000, 0, 0, 0, 0}, "speeds %v")
	check.Same(t, coded(62, 4, speed), []int{0, 14062, 25781, 0, 0, 0, 0, 0, 0}, "extended %v")
	mtus := coded(36, 4, func(p PortInfo) int { return p.MTU })
	check.Same(t, mtus, []int{0, 256, 512, 1024, 2048, 4096, 0, 0, 0}, "MTUs %v")
	for code, n := range mtus[:6] {
		check.Equal(t, MTUCode(n), uint8(code), fmt.Sprint(n)+" bytes have code %d")
	}
	check.Equal(t, MTUCode(1500), 0, "1500 bytes have code %d")
	for name, spoil := range map[string]func(b []byte) []byte{
		"short":     func(b []byte) []byte { return b[:255] },
		"version":   func(b []byte) []byte { b[0] = 2; return b },
		"class":     func(b []byte) []byte { b[1] = 3; return b },
		"method":    func(b []byte) []byte { b[3] = 1; return b },
		"TID":       func(b []byte) []byte { b[15]++; return b },
		"attribute": func(b []byte) []byte { b[17]++; return b },
		"status":    func(b []byte) []byte { b[5] = 3 << 2; return b },
	} {
		check.Fails(t, name, check.Err(ParsePortInfo(spoil(answer(q, smpData, d)), 2, 9)), errMAD)
	}
}

// A request of a subnet manager is for this port if it ends here, and its answer goes back the way that it came.
func TestSubnet(t *testing.T) {
	directed := func(hops byte, spoil func(b []byte)) []byte {
		b := make([]byte, MADSize)
		header{Class: ClassSubnetDirected, Version: 1, Method: Set, TID: 9, Attribute: AttrPortInfo}.put(b)
		b[smpHop], b[smpHops], b[smpToLID], b[smpToLID+1] = hops, hops, 0xff, 0xff
		if spoil != nil {
			spoil(b)
		}
		return b
	}
	for _, c := range []struct {
		b    []byte
		want bool
	}{
		{directed(2, nil), true}, {directed(0, nil), true}, {directed(63, nil), true}, {directed(64, nil), false}, {directed(2, nil)[:255], false},
		{directed(2, func(b []byte) { b[smpHop] = 1 }), false}, {directed(2, func(b []byte) { b[smpStatus] = 0x80 }), false},
		{directed(2, func(b []byte) { b[smpStatus] = 0x40 }), true}, {directed(2, func(b []byte) { b[smpToLID+1] = 0 }), false},
		{directed(2, func(b []byte) { b[3] = byte(Get) }), true}, {directed(2, func(b []byte) { b[3] = byte(GetResp) }), false},
		{directed(2, func(b []byte) { b[1] = byte(ClassSubnet); b[smpHop] = 7 }), true}, {directed(2, func(b []byte) { b[1] = byte(ClassSA) }), false},
	} {
		was := bytes.Clone(c.b)
		check.Equal(t, SubnetRequest(c.b, 5), c.want, fmt.Sprintf("%x: %%t", was[:40]))
		if hop := was[smpHop]; c.want && was[1] == byte(ClassSubnetDirected) {
			was[smpHop] = hop + 1
			if hop > 0 {
				was[smpReturnPath+int(hop)] = 5
			}
		}
		check.Equal(t, string(c.b), string(was), "%x")
	}
	request := directed(2, func(b []byte) { b[smpReturnPath+1], b[smpReturnPath+2] = 3, 5 })
	SubnetRequest(request, 5)
	got := directed(9, func(b []byte) { b[3] = byte(GetResp) })
	want := bytes.Clone(got)
	want[smpStatus], want[smpHop], want[smpHops] = 0x80, 2, 2
	copy(want[smpReturnPath:], request[smpReturnPath:])
	check.Equal(t, SubnetAnswer(got, request), true, "an answer: %t")
	check.Equal(t, string(got), string(want), "%x")
	routed := bytes.Clone(request)
	routed[1], got[1] = byte(ClassSubnet), byte(ClassSubnet)
	was := bytes.Clone(got)
	check.Equal(t, SubnetAnswer(got, routed), true, "an answer by LID: %t")
	check.Equal(t, string(got), string(was), "%x")
	for _, at := range []int{0, 1, 3, 15, 17} {
		other := bytes.Clone(want)
		other[at] ^= 1
		check.Equal(t, SubnetAnswer(other, request), false, fmt.Sprintf("another byte %d: %%t", at))
	}
	again := directed(0, func(b []byte) { b[smpData+reregister] = 0x80 })
	check.Equal(t, Reregisters(again), true, "renews memberships: %t")
	for _, at := range []int{0, 3, 17, smpData + reregister} {
		other := bytes.Clone(again)
		other[at] ^= 0x83
		check.Equal(t, Reregisters(other), false, fmt.Sprintf("renews, with another byte %d: %%t", at))
	}
	for status, want := range map[uint16]string{1: "busy", 7 << 2: "a field of attribute", 5 << 2: "unknown",
		3 << 8: "no records", 9 << 8: "unknown"} {
		check.Contains(t, (&StatusError{ClassSA, AttrPortInfo, status}).Error(),
			fmt.Sprintf("status %#04x: %s", status, want))
	}
	check.Contains(t, (&StatusError{ClassSubnet, AttrPortInfo, 3 << 8}).Error(), "unknown")
}

func TestCounters(t *testing.T) {
	q := QueryCounters(AttrPortCounters, 1, 9)
	d := make([]byte, 64)
	// symbols, links down, receive errors, of switches, discards
	copy(d[4:], []byte{0, 1, 0, 2, 0, 3, 0, 0, 0, 4, 0, 5})
	copy(d[22:], []byte{0, 6, 0, 0, 0, 7, 0, 0, 0, 8, 0, 0, 0, 9, 0, 0, 0, 10})
	want := PortCounters{Symbols: 1, LinkDowned: 2, RxErrors: 3, RxSwitchErrors: 4, TxDiscards: 5, VL15Dropped: 6,
		TxBytes: 28, RxBytes: 32, TxPackets: 9, RxPackets: 10}
	check.Equal(t, must.Get(ParseCounters(answer(q, perfData, d), AttrPortCounters, 9))(t), want, "%+v")
	check.Fails(t, "another attribute", check.Err(ParseCounters(answer(q, perfData, d), AttrPortCountersExtended, 9)),
		errMAD)
	d = make([]byte, 64)
	d[8], d[23], d[31], d[39] = 1, 2, 3, 4
	q = QueryCounters(AttrPortCountersExtended, 1, 9)
	want = PortCounters{TxBytes: 1 << 58, RxBytes: 8, TxPackets: 3, RxPackets: 4}
	check.Equal(t, must.Get(ParseCounters(answer(q, perfData, d), AttrPortCountersExtended, 9))(t), want, "%+v")
}

func TestTables(t *testing.T) {
	d := make([]byte, 64)
	copy(d, []byte{0, 2, 0xC9, 3, 0, 0x12, 0x34, 0x57})
	g := must.Get(ParseGUIDs(answer(Query(AttrGUIDInfo, 0, 1), smpData, d), 0, 1))(t)
	check.Same(t, g[:2], []uint64{0x0002C90300123457, 0}, "%x")
	copy(d, []byte{0xFF, 0xFF, 0x80, 0x01})
	k := must.Get(ParsePKeys(answer(Query(AttrPKeyTable, 0, 1), smpData, d), 0, 1))(t)
	check.Same(t, k[:2], []uint16{0xFFFF, 0x8001}, "%x")
}

func TestAnswersOfTheSA(t *testing.T) {
	const tid = 77
	join := join(BroadcastGroup(ScopeLink, 0xFFFF), ourGID, 0xFFFF, tid)
	record := append(bytes.Clone(join[saData:saData+32]), hexed(t, "00000b1b c000 84 00 ffff 83 92 00000000 21")...)
	want := Group{MGID: BroadcastGroup(ScopeLink, 0xFFFF), QKey: 0x0B1B, MLID: 0xC000, MTU: 2048, PKey: 0xFFFF, Rate: 3,
		Scope: 2}
	check.Equal(t, must.Get(parseJoin(answer(join, saData, record), tid))(t), want, "%+v")
	find := findPath(ourGID, farGID, 0xFFFF, tid)
	record = append(bytes.Clone(find[saData:saData+40]), hexed(t, "0003 0007 0abcde01 00 81 ffff 0005 84 83 92 00")...)
	wantPath := Path{DGID: farGID, SGID: ourGID, DLID: 3, SLID: 7, FlowLabel: 0xABCDE, HopLimit: 1, PKey: 0xFFFF, SL: 5,
		MTU: 2048, Rate: 3}
	check.Equal(t, must.Get(parsePath(answer(find, saData, record), tid))(t), wantPath, "%+v")
	check.OK(t, parseLeave(answer(leave(want.MGID, ourGID, tid), 0, nil), tid))
	for name, c := range map[string]struct {
		b    []byte
		says string
	}{
		"denied":     {answer(join, 4, []byte{7}), "the request is denied"},
		"no records": {answer(join, 4, []byte{3}), "no records"},
		"busy":       {answer(join, 5, []byte{1}), "busy"},
		"RMPP":       {answer(join, 26, []byte{1}), "comes in parts"},
		"unicast":    {answer(join, saData+36, []byte{0, 9, 0x84}), "LID 0x0009, expected a multicast LID"},
		"no MTU":     {answer(join, saData+36, []byte{0xC0, 9, 0x80}), "MTU code 0"},
	} {
		check.Fails(t, name, check.Err(parseJoin(c.b, tid)), errMAD, c.says)
	}
	check.Fails(t, "a path to a group", check.Err(parsePath(answer(find, saData+40, []byte{0xC0, 0}), tid)), nil,
		"LID 0xc000")
}

func TestHeaders(t *testing.T) {
	d := Datagram{SLID: 7, DLID: 1, SL: 3, PKey: 0xFFFF, SrcQP: 1, DstQ: 1, QKey: GSIQKey, PSN: 5}
	check.Same(t, d.Headers(MADSize), hexed(t, "00 32 0001 0048 0007"+"64 40 ffff 00000001 00000005"+
		"80010000 00000001"), "% x")
	d.Solicited = true
	// three bytes of padding
	if got := d.Headers(57); got[LRHSize+1] != 0xF0 || binary.BigEndian.Uint16(got[4:]) != (28+60+4)/4 {
		t.Errorf("% x", got)
	}
}

func TestIPoIB(t *testing.T) {
	for name, c := range map[string]struct {
		got  GID
		want string
	}{
		"broadcast":      {BroadcastGroup(ScopeLink, 0x7FFF), "ff12401bffff0000 00000000ffffffff"},
		"all hosts":      {must.Get(MulticastGroup(ScopeLink, 0x8001, netip.MustParseAddr("224.0.0.1")))(t), "ff12401b80010000 0000000000000001"},
		"high bits":      {must.Get(MulticastGroup(ScopeLink, 0xFFFF, netip.MustParseAddr("239.129.2.3")))(t), "ff12401bffff0000 000000000f810203"},
		"solicited node": {must.Get(MulticastGroup(ScopeLink, 0xFFFF, netip.MustParseAddr("ff02::1:ff12:3456")))(t), "ff12601bffff0000 00000001ff123456"},
	} {
		check.Same(t, c.got[:], hexed(t, c.want), name+": %x")
	}
	check.Fails(t, "unicast", check.Err(MulticastGroup(ScopeLink, 0xFFFF, netip.MustParseAddr("10.0.0.1"))), errIPoIB)
	a := NewAddress(0x8000048, ourGID)
	if a.QPN() != 0x48 || a.GID() != ourGID || a[0] != 0 {
		t.Errorf("% x", a)
	}
	a[0] = 0x80 // connected mode: ignored
	check.Equal(t, a.QPN(), 0x48, "%#x")
	b := []byte{9, 9, 9, 9}
	Encapsulate(b, EtherTypeIPv6)
	check.Same(t, b, []byte{0x86, 0xDD, 0, 0}, "% x")
	check.Equal(t, MTUOf(2048), 2044, "%d")
}

// The parsers return for any input, and what they accept can be encoded again.
func FuzzParsers(f *testing.F) {
	f.Add(make([]byte, MADSize), uint64(0))
	f.Add(answer(join(BroadcastGroup(2, 1), ourGID, 1, 3), 0, nil), uint64(3))
	f.Fuzz(func(t *testing.T, b []byte, tid uint64) {
		if h, err := parseHeader(b); err == nil {
			again := make([]byte, headerSize)
			h.put(again)
			if got, err := parseHeader(append(again, make([]byte, MADSize)...)); err != nil || got != h {
				t.Errorf("%+v becomes %+v, %v", h, got, err)
			}
		}
		ParsePortInfo(b, 1, tid)
		ParseCounters(b, AttrPortCounters, tid)
		ParseCounters(b, AttrPortCountersExtended, tid)
		ParseGUIDs(b, 0, tid)
		ParsePKeys(b, 0, tid)
		if g, err := parseJoin(b, tid); err == nil && (g.MLID < 0xC000 || g.MTU < 256) {
			t.Errorf("%+v", g)
		}
		if p, err := parsePath(b, tid); err == nil && (p.DLID == 0 || p.DLID >= 0xC000) {
			t.Errorf("%+v", p)
		}
		parseLeave(b, tid)
	})
}

// The numbers of management datagrams are those of IBA vol. 1: tables 111 (methods), 115 (subnet management) and 188
// (subnet administration).
func TestNumbersOfDatagrams(t *testing.T) {
	check.Equal(t, fmt.Sprintf("%x", []Method{Get, Set, Delete, GetResp, DeleteResp}), "0102158195", "methods %s")
	check.Equal(t, fmt.Sprintf("%x", []Attribute{AttrNodeInfo, AttrGUIDInfo, AttrPortInfo, AttrPKeyTable, AttrPathRecord,
		AttrMCMemberRecord}), "[11 14 15 16 35 38]", "attributes %s")
}
