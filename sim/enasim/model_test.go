package enasim

import (
	"bytes"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim/amazon"
)

func TestRegistersAndReset(t *testing.T) {
	x := newRig(t, Options{})
	check.Equal(t, x.Regs.Read32(uint64(amazon.RegVERSION)), 0x00a, "VERSION %#x")
	x.Open()
	if v := x.Read(amazon.RegCAPS); v>>8&0xff != 48 || v>>1&0x1f == 0 {
		t.Errorf("CAPS %#x", v)
	}
	x.Reset(3)
	x.Set(amazon.RegDEVCTL, 0)
	if r := x.m.Resets(); len(r) != 2 || r[0] != 0 || r[1] != 3 {
		t.Errorf("resets for %v", r)
	}
	x.Clean()

	x.Set(amazon.RegDEVCTL, amazon.CTLReset|1<<24)
	if r := x.m.Resets(); r[2] != 16 {
		t.Errorf("extended reason: %v", r)
	}
	x.Set(amazon.RegAQCAPS, 32|64<<16)
	x.ExpectViolation("before DEV_STS.RESET_IN_PROGRESS")

	x = newRig(t, Options{NotReady: true, NoReadless: true, Version: 0x100})
	if v := x.Regs.Read32(uint64(amazon.RegDEVSTS)); v&amazon.StsReady != 0 {
		t.Error("ready")
	}
	check.Equal(t, x.Regs.Read32(uint64(amazon.RegVERSION)), 0x100, "VERSION %#x")
	x.Set(amazon.RegREADREQ, 0)
	x.ExpectViolation("revision 1")
}

func TestAdminWraps(t *testing.T) {
	x := openRig(t, Options{})
	for i := range 5 * testDepth { // phases of both queues
		if r := x.get(featMTU, nil); le.Uint32(r) != 9216 {
			t.Fatalf("command %d: MTU %d", i, le.Uint32(r))
		}
	}
	if s, _ := x.Do(99, nil); s != statusBadOpcode {
		t.Errorf("status %d", s)
	}
	x.ExpectViolation("no such opcode")
	if s, _ := x.Do(opGetFeature, fields{17: uint8(29)}); s != statusUnsupported {
		t.Errorf("status %d of a feature that is not offered", s)
	}
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
	if e := x.AENQ.Bytes; x.m.Counters().Events != 2*testDepth || e[4] != 0 || le.Uint16(e) != 9 || le.Uint16(e[2:]) != 7 {
		t.Errorf("second round: %d events, %x", x.m.Counters().Events, e[:16])
	}
	x.Clean()
	x.Set(amazon.RegAENQDB, 5*testDepth)
	x.ExpectViolation("AENQ_HEAD_DB")
}

// An interrupt handler that runs late acknowledges events of before a reset. Without one before, the doorbell has no queue.
func TestEventDoorbellAfterReset(t *testing.T) {
	x := newRig(t, Options{})
	x.Set(amazon.RegAENQDB, testDepth)
	x.ExpectViolation("AENQ_HEAD_DB")
	x.Port.ForgetViolations()
	x.Open()
	x.Set(amazon.RegAENQDB, testDepth)
	x.Reset(0)
	x.Set(amazon.RegAENQDB, testDepth)
	x.Clean()
	x.Port.Reset()
	x.Set(amazon.RegAENQDB, testDepth)
	x.ExpectViolation("AENQ_HEAD_DB")
	x.Port.ForgetViolations()
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
	if q := x.get(featMaxExt, fields{18: uint8(1)}); q[0] != 1 || le.Uint32(q[4:]) != 8 || le.Uint32(q[36:]) != maxHeader {
		t.Errorf("queues %x", q)
	}
	l := x.get(featLLQ, fields{18: uint8(1)})
	if le.Uint16(l[12:]) != 5 || l[25] != llq256 || le.Uint16(l[28:]) != 3 || le.Uint16(l[30:]) != 512 {
		t.Errorf("LLQ %x", l)
	}
	if s, _ := x.Do(opSetFeature, fields{17: uint8(featMTU), 20: uint32(20000)}); s != statusIllegal {
		t.Errorf("MTU of 20000: status %d", s)
	}
	x.ExpectViolation("MTU 20000")
	x.set(featMTU, fields{20: uint32(9000)})
	if r := x.get(featMTU, nil); le.Uint32(r) != 9000 {
		t.Errorf("MTU %d", le.Uint32(r))
	}
	page := x.Alloc(4096)
	if s, _ := x.Do(opSetFeature, fields{17: uint8(featHostAttr), 20: page.IOVA}); s != statusIllegal {
		t.Errorf("empty host attributes: status %d", s)
	}
	x.ExpectViolation("os_type 0")
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
	if le.Uint64(r) != 0x2a || le.Uint64(buf.Bytes) != 2 || le.Uint64(buf.Bytes[8:]) != 4 || le.Uint64(buf.Bytes[16:]) != 6 {
		t.Errorf("metrics %x", buf.Bytes[:24])
	}
}

func TestCRC32(t *testing.T) {
	check.Equal(t, ^crc32(0xffffffff, []byte("123456789")), 0xcbf43926, "CRC32: %#x")
}
