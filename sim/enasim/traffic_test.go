package enasim

import (
	"bytes"
	"slices"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/sim"
	"github.com/rebound-nic/rebound/sim/amazon"
	"github.com/rebound-nic/rebound/sim/parts"
)

// frame returns a broadcast UDP/IPv4 frame of n bytes, at least 42, with valid checksums. seed makes it
// distinguishable.
func frame(n int, seed byte) []byte {
	f := make([]byte, n)
	copy(f, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 9, 8, 0, 0x45, 0})
	be.PutUint16(f[16:], uint16(n-14))
	f[22], f[23] = 64, 17
	copy(f[26:], []byte{10, 0, 0, 1, 10, 0, 0, seed})
	be.PutUint16(f[24:], ^uint16(ones(f[14:34], 0)))
	be.PutUint16(f[34:], 1000)
	be.PutUint16(f[36:], 7)
	be.PutUint16(f[38:], uint16(n-34))
	for i := 42; i < n; i++ {
		f[i] = byte(i) ^ seed
	}
	p := parseFrame(f)
	be.PutUint16(f[40:], ^uint16(ones(f[34:], p.pseudo())))
	return f
}

func llqOn(x *rig, size uint16) {
	x.set(featLLQ, fields{30: uint16(1), 34: size, 38: uint16(2), 42: uint16(2), 48: uint16(3)})
}

// tx0 is word 0 of a first descriptor, without phase; word 1 contains the request ID.
const tx0 = txFirst | txLast | txComp

func TestTransmitHost(t *testing.T) {
	x := openRig(t, Options{})
	q := x.queue(dirTX, false, 0)
	buf := x.Alloc(16384)
	for i := range 5 * testDepth {
		f := frame(60+i, byte(i))
		copy(buf.Bytes, f)
		before := x.Port.Counts()
		q.words(tx0|uint32(len(f)), uint32(i%testDepth)<<22, uint32(buf.IOVA), uint32(buf.IOVA>>32)|42<<24)
		q.ring()
		x.Port.Step()
		x.Sent(f, "frame %d", i)
		if c := q.take(); c == nil || le.Uint16(c) != uint16(i%testDepth) || le.Uint16(c[6:]) != q.tail {
			t.Fatalf("frame %d: completion %x", i, c)
		}
		must.Equal(t, x.Port.Counts().Since(before), (sim.Counts{MMIOWrite: 1, DMARead: 2, DMAWrite: 1}),
			"transactions: %+v")
	}
	f := frame(3000, 1)
	x.set(featMTU, fields{20: uint32(9000)})
	copy(buf.Bytes, f)
	q.words(txFirst|txComp|1000, 7<<22, uint32(buf.IOVA), uint32(buf.IOVA>>32))
	q.words(1500, 0, uint32(buf.IOVA)+1000, uint32(buf.IOVA>>32))
	q.words(txLast|500, 0, uint32(buf.IOVA)+2500, uint32(buf.IOVA>>32))
	q.ring()
	x.Port.Step()
	x.Sent(f, "three buffers")
}

func TestTransmitPushed(t *testing.T) {
	for size, code := range map[int]uint16{128: llq128, 256: llq256} {
		x := openRig(t, Options{})
		llqOn(x, code)
		q := x.queue(dirTX, true, 0)
		buf := x.Alloc(4096)
		for i, n := range []int{60, 64, 96, 97, 98, 224, 225, 1514, 60, 1514} {
			f := frame(n, byte(i))
			h := min(n, size-32)
			copy(buf.Bytes, f[h:])
			d := [4]uint32{tx0, uint32(i%testDepth) << 22, 0, uint32(h) << 24}
			want := sim.Counts{MMIOWrite: uint64(size/64) + 1, DMAWrite: 1}
			if n > h {
				d[0] |= uint32(n - h)
				d[2], d[3] = uint32(buf.IOVA), d[3]|uint32(buf.IOVA>>32)
				want.DMARead = 1
			}
			before := x.Port.Counts()
			q.pushEntry(size, f[:h], d)
			q.ring()
			x.Port.Step()
			x.Sent(f, "%d of %d", n, size)
			if c := q.take(); c == nil || le.Uint16(c) != uint16(i%testDepth) {
				t.Fatalf("%d of %d: completion %x", n, size, c)
			}
			if c := x.Port.Counts().Since(before); c != want {
				t.Fatalf("%d of %d: transactions %+v, expected %+v", n, size, c, want)
			}
		}
		x.Clean()
	}
}

// A frame with a meta descriptor and four buffers: two descriptors in its first entry, three in the second.
func TestTransmitPushedOverEntries(t *testing.T) {
	x := openRig(t, Options{NoMeta: true})
	llqOn(x, llq128)
	q := x.queue(dirTX, true, 0)
	buf := x.Alloc(4096)
	f := frame(96+4*100, 5)
	copy(buf.Bytes, f[96:])
	p := parseFrame(f)
	part := append([]byte(nil), f...)
	be.PutUint16(part[40:], uint16(p.pseudo()))
	meta := [4]uint32{txFirst | txMeta | metaExt | metaType | metaStore, 0, 20 | 14<<8, 0}
	d := func(i int, w0 uint32) [4]uint32 {
		return [4]uint32{w0 | 100, 0, uint32(buf.IOVA) + 100*uint32(i), uint32(buf.IOVA >> 32)}
	}
	one := d(0, txComp)
	one[1], one[3] = 3<<22|tx1L4|tx1Partial|l3IPv4|l4UDP<<8, one[3]|96<<24
	q.pushEntry(128, part[:96], meta, one)
	q.pushEntry(128, nil, d(1, 0), d(2, 0), d(3, txLast))
	q.ring()
	x.Port.Step()
	x.Sent(f, "two entries")
	if c := q.take(); c == nil || le.Uint16(c) != 3 || le.Uint16(c[6:]) != 2 {
		t.Errorf("completion %x", c)
	}
	x.Clean()
	q.pushEntry(128, f[:96], [4]uint32{tx0, 0, 0, 96 << 24})
	q.ring()
	x.Port.Step()
	x.ExpectViolation("meta caching is disabled")
}

func TestReceive(t *testing.T) {
	x := openRig(t, Options{})
	q := x.queue(dirRX, false, 0)
	buf := x.Alloc(1 << 16)
	q.offer(buf, 2048, 0, 1, 2, 3, 4, 5, 6, 7)
	x.Port.Step()
	for i := range 3 * testDepth {
		f := frame(60+i, byte(i))
		if i%3 == 1 {
			f[50] ^= 1
		}
		before := x.Port.Counts()
		x.Arrive(f)
		c := q.take()
		if c == nil || int(le.Uint16(c[4:])) != len(f) || int(le.Uint16(c[6:])) != i%testDepth {
			t.Fatalf("frame %d: completion %x", i, c)
		}
		if got := buf.Bytes[2048*(i%testDepth):][:len(f)]; !bytes.Equal(got, f) {
			t.Fatalf("frame %d: %x", i, got)
		}
		s := le.Uint32(c)
		if s&(rxFirst|rxLast|rxChecked|0x1fff) != rxFirst|rxLast|rxChecked|l3IPv4|l4UDP<<8 || s&rxL3Err != 0 ||
			s&rxL4Err != 0 != (i%3 == 1) {
			t.Fatalf("frame %d: status %#x", i, s)
		}
		must.Equal(t, x.Port.Counts().Since(before), (sim.Counts{DMAWrite: 2}), "transactions: %+v")
		q.offer(buf, 2048, i%testDepth)
		x.Port.Step()
	}
	x.Clean()
	foreign := frame(60, 0)
	copy(foreign, []byte{2, 9, 9, 9, 9, 9})
	x.Arrive(foreign)
	if q.take() != nil {
		t.Error("a frame for another station arrived")
	}
}

// A device starts with its longest MTU, because DPDK and iPXE set none. Longer frames are dropped, and counted by
// reason.
func TestLongerThanMTU(t *testing.T) {
	x := openRig(t, Options{})
	q := x.queue(dirRX, false, 0)
	q.offer(x.Alloc(1<<14), 9240, 0)
	x.Arrive(frame(9230, 1))
	if q.take() == nil || len(x.Port.Drops()) != 0 {
		t.Errorf("a frame of 9230 bytes did not arrive after a reset: drops %v", x.Port.Drops())
	}
	x.set(featMTU, fields{20: uint32(1500)})
	x.Arrive(frame(1519, 1), frame(1519, 1), frame(1519, 1))
	if d := x.Port.Drops(); d["longer than the MTU of 1500"] != 3 {
		t.Errorf("drops: %v", d)
	}
}

func TestReceiveOverBuffers(t *testing.T) {
	x := openRig(t, Options{RxOutOfOrder: true, Seed: 3})
	x.set(featMTU, fields{20: uint32(9000)})
	q := x.queue(dirRX, false, 0)
	buf := x.Alloc(1 << 16)
	q.offer(buf, 512, 0, 1, 2, 3, 4, 5, 6, 7)
	f := frame(1300, 1)
	x.Arrive(f)
	var got []byte
	for i, flags := range []uint32{rxFirst, 0, rxLast} {
		c := q.take()
		if c == nil || le.Uint32(c)&(rxFirst|rxLast) != flags {
			t.Fatalf("completion %d: %x", i, c)
		}
		got = append(got, buf.Bytes[512*int(le.Uint16(c[6:])):][:le.Uint16(c[4:])]...)
	}
	check.Same(t, got, f, "%x")
	var order []uint16
	for range 5 {
		x.Arrive(frame(60, 2))
		order = append(order, le.Uint16(q.take()[6:]))
	}
	if slices.IsSorted(order) {
		t.Errorf("request IDs in order: %v", order)
	}
	x.Arrive(frame(60, 3)) // no buffer is left: it waits
	if q.take() != nil {
		t.Error("a completion without a buffer")
	}
	q.offer(buf, 512, 0)
	x.Port.Settle(3)
	if q.take() == nil {
		t.Error("the frame that waited is lost")
	}
}

func TestRSS(t *testing.T) {
	x := openRig(t, Options{})
	qs := []*ring{x.queue(dirRX, false, 0), x.queue(dirRX, false, 0)}
	buf := x.Alloc(1 << 16)
	for i, q := range qs {
		q.offer(buf, 2048, 0, 1, 2, 3, 4, 5, 6, 7)
		if int(q.idx) != i {
			t.Fatalf("queue %d is %d", i, q.idx)
		}
	}
	key := x.spread()
	seen := [2]int{}
	for i := range 8 {
		f := frame(60, byte(i))
		want := parts.Toeplitz(key, append(append([]byte{}, f[26:34]...), f[34:38]...))
		x.Arrive(f)
		c := qs[want&1].take()
		if c == nil || le.Uint32(c[8:]) != want {
			t.Fatalf("frame %d: completion %x, hash %#x expected", i, c, want)
		}
		seen[want&1]++
	}
	if seen[0] == 0 || seen[1] == 0 {
		t.Errorf("queues got %v", seen)
	}
	x.Clean()
	ctl := x.Alloc(4096)
	le.PutUint16(ctl.Bytes, 5)
	check.Equal(t, x.bad(opSetFeature, about(featTable, table(ctl)), "entry 0 names receive queue 5"), statusIllegal,
		"status %d")
}

func TestInterrupts(t *testing.T) {
	x := openRig(t, Options{})
	x.Set(amazon.RegINTRMASK, 0)
	q := x.queue(dirRX, false, 2)
	check.Same(t, x.Vectors, []int{0, 0}, "two commands raised %v")
	x.Vectors = nil
	q.offer(x.Alloc(1<<16), 2048, 0, 1, 2, 3, 4, 5, 6, 7)
	x.Arrive(frame(60, 1))
	check.Same(t, x.Vectors, nil, "raised %v before unmask")
	x.Regs.Write32(q.irq, intrUnmask)
	x.Port.Step()
	x.Arrive(frame(60, 1))
	check.Same(t, x.Vectors, []int{2}, "raised %v")
	x.Regs.Write32(q.irq, intrUnmask|5) // 10 us, also for frames that arrived while masked
	x.Arrive(frame(60, 1))
	for range 12 {
		x.Port.Step()
	}
	check.Same(t, x.Vectors, []int{2, 2}, "raised %v")
}

func TestFaultsOnDemand(t *testing.T) {
	x := openRig(t, Options{})
	q := x.queue(dirTX, false, 0)
	buf := x.Alloc(4096)
	copy(buf.Bytes, frame(60, 1))
	x.m.TamperCompletion(true, func(b []byte) { le.PutUint16(b, 0xfff0) })
	q.send(buf, 60, 1)
	if c := q.take(); le.Uint16(c) != 0xfff0 {
		t.Errorf("completion %x", c)
	}
	x.m.DuplicateCompletion(true, 2)
	q.send(buf, 60, 2)
	for i := range 3 {
		if c := q.take(); c == nil || le.Uint16(c) != 2 {
			t.Errorf("duplicate %d: %x", i, c)
		}
	}
	x.m.HoldCompletions(true)
	q.send(buf, 60, 3)
	if c := q.take(); c != nil {
		t.Errorf("held completion %x", c)
	}
	x.m.HoldCompletions(false)
	x.Port.Step()
	if c := q.take(); c == nil {
		t.Error("no completion after the hold")
	}
	x.m.Fail()
	check.Equal(t, x.Read(amazon.RegDEVSTS)&amazon.StsFatal, amazon.StsFatal, "DEV_STS has a fatal error: %#x")
	x.Reset(1)
	check.Equal(t, x.Read(amazon.RegDEVSTS)&amazon.StsFatal, 0, "DEV_STS after a reset: fatal error %#x")
}
