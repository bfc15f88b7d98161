package enasim

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/sim/amazon"
	"github.com/rebound-nic/rebound/sim/amazon/amazontest"
	"github.com/rebound-nic/rebound/sim/simtest"
)

const stepsMost = 24

// FuzzModel drives the device with arbitrary bytes: registers, commands, descriptors, LLQ memory, frames and knobs. The
// model must not panic, hang, or access unmapped memory without a violation (which the port enforces). It starts with
// queues of both kinds, so that inputs reach deep. More steps than stepsMost find nothing new, and slow the fuzzer
// down, because it prefers long inputs.
func FuzzModel(f *testing.F) {
	f.Add([]byte{0, 0x2c, 1, 1, 1, 2, 3, 4, 5, 6, 7, 8})
	f.Add([]byte{2, 0, 60, 0, 0, 0x0d, 3, 1, 0, 0, 4, 9, 9, 9})
	for op := range byte(8) {
		b := []byte{op}
		for i := range byte(80) {
			b = append(b, i*37^op)
		}
		f.Add(b)
	}
	next := fuzzRig(f, Options{AdminDelay: time.Microsecond, AdminOutOfOrder: true, TxOutOfOrder: true,
		RxOutOfOrder: true,
		RxOffset:     2, Burst: 1024, Seed: 1})
	f.Fuzz(func(t *testing.T, in []byte) {
		x := next(t)
		x.Open()
		x.late(opSetFeature, fields{17: uint8(featLLQ), 30: uint16(1), 34: uint16(llq128), 38: uint16(2), 42: uint16(2),
			48: uint16(3)})
		bufs := x.Alloc(1 << 16)
		pages := x.Alloc(1 << 15)
		qs := []*ring{}
		for i, k := range []struct {
			dir  uint8
			push bool
		}{{dirTX, false}, {dirTX, true}, {dirRX, false}, {dirRX, false}} {
			q := &ring{x: x, size: 8}
			q.cq.IOVA, q.cq.Bytes = pages.IOVA+uint64(i)*8192, pages.Bytes[i*8192:][:4096]
			q.sq.IOVA, q.sq.Bytes = q.cq.IOVA+4096, pages.Bytes[i*8192+4096:][:4096]
			words, place := uint8(2), uint8(placeHost)
			if k.dir == dirRX {
				words, q.size = 4, 16
			}
			x.late(opCreateCQ, fields{5: words, 6: uint16(testDepth), 12: q.cq.IOVA})
			sq := fields{4: k.dir << 5, 6: place, 7: uint8(1), 8: uint16(i), 10: uint16(testDepth), 12: q.sq.IOVA}
			if k.push {
				sq[6] = uint8(placeDevice)
				delete(sq, 12)
			}
			x.late(opCreateSQ, sq)
			q.bell = uint64(regTxDB) + 4*uint64(i)
			if k.dir == dirRX {
				q.bell = uint64(regRxDB) + 4*uint64(i-2)
			}
			qs = append(qs, q)
		}
		take := func(n int) []byte {
			b := make([]byte, n)
			in = in[copy(b, in):]
			return b
		}
		for n := 0; n < stepsMost && len(in) > 0; n++ {
			switch op := take(1)[0]; op % 8 {
			case 0: // any register
				b := take(6)
				x.Regs.Write32(uint64(le.Uint16(b))%amazon.BARSize&^3, le.Uint32(b[2:]))
			case 1: // any command
				b := take(56)
				g := fields{}
				for i, v := range b[1:] {
					g[4+i] = v
				}
				if op&8 != 0 { // with addresses that exist
					g[8], g[9], g[10], g[11] = byte(bufs.IOVA), byte(bufs.IOVA>>8), byte(bufs.IOVA>>16),
						byte(bufs.IOVA>>24)
					g[12], g[13], g[14], g[15] = byte(bufs.IOVA>>32), byte(bufs.IOVA>>40), byte(0), byte(0)
				}
				x.Submit(b[0]%12, g)
			case 2, 3: // descriptors in host memory
				q := qs[[]int{0, 2, 3, 0}[op>>4&3]]
				b := take(16)
				a := bufs.IOVA + uint64(b[8])<<4
				q.words(le.Uint32(b)&^(1<<24), le.Uint32(b[4:]), uint32(a), uint32(a>>32)|uint32(b[15]&op)<<24)
				if op&8 != 0 {
					q.ring()
				}
			case 4: // an LLQ entry
				b := take(32)
				h := take(int(b[30]) % 97)
				var d [2][4]uint32
				for i := range d {
					for k := range d[i] {
						d[i][k] = le.Uint32(b[16*i+4*k:])
					}
					d[i][0] &^= 1 << 24
					d[i][2], d[i][3] = uint32(bufs.IOVA), d[i][3]&0xffff0000|uint32(bufs.IOVA>>32)
				}
				qs[1].pushEntry(128, h, d[0], d[1])
				if op&8 != 0 {
					qs[1].ring()
				}
			case 5:
				b := take(2)
				x.Far.Send(0, take(int(le.Uint16(b)%1600)))
			case 6:
				b := take(2)
				x.m.Post(amazon.Event{Group: uint16(b[0] % 8), Syndrome: uint16(b[1])})
				x.m.DuplicateCompletion(b[1]&1 != 0, int(b[0]%4))
				x.m.HoldCompletions(b[1]&2 != 0)
			case 7:
				x.Reset(uint32(op >> 4))
			}
			x.Port.Step()
		}
		for range 10 {
			x.Port.Step()
		}
	})
}

// fuzzRig returns a function that returns a fresh rig for each input, in a fraction of the time that a new one takes.
func fuzzRig(f *testing.F, o Options) (next func(testing.TB) *rig) {
	const memory = 256 << 10
	o.MAC, o.AnyDriver = testMAC, true
	m := New(o)
	base := simtest.New(f, "ena", m, memory)
	base.Reusable(memory)
	bar, mem := base.BAR(0), base.BAR(2)
	return func(t testing.TB) *rig {
		m.Turn(func(k *amazon.Knobs) { *k = amazon.Knobs{} })
		m.Rand = rand.New(rand.NewPCG(o.Seed, 6))
		base.Again(t)
		return &rig{Driver: amazontest.New(base, bar), m: m, mem: mem}
	}
}

func (x *rig) late(op uint8, f fields) {
	x.Submit(op, f)
	x.Port.Step()
	x.Port.Step()
	x.Port.Step()
	if e := x.Ack(); e == nil || e[2] != 0 {
		x.Fatalf("opcode %d: %x %q", op, e, x.Port.Violations())
	}
}
