package mlx4sim

import (
	"encoding/binary"
	"testing"

	"github.com/rebound-nic/rebound/sim/simtest"
)

// FuzzCommands executes commands from the input on a running device: opcode, modifiers, and a valid mailbox with
// changed bytes. No panic, and no DMA outside the mapping, which the host refuses. More commands than commandsMost find
// nothing new and slow the fuzzer down, because it prefers long inputs.
func FuzzCommands(f *testing.F) {
	f.Add([]byte{0x00, 0x0d, 0, 1, 1, 1, 3, 0, 4, 0x66, 0x00, 0x16, 0, 0, 0x80, 1, 0})
	f.Add([]byte{0x00, 0x65, 0, 0, 4, 3, 2, 0, 7, 1, 0, 0x0b, 0x40})
	f.Add([]byte{0x0f, 0xfa, 0, 0, 2, 5, 1, 0, 0, 1})
	next := fuzzRig(f, Options{})
	f.Fuzz(func(t *testing.T, in []byte) {
		x := next(t)
		x.flags = hcaDeviceManaged
		x.open()
		bases := [...][]byte{x.mptContext(), x.eqContext(), x.cqContext(), x.qpContext(), x.initHCA(),
			dwords(64, 4, 1, 8, testQP, 16, 12<<24|0xe001), make([]byte, 64)}
		for done := 0; done < commandsMost && len(in) >= 6; done++ {
			op, opMod, mod, base, n := binary.BigEndian.Uint16(in), in[2], uint32(binary.BigEndian.Uint16(in[3:])),
				in[5]%7, int(in[5]>>4)
			in = in[6:]
			b := append([]byte(nil), bases[base]...)
			for ; n > 0 && len(in) >= 3; n-- { // an offset, and a byte
				b[(int(in[0])<<8|int(in[1]))%len(b)] = in[2]
				in = in[3:]
			}
			clear(x.in.Bytes)
			copy(x.in.Bytes, b)
			x.issue(uint32(op&0xfff), uint32(opMod&15), mod, x.in.IOVA, x.out.IOVA)
			x.Port.Settle(4)
		}
		x.Arrive(frameOf(64))
	})
}

const commandsMost = 16

// FuzzQueues runs the device on rings filled with the input, with a doorbell, a push and frames.
func FuzzQueues(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x0a\x00\x00\x00\x02\x00\x00\x00\x0e0123\x80\x00\x00\x20"),
		[]byte{0, 0, 8, 0, 0, 1, 0, 0}, []byte("frame"), uint16(0))
	f.Add([]byte("\x00\x00\x00\x0e\x00\x00\x40\x04\x00\x00\x00\x3e0123\x00\x64\x00\x36"), []byte{}, []byte{},
		uint16(0x1ff))
	next := fuzzRig(f, Options{})
	f.Fuzz(func(t *testing.T, sq, rq, frame []byte, at uint16) {
		x := next(t)
		x.open()
		copy(x.sq.Bytes[:rqAt], sq)
		copy(x.sq.Bytes[rqAt:], rq)
		binary.BigEndian.PutUint32(x.rec.Bytes, uint32(at&31))
		push := make([]byte, bfHalf)
		copy(push, sq)
		binary.BigEndian.PutUint32(push[4:], testQP<<8|uint32(at>>5&63))
		copy(x.m.host.Shadow(2)[(uars+testUAR)*4096+int(at>>11&15)*bfHalf:], push)
		x.door(testUAR, 0x14, testQP<<8)
		if len(frame) >= 14 && len(frame) < 9000 {
			copy(frame, testMAC[:])
			x.Far.Send(0, frame)
		}
		x.Far.Send(0, frameOf(60+int(at&1023)))
		x.Port.Settle(100)
	})
}

// fuzzRig returns a function that returns a fresh rig for each input, in a fraction of the time that a new one takes.
func fuzzRig(f *testing.F, o Options) (next func(testing.TB) *rig) {
	const memory = 11 << 18
	o.MAC = testMAC
	m := New(o)
	base := simtest.New(f, "mlx4", m, memory)
	base.Reusable(memory)
	return func(t testing.TB) *rig {
		base.Again(t)
		return &rig{Rig: base, m: m, in: base.Alloc(4096), out: base.Alloc(4096)}
	}
}
