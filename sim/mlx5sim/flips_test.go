package mlx5sim

import (
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

// TestEachBitOfCommands executes every command with the numbers of existing objects, and with each bit of its input
// inverted. The file has what the device answers and what it reports.
func TestEachBitOfCommands(t *testing.T) {
	needs.Long(t)
	for name, p := range map[string]Profile{"connectx5": ConnectX5} {
		var b strings.Builder
		for _, op := range slices.Sorted(maps.Keys(commandTable())) {
			x := openRoCE(t, p)
			x.register = regPTYS
			k := x.m.ops[op]
			f := simtest.Flips{Rig: x.Rig, First: 4, Build: func() []byte { return x.valid(op, k) }}
			f.Run = func(in []byte) (string, bool) {
				out := x.m.command(in, k.out.Size)
				x.Port.Settle(3)
				if out[0] == 0 {
					x.undo(op, in, out)
				}
				return fmt.Sprint(out[0]), out[0] == 0
			}
			fmt.Fprintf(&b, "%s\n%v", x.m.opName(op), &f)
			if out := x.m.command(x.valid(op, k), k.out.Size); out[0] == 0 {
				fmt.Fprintf(&b, "answers %s\n", strings.TrimRight(hex.EncodeToString(out), "0"))
			}
			x.Port.ForgetViolations()
		}
		for _, id := range slices.Sorted(maps.Keys(registers)) {
			for _, how := range []uint32{accessRead, accessWrite} {
				x := openRig(t, Options{Profile: p})
				x.register, x.access = id, how
				f := simtest.Flips{Rig: x.Rig, First: 4, Build: func() []byte { return x.valid(0x805, nil) }}
				f.Run = func(in []byte) (string, bool) {
					out := x.m.command(in, len(in))
					return fmt.Sprint(out[0], " ", strings.TrimRight(hex.EncodeToString(out), "0")), false
				}
				fmt.Fprintf(&b, "%s, access %d\n%v", registers[id].name, how, &f)
			}
		}
		golden.Equal(t, "testdata/"+name+".txt", b.String())
	}
}

// valid returns a command that succeeds: one that creates an object, or one on objects that exist.
func (x *rig) valid(op uint16, k *command) []byte {
	x.Helper()
	mem := x.page()
	rec, hi, lo := mem+2048, uint32(mem>>32), uint32(mem)
	last := [4]uint32{0x110, hi, 0x114, lo}
	id := func(create uint16) uint32 { // of a new object; 0 if there are too many
		return w32(x.m.command(x.valid(create, x.m.ops[create]), x.m.ops[create].out.Size), 8)
	}
	qp := func(st uint32) uint32 { // a QP that is ready for the command
		n := id(0x500)
		for _, step := range []uint16{0x502, 0x503, 0x504, 0x507} {
			if steps[op] < step {
				break
			}
			x.m.command(x.step(step, n), 16)
		}
		return n
	}
	switch op {
	case 0x301:
		return append(x.createEQ()[:0x58], append(make([]byte, 8), x.createEQ()[0x60:]...)...)
	case 0x400:
		return x.createCQ()
	case 0x200:
		return x.createMkey()
	case 0x805:
		return dwords(16+registers[x.register].Size, 0, 0x805<<16, 4, x.access, 8, x.register, 16, 1<<16)
	case 0x904:
		return x.createSQ()
	case 0x908:
		return x.createRQ()
	case 0x109:
		return setCaps(x.m.caps.general().B)
	case 0x107:
		return dwords(16, 0, 0x107<<16, 4, 3)
	case 0x10b:
		return dwords(16, 0, 0x10b<<16, 8, 1)
	case 0x205:
		first := w32(x.m.caps.cur[capDeviceMem], 0x0c)
		return dwords(32, 0, 0x205<<16, 0x14, first, 0x18, 1<<16, 0x1c, 64)
	case 0x500:
		return dwords(0x118, append([]uint32{0, 0x500 << 16, 0x18, serviceRC<<16 | 3<<11, 0x1c, x.pd, 0x20,
			4<<19 | 2<<16 | 4<<11, 0x24, x.uar, 0x94, x.cqn, 0xb4, x.cqn, 0xb8, uint32(rec >> 32), 0xbc, uint32(rec)},
			last[:]...)...)
	case 0x502, 0x503, 0x504, 0x505, 0x506, 0x507, 0x50a, 0x50c, 0x50e:
		return x.step(op, qp(serviceRC))
	case 0x705:
		return dwords(0x118, append([]uint32{0, 0x705 << 16, 0x10, 3 << 24, 0x14, 1<<24 | id(0x80e), 0x18, x.cqn, 0x28,
			x.pd, 0x38, uint32(rec >> 32), 0x3c, uint32(rec)}, last[:]...)...)
	case 0x90c:
		return dwords(0x118, append([]uint32{0, 0x90c << 16, 0x20, 1 << 20, 0x58, x.pd, 0x60, uint32(rec >> 32), 0x64,
			uint32(rec), 0x70, 5<<16 | 3}, last[:]...)...)
	case 0x900:
		return dwords(0x110, 0, 0x900<<16, 0x3c, x.rqn, 0x44, x.td)
	case 0x905:
		return dwords(0x110, 0, 0x905<<16, 8, id(0x904), 0x20, 1<<20)
	case 0x909:
		return dwords(0x110, 0, 0x909<<16, 8, id(0x908), 0x20, 1<<20)
	case 0x916:
		return dwords(0x118, 0, 0x916<<16, 0x34, 2, 0x38, 2, 0x110, x.rqn, 0x114, x.rqn)
	case 0x917:
		return dwords(0x118, 0, 0x917<<16, 8, id(0x916), 0x14, 1, 0x38, 1, 0x110, x.rqn)
	case 0x933:
		return dwords(1024, 0, 0x933<<16, 0x14, id(0x930), 0x24, 15)
	case 0x936:
		table := id(0x930)
		group := w32(x.m.command(dwords(1024, 0, 0x933<<16, 0x14, table, 0x24, 15), 16), 8)
		return dwords(0x348, 0, 0x936<<16, 0x14, table, 0x44, group, 0x4c, 4, 0x50, 1, 0x340, 2<<24|x.tirn)
	case 0x930:
		return dwords(64, 0, 0x930<<16, 0x18, 1<<16|4)
	case 0x93c:
		return dwords(64, 0, 0x93c<<16, 12, 1, 0x14, x.table, 0x18, 1<<24, 0x1c, id(0x930))
	}
	in := as(make([]byte, k.in.Size), k.in)
	in.Set("opcode", uint64(op))
	for name, v := range map[string]uint32{"pd": x.pd, "uar": x.uar, "uar_page": x.uar, "eqn": x.eqn, "c_eqn": x.eqn,
		"cqn": x.cqn, "sqn": x.sqn, "rqn": x.rqn, "tirn": x.tirn, "tisn": x.tisn, "transport_domain": x.td,
		"table_id": x.table, "group_id": x.group, "mkey_index": x.mkey >> 8} {
		if k.in.Has(name) {
			in.Set(name, uint64(v))
		}
	}
	// one for each destruction, which then succeeds
	for name, create := range map[string]uint16{"pd": 0x800, "uar": 0x802, "eqn": 0x301, "cqn": 0x400, "sqn": 0x904,
		"rqn": 0x908, "tirn": 0x900, "tisn": 0x912, "transport_domain": 0x816, "qpn": 0x500, "xrc_srqn": 0x705,
		"rmpn": 0x90c, "rqtn": 0x916, "xrcd": 0x80e, "counter_set_id": 0x771, "flow_counter_id": 0x939, "uid": 0xa04,
		"mkey_index": 0x200} {
		if k.in.Has(name) && k.in.Size <= 32 && !(name == "uid" && op != 0xa06) {
			in.Set(name, uint64(id(create)))
		}
	}
	return in.B
}

// undo destroys what a command created or worked on.
func (x *rig) undo(op uint16, in, out []byte) {
	destroy := func(by uint16, id uint32) { x.m.command(dwords(16, 0, uint32(by)<<16, 8, id&0xffffff), 16) }
	switch by := destroys[op]; {
	case by != 0:
		destroy(by, w32(out, 8))
		if op == 0x705 {
			destroy(0x80f, w32(in, 0x14))
		}
	case op == 0x905:
		destroy(0x906, w32(in, 8))
	case op == 0x909:
		destroy(0x90a, w32(in, 8))
	case op == 0x93c, op == 0x936:
		x.m.command(dwords(64, 0, 0x93c<<16, 12, 1, 0x14, x.table), 16)
	case op >= 0x502 && op <= 0x50e:
		destroy(0x50a, w32(in, 8))
		destroy(0x501, w32(in, 8))
	}
}

// destroys are the commands that create an object, and those that destroy it.
var destroys = map[uint16]uint16{0x200: 0x202, 0x301: 0x302, 0x400: 0x401, 0x500: 0x501, 0x705: 0x706, 0x771: 0x772,
	0x800: 0x801, 0x802: 0x803, 0x80e: 0x80f, 0x816: 0x817, 0x900: 0x902, 0x904: 0x906, 0x908: 0x90a, 0x90c: 0x90e,
	0x912: 0x914, 0x916: 0x918, 0x939: 0x93a, 0xa04: 0xa06}

// page returns the address of the rig's page of memory for rings.
func (x *rig) page() uint64 { return x.rec.IOVA }

// steps are the commands that change a QP's state, and the last one before each.
var steps = map[uint16]uint16{0x502: 0, 0x503: 0x502, 0x504: 0x503, 0x505: 0x504, 0x506: 0x504, 0x507: 0x504,
	0x50a: 0x507, 0x50c: 0x504, 0x50e: 0x502}

// step returns a command that changes a QP's state.
func (x *rig) step(op uint16, qpn uint32) []byte {
	w := []uint32{0, uint32(op) << 16, 8, qpn}
	switch op {
	case 0x507, 0x50a:
		return dwords(16, w...)
	case 0x502:
		w = append(w, 0x18, 3<<11, 0x54, 1<<16, 0xa8, 1<<15|1<<14, 0xc0, testKey)
	case 0x503:
		w = append(w, 0x20, 3<<29|30<<24, 0x2c, 5, 0x38, 64, 0x48, 0xffff, 0x4c, 0x0a090002, 0x50, 49152, 0x54,
			1<<16|0x0200, 0x58, 1, 0xac, 12<<24|7)
	case 0x504:
		w = append(w, 0x38, 8<<27, 0x88, 2<<16|3<<13, 0x90, 9)
	}
	return dwords(272, w...)
}
