package mlx5sim

import (
	"bytes"
	"testing"
)

func (x *rig) arrives() []byte {
	x.Arrive(frameOf(64))
	return x.cqe()
}

func TestModifySteering(t *testing.T) {
	x := openRig(t, Options{Profile: ConnectX5})
	caps := x.do(dwords(16, 0, 0x100<<16, 4, capFlowTable<<1|1), 4112)[16:]
	if v := w32(caps, 0x40); v>>25&0xb != 0xb { // flow_modify_en, identified_miss_table_mode, flow_table_modify
		t.Errorf("flow table capabilities %08x", v)
	}
	x.post(8)
	second := w32(x.do(dwords(64, 0, 0x930<<16, 0x18, 1<<16|4), 16), 8)
	group := w32(x.do(dwords(1024, 0, 0x933<<16, 0x14, second, 0x24, 15), 16), 8)
	set := func(mod, mask, tag, action, n uint32) []byte {
		return dwords(0x348, 0, 0x936<<16, 4, mod, 0x14, second, 0x18, mask, 0x44, group, 0x48, tag, 0x4c, action, 0x50, n, 0x340, 2<<24|x.tirn)
	}
	x.fails(set(1, modifyTag, 5, 4, 1), 16, stBadResState, "is not set to be changed")
	x.do(set(0, 0, 5, 4, 1), 16)
	x.do(dwords(64, 0, 0x938<<16, 0x14, x.table), 16)
	if x.arrives() != nil {
		t.Error("a frame arrived that no entry takes")
	}
	miss := func(action, id uint32) []byte {
		return dwords(64, 0, 0x93c<<16, 12, 1, 0x14, x.table, 0x18, action<<24, 0x1c, id)
	}
	x.do(miss(1, second), 16)
	if e := x.arrives(); e == nil || w32(e, 0x38) != 5 {
		t.Errorf("with the second table behind the first: completion %x, expected flow tag 5", e)
	}
	x.fails(dwords(64, 0, 0x931<<16, 0x14, second), 16, stBadResState, "is in use by 1 others")
	x.do(set(1, modifyTag, 9, 0, 0), 16)
	if e := x.arrives(); e == nil || w32(e, 0x38) != 9 {
		t.Errorf("with the entry's tag changed: completion %x, expected flow tag 9", e)
	}
	x.do(set(1, modifyAction|modifyDestinations, 0, actionDrop, 0), 16)
	if x.arrives() != nil {
		t.Error("a frame arrived that the changed entry drops")
	}
	x.do(set(1, modifyAction|modifyDestinations, 0, actionForward, 1), 16)
	x.fails(set(1, 8, 0, 4, 1), 16, stBadParam, "modify_enable_mask is 0x8")
	if x.arrives() == nil {
		t.Error("the entry does not forward again")
	}
	x.do(miss(0, 0), 16)
	if x.arrives() != nil {
		t.Error("a frame arrived with the second table off")
	}
	x.do(dwords(64, 0, 0x938<<16, 0x14, second), 16)
	x.do(dwords(64, 0, 0x934<<16, 0x14, second, 0x18, group), 16)
	x.do(dwords(64, 0, 0x931<<16, 0x14, second), 16)
	x.Clean()

	x = newRig(t, Options{}) // the recorded card supports none of this
	x.open()
	x.fails(dwords(64, 0, 0x93c<<16, 12, 1, 0x14, x.table), 16, stBadOp, "flow_table_modify")
	x.fails(dwords(0x348, 0, 0x936<<16, 4, 1, 0x14, x.table, 0x18, 2, 0x44, x.group, 0x4c, 4, 0x50, 1, 0x340, 2<<24|x.tirn), 16, stBadParam, "flow_modify_en")
}

func TestCongestionControl(t *testing.T) {
	x := openRig(t, Options{})
	caps := x.do(dwords(16, 0, 0x100<<16, 4, 1), 4112)[16:]
	if v := w32(caps, 0x2c); v>>29&3 != 3 {
		t.Errorf("cc_query_allowed and cc_modify_allowed: %08x", v)
	}
	x.do(dwords(16, 0, 0x823<<16, 8, 3<<4|congestionRP, 12, 1<<31), 16)
	for _, c := range []struct{ key, enable uint32 }{{3<<4 | congestionRP, 1 << 31}, {3<<4 | congestionNP, 0}, {congestionRP, 0}} {
		if out := x.do(dwords(16, 0, 0x822<<16, 8, c.key), 16); w32(out, 12) != c.enable {
			t.Errorf("QUERY_CONG_STATUS %x: %08x, expected %08x", c.key, w32(out, 12), c.enable)
		}
	}
	in := dwords(288, 0, 0x825<<16, 8, congestionNP, 12, 4, 0x34, 0x1234)
	x.do(in, 16)
	if out := x.do(dwords(16, 0, 0x824<<16, 8, congestionNP), 272); !bytes.Equal(out[16:], in[32:]) {
		t.Errorf("QUERY_CONG_PARAMS: %x", out)
	}
	if out := x.do(dwords(16, 0, 0x824<<16, 8, congestionRP), 272); !bytes.Equal(out[16:], make([]byte, 256)) {
		t.Errorf("QUERY_CONG_PARAMS of another protocol: %x", out)
	}
	x.do(dwords(16, 0, 0x826<<16), 272)
	x.fails(dwords(16, 0, 0x822<<16, 8, 3), 16, stBadParam, "cong_protocol is 3")
}
