package mlx5sim

import (
	"encoding/binary"
	"testing"
)

// Only a user context itself and the driver can access the objects that it creates.
func TestUserContexts(t *testing.T) {
	x := openRig(t, Options{Profile: ConnectX5})
	caps := x.caps(capGeneral)
	if w32(caps, 0x8c)>>24&31 == 0 || w32(caps, 0xd4)&uctxRawTX == 0 {
		t.Fatalf("log_max_uctx, uctx_cap: %08x, %08x", w32(caps, 0x8c), w32(caps, 0xd4))
	}
	x.fails(dwords(64, 0, 0xa04<<16, 16, 1<<5), 16, stBadParam, "uctx_cap is")
	uid := w32(x.do(dwords(64, 0, 0xa04<<16, 16, uctxRawTX), 16), 8)
	other := w32(x.do(dwords(64, 0, 0xa04<<16), 16), 8)
	if uid == 0 || other == uid {
		t.Fatalf("user contexts %d and %d", uid, other)
	}
	x.fails(dwords(16, 0, 0x816<<16|77), 16, stBadRes, "user context 77 does not exist")
	mine := func(opcode uint32, w ...uint32) []byte {
		return dwords(272, append([]uint32{0, opcode<<16 | uid}, w...)...)
	}
	if got := x.do(dwords(16, 0, 0x100<<16|uid, 4, 1), 4112)[16:]; w32(got, 0x8c) != w32(caps, 0x8c) {
		t.Error("a user context sees other capabilities")
	}
	td := w32(x.do(dwords(16, 0, 0x816<<16|uid), 16), 8)
	uar := w32(x.do(dwords(16, 0, 0x802<<16|uid), 16), 8)
	pd := w32(x.do(dwords(16, 0, 0x800<<16|uid), 16), 8)
	mem := x.Alloc(16 << 10)
	id := w32(x.do(dwords(80, 0, 0xa08<<16|uid, 0x2c, 4, 0x30, uint32(mem.IOVA>>32), 0x34, uint32(mem.IOVA), 0x38,
		uint32(mem.IOVA>>32), 0x3c, uint32(mem.IOVA+4096),
		0x40, uint32(mem.IOVA>>32), 0x44, uint32(mem.IOVA+8192), 0x48, uint32(mem.IOVA>>32), 0x4c,
		uint32(mem.IOVA+12288)), 16), 8)

	// A completion queue of 64 entries: the ring at 0, the record at 12 KiB.
	cq := func(uid, uar uint32) []byte {
		return dwords(272, 0, 0x400<<16|uid, 0x10, 1<<25, 0x14, id, 0x1c, 6<<24|uar, 0x24, x.eqn, 0x4c, 12288, 0x54, 0,
			0x58, id, 0x5c, 1<<31)
	}
	x.fails(cq(uid, uar), 16, stBadRes, "EQ 0x10 belongs to user context 0")
	ring := x.Alloc(4096)
	x.eqn = w32(x.do(dwords(280, 0, 0x301<<16|sharedUID, 0x1c, 5<<24|x.uar, 0x110, uint32(ring.IOVA>>32), 0x114,
		uint32(ring.IOVA)), 16), 8)
	x.fails(cq(other, uar), 16, stBadRes, "belongs to user context")
	others := w32(x.do(dwords(16, 0, 0x802<<16|other), 16), 8)
	x.fails(cq(uid, others), 16, stBadRes, "belongs to user context")
	x.do(dwords(16, 0, 0x803<<16|other, 8, others), 16)
	x.do(dwords(16, 0, 0x401<<16|uid, 8, w32(x.do(cq(uid, x.uar), 16), 8)), 16) // the driver's own page is for all
	cqn := w32(x.do(cq(uid, uar), 16), 8)
	x.fails(dwords(16, 0, 0x401<<16|other, 8, cqn), 16, stBadRes, "belongs to user context")

	tis := w32(x.do(dwords(192, 0, 0x912<<16|uid, 0x20+0x24, td), 16), 8)
	sq := func(uid uint32) []byte {
		return dwords(272, 0, 0x904<<16|uid, 0x28, cqn, 0x40, 1<<16, 0x4c, tis, 0x50, 1<<28, 0x58, pd, 0x5c, uar, 0x64,
			12288+64,
			0x70, 6<<16|4, 0x74, 3<<30, 0x78, id, 0x7c, id, 0x84, 4096)
	}
	x.fails(sq(other), 16, stBadParam, "without RAW_TX")
	x.do(sq(uid), 16)
	rqn := w32(x.do(mine(0x908, 0x28, cqn, 0x50, 1<<28, 0x58, pd, 0x64, 12288+128, 0x70, 4<<16|4, 0x74, 3<<30, 0x78, id,
		0x7c, id, 0x84, 8192), 16), 8)
	x.fails(mine(0x900, 0x3c, x.rqn, 0x44, td), 16, stBadRes, "belongs to user context 0")
	tirn := w32(x.do(mine(0x900, 0x3c, rqn, 0x44, td), 16), 8)
	x.do(dwords(64, 0, 0x938<<16, 0x14, x.table), 16)
	// by the driver
	x.do(dwords(0x348, 0, 0x936<<16, 0x14, x.table, 0x44, x.group, 0x4c, 4, 0x50, 1, 0x340, 2<<24|tirn), 16)
	if contexts, objects := x.m.UserObjects(); contexts != 2 || objects != 9 {
		t.Errorf("%d contexts with %d objects, want 2 with 9", contexts, objects)
	}
	table := w32(x.do(mine(0x930, 0x18, 1<<16|4), 16), 8) // at level 1, where the driver can send frames
	x.fails(dwords(1024, 0, 0x933<<16|other, 0x14, table, 0x24, 15), 16, stBadRes, "belongs to user context")
	x.fails(mine(0x938, 0x14, x.table), 16, stBadRes, "belongs to user context 0")
	x.fails(mine(0x930, 0x18, 1<<24|4, 0x1c, w32(x.do(dwords(64, 0, 0x930<<16, 0x18, 2<<16|4), 16), 8)), 16, stBadRes,
		"or belongs to another")
	group := w32(x.do(append(mine(0x933, 0x14, table, 0x24, 15), make([]byte, 1024-272)...), 16), 8)
	counter := w32(x.do(mine(0x939)[:16], 16), 8)
	entry := func(id, kind uint32) []byte {
		return dwords(0x350, 0, 0x936<<16|uid, 0x14, table, 0x44, group, 0x4c, 4|8, 0x50, 1, 0x54, 1, 0x340,
			kind<<24|id, 0x348, counter)
	}
	x.fails(entry(x.tirn, 2), 16, stBadRes, "belongs to user context 0")
	x.do(entry(tirn, 2), 16)
	x.do(dwords(64, 0, 0x938<<16, 0x14, x.table), 16)
	// by the driver
	x.do(dwords(0x348, 0, 0x936<<16, 0x14, x.table, 0x44, x.group, 0x4c, 4, 0x50, 1, 0x340, 1<<24|table), 16)
	x.Arrive(frameOf(64))
	if out := x.do(dwords(32, 0, 0x93b<<16|uid, 0x1c, counter), 32); w32(out, 0x14) != 1 {
		t.Errorf("the user context's table was passed by %d frames", w32(out, 0x14))
	}
	x.fails(dwords(16, 0, 0xa06<<16, 8, uid), 16, stBadResState, "has 11 objects")
	x.do(dwords(16, 0, 0xa06<<16, 8, other), 16)
	x.fails(dwords(16, 0, 0xa06<<16, 8, other), 16, stBadRes, "does not exist")

	x = openRig(t, Options{Profile: ConnectX5, NoUCTX: true})
	x.fails(dwords(64, 0, 0xa04<<16), 16, stBadOp, "log_max_uctx is 0")
}

// The type of ICMP and ICMPv6 can be matched if the parser is configured for it.
func TestMatchICMP(t *testing.T) {
	x := openRig(t, Options{Profile: ConnectX5})
	group := func(at uint32) []byte {
		return dwords(1024, 0, 0x933<<16, 0x14, at, 0x1c, 4, 0x24, 7, 0x3c, enableOuter|enableMisc3, 0x40+0x10,
			0xff<<24, 0x40+0x120, 0xff<<24)
	}
	second := func(x *rig) uint32 { return w32(x.do(dwords(64, 0, 0x930<<16, 0x18, 1<<16|4), 16), 8) }
	x.fails(group(second(x)), 16, stBadParam, "without flex_parser_protocols")

	x = openRig(t, Options{Profile: ConnectX5, ICMP: true})
	x.post(8)
	at := second(x)
	x.do(dwords(64, 0, 0x938<<16, 0x14, x.table), 16)
	// the default for frames that match nothing
	x.do(dwords(64, 0, 0x93c<<16, 12, 1, 0x14, x.table, 0x18, 1<<24, 0x1c, at), 16)
	g := w32(x.do(group(at), 16), 8)
	x.do(dwords(0x348, 0, 0x936<<16, 0x14, at, 0x20, 5, 0x44, g, 0x4c, 4, 0x50, 1, 0x80+0x10, 1<<24, 0x80+0x120, 8<<24,
		0x340, 2<<24|x.tirn), 16)
	for kind, want := range map[byte]bool{8: true, 0: false, 3: false} {
		f := frameOf(64)
		copy(f[12:], []byte{8, 0, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, 1})
		binary.BigEndian.PutUint16(f[34:], uint16(kind)<<8)
		x.Arrive(f)
		if e := x.cqe(); (e != nil) != want {
			t.Errorf("ICMP type %d arrived: %v, want %v", kind, e != nil, want)
		}
	}
}
