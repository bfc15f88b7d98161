package ena

import (
	"encoding/binary"
	"testing"
	"unsafe"

	"github.com/rebound-nic/rebound/proof/nictest"
)

// With arbitrary completions, a pass ends, each buffer has one owner, and an invalid completion stops the queue until a
// reset, after which it answers.
func FuzzCompletions(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{1, 0, 0, 0, 0, 15, 64, 0, 2, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{4, 3, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 15, 64, 0, 2, 0, 5, 0, 0, 0, 0, 0})
	var all []*benchQueue
	for _, entry := range []uint32{0, 128, 256} {
		all = append(all, newBenchQueue(f, nictest.EchoRequest(64), entry))
	}
	r := nictest.NewResponder(f)
	f.Fuzz(func(t *testing.T, script []byte) {
		b := all[len(script)%len(all)]
		restart := func() {
			b.reset()
			b.rxDone, b.txDone = 0, 0
		}
		restart()
		for ; len(script) >= 8; script = script[8:] {
			s := script[:8]
			phase := uint32(s[0]>>3&1) ^ 1 ^ b.rxHead>>b.shift&1 // the phase of the next entry, in most cases
			c := (*rxCompletion)(unsafe.Add(b.rxCQ, b.rxHead&b.mask*descSize))
			id := binary.LittleEndian.Uint16(s[2:])
			switch s[0] % 5 {
			case 0: // an arbitrary receive completion
				*c = rxCompletion{status: binary.LittleEndian.Uint32(s[2:]), length: binary.LittleEndian.Uint16(s[5:]),
					id: id, offset: s[1]}
			case 1: // one of a whole frame
				*c = rxCompletion{status: phase<<rxPhase | rxFirst | rxLast, length: binary.LittleEndian.Uint16(s[6:]),
					id: id % 520}
			case 2: // a transmit completion
				*(*uint64)(unsafe.Add(b.txCQ, b.txHead&b.txMask*txCQE)) = uint64(id%520) | uint64(s[1])<<16 | uint64(
					b.txHead>>b.txShift&1^1^uint32(s[0]>>3&1))<<24
			case 3: // of the queue's transmits, in order
				*(*uint64)(unsafe.Add(b.txCQ, b.txHead&b.txMask*txCQE)) = uint64(b.txHead&b.txMask) | uint64(
					b.txHead>>b.txShift&1^1)<<24
			case 4: // valid, as far as the test knows
				if b.rxDone == b.rxHead && b.txDone == b.txHead {
					b.arrive(int(s[1]%32) + 1)
				}
			}
			b.Poll(r)
			b.owned(t)
			if b.txTail-b.txHead > b.txMask || b.frees > b.mask {
				t.Fatalf("transmits %d to %d, %d buffers free", b.txHead, b.txTail, b.frees)
			}
		}
		restart()
		b.arrive(20)
		if n := b.Poll(r); n != 20 {
			t.Fatalf("%d replies of 20 after a reset, fault %d", n, b.fault.Load())
		}
	})
}
