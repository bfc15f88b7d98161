package enasim

import (
	"strings"
	"testing"
	"unsafe"

	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim/amazon"
)

func TestStrictDescriptors(t *testing.T) {
	x := openRig(t, Options{Width: 47})
	q := x.queue(dirTX, false, 0)
	buf := x.Alloc(4096)
	f := frame(60, 1)
	for _, c := range []struct {
		what string
		edit func(w *[4]uint32)
	}{
		{"warning: transmit descriptor", func(w *[4]uint32) { w[0] |= 1 << 22 }},
		{"warning: transmit descriptor", func(w *[4]uint32) { w[0] |= 1 << 31 }},
		{"warning: transmit descriptor", func(w *[4]uint32) { w[1] |= 1 << 5 }},
		{"warning: transmit descriptor", func(w *[4]uint32) { w[1] |= 1 << 21 }},
		{"warning: transmit descriptor", func(w *[4]uint32) { w[3] |= 1 << 16 }},
		{"phase", func(w *[4]uint32) { w[0] ^= txPhase }},
		{"first is false", func(w *[4]uint32) { w[0] &^= txFirst }},
		{"inside a frame", func(w *[4]uint32) { w[0] &^= txLast }},
		{"no bytes", func(w *[4]uint32) { w[0] &^= txLen }},
		{"MTU", func(w *[4]uint32) { w[0] |= 9235 }},
		{"a frame of 13 bytes", func(w *[4]uint32) { w[0] = w[0]&^txLen | 13; w[3] &= 0xffffff }},
		{"more than 47 bits", func(w *[4]uint32) { w[3] |= 0x8000 }},
		{"header_length 255", func(w *[4]uint32) { w[3] |= 0xff << 24 }},
		{"header_length 100", func(w *[4]uint32) { w[3] = w[3]&0xffff | 100<<24 }},
		{"warning: transmit descriptor", func(w *[4]uint32) { w[1] = 1000 << 22 }},
		{"tso_en", func(w *[4]uint32) { w[1] |= tx1TSO }},
		{"l3_csum_en", func(w *[4]uint32) { w[1] |= tx1L3 }},
		{"ethernet_fcs_dis", func(w *[4]uint32) { w[1] |= tx1NoFCS }},
		{"no meta descriptor was sent with the frame or stored", func(w *[4]uint32) { w[1] |= tx1L4 | tx1Partial | l3IPv4 | l4UDP<<8 }},
		{"meta descriptor: reserved", func(w *[4]uint32) { w[0] |= txMeta }},
	} {
		copy(buf.Bytes, f)
		w := [4]uint32{tx0 | 60, 1 << 22, uint32(buf.IOVA), uint32(buf.IOVA>>32) | 42<<24}
		c.edit(&w)
		q.words(w[:]...)
		if c.what == "phase" {
			q.sq.Bytes[16*int((q.tail-1)%testDepth)+3] ^= 1
		}
		q.ring()
		x.Port.Settle(3)
		x.ExpectViolation(c.what)
		if sent, tolerated := x.Far.Recv(0) != nil, strings.HasPrefix(c.what, "warning"); sent != tolerated {
			t.Errorf("%s: sent is %v", c.what, sent)
		}
		for q.take() != nil {
		}
	}
}

func TestStrictReceiveDescriptors(t *testing.T) {
	for _, c := range []struct {
		what string
		w    [4]uint32
	}{
		{"reserved bits", [4]uint32{2048 | 1<<16 | 0x1c<<24, 0, 0x1000, 0}},
		{"reserved bits", [4]uint32{2048 | 0x5c<<24, 0, 0x1000, 0}},
		{"reserved bits", [4]uint32{2048 | 0x1c<<24, 1 << 16, 0x1000, 0}},
		{"reserved bits", [4]uint32{2048 | 0x1c<<24, 0, 0x1000, 1 << 16}},
		{"first and last", [4]uint32{2048 | 0x14<<24, 0, 0x1000, 0}},
		{"request ID 8", [4]uint32{2048 | 0x1c<<24, 8, 0x1000, 0}},
	} {
		x := openRig(t, Options{})
		q := x.queue(dirRX, false, 0)
		q.words(c.w[:]...)
		q.ring()
		x.Port.Step()
		x.ExpectViolation(c.what)
	}
}

func TestStrictDoorbells(t *testing.T) {
	x := openRig(t, Options{})
	llqOn(x, llq128)
	q, r := x.queue(dirTX, true, 0), x.queue(dirRX, false, 0)
	x.Regs.Write32(q.bell, testDepth+1)
	x.ExpectViolation("the queue has 8 entries")
	x.Regs.Write32(r.bell, testDepth+1)
	x.ExpectViolation("the queue has 8 entries")
	x.Regs.Write32(q.bell, 1<<16)
	x.ExpectViolation("bits 31:16")
	x.Regs.Write32(uint64(regTxDB)+4*7, 1)
	x.ExpectViolation("does not exist")

	// An entry whose last 64 bytes are missing.
	x.OK(opDestroySQ, fields{4: q.idx, 6: uint8(dirTX << 5)})
	q2 := x.queue(dirTX, true, 0)
	at := must.Get(x.mem.Pointer(q2.llq, 64))(x)
	b := unsafe.Slice((*byte)(at), 64)
	le.PutUint32(b, tx0|txPhase)
	le.PutUint32(b[12:], 96<<24)
	clear(b[4:12])
	q2.tail = 1
	q2.ring()
	x.Port.Step()
	x.ExpectViolation("were not pushed")

	x = openRig(t, Options{Burst: 256})
	llqOn(x, llq128)
	q = x.queue(dirTX, true, 0)
	for i := range 3 {
		q.pushEntry(128, frame(60, 1), [4]uint32{tx0, uint32(i) << 22, 0, 60 << 24})
	}
	q.ring()
	x.ExpectViolation("max_tx_burst_size 256")
}

func TestStrictCommands(t *testing.T) {
	x := openRig(t, Options{})
	page := x.Alloc(4096)
	sq := fields{4: uint8(dirTX << 5), 6: uint8(placeHost), 7: uint8(1), 10: uint16(testDepth), 12: page.IOVA}
	cq := fields{5: uint8(2), 6: uint16(testDepth), 12: page.IOVA}
	llq := fields{17: uint8(featLLQ), 30: uint16(1), 34: uint16(llq128), 38: uint16(2), 42: uint16(2)}
	x.bad(opCreateSQ, sq, "there is no CQ 0")
	x.bad(opCreateCQ, cq.With(5, uint8(3)), "cq_entry_size_words 3")
	x.bad(opCreateCQ, cq.With(6, uint16(7)), "cq_depth 7")
	x.bad(opCreateCQ, cq.With(4, uint8(1<<5)).With(8, uint32(100)), "msix_vector 100")
	x.OK(opCreateCQ, cq)
	x.bad(opCreateSQ, sq.With(4, uint8(3<<5)), "sq_direction 3")
	x.bad(opCreateSQ, sq.With(4, uint8(dirRX<<5)), "8 bytes, 16 are expected")
	x.bad(opCreateSQ, sq.With(6, uint8(placeHost|1<<4)), "completion_policy 1")
	x.bad(opCreateSQ, sq.With(6, uint8(2)), "placement_policy 2")
	x.bad(opCreateSQ, sq.With(6, uint8(placeDevice)), "before SET_FEATURE LLQ")
	x.bad(opCreateSQ, sq.With(7, uint8(0)), "is_physically_contiguous")
	x.bad(opCreateSQ, sq.With(10, uint16(2*testDepth)), "sq_depth 16 on CQ 0")
	x.bad(opCreateSQ, sq.With(12, uint64(0)), "sq_ba is zero")
	x.bad(opSetFeature, llq.With(30, uint16(2)), "header_location_ctrl 2")
	x.bad(opSetFeature, llq.With(34, uint16(2)), "entry_size_ctrl 2")
	x.bad(opSetFeature, llq.With(38, uint16(8)), "desc_num_before_header 8")
	x.bad(opSetFeature, llq.With(28, uint16(1)), "sets only what it enables")
	// Reserved bits are reported, and the command is executed.
	for _, c := range []struct {
		undo uint8
		f    fields
		what string
	}{
		{opDestroyCQ, cq.With(5, uint8(0x82)), "CREATE_CQ: reserved bits 00008000 set in the dword at 04h"},
		{opDestroyCQ, cq.With(12, page.IOVA|1<<63), "CREATE_CQ: reserved bits 80000000 set in the dword at 10h"},
		{opDestroySQ, sq.With(4, uint8(dirTX<<5|1)), "CREATE_SQ: reserved bits 00000001 set in the dword at 04h"},
		{opDestroySQ, sq.With(20, uint32(1)), "CREATE_SQ: reserved bits 00000001 set in the dword at 14h"},
	} {
		op, identity := uint8(opCreateCQ), fields{}
		if c.undo == opDestroySQ {
			op, identity = opCreateSQ, fields{6: uint8(dirTX << 5)}
		}
		r := x.OK(op, c.f)
		x.ExpectWarning(c.what)
		x.OK(c.undo, identity.With(4, le.Uint16(r)))
	}
	x.OK(opSetFeature, llq)
	x.bad(opCreateSQ, sq.With(6, uint8(placeDevice)), "must not be used")
	x.OK(opCreateSQ, sq)
	x.bad(opDestroyCQ, fields{4: uint16(0)}, "before its 1 submission queues")
	x.bad(opDestroySQ, fields{4: uint16(1), 6: uint8(dirTX << 5)}, "there is no SQ 1")
	x.OK(opDestroySQ, fields{4: uint16(0), 6: uint8(dirTX << 5)})
	x.OK(opDestroyCQ, fields{4: uint16(0)})
	x.bad(opSetFeature, fields{17: uint8(featAENQ), 24: uint32(1 << 20)}, "groups 0x100000")
	x.bad(opSetFeature, fields{17: uint8(featHash), 24: uint32(6)}, "selected_func 0x6")
	x.bad(opGetStats, fields{16: uint8(statsMetrics), 24: uint64(1 << 40)}, "requested_metrics")
}

func TestStrictOrder(t *testing.T) {
	x := newRig(t, Options{})
	x.Reset(0)
	x.Set(amazon.RegAQDB, 1)
	x.ExpectViolation("entries have 64 bytes")
	x.Open()
	x.get(featMTU, nil)
	x.Set(amazon.RegAQBASELO, 0)
	x.ExpectViolation("after the first admin command")
	x.Set(amazon.RegAQDB, 100)
	x.ExpectViolation("the tail was 1")
	x.Set(amazon.RegDEVCTL, 4)
	x.ExpectViolation("not supported")
	x.Regs.Write32(0x68, 1)
	x.ExpectViolation("no such register")
	x.mem.Write64(0, 1)
	x.ExpectViolation("no LLQ is there")
}
