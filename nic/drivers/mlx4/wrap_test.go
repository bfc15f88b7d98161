package mlx4

import (
	"testing"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/proof/nictest"
	"github.com/rebound-nic/rebound/proof/nictest/rig"
)

func TestNumbersWrap(t *testing.T) {
	wraps := func(q *Queue, b *bench, r *fastpath.Responder, arrive func(int), poll func(*fastpath.Responder) int) {
		for _, n := range []*uint32{&q.rxNext, &q.freed, &q.posted, &q.txTail, &q.txDone, &q.txRung, &q.txAsked,
			&q.askTail, &q.txNext, &b.arrived} {
			*n += nictest.BeforeWrap
		}
		nictest.Wraps(t, r, arrive, poll)
		if q.rxNext >= nictest.BeforeWrap || q.txTail >= nictest.BeforeWrap {
			t.Errorf("slot %d, block %d: the test does not reach the end", q.rxNext, q.txTail)
		}
		arrive(3) // not taken
		emptyCQ(q.rxCQ, q.mask+1)
		emptyCQ(q.txCQ, q.txMask+1)
		q.reset()
		b.arrived = 0
		nictest.Wraps(t, r, arrive, poll)
	}
	for _, push := range []bool{false, true} {
		for _, size := range []int{98, 300} { // copied whole, and with a pointer
			b := newBenchQueue(t, rig.Echo(size), push)
			wraps(b.Queue, &b.bench, rig.NewResponder(t), b.arrive, b.Queue.Poll)
		}
		d := newBenchDatagrams(t, packet4(64), push)
		wraps(&d.Queue, &d.bench, subnetResponder(t), d.arrive, d.DatagramQueue.Poll)
	}
}
