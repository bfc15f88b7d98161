package enasim

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim/amazon"
)

func TestRegistersAndReset(t *testing.T) {
	x := newRig(t, Options{})
	check.Equal(t, x.Regs.Read32(uint64(amazon.RegVERSION)), 10, "VERSION %#x, real devices say 0.10")
	x.Open()
	caps := x.Read(amazon.RegCAPS)
	if caps>>8&0xff != 48 || caps>>1&0x1f == 0 {
		t.Errorf("CAPS %#x", caps)
	}
	check.Equal(t, caps>>16&0xf, 10, "the admin time-out is %d00 ms, DPDK needs whole seconds")
	x.Reset(3)
	x.Set(amazon.RegDEVCTL, 0)
	x.Clean()
	x.Set(amazon.RegDEVCTL, amazon.CTLReset|1<<24)
	check.Same(t, x.m.Resets(), []int{0, 3, 16}, "resets for %v, the last by the extended reason")
	x.Set(amazon.RegAQCAPS, 32|64<<16)
	x.ExpectViolation("before DEV_STS.RESET_IN_PROGRESS")

	x = newRig(t, Options{NotReady: true, NoReadless: true, Version: 0x100})
	check.Equal(t, x.Regs.Read32(uint64(amazon.RegDEVSTS))&amazon.StsReady, 0, "DEV_STS.READY is %d")
	check.Equal(t, x.Regs.Read32(uint64(amazon.RegVERSION)), 0x100, "VERSION %#x")
	x.Set(amazon.RegREADREQ, 0)
	x.ExpectViolation("revision 1")
}

func TestAdminWraps(t *testing.T) {
	x := openRig(t, Options{})
	for i := range 5 * testDepth { // phases of both queues
		must.Equal(t, le.Uint32(x.get(featMTU, nil)), 9216, fmt.Sprintf("command %d: MTU %%d", i))
	}
	s, _ := x.Do(99, nil)
	check.Equal(t, s, statusBadOpcode, "status %d")
	x.ExpectViolation("no such opcode")
	s, _ = x.Do(opGetFeature, fields{17: uint8(29)})
	check.Equal(t, s, statusUnsupported, "status %d of a feature that is not offered")
	x.Clean()
	x.Submit(opGetFeature, fields{3: 1 ^ amazon.Phase(x.Commands, testDepth), 17: uint8(featMTU)})
	x.Port.Step()
	if x.AQ.Bytes[64*int((x.Commands-1)%testDepth)+3]&1 != amazon.Phase(x.Commands-1, testDepth) {
		x.ExpectViolation("phase")
	}
}

func TestAdminLateAndOutOfOrder(t *testing.T) {
	x := openRig(t, Options{AdminDelay: 10 * time.Microsecond, AdminOutOfOrder: true, Seed: 1})
	var ids []uint16
	for range testDepth {
		ids = append(ids, x.Submit(opGetFeature, fields{17: uint8(featMTU)}))
	}
	x.Port.Step()
	if x.Ack() != nil {
		t.Fatal("completed too early")
	}
	for range 20 {
		x.Port.Step()
	}
	seen, ordered := map[uint16]bool{}, true
	for i := range ids {
		e := x.Ack()
		if e == nil {
			t.Fatal("a completion is missing")
		}
		seen[le.Uint16(e)] = true
		ordered = ordered && le.Uint16(e) == ids[i]
	}
	if len(seen) != len(ids) || ordered {
		t.Errorf("completions %v, in order: %v", seen, ordered)
	}
	x.Clean()
	x.m.StallAdmin(true)
	x.Submit(opGetFeature, fields{17: uint8(featMTU)})
	x.Port.Settle(100)
	if x.Ack() != nil {
		t.Error("a stalled queue completes")
	}
}

func TestEvents(t *testing.T) {
	x := openRig(t, Options{})
	x.set(featAENQ, fields{24: uint32(eventGroups)})
	x.Set(amazon.RegAENQDB, testDepth)
	x.Port.Step()
	if e := x.AENQ.Bytes; le.Uint16(e) != amazon.GroupLink || e[4] != 1 || e[16] != 1 {
		t.Fatalf("link event %x", e[:20])
	}
	for range 3 * testDepth { // no more than the driver made room for
		x.m.Post(amazon.Event{Group: 9, Syndrome: 7})
	}
	x.Port.Settle(10)
	must.Equal(t, x.m.Counters().Events, testDepth, "%d events sent")
	x.Set(amazon.RegAENQDB, 2*testDepth)
	x.Port.Settle(10)
	if e := x.AENQ.Bytes; x.m.Counters().Events != 2*testDepth || e[4] != 0 || le.Uint16(e) != 9 ||
		le.Uint16(e[2:]) != 7 {
		t.Errorf("second round: %d events, %x", x.m.Counters().Events, e[:16])
	}
	x.Clean()
	x.Set(amazon.RegAENQDB, 5*testDepth)
	x.ExpectViolation("AENQ_HEAD_DB")
}

// An interrupt handler that runs late acknowledges events of before a reset. Without one before, the doorbell has no
// queue.
func TestEventDoorbellAfterReset(t *testing.T) {
	x := newRig(t, Options{})
	x.Set(amazon.RegAENQDB, testDepth)
	x.ExpectViolation("AENQ_HEAD_DB")
	x.Open()
	x.Set(amazon.RegAENQDB, testDepth)
	x.Reset(0)
	x.Set(amazon.RegAENQDB, testDepth)
	x.Clean()
	x.Port.Reset()
	x.Set(amazon.RegAENQDB, testDepth)
	x.ExpectViolation("AENQ_HEAD_DB")
}

func TestKeepAlive(t *testing.T) {
	x := openRig(t, Options{})
	x.set(featAENQ, fields{24: uint32(1 << amazon.GroupKeepAlive)})
	x.Set(amazon.RegAENQDB, testDepth)
	second := func() uint64 {
		n := x.m.Counters().Events
		for range 1_000_001 {
			x.Port.Step()
		}
		return x.m.Counters().Events - n
	}
	check.Equal(t, second(), 1, "%d keep-alives in a second")
	if e := x.AENQ.Bytes; le.Uint16(e) != amazon.GroupKeepAlive {
		t.Errorf("event %x", e[:16])
	}
	x.m.WithholdKeepAlive(true)
	check.Equal(t, second(), 0, "%d keep-alives while withheld")
}

func TestFeatures(t *testing.T) {
	x := openRig(t, Options{PreferWide: true, NoMeta: true, Burst: 512})
	a := x.get(featAttributes, nil)
	if !bytes.Equal(a[24:30], testMAC[:]) || le.Uint32(a[32:]) != 9216 || le.Uint32(a[8:]) != featAll {
		t.Errorf("attributes %x", a)
	}
	if q := x.get(featMaxExt, fields{18: uint8(1)}); q[0] != 1 || le.Uint32(q[4:]) != 8 ||
		le.Uint32(q[36:]) != maxHeader {
		t.Errorf("queues %x", q)
	}
	l := x.get(featLLQ, fields{18: uint8(1)})
	if le.Uint16(l[12:]) != 5 || l[25] != llq256 || le.Uint16(l[28:]) != 3 || le.Uint16(l[30:]) != 512 {
		t.Errorf("LLQ %x", l)
	}
	check.Equal(t, x.bad(opSetFeature, fields{17: uint8(featMTU), 20: uint32(20000)}, "MTU 20000"), statusIllegal,
		"status %d")
	x.set(featMTU, fields{20: uint32(9000)})
	check.Equal(t, le.Uint32(x.get(featMTU, nil)), 9000, "MTU %d")
	page := x.Alloc(4096)
	check.Equal(t, x.bad(opSetFeature, fields{17: uint8(featHostAttr), 20: page.IOVA}, "os_type 0"), statusIllegal,
		"status %d")
	le.PutUint32(page.Bytes, 3)
	le.PutUint16(page.Bytes[184:], 0x200)
	x.set(featHostAttr, fields{20: page.IOVA})
}

func TestStatistics(t *testing.T) {
	x := openRig(t, Options{})
	x.m.SetAllowance(Allowance{1, 2, 3, 4, 5, 6})
	r := x.OK(opGetStats, fields{16: uint8(statsENI)})
	for i := range 5 {
		if v := le.Uint64(r[8*i:]); v != uint64(i+1) {
			t.Errorf("ENI counter %d is %d", i, v)
		}
	}
	buf := x.Alloc(4096)
	r = x.OK(opGetStats, fields{4: uint32(512), 8: buf.IOVA, 16: uint8(statsMetrics), 24: uint64(0x2a)})
	if le.Uint64(r) != 0x2a || le.Uint64(buf.Bytes) != 2 || le.Uint64(buf.Bytes[8:]) != 4 ||
		le.Uint64(buf.Bytes[16:]) != 6 {
		t.Errorf("metrics %x", buf.Bytes[:24])
	}
}

func TestCRC32(t *testing.T) {
	check.Equal(t, ^crc32(0xffffffff, []byte("123456789")), 0xcbf43926, "CRC32: %#x")
}

func TestTraceNames(t *testing.T) {
	x := newRig(t, Options{})
	x.Port.StartTrace(1000)
	x.Open()
	x.Do(opGetFeature, fields{17: uint8(featMTU), 24: uint32(7)})
	x.Port.ForgetViolations()
	var text strings.Builder
	x.Port.Trace().WriteTo(&text)
	check.Contains(t, text.String(),
		"write      AQ_CAPS (BAR 0 00018h) = 00400008h", "command    GET_FEATURE MTU, status ", " body[1]=7",
		"\nDEV_CTL = 0h\n")
	if n, _ := x.m.RegisterName(2, llqStride+8); n != "LLQ[1]+00008h" {
		t.Errorf("LLQ memory is called %q", n)
	}
	if n, _ := x.m.RegisterName(0, uint64(regRxDB)+8); n != "RX doorbell[2]" {
		t.Errorf("a doorbell is called %q", n)
	}
}
