package virtio

import (
	"bytes"
	"fmt"
	"testing"
	"unsafe"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/nictest"
)

func TestNumbersWrap(t *testing.T) {
	both(t, func(t *testing.T, b *testQueue, r *fastpath.Responder) {
		for _, n := range []*uint32{&b.rx.next, &b.rx.seen, &b.posted, &b.tx.next, &b.tx.seen, &b.rxAt, &b.rxUsed,
			&b.txAt, &b.txUsed} {
			*n += nictest.BeforeWrap
		}
		nictest.Wraps(t, r, b.arrive, b.Queue.Poll)
		if b.rx.seen >= nictest.BeforeWrap || b.tx.next >= nictest.BeforeWrap {
			t.Errorf("received %d, transmitted %d: the test does not reach the end", b.rx.seen, b.tx.next)
		}
		b.arrive(3) // not taken
		b.restart()
		nictest.Wraps(t, r, b.arrive, b.Queue.Poll)
	})
}

// After a reset every buffer is the receive ring's, and the rings' areas are as at first. No byte
// beside them changes.
func TestResetForgetsAll(t *testing.T) {
	both(t, func(t *testing.T, b *testQueue, _ *fastpath.Responder) {
		owners := unsafe.Slice((*byte)(b.owner), testRing+1)
		for i := range owners {
			owners[i] = inReply | inSend
		}
		const behind = 16
		sizes := [3]int{4096, 516, 2052} // of 256 entries
		if b.rx.packed {
			sizes = [3]int{4096, 4, 4}
		}
		check.Equal(t, b.tx.areas(), sizes, "bytes of the areas: %d")
		for _, r := range []*ring{&b.rx, &b.tx} {
			for i, area := range []unsafe.Pointer{r.desc, r.driver, r.device} {
				all := unsafe.Slice((*byte)(area), sizes[i]+behind)
				for k := range all {
					all[k] = 0xAA
				}
			}
		}
		b.sendNext, b.distrusted, b.delta, b.posted = 3, wrongRxID, 0, 0
		b.Queue.reset()
		check.Equal(t, [2]uint64{uint64(b.posted), b.delta + uint64(uintptr(b.buf))}, [2]uint64{testRing, testIOVA},
			"buffers posted, and the address of the first: %#x")
		check.Equal(t, [6]uint32{b.sendNext, b.distrusted, b.rx.seen, b.tx.next, b.tx.seen, b.rx.next},
			[6]uint32{5: testRing}, "numbers: %d")
		check.Equal(t, owners[testRing], inReply|inSend, "behind the owners: %#x")
		for i, owner := range owners[:testRing] {
			check.Equal(t, owner, inReceive, fmt.Sprintf("owner of buffer %d: %%#x", i))
		}
		for _, r := range []*ring{&b.rx, &b.tx} {
			for i, area := range []unsafe.Pointer{r.desc, r.driver, r.device} {
				size := sizes[i]
				all := unsafe.Slice((*byte)(area), size+behind)
				check.Same(t, all[size:], bytes.Repeat([]byte{0xAA}, behind), fmt.Sprintf("behind area %d: %% x", i))
				if r == &b.tx && i != 1 || i == 2 {
					check.Same(t, all[:size], make([]byte, size), fmt.Sprintf("area %d: %% x", i))
				}
			}
		}
	})
}
