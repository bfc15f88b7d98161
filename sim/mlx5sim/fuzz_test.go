package mlx5sim

import (
	"encoding/binary"
	"testing"

	"github.com/rebound-nic/rebound/sim/parts"
	"github.com/rebound-nic/rebound/sim/rdma"
	"github.com/rebound-nic/rebound/sim/simtest"
)

// FuzzCommands executes arbitrary commands on an initialized device: each command takes its opcode from the table, and
// its length and its dwords from the input. It checks that nothing panics, and that no DMA is outside of the mapping,
// where the host rejects it. More commands than commandsMost find nothing new, and slow the fuzzer down, which prefers
// long inputs.
func FuzzCommands(f *testing.F) {
	f.Add([]byte{0x08, 0x00, 0, 0, 0x08, 0x02, 0, 0, 0x04, 0x00, 17, 0, 8, 0, 1, 0, 0, 4, 1, 0})
	f.Add([]byte{0x09, 0x30, 4, 0, 0x09, 0x33, 64, 3, 0x09, 0x36, 53, 9, 0x01, 0x03, 0, 0})
	f.Add([]byte{0x07, 0x70, 2, 0, 0x08, 0x05, 4, 0x50, 0x08, 8, 0x10, 0, 1, 0, 0x02, 0x00, 17, 2, 9, 1, 1, 1})
	next := fuzzRig(f, Options{})
	f.Fuzz(func(t *testing.T, in []byte) {
		x := next(t)
		x.open()
		x.post(4)
		for done := 0; done < commandsMost && len(in) >= 4; done++ {
			opcode, quads, n := binary.BigEndian.Uint16(in), int(in[2]), int(in[3]%16)
			in = in[4:]
			cmd := make([]byte, 16+quads*16)
			valid := [...][]byte{x.createEQ(), x.createCQ(), x.createSQ(), x.createRQ(), x.createMkey()}
			if v := valid[quads%5]; quads > 127 {
				cmd = v
			}
			binary.BigEndian.PutUint16(cmd, opcode)
			for ; n > 0 && len(in) >= 3; n-- { // an offset, and a byte
				cmd[(int(in[0])<<8|int(in[1]))%len(cmd)] = in[2]
				in = in[3:]
			}
			x.m.command(cmd, 8+quads*8)
			x.Port.Settle(4)
		}
		x.Arrive(frameOf(64))
	})
}

const commandsMost = 16

// fuzzRig returns a function that returns a clean rig for each input, in a fraction of the time that creating one
// takes.
func fuzzRig(f *testing.F, o Options) (next func(testing.TB) *rig) {
	o.MAC = testMAC
	o.InitPages = 10
	const memory = 1 << 20
	m := New(o)
	m.uars = 4 // a reset examines all of them
	base := simtest.New(f, "mlx5", m, memory)
	base.Reusable(memory)
	return func(t testing.TB) *rig {
		base.Again(t)
		x := &rig{Rig: base, m: m, sums: true}
		x.cmd = x.Alloc(128 << 10)
		return x
	}
}

func FuzzQueues(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x0a0123456789abcdef"), []byte("fedcba9876543210"), []byte("frame"), uint16(0))
	f.Add([]byte{}, []byte{0, 0, 8, 0, 0, 0, 0x18, 0x42}, []byte{}, uint16(3))
	next := fuzzRig(f, Options{})
	f.Fuzz(func(t *testing.T, sq, rq, frame []byte, at uint16) {
		x := next(t)
		x.open()
		copy(x.sq.Bytes[:64<<testLogSQ], sq)
		copy(x.rq.Bytes[:16<<testLogRQ], rq)
		for i := 0; i+8 <= 64<<testLogSQ; i += 64 { // control segments with correct headers
			binary.BigEndian.PutUint16(x.sq.Bytes[i+1:], uint16(i/64))
			x.sq.Bytes[i+4], x.sq.Bytes[i+5], x.sq.Bytes[i+6] = byte(x.sqn>>16), byte(x.sqn>>8), byte(x.sqn)
		}
		x.store(int(at>>8)%bfHalves, dwords(8, 0, uint32(at&31)<<8|0x0a, 4, x.sqn<<8|uint32(at>>5&63)))
		binary.BigEndian.PutUint32(x.rec.Bytes[128:], uint32(at&15))
		if len(frame) >= 14 && len(frame) < 9000 {
			copy(frame, testMAC[:])
			x.Far.Send(0, frame)
		}
		x.Far.Send(0, frameOf(60+int(at&1023)))
		x.Port.Settle(100)
	})
}

// FuzzRoCE sends QPs packets that have the input after their routing headers, with correct checksums, and posts send
// WQEs made of the input.
func FuzzRoCE(f *testing.F) {
	f.Add([]byte{0x64, 0, 0xff, 0xff, 0, 4, 0, 1, 0, 0, 0, 1, 0x80, 1, 0, 1, 0, 0, 0, 5, 1, 2, 3, 4}, []byte{0x0a, 8})
	f.Add([]byte{0x0c, 0, 0xff, 0xff, 0, 4, 0, 2, 0x80, 0, 0, 77}, []byte{0x10, 4})
	f.Add([]byte{0x11, 0, 0xff, 0xff, 0, 4, 0, 2, 0, 0, 0, 77, 0x60, 0, 0, 1}, []byte{0x08, 5})
	next := fuzzRig(f, Options{Profile: ConnectX5})
	f.Fuzz(func(t *testing.T, in, wqe []byte) {
		x := next(t)
		x.open()
		x.roce()
		u := x.createUD()
		a, b := x.connected()
		for _, q := range []*testQP{u, a, b} {
			q.receive(2, 1024)
			if len(wqe) > 2 {
				q.send(uint32(wqe[0]), 0, append(append([]byte(nil), wqe[2:]...),
					make([]byte, -(len(wqe)-2)&15)...)[:min(240, (len(wqe)+13)&^15)])
			}
		}
		in = in[:min(len(in), 512)] // longer inputs find nothing new
		for len(in) > rdma.BTHSize {
			n := min(len(in), rdma.BTHSize+int(in[0])*4)
			p := append([]byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 0, byte(20 + 8 + n + 4), 0, 0, 0x40,
				0, 64, 17, 0, 0, 10, 9, 0, 2, 10, 9, 0, 2,
				0xc0, 0, 0x12, 0xb7, 0, byte(8 + n + 4), 0, 0}, in[:n]...)
			binary.BigEndian.PutUint16(p[16:], uint16(20+8+n+4))
			binary.BigEndian.PutUint16(p[38:], uint16(8+n+4))
			binary.BigEndian.PutUint16(p[24:], ^parts.Sum16(p[14:34], 0))
			x.Far.Send(0, append(p, rdma.ICRC(p[14:], false)...))
			x.Port.Settle(50)
			in = in[n:]
		}
	})
}
