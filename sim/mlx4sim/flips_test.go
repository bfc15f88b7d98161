package mlx4sim

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/golden"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/sim/simtest"
)

// TestEachBitOfCommands executes every command, and then with each bit of its modifiers and its mailbox inverted. The
// file has what the device answers and what it reports.
func TestEachBitOfCommands(t *testing.T) {
	needs.Long(t)
	var b strings.Builder
	for _, op := range slices.Sorted(maps.Keys(commandTable())) {
		x := newRig(t, Options{})
		x.flags |= hcaDeviceManaged
		x.open()
		k := x.m.ops[op]
		f := simtest.Flips{Rig: x.Rig, Build: func() []byte { return x.valid(op, k) }}
		f.Run = func(in []byte) (string, bool) {
			s, imm := x.issued(op, k, in)
			if s == 0 {
				x.undo(op, in, imm)
			}
			return fmt.Sprint(s), s == 0
		}
		fmt.Fprintf(&b, "%s\n%v", x.m.opName(op), &f)
		if s, imm := x.issued(op, k, x.valid(op, k)); s == 0 {
			fmt.Fprintf(&b, "answers %x %s\n", imm, strings.TrimRight(hex.EncodeToString(x.out.Bytes), "0"))
		}
		x.Port.ForgetViolations()
	}
	golden.Equal(t, "testdata/commands.txt", b.String())
}

// issued executes a command whose input is given as its op modifier, its modifier and its mailbox or parameter.
func (x *rig) issued(op uint16, k *command, in []byte) (status uint32, imm uint64) {
	x.Helper()
	var param any = in[8:]
	switch {
	case k.in == nil && !k.imm:
		param = nil
	case k.imm:
		param = binary.BigEndian.Uint64(in[8:])
	}
	clear(x.out.Bytes)
	return x.exec(uint32(op), w32(in, 0)&15, w32(in, 4), param, k.out != nil)
}

// valid returns a command that succeeds.
func (x *rig) valid(op uint16, k *command) []byte {
	call := func(opMod, mod uint32, mailbox []byte) []byte {
		return append(dwords(8, 0, opMod, 4, mod), append(mailbox, make([]byte, max(0, 64-len(mailbox)))...)...)
	}
	do := func(op uint16, opMod, mod uint32, mailbox []byte) {
		x.issued(op, x.m.ops[op], call(opMod, mod, mailbox))
	}
	const cq, eq, mpt, qp, srq = testCQ + 1, testEQ + 1, testMPT + 1, testQP + 1, 65
	ring := dwords(64, 0, 4<<24|srq, 4, 2<<24, 0x14, x.mtt(90, x.sq, 1), 0x18, testPD, 0x28,
		uint32((x.rec.IOVA+128)>>32), 0x2c, uint32(x.rec.IOVA+128))
	context := with(x.qpContext(), 0x18, qp)
	up := func(states ...uint16) {
		for _, s := range states {
			do(s, 0, qp, context)
		}
	}
	pages := mappings(0x20000000, x.fb, 2)
	switch op {
	case 0x016:
		return call(0, cq, x.cqContext())
	case 0x017, 0x018, 0x02c:
		do(0x016, 0, cq, x.cqContext())
		return call(0, cq, x.cqContext())
	case 0x012:
		return call(0, eq, dwords(64, 4, 1<<0x13))
	case 0x013:
		return call(0, eq, x.eqContext())
	case 0x014, 0x015:
		do(0x013, 0, eq, x.eqContext())
		return call(0, eq, nil)
	case 0x00d:
		return call(0, mpt, with(x.mptContext(), 8, mpt))
	case 0x00f:
		do(0x00d, 0, mpt, with(x.mptContext(), 8, mpt))
		return call(0, mpt, nil)
	case 0x011:
		return call(0, 1, dwords(64, 4, 8*95, 0x10, uint32(x.fb.IOVA>>32), 0x14, uint32(x.fb.IOVA)|1))
	case 0x019:
		return call(0, qp, context)
	case 0x01a:
		up(0x19)
		return call(0, qp, context)
	case 0x01b:
		up(0x19, 0x1a)
		return call(0, qp, context)
	case 0x01c, 0x01d, 0x01e, 0x01f, 0x020, 0x021, 0x022, 0x02d, 0x02e, 0x061:
		up(0x19, 0x1a, 0x1b)
		if op == 0x021 {
			return call(3, qp, nil)
		}
		return call(0, qp, context)
	case 0x035:
		return call(0, srq, ring)
	case 0x036:
		do(0x035, 0, srq, ring)
		return call(0, srq, nil)
	case 0x00c:
		return call(1, 1, dwords(64, 0, 7, 4, 1522))
	case 0x009, 0x00a, 0x043, 0x04d, 0x048, 0x047:
		return call(0, 1, nil)
	case 0x049:
		return call(0, 1, nil)
	case 0x065, 0x066:
		mac := dwords(48, 0, 12<<24|0xe001, 8, 0x0200, 12, 5, 0x10, 0xffff, 0x14, 0xffffffff)
		rule := append(dwords(16, 0, 0x5000<<16, 4, 1, 8, testQP), mac...)
		if op == 0x065 {
			return call(0, 16, rule)
		}
		_, imm := x.issued(0x065, x.m.ops[0x065], call(0, 16, rule))
		return call(0, 0, dwords(8, 0, uint32(imm>>32), 4, uint32(imm)))
	case 0xffa, 0xffc, 0xfff:
		return call(0, 2, pages)
	case 0xff9:
		do(0xffa, 0, 2, pages)
		return call(0, 2, dwords(8, 4, 0x20000000))
	case 0x024:
		return call(1, 1, dwords(256, 0, 0x01010101, 0x10, 0x00110000))
	case 0x03b:
		return call(1, 0, dwords(64, 0, 4<<24, 4, 0x5003<<16|1<<8, 0x10, 3<<27|4))
	}
	return call(0, 0, nil)
}

// undo frees what a command took.
func (x *rig) undo(op uint16, in []byte, imm uint64) {
	mod := w32(in, 4)
	switch {
	case op == 0x016 || op == 0x02c || op == 0x018:
		x.exec(0x017, 0, mod, nil, true)
	case op == 0x013 || op == 0x015:
		x.exec(0x014, 0, mod, nil, true)
	case op == 0x00d:
		x.exec(0x00f, 0, mod, nil, true)
	case op == 0x035:
		x.exec(0x036, 0, mod, nil, true)
	case op >= 0x019 && op <= 0x02e && op != 0x021 && op != 0x024 && op < 0x023 || op == 0x02d || op == 0x02e || op == 0x061:
		x.exec(0x021, 3, mod, nil, false)
	case op == 0x065:
		x.exec(0x066, 0, 0, imm, false)
	case op == 0xffa:
		x.exec(0xff9, 0, 2, uint64(0x20000000), false)
	}
}
