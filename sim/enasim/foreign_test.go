package enasim

import (
	"bytes"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/sim/amazon"
)

// Behaviour of third-party drivers that run on real devices: the model may warn, and must work.

// iPXE before 2021 requests a reset, polls DEV_STS until READY, never clears DEV_CTL and continues.
func TestAsOldIPXE(t *testing.T) {
	x := newRig(t, Options{})
	x.Set(amazon.RegDEVCTL, amazon.CTLReset)
	polls := 0
	for x.Regs.Read32(uint64(amazon.RegDEVSTS))&amazon.StsReady == 0 {
		if polls++; polls > 10 {
			t.Fatal("not ready after the reset")
		}
	}
	if polls == 0 {
		t.Error("DEV_STS is READY right after the reset was asked for")
	}
	x.AQ, x.ACQ = x.Alloc(64*testDepth), x.Alloc(64*testDepth)
	x.Addr(amazon.RegACQBASELO, x.ACQ.IOVA)
	x.Set(amazon.RegACQCAPS, testDepth|64<<16)
	x.Addr(amazon.RegAQBASELO, x.AQ.IOVA)
	x.Set(amazon.RegAQCAPS, testDepth|64<<16)
	if r := x.get(featAttributes, nil); !bytes.Equal(r[24:30], testMAC[:]) {
		t.Errorf("device attributes %x", r)
	}
	// No interrupts, no events: its queues are polled.
	q := x.queue(dirTX, false, 0)
	buf := x.Alloc(4096)
	copy(buf.Bytes, frame(60, 1))
	q.send(buf, 60, 0)
	if x.Far.Recv(0) == nil || q.take() == nil {
		t.Error("nothing was sent")
	}
	x.ExpectWarning("before DEV_CTL.RESET was cleared")
	// The device returns any request ID unchanged.
	q.send(buf, 60, 60)
	if c := q.take(); x.Far.Recv(0) == nil || c == nil || le.Uint16(c) != 60 {
		t.Errorf("completion %x of request 60", c)
	}
	x.ExpectWarning("request ID 60 of a queue of 8")
	// On shutdown it clears the sizes of the admin queues.
	x.Set(amazon.RegAQCAPS, 0)
	x.Set(amazon.RegACQCAPS, 0)
	x.Port.Settle(3)
	x.ExpectWarning("write of 0 to AQ_CAPS")
	x.Set(amazon.RegAQDB, uint32(x.Commands)+1)
	x.ExpectError("entries have 64 bytes")
}

// DPDK requests an interrupt with vector -1 for a queue that it polls.
func TestPolledQueue(t *testing.T) {
	x := openRig(t, Options{})
	cq := x.Alloc(4096)
	r := x.OK(opCreateCQ, fields{4: uint8(1 << 5), 5: uint8(2), 6: uint16(testDepth), 8: uint32(0xffffffff),
		12: cq.IOVA})
	sq, buf := x.Alloc(4096), x.Alloc(4096)
	idx := le.Uint16(r)
	// Its ring is not aligned to a page either.
	r = x.OK(opCreateSQ, fields{4: uint8(dirTX << 5), 6: uint8(placeHost), 7: uint8(1), 8: idx, 10: uint16(testDepth),
		12: sq.IOVA + 64})
	x.ExpectWarning("is not page aligned")
	b := sq.Bytes[64:]
	copy(buf.Bytes, frame(60, 1))
	le.PutUint32(b, tx0|60|txPhase)
	le.PutUint32(b[8:], uint32(buf.IOVA))
	le.PutUint32(b[12:], uint32(buf.IOVA>>32))
	x.Regs.Write32(uint64(le.Uint32(r[4:])), 1)
	x.Vectors = nil
	x.Port.Settle(3)
	if x.Far.Recv(0) == nil || cq.Bytes[3]&1 == 0 || len(x.Vectors) != 0 {
		t.Errorf("completion %x, interrupts %v", cq.Bytes[:8], x.Vectors)
	}
}

func TestHostInfoAnywhere(t *testing.T) {
	x := openRig(t, Options{})
	b := x.Alloc(8192)
	le.PutUint32(b.Bytes[128:], 3)
	le.PutUint16(b.Bytes[128+184:], 0x200)
	x.set(featHostAttr, fields{20: b.IOVA + 128})
	x.ExpectWarning("os_info_ba")
}

func TestDefaultKey(t *testing.T) {
	x := openRig(t, Options{})
	q := x.queue(dirRX, false, 0)
	q.offer(x.Alloc(1<<16), 2048, 0, 1, 2)
	ctl := x.Alloc(4096)
	x.get(featHash, fields{3: uint8(4), 4: uint32(48), 8: ctl.IOVA})
	if bytes.Equal(ctl.Bytes[8:48], make([]byte, 40)) {
		t.Error("the key is zero after a reset")
	}
	x.set(featHash, fields{3: uint8(4), 4: uint32(48), 8: ctl.IOVA, 24: uint32(hashToeplitz)})
	x.hashUDP(ctl)
	x.Arrive(frame(60, 1))
	if c := q.take(); c == nil || le.Uint32(c[8:]) == 0 {
		t.Errorf("completion %x", c)
	}
}

// DPDK requests L4 checksums without marking them as partial. The frame is sent with the right checksum.
func TestChecksumNotPartial(t *testing.T) {
	x := openRig(t, Options{})
	q := x.queue(dirTX, false, 0)
	buf := x.Alloc(4096)
	want := frame(100, 1) // UDP over IPv4 with the right checksum
	p := parseFrame(want)
	be.PutUint16(want[p.l4+6:], 0)
	be.PutUint16(want[p.l4+6:], ^uint16(ones(want[p.l4:p.end], p.pseudo())))
	for _, left := range []uint16{0, 0x1234, uint16(p.pseudo())} {
		copy(buf.Bytes, want)
		be.PutUint16(buf.Bytes[p.l4+6:], left)
		q.words(tx0&^(txLast|txComp)|txMeta|metaExt|metaType|metaStore, 0, uint32(p.ip)<<8|uint32(p.ipLen), 0)
		q.words(tx0&^txFirst|100, 1<<22|tx1L4|l3IPv4|l4UDP<<8, uint32(buf.IOVA), uint32(buf.IOVA>>32))
		q.ring()
		x.Port.Settle(3)
		x.Sent(want, "with %#x in the field", left)
		x.ExpectWarning("l4_csum_en without l4_csum_partial")
		for q.take() != nil {
		}
	}
}

// As in public logs of EC2: no received checksum is verified or reported. RSS still spreads frames.
func TestNoReceiveChecks(t *testing.T) {
	x := openRig(t, Options{NoRxChecks: true})
	if r := x.get(featOffload, nil); le.Uint32(r) != 1<<1 || le.Uint32(r[4:]) != 0 {
		t.Errorf("offloads %x", r[:8])
	}
	qs := []*ring{x.queue(dirRX, false, 0), x.queue(dirRX, false, 0)}
	buf := x.Alloc(1 << 16)
	for _, q := range qs {
		q.offer(buf, 2048, 0, 1, 2, 3, 4, 5, 6, 7)
	}
	x.spread()
	var seen [2]int
	for i := range 8 {
		x.Arrive(frame(60, byte(i)))
		for k, q := range qs {
			if c := q.take(); c != nil {
				seen[k]++
				if le.Uint32(c[8:]) != 0 || le.Uint32(c)&rxChecked != 0 {
					t.Errorf("completion %x", c)
				}
			}
		}
	}
	if seen[0]+seen[1] != 8 || seen[0] == 0 || seen[1] == 0 {
		t.Errorf("queues got %v", seen)
	}
}

func TestBARs(t *testing.T) {
	for bar, sizes := range map[int][6]uint64{0: {16 << 10, 0, 1 << 20}, 1: {8 << 10, 8 << 10, 1 << 20},
		4: {16 << 10, 0, 1 << 20, 0, 64 << 10}} {
		x := openRig(t, Options{MSIXBAR: bar})
		for i, size := range sizes {
			if size > 0 && x.BAR(i).Size() != size {
				t.Errorf("MSI-X in BAR %d: BAR %d has %#x bytes, want %#x", bar, i, x.BAR(i).Size(), size)
			}
		}
		var b [4]byte
		x.Fn.ReadConfig(0x74, b[:])
		check.Equal(t, int(b[0]&7), bar, "the MSI-X table is in BAR %d")
		at := uint64(le.Uint32(b[:]) &^ 7)
		w := x.BAR(bar)
		if w.Write32(at+8, 0x4321); w.Read32(at+8) != 0x4321 || w.Read32(at+12) != 1 {
			t.Errorf("BAR %d has no MSI-X table at %#x", bar, at)
		}
		x.queue(dirRX, false, 1)
		x.Clean()
	}
}

// c6i firmware creates completion queues only for a driver whose major version is 2, and rejects an empty vector.
func TestParticularFirmware(t *testing.T) {
	x := newRig(t, Options{})
	x.m.opt.AnyDriver = false
	x.Open()
	page := x.Alloc(4096)
	cq := fields{5: uint8(2), 6: uint16(testDepth), 8: uint32(noVector), 12: page.IOVA}
	fails := func(f fields, what string) {
		t.Helper()
		s, _ := x.Do(opCreateCQ, f)
		check.Equal(t, s, statusUnknown, "status %d")
		x.ExpectViolation(what)
	}
	fails(cq, "driver version major 0")
	info := x.Alloc(4096)
	le.PutUint32(info.Bytes, 1)
	le.PutUint16(info.Bytes[184:], 0x200)
	for major := range byte(4) {
		info.Bytes[172] = major
		x.set(featHostAttr, fields{20: info.IOVA})
		if major != 2 {
			fails(cq, "2 is expected")
			continue
		}
		x.OK(opCreateCQ, cq)
		fails(cq.With(8, uint32(0)), "msix_vector is 0")
	}
}
