package ixgbesim

import (
	"encoding/binary"
	"testing"
)

// FuzzRegisters accesses a running device as the input dictates: no panic, and no access outside the mapping, which the
// host would report as a violation and refuse. The host's own test covers the memory around the mapping.
func FuzzRegisters(f *testing.F) {
	var next [kinds]func(testing.TB) *rig
	for k := range kinds {
		next[k] = fuzzRig(f, Options{Kind: k})
	}
	f.Add([]byte{0, 0x18, 0x60, 0, 5, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 4, 2, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{0x80, 0x5c, 0x42, 0, 2, 0, 1, 0x40, 0x82, 0x5c, 0x42, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, ops []byte) {
		kind := Kind(0)
		if len(ops) > 0 {
			kind = Kind(ops[0]>>5) % kinds
		}
		r := next[kind](t)
		r.start(ringOptions{})
		r.fill(8)
		for len(ops) >= 8 {
			off := uint64(ops[1]) | uint64(ops[2])<<8 | uint64(ops[3]&7)<<16
			v := binary.LittleEndian.Uint32(ops[4:])
			switch ops[0] & 0x1f % 6 {
			case 0, 1:
				r.wr(off&^3, v)
			case 2:
				r.rd(off &^ 3)
			case 3:
				r.Port.Settle(4)
			case 4:
				r.Far.Send(0, frame(14+int(v%9800)))
			case 5:
				// A register that matters, more often than chance would hit it.
				hot := [...]uint64{0x1018, 0x6018, 0x1028, 0x6028, 0x0, 0x3000, 0x1008, 0x6008, 0x1014, 0x6038, 0x5818,
					0x4268, 0x28, 0x800, 0x1000, 0x6000,
					0x425c, 0x4260, 0x10140, 0x10160, 0x10014}
				r.wr(hot[off%uint64(len(hot))], v)
			}
			ops = ops[8:]
		}
		r.Port.Settle(20)
	})
}

func FuzzDescriptors(f *testing.F) {
	f.Add([]byte("0123456789abcdef"), []byte("fedcba9876543210"), uint16(600))
	next := fuzzRig(f, Options{})
	f.Fuzz(func(t *testing.T, tx, rx []byte, size uint16) {
		r := next(t)
		r.start(ringOptions{jumbo: true})
		copy(r.mem[txRing:txRing+ringLen*16], tx)
		copy(r.mem[rxRing:rxRing+ringLen*16], rx)
		// Addresses that hit often.
		for i := range ringLen {
			d := r.mem[txRing+16*i:]
			if d[7] != 0xff {
				binary.LittleEndian.PutUint64(d, r.iova+binary.LittleEndian.Uint64(d)%uint64(len(r.mem)))
			}
		}
		r.wr(0x1018, ringLen-1)
		r.wr(0x6018, ringLen-1)
		for range 4 {
			r.Far.Send(0, frame(14+int(size)%9800))
		}
		r.Port.Settle(50)
	})
}

// FuzzReceive feeds frames of all kinds to the parser, the filters and the checksum checks.
func FuzzReceive(f *testing.F) {
	f.Add(build(f, false, tcp(), []byte("x")))
	f.Add(build(f, true, udp(), []byte("x")))
	next := fuzzRig(f, Options{})
	f.Fuzz(func(t *testing.T, in []byte) {
		r := next(t)
		r.start(ringOptions{})
		r.set(0x5080, 7<<8)
		r.wr(0x5818, 1|0xff<<16)
		r.wr(0x1028, 1<<25|1<<30)
		r.fill(8)
		if len(in) >= 14 && len(in) <= 9800 {
			r.Arrive(in)
		}
		r.Clean()
	})
}

// fuzzRig returns a function that returns a fresh rig for each input, in a fraction of the time that a new one takes.
func fuzzRig(f *testing.F, o Options) (next func(testing.TB) *rig) {
	base := newRigOf(f, o, 256<<10) // the rings, and eight buffers
	return func(t testing.TB) *rig {
		base.Again(t)
		clear(base.mem)
		return &rig{Rig: base.Rig, m: base.m, w: base.w, mem: base.mem, iova: base.iova}
	}
}
