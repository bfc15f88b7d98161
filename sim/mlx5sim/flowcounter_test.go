package mlx5sim

import (
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
)

func TestFlowCounters(t *testing.T) {
	x := openRig(t, Options{Profile: ConnectX5})
	if v := w32(x.caps(capFlowTable), 0x40); v>>29&1 != 1 {
		t.Errorf("flow_counter is 0: %08x", v)
	}
	alloc := func(uid uint32) uint32 { return w32(x.do(dwords(16, 0, 0x939<<16|uid), 16), 8) }
	counted := func(id, clear uint32, packets, octets uint32) {
		t.Helper()
		out := x.do(dwords(32, 0, 0x93b<<16, 0x18, clear<<31|1, 0x1c, id), 32)
		check.Equal(t, w32(out, 0x14), packets, "packets: %d")
		check.Equal(t, w32(out, 0x1c), octets, "octets: %d")
	}
	one, two := alloc(0), alloc(0)
	counted(one, 0, 0, 0)
	x.post(8)
	table := w32(x.do(dwords(64, 0, 0x930<<16, 0x18, 1<<16|4), 16), 8) // level 1
	group := w32(x.do(dwords(1024, 0, 0x933<<16, 0x14, table, 0x24, 15), 16), 8)
	set := func(action, destinations, counters, first, second uint32) []byte {
		return dwords(0x358, 0, 0x936<<16, 0x14, table, 0x44, group, 0x4c, action, 0x50, destinations, 0x54, counters,
			0x340, 2<<24|x.tirn, 0x348, first, 0x350, second)
	}
	x.fails(set(4, 1, 1, one, 0), 16, stBadParam, "action 0x4 with 1 flow counters")
	x.fails(set(12, 1, 0, 0, 0), 16, stBadParam, "action 0xc with 0 flow counters")
	x.fails(set(12, 1, 1, 0x999, 0), 16, stBadRes, "flow counter 0x999 does not exist")
	x.fails(set(12, 1, 3, one, two), 16, stInLen, "3 flow counters in 16 bytes")
	x.do(set(12, 1, 2, one, two), 16)
	x.fails(dwords(16, 0, 0x93a<<16, 8, one), 16, stBadResState, "in use by 1 objects")
	x.do(dwords(64, 0, 0x938<<16, 0x14, x.table), 16)
	x.do(dwords(64, 0, 0x93c<<16, 12, 1, 0x14, x.table, 0x18, 1<<24, 0x1c, table), 16)
	x.Arrive(frameOf(64))
	x.Arrive(frameOf(100))
	counted(one, 1, 2, 164)
	counted(one, 0, 0, 0)
	counted(two, 0, 2, 164)
	x.do(dwords(64, 0, 0x938<<16, 0x14, table), 16)
	x.do(dwords(16, 0, 0x93a<<16, 8, one), 16)
	x.do(dwords(16, 0, 0x93a<<16, 8, two), 16)
	x.fails(dwords(32, 0, 0x93b<<16, 0x1c, one), 32, stBadRes, "does not exist")

	// A user context has its own.
	uid := w32(x.do(dwords(64, 0, 0xa04<<16, 16, uctxRawTX), 16), 8)
	own := alloc(uid)
	x.fails(dwords(16, 0, 0xa06<<16, 8, uid), 16, stBadResState, "has 1 objects")
	x.do(dwords(16, 0, 0x93a<<16|uid, 8, own), 16)
	x.do(dwords(16, 0, 0xa06<<16, 8, uid), 16)

	x = openRig(t, Options{}) // the recorded card has none
	if v := x.caps(capGeneral); w32(v, 0x60)>>8&0xff != 0 || w32(v, 0x68)>>16&0xff != 0 {
		t.Errorf("flow_counter_bulk_alloc, log_max_flow_counter_bulk: %08x, %08x", w32(v, 0x60), w32(v, 0x68))
	}
	x.fails(dwords(16, 0, 0x939<<16), 16, stBadOp, "flow_counter is not there")
}

// Counters in bulk have consecutive ids, and are read together.
func TestFlowCountersInBulk(t *testing.T) {
	x := openRig(t, Options{Profile: ConnectX5})
	caps := x.caps(capGeneral)
	check.Equal(t, w32(caps, 0x60)>>8&0xff, bulkAlloc, "flow_counter_bulk_alloc is %d")
	check.Equal(t, w32(caps, 0x68)>>16&0xff, logBulkQuery, "log_max_flow_counter_bulk is %d")
	alloc := func(bulk uint32) uint32 { return w32(x.do(dwords(16, 0, 0x939<<16, 12, bulk), 16), 8) }
	one, bulk := alloc(0), alloc(3)
	after := alloc(0)
	if bulk%4 != 0 || bulk <= one || after < bulk+384 {
		t.Errorf("counter %#x, 384 from %#x on, and %#x", one, bulk, after)
	}
	x.fails(dwords(16, 0, 0x939<<16, 12, 8), 16, stBadParam, "flow_counter_bulk is 0x8")
	x.fails(dwords(16, 0, 0x939<<16, 12, 1<<8), 16, stBadParam, "flow_counter_bulk_log_size is 1")

	x.post(8)
	table := w32(x.do(dwords(64, 0, 0x930<<16, 0x18, 1<<16|4), 16), 8) // level 1
	group := w32(x.do(dwords(1024, 0, 0x933<<16, 0x14, table, 0x24, 15), 16), 8)
	counts := func(id uint32) []byte {
		return dwords(0x350, 0, 0x936<<16, 0x14, table, 0x44, group, 0x4c, 12, 0x50, 1, 0x54, 1,
			0x340, 2<<24|x.tirn, 0x348, id)
	}
	x.fails(counts(after+1), 16, stBadRes, "does not exist")
	x.do(counts(bulk+381), 16)
	x.do(dwords(64, 0, 0x938<<16, 0x14, x.table), 16)
	x.do(dwords(64, 0, 0x93c<<16, 12, 1, 0x14, x.table, 0x18, 1<<24, 0x1c, table), 16)
	x.Arrive(frameOf(64))
	x.Arrive(frameOf(100))
	x.fails(dwords(16, 0, 0x93a<<16, 8, bulk), 16, stBadResState, "in use by 1 objects")
	x.fails(dwords(16, 0, 0x93a<<16, 8, bulk+1), 16, stBadRes, "one of the bulk")

	query := func(id, n uint32) []byte { return dwords(32, 0, 0x93b<<16, 0x18, n, 0x1c, id) }
	out := x.do(query(bulk+380, 8), 16+8*16) // four of these are not allocated, or another user has them
	for i := range 8 {
		want := [2]uint32{}
		if i == 1 {
			want = [2]uint32{2, 164}
		}
		if got := [2]uint32{w32(out, 0x14+16*i), w32(out, 0x1c+16*i)}; got != want {
			t.Errorf("counter %#x counted %v, want %v", bulk+380+uint32(i), got, want)
		}
	}
	x.fails(query(bulk+381, 4), 16+4*16, stBadParam, "multiples of 4")
	x.fails(query(bulk, 6), 16+6*16, stBadParam, "multiples of 4")
	x.fails(query(bulk, 8), 16+7*16, stOutLen, "8 counters in 128 bytes")
	x.fails(query(bulk, 2048), 16+2048*16, stBadParam, "log_max_flow_counter_bulk is 10")
	x.fails(query(0x8000, 4), 16+4*16, stBadRes, "does not exist")
	x.fails(dwords(32, 0, 0x93b<<16, 0x18, 1<<30|4, 0x1c, bulk), 80, stBadParam, "dump_to_memory")

	x.do(dwords(64, 0, 0x938<<16, 0x14, table), 16)
	x.do(dwords(16, 0, 0x93a<<16, 8, bulk), 16)
	x.fails(query(bulk, 4), 16+4*16, stBadRes, "does not exist")
	x.m.obj.flowCounters.next = 0xffffff - 20
	check.Equal(t, alloc(1), 4, "at the end of the ids, the next bulk begins at %#x")
}
