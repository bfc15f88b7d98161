package ixgbe

import (
	"encoding/binary"
	"testing"
	"unsafe"

	"github.com/rebound-nic/rebound/proof/nictest"
)

// With arbitrary write-backs, in any order, a pass ends, sends only from its own buffers, and posts no slot twice.
func FuzzWriteBacks(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 3, 0, 64, 0, 2, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{1, 0, 0, 0, 0, 0, 64, 0, 1, 0, 0, 0, 0, 0, 0, 9, 1, 0, 0, 0, 0, 0, 13, 0})
	f.Add([]byte{0, 1, 0, 0, 1, 0, 64, 0, 0, 0, 0xff, 0xf0, 0xff, 0xff, 0xff, 0xff, 4, 64, 0, 0, 0, 0, 0, 0})
	b, r := newBenchQueue(f, nictest.EchoRequest(64)), nictest.NewResponder(f)
	b.wild = true
	f.Fuzz(func(t *testing.T, script []byte) {
		b.restart()
		for i := range b.mask + 1 { // left by an earlier input
			*b.txDesc(i) = txRead{}
		}
		for ; len(script) >= 8; script = script[8:] {
			s := script[:8]
			slot := (b.rxNext + uint32(s[1]%8)) & b.mask
			at := (b.txDone + uint32(s[1])) & b.mask
			status, length := binary.LittleEndian.Uint32(s[2:]), binary.LittleEndian.Uint16(s[6:])
			copy(unsafe.Slice((*byte)(unsafe.Add(b.buf, slot*b.stride)), len(b.frame)), b.frame)
			switch s[0] % 5 {
			case 0: // an arbitrary receive write-back
				*b.rxDone(slot) = rxWriteback{info: status, rss: status, status: status, length: length, vlan: length}
			case 1: // a valid one
				*b.rxDone(slot) = rxWriteback{status: rxDD | rxEOP, length: length}
			case 2: // a transmit write-back
				b.txDesc(at).status = status
			case 3: // a whole descriptor: a device that writes where it must not
				*b.txDesc(at) = txRead{uint64(status) << 20, status, uint32(length)}
			case 4: // as it should be
				b.arrive(int(s[1] % 70))
			}
			first := b.txTail
			answered := b.Poll(r)
			if n := b.txTail - first; int(n) != answered || n > maxBatch {
				t.Fatalf("%d replies, %d descriptors", answered, n)
			}
			for n := first; n != b.txTail; n++ {
				d := b.txDesc(n & b.mask)
				size := uint64(d.cmd & 0xffff)
				if d.addr < b.iova || (d.addr-b.iova)%uint64(b.stride)+size > uint64(b.bufSize) ||
					d.addr-b.iova >= uint64((b.mask+1)*b.stride) || size < minFrame {
					t.Fatalf("%d bytes at %#x are sent; buffers begin at %#x, each of %d bytes", size, d.addr, b.iova,
						b.bufSize)
				}
			}
			if b.txTail-b.txDone > b.mask || b.rxNext-b.refilled > b.mask || b.refilled-b.posted >= refillBatch {
				t.Fatalf("transmits %d to %d; received up to %d, refilled %d, posted %d", b.txDone, b.txTail, b.rxNext,
					b.refilled, b.posted)
			}
		}
	})
}
