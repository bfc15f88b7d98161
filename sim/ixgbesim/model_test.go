package ixgbesim

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim"
)

func TestBringUp(t *testing.T) {
	r := openRig(t, Options{})
	if lo, hi := r.rd(0xa200), r.rd(0xa204); lo != 0x00000002 || hi != 1<<31|0x0100 {
		t.Errorf("RAL %08x RAH %08x after reset", lo, hi)
	}
	r.Port.Connect(nil)
	if r.rd(0x42a4)&(1<<30) != 0 || r.rd(0x8)&(1<<7) != 0 {
		t.Error("link up without a wire")
	}
}

func TestBackplane(t *testing.T) {
	r := openRig(t, Options{Kind: KX4})
	r.set(0x42a0, 1<<12)
	check.Equal(t, r.rd(0x42a4)>>28, 0xf, "LINKS %x: up at 10 Gb/s by autonegotiation")
	if r.rd(0x42b0)&0xf0000 == 0 || r.rd(0x42a0)&(1<<12) != 0 {
		t.Error("autonegotiation did not start, or its restart bit stays")
	}
}

// One frame in and one out: the bus transactions and the descriptors' contents.
func TestEchoCost(t *testing.T) {
	r := openRig(t, Options{})
	r.fill(32)
	r.settle()
	f := frame(60)
	before := r.Port.Counts()
	r.Arrive(f)
	d := r.rxDesc(0)
	if binary.LittleEndian.Uint32(d[8:])&3 != 3 || binary.LittleEndian.Uint16(d[12:]) != 60 ||
		!bytes.Equal(r.mem[rxBufs:rxBufs+60], f) {
		t.Fatalf("received descriptor %x, buffer %x", d, r.mem[rxBufs:rxBufs+60])
	}
	check.Equal(t, r.Port.Counts().Since(before), (sim.Counts{DMAWrite: 2}), "receiving cost %+v, want two DMA writes")
	before = r.Port.Counts()
	at := r.send(f)
	r.settle()
	check.Equal(t, r.Port.Counts().Since(before), (sim.Counts{MMIOWrite: 1, DMARead: 2, DMAWrite: 1}),
		"sending cost %+v")
	if d := r.txDesc(int(at)); !bytes.Equal(d, append(make([]byte, 12), 1, 0, 0, 0)) {
		t.Errorf("transmit descriptor written back as %x", d)
	}
	r.Sent(f, "a frame")
	// Frames before the filters, to host memory and from it, and their octets.
	for _, at := range []uint64{0x41b0, 0x2f50, 0x87a0} {
		if frames, octets := r.rd(at), r.rd(at+4); frames != 1 || octets != 64 {
			t.Errorf("%05x counts %d frames of %d octets, want 1 of 64", at, frames, octets)
		}
	}
}

func TestManyFramesWrap(t *testing.T) {
	r := openRig(t, Options{})
	r.fill(ringLen - 1)
	next := 0
	for i := range 5 * ringLen {
		f := frame(60 + i)
		f[20] = byte(i)
		r.Arrive(f)
		d := r.rxDesc(next)
		if d[8]&3 != 3 || int(binary.LittleEndian.Uint16(d[12:])) != len(f) ||
			!bytes.Equal(r.mem[rxBufs+next*0x4000:][:len(f)], f) {
			t.Fatalf("frame %d: descriptor %d is %x", i, next, d)
		}
		next = (next + 1) % ringLen
		r.fill(1)
		r.send(f)
		r.settle()
		r.Sent(f, "frame %d", i)
	}
	check.Equal(t, r.rd(0x4074), 5*ringLen, "GPRC %d")
	check.Equal(t, r.rd(0x4074), 0, "GPRC %d after it was read")
	check.Equal(t, r.rd(0x4080), 5*ringLen, "GPTC %d")
}

func TestJumboOverDescriptors(t *testing.T) {
	r := openRings(t, Options{}, ringOptions{jumbo: true})
	r.fill(16)
	f := frame(9000)
	r.Arrive(f)
	var got []byte
	for i := range 5 {
		d := r.rxDesc(i)
		n := int(binary.LittleEndian.Uint16(d[12:]))
		got = append(got, r.mem[rxBufs+i*0x4000:][:n]...)
		if d[8]&1 == 0 || (d[8]&2 != 0) != (i == 4) {
			t.Errorf("descriptor %d: %x", i, d)
		}
	}
	if !bytes.Equal(got, f) {
		t.Errorf("got %d bytes of 9000", len(got))
	}
	r.Far.Send(0, frame(9728-3)) // with FCS one byte over MAXFRS
	r.settle()
	if r.rd(0x40ac) != 1 || r.rxDesc(5)[8]&1 != 0 {
		t.Error("a frame over MAXFRS was received, or not counted in ROC")
	}
}

func TestNoDescriptors(t *testing.T) {
	r := openRig(t, Options{})
	for range 3 {
		r.Far.Send(0, frame(60))
	}
	r.settle()
	if r.m.Counters().RxFrames != 0 || r.m.Counters().RxNoDesc != 0 {
		t.Errorf("%+v", r.m.Counters())
	}
	r.fill(8)
	r.settle()
	check.Equal(t, r.m.Counters().RxFrames, 3, "%d of 3 waiting frames were received")
	for range 400 { // 512 KB of packet buffer
		r.Far.Send(0, frame(1514))
	}
	r.Port.Settle(100)
	if got := r.m.Counters(); got.RxMissed == 0 || r.rd(0x3fa0) != uint32(got.RxMissed) {
		t.Errorf("missed %d", got.RxMissed)
	}
	r.Clean()

	r = openRings(t, Options{}, ringOptions{srrctl: 2 | 1<<25 | 1<<28})
	r.Arrive(frame(60))
	if r.rd(0x1430) != 1 || r.m.Counters().RxNoDesc != 1 {
		t.Error("drop enable did not drop")
	}
}

func TestWriteBack(t *testing.T) {
	t.Run("threshold", func(t *testing.T) {
		r := openRings(t, Options{}, ringOptions{txdctl: 8<<16 | 1<<8 | 32})
		for i := range 8 {
			if i > 0 && r.txDesc(0)[12]&1 != 0 {
				t.Fatalf("written back after %d of 8", i)
			}
			r.send(frame(60))
			r.settle()
		}
		for i := range 8 {
			if r.txDesc(i)[12] != 1 {
				t.Errorf("descriptor %d is not written back", i)
			}
		}
	})
	t.Run("head", func(t *testing.T) {
		r := openRings(t, Options{}, ringOptions{headWB: true})
		for i := range 3 {
			r.send(frame(60))
			r.settle()
			if got := binary.LittleEndian.Uint32(r.mem[headWB:]); got != uint32(i+1) || r.txDesc(i)[12]&1 != 0 {
				t.Errorf("head %d after %d frames", got, i+1)
			}
		}
	})
}

func TestPauseFrames(t *testing.T) {
	r := openRig(t, Options{})
	r.wr(0x4294, 1<<3|1<<1)
	pause := func(q uint16) []byte {
		f := make([]byte, 60)
		copy(f, []byte{1, 0x80, 0xc2, 0, 0, 1, 2, 0, 0, 0, 0, 9, 0x88, 8, 0, 1, byte(q >> 8), byte(q)})
		return f
	}
	r.Arrive(pause(0xffff))
	r.send(frame(60))
	r.settle()
	if r.Far.Recv(1<<40) != nil {
		t.Error("sent while paused")
	}
	r.Arrive(pause(0))
	if r.Far.Recv(1<<40) == nil {
		t.Error("not sent after XON")
	}
	// Ours: past the high mark XOFF, below the low one XON.
	r.wr(0x3d00, 1<<3)
	r.wr(0x3220, 1<<31|2048)
	r.wr(0x3260, 1<<31|8192)
	r.wr(0x3200, 0x1234)
	for range 6 {
		r.Far.Send(0, frame(1514))
	}
	r.settle()
	if f := r.Far.Recv(1 << 40); f == nil || f[12] != 0x88 || f[16] != 0x12 || f[17] != 0x34 {
		t.Errorf("no XOFF: %x", f)
	}
	r.fill(32)
	r.settle()
	if f := r.Far.Recv(1 << 40); f == nil || f[12] != 0x88 || f[16] != 0 || f[17] != 0 {
		t.Errorf("no XON: %x", f)
	}
}

func TestLegacyDescriptors(t *testing.T) {
	r := openRings(t, Options{}, ringOptions{srrctl: 2})
	r.fill(8)
	f := frame(100)
	r.Arrive(f)
	d := r.rxDesc(0)
	if binary.LittleEndian.Uint16(d[8:]) != 100 || d[12]&3 != 3 || d[13] != 0 {
		t.Errorf("descriptor %x", d)
	}
	addr := r.load(0, f)
	r.desc(addr, 40|1<<25, 0)
	at := r.desc(addr+40, 60|1<<24|1<<25|1<<27, 0)
	r.kick()
	r.Sent(f, "two descriptors")
	check.Equal(t, r.txDesc(int(at))[12], 1, "status %d of the last descriptor")
}

func TestDoorbellByPointer(t *testing.T) {
	r := openRig(t, Options{})
	p := must.Get(r.w.Pointer(0x6018, 4))(t)
	r.desc(r.load(0, frame(60)), 60|advData|eop|rs, 60<<14)
	before := r.Port.Counts()
	*(*uint32)(p) = r.txT
	r.settle()
	if r.Far.Recv(1<<40) == nil || r.Port.Counts().Since(before).MMIOWrite != 1 {
		t.Error("a doorbell by pointer was lost or not counted")
	}
}

func TestFullTransmitRing(t *testing.T) {
	r := openRig(t, Options{})
	for range 3 {
		for i := range ringLen - 1 {
			d := uint32(60 | advData | eop)
			if i%16 == 15 || i == ringLen-2 {
				d |= rs
			}
			r.desc(r.load(0, frame(60)), d, 60<<14)
		}
		r.kick()
	}
	check.Equal(t, r.m.Counters().TxFrames, 3*(ringLen-1), "%d frames were sent")
}

func TestRegisterNames(t *testing.T) {
	m := New(Options{})
	for off, want := range map[uint64]string{0x01028 + 0x40: "RXDCTL[1]", 0x02104: "SRRCTL[1]", 0x05818: "MRQC",
		0x042a0: "AUTOC", 0x00004: "CTRL alias",
		0x1fffc: "", 0x20000: ""} {
		if n, _ := m.RegisterName(0, off); n != want {
			t.Errorf("%#x is called %q, want %q", off, n, want)
		}
	}
}

// Octets that are counted between the reads of the two halves belong to the next pair of reads.
func TestOctetsBetweenTheHalves(t *testing.T) {
	m := New(Options{})
	m.add64(regGORCL, 1<<32+5)
	read := func(r reg) uint32 { return must.Get(m.read(r))(t) }
	low := read(regGORCL)
	m.add64(regGORCL, 64)
	if high := read(regGORCL + 4); low != 5 || high != 1 {
		t.Errorf("low %d, high %d: want 5, 1", low, high)
	}
	if low, high := read(regGORCL), read(regGORCL+4); low != 64 || high != 0 {
		t.Errorf("then low %d, high %d: want 64, 0", low, high)
	}
}

// TestRegistersKeep: what Linux's self-test writes to registers, and the part of it that it reads back
// (ixgbe_ethtool.c, reg_test_82599).
func TestRegistersKeep(t *testing.T) {
	r := newRig(t, Options{})
	try := func(at uint64, n int, stride uint64, written, kept uint32) {
		for ; n > 0; n-- {
			before := r.rd(at)
			for _, pattern := range []uint32{0x5a5a5a5a, 0xa5a5a5a5, 0, 0xffffffff} {
				r.wr(at, pattern&written)
				if v := r.rd(at); v != pattern&written&kept {
					t.Errorf("register %05x: wrote %08x, reads %08x", at, pattern&written, v)
				}
			}
			r.wr(at, before)
			at += stride
		}
	}
	status := r.rd(0x8)
	r.wr(0x8, 0x7ffff30f)
	check.Equal(t, r.rd(0x8), status, "STATUS %08x after a write")
	try(0x3220, 1, 0, 0x8007fff0, 0x8007fff0)
	try(0x3260, 1, 0, 0x8007fff0, 0x8007fff0)
	try(0x3008, 1, 0, 0xffffffff, 0xffffffff)
	for _, ring := range []uint64{0x1000, 0x6000} {
		try(ring, 4, 0x40, 0xffffff80, 0xffffff80)
		try(ring+4, 4, 0x40, 0xffffffff, 0xffffffff)
		try(ring+8, 4, 0x40, 0x000fff80, 0x000fff80)
	}
	for q := range uint64(4) {
		r.wr(0x1028+0x40*q, 1<<25)
	}
	try(0x1018, 4, 0x40, 0xffff, 0xffff)
	for q := range uint64(4) {
		r.wr(0x1028+0x40*q, 0)
	}
	try(0x3200, 1, 0, 0xffffffff, 0xffffffff)
	try(0x3000, 1, 0, 1, 1)
	try(0xa200, 16, 8, 0xffffffff, 0xffffffff)
	try(0xa204, 16, 8, 0x800cffff, 0x8001ffff)
	try(0x5200, 128, 4, 0xffffffff, 0xffffffff)
	for _, v := range r.Port.Errors() {
		t.Error(v)
	}
	all := strings.Join(r.Port.Violations(), "\n")
	check.Contains(t, all, "00005a5a to RDT[0] (BAR 0 01018h): the ring has no", "enabled with RDLEN 0",
		"STATUS (BAR 0 00008h): it is read only")
	r.Port.ForgetViolations()
	r.reset()
	r.start(ringOptions{})
}

// A queue with receive side coalescing switched on receives. This one coalesces nothing.
func TestCoalescingQueue(t *testing.T) {
	r := openRings(t, Options{}, ringOptions{rscctl: 1 | 3<<2})
	r.fill(8)
	r.Far.Send(0, frame(60))
	r.settle()
	check.Equal(t, r.m.Counters().RxFrames, 1, "%d frames were received")
}
