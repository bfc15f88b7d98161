package mlx5sim

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/sim/parts"
)

func compressing(t *testing.T, format uint32) *rig {
	x := newRig(t, Options{})
	x.compress = 1<<14 | format<<12
	x.open()
	return x
}

// arrive sends a frame of each length, plain UDP to one port, while the model holds the completions back.
func (x *rig) arrive(lengths ...int) {
	for _, n := range lengths {
		x.Far.Send(0, frameOf(n))
	}
	x.Port.Settle(200)
}

func (x *rig) slot(i uint32) []byte { return x.cq.Bytes[i%(1<<testLogCQ)*64:][:64] }

func (x *rig) lengthsOf(i uint32) (lengths []int, firsts []uint32) {
	x.Helper()
	title := x.slot(i)
	if title[63]>>2&3 != 3 {
		x.Fatalf("entry %d is not compressed: %x", i, title)
	}
	at := i + 1
	for j := range w32(title, 0x2c) {
		if j > 0 && j%8 == 0 {
			at = i + j
		}
		mini := x.slot(at)[j%8*8:]
		firsts, lengths = append(firsts, w32(mini, 0)), append(lengths, int(w32(mini, 4)))
	}
	return lengths, firsts
}

func TestCompressed(t *testing.T) {
	x := compressing(t, miniChecksum)
	if out := x.do(dwords(16, 0, 0x402<<16, 8, x.cqn), 0x110); w32(out, 0x10)>>12&7 != 5 {
		t.Errorf("QUERY_CQ does not tell cqe_comp_en and mini_cqe_res_format: %08x", w32(out, 0x10))
	}
	x.post(15)
	x.arrive(64)
	if e := x.cqe(); e == nil || e[63]>>2&3 != 0 || w32(e, 0x2c) != 64 {
		t.Errorf("one alone: %x", e)
	}
	want := []int{64, 65, 66, 67, 68, 69, 70, 71, 72, 73}
	x.arrive(want...)
	lengths, sums := x.lengthsOf(1)
	check.Same(t, lengths, want, "lengths %v")
	for i, s := range sums {
		check.Equal(t, s, uint32(parts.Sum16(frameOf(want[i])[14:], 0))<<16,
			"the mini CQE begins with its frame's checksum: %08x")
	}
	if e := x.slot(1); binary.BigEndian.Uint16(e[0x3c:]) != 1 || e[63]&1 != 0 {
		t.Errorf("title %x", e)
	}
	for i := uint32(3); i < 9; i++ {
		if x.slot(i)[63] != 0xf1 {
			t.Errorf("entry %d was written: %x", i, x.slot(i))
		}
	}
	x.cqCI = 11
	binary.BigEndian.PutUint32(x.rec.Bytes[64:], x.cqCI)
	// A completion that differs in other fields ends the session, and starts a new one.
	other := append(frameOf(80)[:12], 8, 0, 0x45, 0, 0, 66, 0, 0, 0, 0, 64, 253, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2) // IPv4
	x.Arrive(frameOf(100), frameOf(101), other[:80])
	lengths, _ = x.lengthsOf(11)
	check.Same(t, lengths, []int{100, 101}, "before another kind: %v")
	x.cqCI = 13
	if e := x.cqe(); e == nil || e[63]>>2&3 != 0 || w32(e, 0x2c) != 80 {
		t.Errorf("another kind: %x", e)
	}
	if k := x.m.Counters(); k.Sessions != 2 || k.Compressed != 12 {
		t.Errorf("%d sessions of %d completions, expected 2 of 12", k.Sessions, k.Compressed)
	}
	x.down()
}

// TestCompressedWrap fills a ring to its last entry: a session ends there, and the next one has the other owner bit.
func TestCompressedWrap(t *testing.T) {
	x := compressing(t, miniHash)
	x.post(1 << testLogRQ)
	posted, at := uint32(0), uint32(0)
	for _, sessions := range [][]uint32{{1}, {14}, {15}, {2, 11}} {
		var all []int
		for _, n := range sessions {
			for range n {
				all = append(all, 60+int(posted))
				posted++
			}
		}
		binary.BigEndian.PutUint32(x.rec.Bytes[128:], posted)
		x.arrive(all...)
		for _, n := range sessions {
			if own := x.slot(at)[63] & 1; uint32(own) != at>>testLogCQ&1 {
				t.Errorf("session at %d: owner %d", at, own)
			}
			if n > 1 {
				if lengths, hashes := x.lengthsOf(at); !slices.Equal(lengths, all[:n]) || slices.Max(hashes) != 0 {
					t.Errorf("session at %d: lengths %v, expected %v; hashes %x of a TIR without", at, lengths, all[:n],
						hashes)
				}
			}
			all, at = all[n:], at+n
		}
		binary.BigEndian.PutUint32(x.rec.Bytes[64:], at)
	}
	x.Clean()
	// Of 32 entries the driver has not consumed 31: a session of two does not fit.
	binary.BigEndian.PutUint32(x.rec.Bytes[64:], at-31)
	binary.BigEndian.PutUint32(x.rec.Bytes[128:], posted+2)
	x.m.obj.cqs.m[x.cqn].ci = at - 31
	x.arrive(64, 65)
	x.ExpectViolation("overrun")
}

// TestCompressedMost ends a session at cqe_compression_max_num, and one that is open when its queue is destroyed.
func TestCompressedMost(t *testing.T) {
	x := compressing(t, miniHash)
	x.post(1 << testLogRQ)
	want := slices.Repeat([]int{64}, compressMost)
	send := func(n int) {
		for range n {
			x.Far.Send(0, frameOf(64))
		}
		x.Port.Step()
	}
	send(compressMost)
	lengths, _ := x.lengthsOf(0)
	check.Same(t, lengths, want, "%v")
	binary.BigEndian.PutUint32(x.rec.Bytes[128:], compressMost+3)
	send(3)
	if e := x.slot(compressMost); e[63] != 0xf1 {
		t.Errorf("written at once: %x", e)
	}
	x.do(dwords(0x110, 0, 0x909<<16, 8, 1<<28|x.rqn, 0x20, 0), 16)
	lengths, _ = x.lengthsOf(compressMost)
	check.Same(t, lengths, want[:3], "when the queue was reset: %v")
}

// TestCompressedFormats checks that formats without their capability are rejected.
func TestCompressedFormats(t *testing.T) {
	x := openRig(t, Options{})
	for _, format := range []uint32{2, 3} {
		in := x.createCQ()
		binary.BigEndian.PutUint32(in[0x10:], 1<<14|format<<12)
		x.fails(in, 16, stBadParam, "mini_cqe_res_format")
	}
}
