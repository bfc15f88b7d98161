package mlx5sim

import (
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
)

func TestModifySteering(t *testing.T) {
	x := openRig(t, Options{Profile: ConnectX5})
	arrives := func(what string, tag int) { // by an entry with a flow tag; -1: it does not
		t.Helper()
		x.Arrive(frameOf(64))
		got := -1
		if e := x.cqe(); e != nil {
			got = int(w32(e, 0x38))
		}
		check.Equal(t, got, tag, what+": a frame arrives by flow tag %d")
	}
	// flow_modify_en, identified_miss_table_mode, flow_table_modify
	if v := w32(x.caps(capFlowTable), 0x40); v>>25&0xb != 0xb {
		t.Errorf("flow table capabilities %08x", v)
	}
	x.post(8)
	second := w32(x.do(dwords(64, 0, 0x930<<16, 0x18, 1<<16|4), 16), 8)
	group := w32(x.do(dwords(1024, 0, 0x933<<16, 0x14, second, 0x24, 15), 16), 8)
	set := func(mod, mask, tag, action, n uint32) []byte {
		return dwords(0x348, 0, 0x936<<16, 4, mod, 0x14, second, 0x18, mask, 0x44, group, 0x48, tag, 0x4c, action, 0x50,
			n, 0x340, 2<<24|x.tirn)
	}
	x.fails(set(1, modifyTag, 5, 4, 1), 16, stBadResState, "is not set to be changed")
	x.do(set(0, 0, 5, 4, 1), 16)
	x.do(dwords(64, 0, 0x938<<16, 0x14, x.table), 16)
	arrives("no entry takes it", -1)
	miss := func(action, id uint32) []byte {
		return dwords(64, 0, 0x93c<<16, 12, 1, 0x14, x.table, 0x18, action<<24, 0x1c, id)
	}
	x.do(miss(1, second), 16)
	arrives("the second table is behind the first", 5)
	x.fails(dwords(64, 0, 0x931<<16, 0x14, second), 16, stBadResState, "is in use by 1 others")
	x.do(set(1, modifyTag, 9, 0, 0), 16)
	arrives("the entry's tag is changed", 9)
	x.do(set(1, modifyAction|modifyDestinations, 0, actionDrop, 0), 16)
	arrives("the changed entry drops it", -1)
	x.do(set(1, modifyAction|modifyDestinations, 0, actionForward, 1), 16)
	x.fails(set(1, 8, 0, 4, 1), 16, stBadParam, "modify_enable_mask is 0x8")
	arrives("the entry forwards again", 9)
	x.do(miss(0, 0), 16)
	arrives("the second table is off", -1)
	x.do(dwords(64, 0, 0x938<<16, 0x14, second), 16)
	x.do(dwords(64, 0, 0x934<<16, 0x14, second, 0x18, group), 16)
	x.do(dwords(64, 0, 0x931<<16, 0x14, second), 16)

	x = openRig(t, Options{}) // the recorded card supports none of this
	x.fails(dwords(64, 0, 0x93c<<16, 12, 1, 0x14, x.table), 16, stBadOp, "flow_table_modify")
	x.fails(dwords(0x348, 0, 0x936<<16, 4, 1, 0x14, x.table, 0x18, 2, 0x44, x.group, 0x4c, 4, 0x50, 1, 0x340,
		2<<24|x.tirn), 16, stBadParam, "flow_modify_en")
}

func TestCongestionControl(t *testing.T) {
	x := openRig(t, Options{})
	if v := w32(x.caps(capGeneral), 0x2c); v>>29&3 != 3 {
		t.Errorf("cc_query_allowed and cc_modify_allowed: %08x", v)
	}
	x.do(dwords(16, 0, 0x823<<16, 8, 3<<4|congestionRP, 12, 1<<31), 16)
	x.ExpectWarning("MODIFY_CONG_STATUS (823h): accepted without effect: a card marks")
	for _, c := range []struct{ key, enable uint32 }{{3<<4 | congestionRP, 1 << 31}, {3<<4 | congestionNP, 0},
		{congestionRP, 0}} {
		if out := x.do(dwords(16, 0, 0x822<<16, 8, c.key), 16); w32(out, 12) != c.enable {
			t.Errorf("QUERY_CONG_STATUS %x: %08x, expected %08x", c.key, w32(out, 12), c.enable)
		}
	}
	in := dwords(288, 0, 0x825<<16, 8, congestionNP, 12, 4, 0x34, 0x1234)
	x.do(in, 16)
	x.ExpectWarning("MODIFY_CONG_PARAMS (825h): accepted without effect")
	params := func(protocol uint32) []byte { return x.do(dwords(16, 0, 0x824<<16, 8, protocol), 272)[16:] }
	check.Same(t, params(congestionNP), in[32:], "QUERY_CONG_PARAMS: %x")
	check.Same(t, params(congestionRP), make([]byte, 256), "QUERY_CONG_PARAMS of another protocol: %x")
	x.do(dwords(16, 0, 0x826<<16), 272)
	x.fails(dwords(16, 0, 0x822<<16, 8, 3), 16, stBadParam, "cong_protocol is 3")
}
