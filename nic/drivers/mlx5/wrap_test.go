package mlx5

import (
	"testing"

	"github.com/rebound-nic/rebound/proof/nictest"
	"github.com/rebound-nic/rebound/proof/nictest/rig"
)

func TestNumbersWrap(t *testing.T) {
	for _, push := range []bool{false, true} {
		for _, size := range []int{98, 300} { // pushed whole, and with a pointer
			b := newBenchQueue(t, rig.Echo(size), push)
			for _, n := range []*uint32{&b.rxNext, &b.freed, &b.posted, &b.txTail, &b.txDone, &b.txRung, &b.txAsked,
				&b.askTail, &b.txNext, &b.arrived} {
				*n += nictest.BeforeWrap
			}
			nictest.Wraps(t, rig.NewResponder(t), b.arrive, b.Queue.Poll)
			if b.rxNext >= nictest.BeforeWrap || b.txTail >= nictest.BeforeWrap {
				t.Errorf("slot %d, block %d: the test does not reach the end", b.rxNext, b.txTail)
			}
			b.arrive(3) // not taken
			emptyCQ(b.rxCQ, b.mask+1)
			emptyCQ(b.txCQ, b.txMask+1)
			b.reset()
			b.arrived = 0
			nictest.Wraps(t, rig.NewResponder(t), b.arrive, b.Queue.Poll)
		}
	}
}
