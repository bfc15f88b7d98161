package efasim

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/sim/amazon"
)

func TestResetProtocol(t *testing.T) {
	x := openRig(t, Options{})
	check.Equal(t, x.Read(amazon.RegVERSION), 1, "VERSION %#x")
	if v := x.Read(amazon.RegCAPS); v>>8&0xff != 48 || v>>1&0x1f == 0 {
		t.Errorf("CAPS %#x", v)
	}
	// AENQ's doorbell starts at 0. The keep-alive arrives each second once its group is enabled.
	x.Set(amazon.RegAENQDB, testDepth)
	x.ExpectError("0 is expected")
	x.Set(amazon.RegAENQDB, 0)
	x.OK(opSetFeature, fields{17: uint8(featAENQ), 24: uint32(1 << amazon.GroupKeepAlive)})
	x.m.Post(amazon.Event{Group: amazon.GroupWarning}) // not enabled
	x.Set(amazon.RegINTRMASK, 0)
	x.m.HastenKeepAlive(time.Second)
	x.Port.Step()
	if e := x.AENQ.Bytes; le.Uint16(e) != amazon.GroupKeepAlive || e[4] != 1 || len(x.Vectors) != 1 ||
		x.Vectors[0] != 0 {
		t.Errorf("event %x, interrupts %v", e[:16], x.Vectors)
	}
	x.Set(amazon.RegAENQDB, 2)
	x.ExpectError("1 events were sent")
	x.Set(amazon.RegAENQDB, 1)
	x.Reset(3)
	check.Same(t, x.m.Resets(), []int{0, 3}, "resets for %v")
}

// The tests of package enasim cover what both cards have in common.
func TestStrictRegisters(t *testing.T) {
	x := openRig(t, Options{})
	x.Set(amazon.RegDEVCTL, 1<<24) // a reason of eight bits, as only ENA has
	x.ExpectError("not supported")
	x.Regs.Write32(0x48, 1)
	x.ExpectError("no such register")
	x.Set(regEQDB, 1<<16)
	x.ExpectViolation("reserved bits")
	x.Set(regEQDB, 5|1<<31)
	x.ExpectError("there is no EQ 5")
	x.llq.Write64(0, 1)
	x.ExpectError("no LLQ is there")
	x.bel.Write32(x.m.page(5), 1)
	x.ExpectError("UAR 5 is not allocated")
	x.bel.Write32(x.m.page(int(x.uar))+8, 1)
	x.ExpectError("no doorbell of a QP")
	x.bel.Write32(x.m.page(int(x.uar))+cqDoorbells, 1)
	x.ExpectError("no doorbell of a CQ")
	x.Set(amazon.RegDEVCTL, amazon.CTLReset)
	x.Set(amazon.RegAQCAPS, 1)
	x.ExpectError("RESET_IN_PROGRESS")
}

func TestFeatures(t *testing.T) {
	for _, p := range Profiles() {
		x := openRig(t, Options{Profile: p})
		r := x.get(featDevice)
		if api, id, caps := le.Uint32(r[20:]), le.Uint32(r[24:]), le.Uint32(r[32:]); api != 1 ||
			id != uint32(p.Device) || caps != p.Caps {
			t.Errorf("%s: %x", p.Name, r[:52])
		}
		check.Equal(t, le.Uint64(r)>>featQueue2&1 != 0, p.Inline > 0, p.Name+" supports QUEUE_ATTR_2: %v")
		check.Equal(t, le.Uint64(r[40:]) != 0, p.GUID, p.Name+" has a GUID: %v")
		if r := x.get(featNetwork); !bytes.Equal(r[:16], x.m.gid[:]) || le.Uint32(r[16:]) != 8928 {
			t.Errorf("%s: network attributes %x", p.Name, r[:20])
		}
		r = x.get(featQueue1)
		if le.Uint32(r) != 256 || le.Uint32(r[16:]) != 512 || le.Uint16(r[24:]) != p.SubCQs ||
			le.Uint16(r[26:]) != p.MinSQ || le.Uint32(r[32:]) != p.MaxMR || le.Uint16(r[54:]) != p.Batch {
			t.Errorf("%s: queue attributes %x", p.Name, r)
		}
		check.Equal(t, le.Uint64(x.get(featHints)), 0, p.Name+": hints %x: Linux takes the third for microseconds")
		if r := x.get(featEvents); le.Uint32(r) == 0 || le.Uint32(r[8:]) != 1 {
			t.Errorf("%s: event queue attributes %x", p.Name, r[:12])
		}
		if s, r := x.Do(opGetFeature, fields{17: uint8(featQueue2)}); (s == statusOK) != (p.Inline > 0) ||
			le.Uint16(r) != p.Inline {
			t.Errorf("%s: QUEUE_ATTR_2: status %d, %x", p.Name, s, r[:2])
		}
		s, _ := x.Do(opGetFeature, fields{17: uint8(8)})
		check.Equal(t, s, statusUnsupported, p.Name+": feature 8: status %d")
		s, _ = x.Do(opSetFeature, fields{17: uint8(20)})
		check.Equal(t, s, statusUnsupported, p.Name+": set feature 20: status %d")
		x.bad(statusIllegal, opSetFeature, fields{17: uint8(featNetwork)}, "cannot be set")
		x.bad(statusIllegal, opSetFeature, fields{17: uint8(featAENQ), 24: uint32(1 << 7)}, "groups 0x80")
		x.Clean()
	}
}

func TestHostInfo(t *testing.T) {
	x := openRig(t, Options{})
	b := x.Alloc(4096)
	good := fields{3: uint8(cmdCtrlData), 4: uint32(hostInfo), 8: b.IOVA, 17: uint8(featHost)}
	x.bad(statusIllegal, opSetFeature, good, "major 2 is expected")
	le.PutUint16(b.Bytes[174:], 0x200)
	x.OK(opSetFeature, good)
	x.ExpectWarning("a driver has a version or is in Linux's tree")
	b.Bytes[176] = 1
	x.OK(opSetFeature, good)
	x.ExpectWarning("kernel version 0")
	le.PutUint32(b.Bytes[164:], 6<<16)
	x.OK(opSetFeature, good)
	x.bad(statusIllegal, opSetFeature, good.With(4, uint32(100)), "control buffer of 100 bytes")
	x.OK(opSetFeature, good.With(3, uint8(cmdCtrlData|cmdCtrlIndir)))
	x.ExpectWarning("ctrl_data alone")
	b.Bytes[128] = 7
	x.OK(opSetFeature, good)
	x.ExpectWarning("os_type 7")
	check.Equal(t, x.m.Counters().HostInfo, 5, "%d times host information")
}

func TestObjects(t *testing.T) {
	x := openRig(t, Options{Profile: EFA2})
	x.bad(statusBadOpcode, 0, nil, "no such opcode")
	x.bad(statusBadOpcode, 21, nil, "no such opcode")
	x.OK(opAllocPD, fields{4: uint8(1)}) // after the end of the command: ignored
	x.bad(statusIllegal, opDeallocPD, fields{4: uint16(9)}, "there is no PD 9")
	x.bad(statusIllegal, opDeallocUAR, fields{4: uint16(9)}, "there is no UAR 9")

	// Event queues.
	page := x.Alloc(4096)
	eq := fields{4: uint16(16), 6: uint8(1), 7: uint8(4), 8: page.IOVA, 16: uint32(1)}
	x.bad(statusIllegal, opCreateEQ, eq.With(4, uint16(15)), "depth 15")
	x.bad(statusIllegal, opCreateEQ, eq.With(6, uint8(200)), "MSI-X vector 200")
	x.bad(statusIllegal, opCreateEQ, eq.With(7, uint8(8)), "entry_size_words 8")
	x.bad(statusIllegal, opCreateEQ, eq.With(16, uint32(0)), "without events")
	x.bad(statusIllegal, opCreateEQ, eq.With(8, page.IOVA+8), "not aligned")
	e := x.OK(opCreateEQ, eq)
	x.bad(statusIllegal, opDestroyEQ, fields{4: uint16(5)}, "there is no EQ 5")

	// Completion queues.
	cq := fields{4: uint8(1 << 5), 5: uint8(4), 6: uint16(64), 8: le.Uint16(e), 12: x.Alloc(4096).IOVA, 24: uint16(1),
		26: x.uar}
	x.bad(statusIllegal, opCreateCQ, cq.With(5, uint8(2)), "cq_entry_size_words 2")
	x.bad(statusIllegal, opCreateCQ, cq.With(5, uint8(4|1<<5)), "set_src_addr")
	x.bad(statusIllegal, opCreateCQ, cq.With(6, uint16(65)), "sub_cq_depth 65")
	x.bad(statusIllegal, opCreateCQ, cq.With(8, uint16(7)), "there is no EQ 7")
	x.bad(statusIllegal, opCreateCQ, cq.With(12, uint64(4)), "not aligned")
	x.bad(statusIllegal, opCreateCQ, cq.With(24, uint16(2)), "sub_cqs_per_cq is 1")
	x.bad(statusIllegal, opCreateCQ, cq.With(26, uint16(9)), "there is no UAR 9")
	c := x.OK(opCreateCQ, cq)
	x.OK(opDestroyCQ, fields{4: le.Uint16(x.OK(opCreateCQ, cq.With(4, uint8(1<<5|1))))})
	x.ExpectWarning("CREATE_CQ: reserved bits 00000001 set in the dword at 04h")
	x.bad(statusIllegal, opDestroyCQ, fields{4: uint16(9)}, "there is no CQ 9")
	x.bad(statusBusy, opDestroyEQ, fields{4: le.Uint16(e)}, "before the 1 CQs")

	// Address handles: one number per destination of a PD.
	gid := gidOf([6]byte{2, 0, 0, 0, 0, 9})
	x.bad(statusIllegal, opCreateAH, fields{4: gid, 20: uint16(9)}, "there is no PD 9")
	x.bad(statusIllegal, opCreateAH, fields{4: [16]byte{0xff, 2}, 20: x.pd}, "unicast")
	a := x.handle(gid)
	if b := x.handle(gid); b != a {
		t.Errorf("handles %d and %d of one destination", a, b)
	}
	x.ExpectWarning("must not be called more than once")
	x.bad(statusBusy, opDeallocPD, fields{4: x.pd}, "before the 1 objects")
	x.bad(statusIllegal, opDestroyAH, fields{4: a, 6: uint16(9)}, "there is no PD 9")
	x.OK(opDestroyAH, fields{4: a, 6: x.pd})
	x.OK(opDestroyAH, fields{4: a, 6: x.pd})
	x.bad(statusIllegal, opDestroyAH, fields{4: a, 6: x.pd}, "has no AH")

	// Queue pairs.
	q := &qpair{x: x, typ: typeSRD, size: 64, rq: x.Alloc(4096), scq: &cring{idx: le.Uint16(c)}}
	q.rcq = q.scq
	good := q.create()
	x.bad(statusIllegal, opCreateQP, good.With(4, uint16(9)), "there is no PD 9")
	x.bad(statusIllegal, opCreateQP, good.With(6, uint8(3)), "qp_type 3")
	x.bad(statusIllegal, opCreateQP, good.With(7, uint8(1)), "sq_virt")
	x.bad(statusIllegal, opCreateQP, good.With(6, uint8(typeUD)).With(7, uint8(4)), "unsolicited_write_recv")
	x.bad(statusIllegal, opCreateQP, good.With(16, uint64(8)), "rq_base_addr")
	x.bad(statusIllegal, opCreateQP, good.With(24, uint32(9)), "there is no CQ 9")
	x.bad(statusIllegal, opCreateQP, good.With(40, uint32(63*qDepth)), "send_queue_ring_size")
	x.bad(statusIllegal, opCreateQP, good.With(40, uint32(128*qDepth)), "send_queue_ring_size") // efa2 has no wide WQEs
	x.bad(statusIllegal, opCreateQP, good.With(44, uint32(15)), "send_queue_depth 15")
	// min_sq_depth
	x.bad(statusIllegal, opCreateQP, good.With(44, uint32(8)).With(40, uint32(64*8)), "send_queue_depth 8")
	x.bad(statusIllegal, opCreateQP, good.With(48, uint32(16*15)), "recv_queue_ring_size 240")
	x.bad(statusIllegal, opCreateQP, good.With(52, uint32(17)), "recv_queue_ring_size")
	x.bad(statusIllegal, opCreateQP, good.With(56, uint16(9)), "there is no UAR 9")
	r := x.OK(opCreateQP, good.With(8, uint64(4096)).With(58, uint8(1)))
	x.ExpectWarning("sq_base_addr")
	h := le.Uint32(r)
	x.bad(statusBusy, opDestroyCQ, fields{4: le.Uint16(c)}, "before the 2 queues")
	x.bad(statusBusy, opDeallocUAR, fields{4: x.uar}, "before the 2 queues")
	x.bad(statusIllegal, opDestroyQP, fields{4: h + 1}, "no QP with the handle")
	x.OK(opDestroyQP, fields{4: h})
	x.bad(statusIllegal, opDestroyQP, fields{4: h}, "no QP with the handle")
	again := x.OK(opCreateQP, good)
	if le.Uint16(again[4:]) == le.Uint16(r[4:]) || le.Uint32(again) == h {
		t.Errorf("the number %#x and the handle %#x come back at once", le.Uint16(r[4:]), h)
	}
	x.OK(opDestroyQP, fields{4: le.Uint32(again)})
	x.OK(opDestroyCQ, fields{4: le.Uint16(c)})
	x.OK(opDestroyEQ, fields{4: le.Uint16(e)})
	x.OK(opDeallocUAR, fields{4: x.uar})
	x.OK(opDeallocPD, fields{4: x.pd})
	check.Equal(t, x.m.Objects(), (Objects{PDs: 1}), "left: %+v")
}

func TestExhaustion(t *testing.T) {
	x := openRig(t, Options{})
	for _, c := range []struct {
		op uint8
		n  int
	}{{opAllocPD, maxPD - 1}, {opAllocUAR, maxUAR - 1}} {
		for range c.n {
			x.OK(c.op, nil)
		}
		s, _ := x.Do(c.op, nil)
		check.Equal(t, s, statusNoResource, fmt.Sprintf("opcode %d: status %%d beyond %d", c.op, c.n))
	}
	c := x.completions(16, nil)
	q := x.queues(typeUD, 64, c)
	pages := map[uint64]bool{}
	for i := range maxQP {
		r := x.OK(opCreateQP, q.create())
		if at := uint64(le.Uint32(r[20:])); pages[at/4096] || at%4096 != 0 {
			t.Errorf("QP %d: LLQ at %#x, which is not its own", i, at)
		} else {
			pages[at/4096] = true
		}
	}
	s, _ := x.Do(opCreateQP, q.create())
	check.Equal(t, s, statusNoResource, "status %d of one QP too many")
	x.Clean()
	// LLQ memory is reused: more QPs one after another than fit at once.
	x.open()
	c = x.completions(16, nil)
	big := q.create().With(44, uint32(maxSQDepth)).With(40, uint32(64*maxSQDepth)).With(24, uint32(c.idx)).With(28,
		uint32(c.idx)).With(4, x.pd).With(56, x.uar)
	var made []uint32
	for {
		s, r := x.Do(opCreateQP, big)
		if s == statusNoResource {
			break
		}
		made = append(made, le.Uint32(r))
	}
	check.Equal(t, len(made), llqMemory/(64*maxSQDepth), "%d QPs fit")
	for range 100 {
		x.OK(opDestroyQP, fields{4: made[0]})
		made = append(made[1:], le.Uint32(x.OK(opCreateQP, big)))
	}
}

func TestSubCQs(t *testing.T) {
	for _, p := range Profiles() {
		x := openRig(t, Options{Profile: p})
		c := x.completions(16, nil)
		r := x.OK(opCreateQP, x.queues(typeUD, 64, c).create())
		if send, recv := le.Uint16(r[8:]), le.Uint16(r[10:]); send != 0 || recv != 1%p.SubCQs {
			t.Errorf("%s: sub-CQs %d and %d of %d", p.Name, send, recv, p.SubCQs)
		}
	}
}

func TestPagesOfTheirOwn(t *testing.T) {
	for _, p := range Profiles() {
		x := openRig(t, Options{Profile: p})
		seen := map[uint64]uint16{}
		for range 3 {
			c := x.completions(16, nil)
			q := x.qpair(typeUD, 64, c)
			at := []uint64{q.sqBell, q.rqBell}
			if p.Polled {
				at = append(at, c.bell)
			}
			for _, off := range at {
				if u, there := seen[off/4096]; there && u != x.uar || off < x.m.uarBase() {
					t.Errorf("%s: doorbell at %#x, in the page of UAR %d", p.Name, off, u)
				}
				seen[off/4096] = x.uar
			}
			x.uar = le.Uint16(x.OK(opAllocUAR, nil))
		}
		x.Clean()
	}
}

func TestStates(t *testing.T) {
	x := openRig(t, Options{})
	c := x.completions(16, nil)
	q, u := x.qpair(typeSRD, 64, c), x.qpair(typeUD, 64, c)
	mod := func(h uint32, mask int, state int) fields {
		return fields{4: uint32(mask), 8: h, 12: uint32(state), 20: uint32(testKey), 24: uint32(5)}
	}
	x.bad(statusIllegal, opModifyQP, mod(q.handle, 0, 0), "modify_mask is 0")
	x.bad(statusIllegal, opModifyQP, mod(q.handle, modState, stateRTS), "cannot go from state 0 to 3")
	x.bad(statusIllegal, opModifyQP, mod(q.handle, modState, 9), "cannot go from state 0 to 9")
	x.bad(statusIllegal, opModifyQP, mod(q.handle, modState, stateInit), "without a Q_Key")
	x.bad(statusIllegal, opModifyQP, mod(q.handle+1<<16, modState, stateErr), "no QP with the handle")
	x.OK(opModifyQP, mod(q.handle, modState|modQKey, stateInit))
	x.OK(opModifyQP, mod(q.handle, modState, stateRTR))
	x.bad(statusIllegal, opModifyQP, mod(q.handle, modState, stateRTS), "without an SQ PSN")
	x.bad(statusIllegal, opModifyQP, mod(q.handle, modState|modPSN, stateRTS).With(24, uint32(1<<24)), "24 bits")
	x.bad(statusIllegal, opModifyQP, mod(q.handle, modState|modPSN|modRNR, stateRTS).With(29, uint8(8)), "rnr_retry 8")
	x.bad(statusIllegal, opModifyQP, mod(u.handle, modState|modQKey|modRNR, stateInit), "rnr_retry for a QP of type 1")
	x.bel.Write32(q.sqBell, 1)
	x.ExpectError("rung in state 2")
	x.bel.Write32(u.rqBell, 1)
	x.ExpectError("rung in state 0")
	x.OK(opModifyQP, mod(q.handle, modState|modPSN|modRNR, stateRTS).With(29, uint8(3)))
	if r := x.OK(opQueryQP, fields{4: q.handle}); le.Uint32(r) != stateRTS || le.Uint32(r[4:]) != testKey ||
		le.Uint32(r[8:]) != 5 || r[13] != 3 {
		t.Errorf("QUERY_QP %x", r[:16])
	}
	x.OK(opModifyQP, mod(q.handle, modState|modCurState, stateErr).With(16, uint32(stateRTR)))
	x.ExpectWarning("overrides state 3")
	x.bad(statusIllegal, opModifyQP, mod(q.handle, modState|modPSN, stateRTS), "cannot go from state 6 to 3")
	x.bad(statusIllegal, opQueryQP, fields{4: uint32(99)}, "no QP with the handle")
}

func TestAdminKnobs(t *testing.T) {
	x := newRig(t, Options{AdminDelay: 10 * time.Microsecond, AdminOutOfOrder: true, Seed: 2})
	x.Open()
	x.Set(amazon.RegACQCAPS, testDepth|64<<16|3<<24)
	x.Set(amazon.RegINTRMASK, 0)
	var ids []uint16
	for range 6 {
		ids = append(ids, x.Submit(opAllocPD, nil))
	}
	x.Port.Step()
	if x.Ack() != nil {
		t.Error("a command completes before its time")
	}
	for range 20 {
		x.Port.Step()
	}
	var got []uint16
	for e := x.Ack(); e != nil; e = x.Ack() {
		got = append(got, le.Uint16(e))
	}
	if slices.Equal(got, ids) || !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(ids))) ||
		!slices.Contains(x.Vectors, 3) {
		t.Errorf("completions %x of %x, interrupts %v", got, ids, x.Vectors)
	}
	x.m.IgnoreAdmin(func(command string) bool { return command == "ALLOC_PD" })
	x.Submit(opAllocPD, nil)
	x.m.FailAdmin(func(command string) uint8 { return map[string]uint8{"ALLOC_UAR": statusNoResource}[command] })
	id := x.Submit(opAllocUAR, nil)
	for range 20 {
		x.Port.Step()
	}
	if e := x.Ack(); e == nil || le.Uint16(e) != id || e[2] != statusNoResource || x.Ack() != nil {
		t.Errorf("completion %x, want that of %#x with status 1 and no other", e, id)
	}
}

func TestStatistics(t *testing.T) {
	x := openRig(t, Options{Profile: EFA0})
	for typ, want := range map[uint8]uint8{statsBasic: 0, statsMessages: 0, statsRead: 0, statsWrite: statusUnsupported,
		statsNetwork: 0, 5: statusUnsupported} {
		s, _ := x.Do(opGetStats, fields{16: typ})
		check.Equal(t, s, want, fmt.Sprintf("type %d: status %%d", typ))
	}
	x.bad(statusIllegal, opGetStats, fields{17: uint8(2)}, "scope 2")
	x.bad(statusIllegal, opGetStats, fields{17: uint8(1), 18: uint16(77)}, "there is no QP 0x4d")
	c := x.completions(16, nil)
	q, r := x.qpair(typeUD, 64, c).ready(), x.qpair(typeUD, 64, c).ready()
	r.offer(256, 0)
	q.post(q.inline(0, r.num, x.handle(x.m.gid), "to myself"))
	for _, f := range []fields{{16: uint8(statsMessages)}, {16: uint8(statsMessages), 17: uint8(1), 18: q.num}} {
		if s := x.OK(opGetStats, f); le.Uint64(s) != 9 || le.Uint64(s[8:]) != 1 {
			t.Errorf("%v: %x", f, s[:32])
		}
	}
	if s := x.OK(opGetStats, fields{16: uint8(statsMessages), 17: uint8(1), 18: r.num}); le.Uint64(s) != 0 ||
		le.Uint64(s[16:]) != 9 || le.Uint64(s[24:]) != 1 {
		t.Errorf("of the receiver: %x", s[:32])
	}
}

func TestTraceNames(t *testing.T) {
	x := newRig(t, Options{Profile: EFA3})
	x.Port.StartTrace(1000)
	x.open()
	x.get(featNetwork)
	x.handle(gidOf([6]byte{2}))
	var text strings.Builder
	x.Port.Trace().WriteTo(&text)
	check.Contains(t, text.String(),
		"write      AQ_CAPS (BAR 0 00018h) = 00400008h", "command    GET_FEATURE NETWORK_ATTR, status ", "CREATE_AH",
		"dest_addr[0]=80fe")
	for off, want := range map[uint64]string{x.m.page(1) + 8: "UAR[1] SQ[1] doorbell",
		x.m.page(1) + 12: "UAR[1] RQ[1] doorbell", x.m.page(2) + cqDoorbells + 8: "UAR[2] CQ[2] doorbell"} {
		if got, order := x.m.RegisterName(x.m.opt.doorbells, off); got != want || order != binary.ByteOrder(le) {
			t.Errorf("%#x is called %q, want %q", off, got, want)
		}
	}
	got, _ := x.m.RegisterName(2, 0x123)
	check.Equal(t, got, "LLQ+000123h", "LLQ memory is called %q")
}
