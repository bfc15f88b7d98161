package efa

import (
	"encoding/binary"
	"testing"
	"unsafe"
)

// Whatever the device completes, a pass ends, each slot is in only one place, and invalid completions stop the queue
// until a reset, after which it answers.
func FuzzCompletions(f *testing.F) {
	f.Add(make([]byte, 24))
	f.Add([]byte{1, 0, 0, 0, 5, 0, 77, 0, 16, 0, 0, 0, 4, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{1, 0, 9, 1, 0xff, 0xff, 77, 0, 16, 0, 0, 0, 2, 0, 9, 1, 0, 0, 0, 0, 0, 0, 0, 0})
	all := []*benchQueue{newBenchQueue(f, 16, 64, false), newBenchQueue(f, 16, 128, true),
		newBenchQueue(f, 100, 64, false)}
	r := newResponder(f)
	f.Fuzz(func(t *testing.T, script []byte) {
		b := all[len(script)%len(all)]
		restart := func() {
			clear(unsafe.Slice((*byte)(b.Queue.rx[0].at), (b.rxMask+1)*rxCQE))
			clear(unsafe.Slice((*byte)(b.Queue.tx[0].at), (b.txMask+1)*txCQE))
			b.rx, b.tx, b.rxDone, b.txDone, b.pair = 0, 0, [maxPairs]uint32{}, [maxPairs]uint32{}, 1
			b.reset()
			b.fill()
		}
		restart()
		for ; len(script) >= 12; script = script[12:] {
			s := script[:12]
			rx, tx := &b.Queue.rx[0], &b.Queue.tx[0]
			c := (*rxCompletion)(unsafe.Add(rx.at, rx.head&b.rxMask*rxCQE))
			sent := (*uint64)(unsafe.Add(tx.at, tx.head&b.txMask*txCQE))
			w := binary.LittleEndian.Uint64(s[2:])
			rxRound, txRound := uint64(rx.head>>b.rxShift&1^1)<<cqPhase, uint64(tx.head>>b.txShift&1^1)<<cqPhase
			slot, number := uint64(binary.LittleEndian.Uint16(s[2:]))%(pairs2+8), uint64(40+s[1]%3)
			switch s[0] % 5 {
			case 0: // a receive completion with arbitrary content
				*c = rxCompletion{common: w, from: w}
			case 1: // of a message
				length := uint64(binary.LittleEndian.Uint16(s[8:]))
				*c = rxCompletion{common: slot | rxRound | cqReceived | number<<cqPair | length<<cqLength,
					from: w >> 16 & 0xFFFF_FFFF}
			case 2: // of a send
				*sent = slot | uint64(s[4])<<cqStatus | txRound | cqSent | number<<cqPair
			case 3: // arbitrary content
				*sent = w
			case 4: // correct, as far as the test knows
				if b.rx == rx.head && b.tx == tx.head {
					b.arrive(int(s[1]%32) + 1)
				}
			}
			b.Poll(r)
			free := map[uint16]bool{}
			for i := range b.npairs {
				p := &b.pairs[i]
				if p.posted-p.done > b.sqMask+1 || p.frees > ringSize || p.sends > sendSlots {
					t.Fatalf("sends %d to %d, %d and %d slots free", p.done, p.posted, p.frees, p.sends)
				}
				for n := range p.frees {
					slot := *(*uint16)(unsafe.Add(p.free, n*2))
					if free[slot] || *b.slotWord(uint32(slot))&slotState != slotOurs {
						t.Fatalf("slot %d is free and in another place too: %#x", slot, *b.slotWord(uint32(slot)))
					}
					free[slot] = true
				}
			}
		}
		restart()
		b.complete(statusOK)
		if b.length >= 44 || !b.pairs[1].stamp {
			b.arrive(20)
			if n := b.Poll(r); n != 20 {
				t.Fatalf("%d replies of 20 after a reset, fault %d", n, b.fault.Load())
			}
		}
	})
}

// pairs2 is the number of receive slots of the two queue pairs.
const pairs2 = 2 * ringSize
