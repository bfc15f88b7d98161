package efasim

import (
	"testing"

	"github.com/rebound-nic/rebound/sim/amazon"
	"github.com/rebound-nic/rebound/sim/amazon/amazontest"
	"github.com/rebound-nic/rebound/sim/simtest"
)

// FuzzModel drives the device with arbitrary bytes: registers, commands, WQEs, receive descriptors, doorbells, frames
// and knobs. The model must not panic, hang, or access unmapped memory without a violation (which the port enforces).
// It starts with queue pairs of both kinds, so that inputs reach deep.
func FuzzModel(f *testing.F) {
	f.Add([]byte{0, 0x2c, 0, 1, 0, 0, 0})
	for op := range byte(8) {
		b := []byte{op}
		for i := range byte(120) {
			b = append(b, i*37^op)
		}
		f.Add(b)
	}
	next := fuzzRig(f, Options{Profile: EFA3, AdminOutOfOrder: true, Seed: 1})
	f.Fuzz(func(t *testing.T, in []byte) {
		x := next(t)
		x.open()
		c := x.completions(32, nil)
		qs := []*qpair{x.qpair(typeUD, 64, c).ready(), x.qpair(typeSRD, 128, c).ready()}
		ah := x.handle(x.m.gid)
		in = in[:min(len(in), 2048)] // longer inputs find no more and only take time
		take := func(n int) []byte {
			b := make([]byte, n)
			in = in[copy(b, in):]
			return b
		}
		for len(in) > 0 {
			op := take(1)[0]
			q := qs[op>>4&1]
			switch op % 8 {
			case 0: // any register
				b := take(6)
				x.Regs.Write32(uint64(le.Uint16(b))%amazon.BARSize&^3, le.Uint32(b[2:]))
			case 1: // any command
				b := take(62)
				g := fields{}
				for i, v := range b[2:] {
					g[4+i] = v
				}
				switch op >> 5 { // with objects that exist
				case 1:
					g[4] = q.handle
				case 2:
					g[8], g[12] = uint32(b[6])<<4, q.mem.IOVA
				case 3:
					g[8] = q.handle
				}
				for _, at := range []int{4, 8, 12} {
					n := map[bool]int{true: 4}[op>>5 == 1 && at == 4 || op>>5 == 3 && at == 8 || op>>5 == 2 && at == 8]
					if op>>5 == 2 && at == 12 {
						n = 8
					}
					for i := 1; i < n; i++ {
						delete(g, at+i)
					}
				}
				g[3] = b[1] & 6
				x.Submit(b[0]%23, g)
			case 2, 3: // a WQE, mostly valid
				b := take(q.size)
				le.PutUint16(b[4:], qs[b[4]&1].num)
				if b[14]&1 != 0 {
					le.PutUint16(b[12:], ah)
					le.PutUint32(b[16:], testKey)
				}
				b[2] |= ctrl1Meta
				for at := 32; at+16 <= q.size; at += 16 {
					le.PutUint32(b[at+4:], []uint32{q.lkey, q.rkey, le.Uint32(b[at+4:])}[b[at+4]%3])
					le.PutUint64(b[at+8:], q.mem.IOVA+uint64(le.Uint16(b[at+8:])))
				}
				q.write(b)
				if op&8 != 0 {
					q.ring()
				}
			case 4: // a receive
				b := take(16)
				le.PutUint64(b, q.mem.IOVA+uint64(le.Uint16(b)))
				le.PutUint32(b[12:], q.lkey|le.Uint32(b[12:])&0xff000000)
				copy(q.rq.Bytes[16*int(q.posted%qDepth):], b)
				q.posted++
				x.bel.Write32(q.rqBell, uint32(q.posted))
			case 5: // a frame, mostly valid
				b := take(60)
				g := frame{typ: b[0] % 8, flags: b[1], status: b[2] % 20, src: gidOf([6]byte{b[3] & 1}), dst: x.m.gid,
					srcQP: le.Uint16(b[4:]), dstQP: q.num,
					qkey: testKey, epoch: x.m.epoch + uint32(b[6]&3), seq: uint32(b[7]),
					raddr: q.mem.IOVA + uint64(le.Uint16(b[8:])), rkey: q.rkey,
					length: uint32(le.Uint16(b[10:])), payload: b[12 : 12+b[59]%48]}
				out := g.marshal()
				if op&32 != 0 {
					out[int(b[58])%len(out)] ^= b[57]
				}
				x.Far.Send(0, out[:len(out)-int(b[56]%4)])
			case 6:
				b := take(2)
				x.m.Post(amazon.Event{Group: uint16(b[0] % 8), Syndrome: uint16(b[1])})
				x.m.DuplicateCompletion(b[1]&1 != 0, int(b[0]%4))
				x.m.Pause(b[1]&2 != 0)
				x.m.DropReceives(b[1]&4 != 0)
			case 7: // any doorbell
				b := take(6)
				x.bel.Write32(x.m.uarBase()+uint64(le.Uint16(b))&^3, le.Uint32(b[2:])&0xe00000ff)
			}
			x.Port.Step()
		}
		for range 20 {
			x.Port.Step()
		}
	})
}

// fuzzRig returns a function that returns a fresh rig for each input, in a fraction of the time that a new one takes.
func fuzzRig(f *testing.F, o Options) (next func(testing.TB) *rig) {
	const memory = 512 << 10
	o.MAC = [6]byte{2, 0, 0, 0, 0, 1}
	m := New(fast(o))
	m.opt.llq = 256 << 10 // a reset clears all of it
	base := simtest.New(f, "efa", m, memory)
	base.Reusable(memory)
	bar, llq, bel := base.BAR(0), base.BAR(2), base.BAR(m.opt.doorbells)
	return func(t testing.TB) *rig {
		m.Turn(func(k *amazon.Knobs) { *k = amazon.Knobs{} })
		base.Again(t)
		return &rig{Driver: amazontest.New(base, bar), m: m, llq: llq, bel: bel}
	}
}

func FuzzFrame(f *testing.F) {
	f.Add((&frame{typ: typeAck, src: gidOf([6]byte{1}), dst: gidOf([6]byte{2}), payload: []byte("x")}).marshal())
	f.Fuzz(func(t *testing.T, b []byte) {
		g, err := parseFrame(b)
		if err != nil {
			return
		}
		again := g.marshal()
		h, err := parseFrame(again)
		if err != nil || string(h.marshal()) != string(again) || len(again) > len(b) {
			t.Errorf("%x becomes %x, %v", b, again, err)
		}
	})
}
