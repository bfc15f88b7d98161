package ixgbesim

import (
	"cmp"
	"encoding/binary"
	"testing"

	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/sim/simtest"
)

// rig is the model with a small hand-written driver: register writes in the order of §4.6, with its own offsets.
type rig struct {
	*simtest.Rig
	m    *Model
	w    *mmio.Window
	mem  []byte
	iova uint64
	rxT  uint32
	txT  uint32
}

const (
	ringLen = 64
	rxRing  = 0x0000 // offsets in mem
	txRing  = 0x1000
	headWB  = 0x2000
	rxBufs  = 0x10000  // 16 KB each
	txBufs  = 0x200000 // 64 KB each
	memSize = 0x800000
)

func newRig(t testing.TB, o Options) *rig {
	t.Helper()
	return newRigOf(t, o, memSize)
}

// newRigOf is newRig with less memory, a multiple of 4096 bytes.
func newRigOf(t testing.TB, o Options, memory int) *rig {
	t.Helper()
	if o.MAC == [6]byte{} {
		o.MAC = [6]byte{2, 0, 0, 0, 0, 1}
	}
	r := &rig{m: New(o)}
	r.Rig = simtest.New(t, "ixgbe", r.m, memory)
	b := r.Alloc(memory)
	r.w, r.mem, r.iova = r.BAR(0), b.Bytes, b.IOVA
	return r
}

// openRig is newRig with running rings.
func openRig(t testing.TB, o Options) *rig {
	t.Helper()
	return openRings(t, o, ringOptions{})
}

func openRings(t testing.TB, o Options, rings ringOptions) *rig {
	t.Helper()
	r := newRig(t, o)
	r.start(rings)
	return r
}

func (r *rig) rd(off uint64) uint32    { return r.w.Read32(off) }
func (r *rig) wr(off uint64, v uint32) { r.w.Write32(off, v) }

func (r *rig) set(off uint64, bits uint32) { r.wr(off, r.rd(off)|bits) }

func (r *rig) poll(off uint64, mask, want uint32) {
	r.Helper()
	for range 10 {
		if r.rd(off)&mask == want {
			return
		}
	}
	r.Fatalf("register %05x stays %08x", off, r.rd(off))
}

func (r *rig) reset() {
	r.wr(0x888, 0x7fffffff)
	r.wr(0x0, 1<<26)
	r.poll(0x0, 1<<26, 0)
	r.poll(0x10010, 1<<9, 1<<9)
	r.poll(0x2f00, 1<<3, 1<<3)
	r.wr(0x888, 0x7fffffff)
}

type ringOptions struct {
	srrctl uint32 // buffers of 2 KB and advanced descriptors if zero
	txdctl uint32
	rscctl uint32
	headWB bool
	jumbo  bool
}

func (r *rig) start(o ringOptions) {
	r.Helper()
	r.reset()
	r.set(0x18, 1<<16)
	r.set(0x5080, 1<<10)
	r.wr(0x2f00, r.rd(0x2f00)&^(0x1f<<17)|1<<1)
	if o.jumbo {
		r.set(0x4240, 1<<2)
		r.wr(0x4268, 9728<<16)
	}
	r.wr(0x1000, uint32(r.iova)+rxRing)
	r.wr(0x1004, uint32(r.iova>>32))
	r.wr(0x1008, ringLen*16)
	r.wr(0x1014, cmp.Or(o.srrctl, 2|1<<25))
	r.wr(0x102c, o.rscctl)
	r.wr(0x1028, 1<<25)
	r.poll(0x1028, 1<<25, 1<<25)
	r.wr(0x8d00, 1<<1|1)
	r.poll(0x8d04, 1, 1)
	r.wr(0x3000, 1)
	r.wr(0x8d00, 1)

	r.wr(0x6000, uint32(r.iova)+txRing)
	r.wr(0x6004, uint32(r.iova>>32))
	r.wr(0x6008, ringLen*16)
	if o.headWB {
		r.wr(0x6038, uint32(r.iova)+headWB|1)
		r.wr(0x603c, uint32(r.iova>>32))
	}
	r.set(0x4a80, 1)
	r.wr(0x6028, o.txdctl|1<<25)
	r.poll(0x6028, 1<<25, 1<<25)
}

// second enables receive queue 1, which has no memory unless the test gives it some.
func (r *rig) second(srrctl uint32) {
	r.Helper()
	r.wr(0x1048, ringLen*16)
	r.wr(0x1054, srrctl)
	r.wr(0x1068, 1<<25)
	r.poll(0x1068, 1<<25, 1<<25)
}

func (r *rig) fill(n int) {
	for range n {
		d := r.mem[rxRing+16*r.rxT:][:16]
		binary.LittleEndian.PutUint64(d, r.iova+rxBufs+uint64(r.rxT)*0x4000)
		binary.LittleEndian.PutUint64(d[8:], 0)
		r.rxT = (r.rxT + 1) % ringLen
	}
	r.wr(0x1018, r.rxT)
}

func (r *rig) desc(addr uint64, w2, w3 uint32) (at uint32) {
	at = r.txT
	d := r.mem[txRing+16*at:][:16]
	binary.LittleEndian.PutUint64(d, addr)
	binary.LittleEndian.PutUint32(d[8:], w2)
	binary.LittleEndian.PutUint32(d[12:], w3)
	r.txT = (r.txT + 1) % ringLen
	return at
}

const (
	advData = 3<<20 | 1<<29 | 1<<25 // DTYP data, DEXT, IFCS
	eop, rs = 1 << 24, 1 << 27
)

func (r *rig) load(k int, f []byte) uint64 {
	copy(r.mem[txBufs+k*0x10000:], f)
	return r.iova + txBufs + uint64(k)*0x10000
}

func (r *rig) send(f []byte) (at uint32) {
	at = r.desc(r.load(int(r.txT), f), uint32(len(f))|advData|eop|rs, uint32(len(f))<<14)
	r.wr(0x6018, r.txT)
	return at
}

// kick hands all descriptors to the device.
func (r *rig) kick() {
	r.wr(0x6018, r.txT)
	r.settle()
}

func (r *rig) settle() { r.Port.Settle(20) }

// word reads a word of the EEPROM.
func (r *rig) word(i uint32) uint16 {
	r.Helper()
	r.wr(0x10014, i<<2|1)
	r.poll(0x10014, 2, 2)
	return uint16(r.rd(0x10014) >> 16)
}

func (r *rig) rxDesc(i int) []byte { return r.mem[rxRing+16*i:][:16] }
func (r *rig) txDesc(i int) []byte { return r.mem[txRing+16*i:][:16] }

func frame(n int) []byte {
	f := make([]byte, n)
	copy(f, []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9, 0x88, 0xb5})
	for i := 14; i < n; i++ {
		f[i] = byte(i * 7)
	}
	return f
}
