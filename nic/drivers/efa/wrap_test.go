package efa

import (
	"testing"

	"github.com/rebound-nic/rebound/proof/nictest"
)

func TestNumbersWrap(t *testing.T) {
	b := newBenchQueue(t, 33, 64, false)
	numbers := []*uint32{&b.Queue.rx[0].head, &b.Queue.tx[0].head, &b.rxTaken, &b.txTaken, &b.rxTold, &b.txTold,
		&b.rxTidied, &b.rx, &b.tx}
	for i := range b.npairs {
		p := &b.pairs[i]
		numbers = append(numbers, &p.posted, &p.done, &p.rung, &p.rxTail, &b.rxDone[i], &b.txDone[i])
	}
	for _, n := range numbers {
		*n += nictest.BeforeWrap
	}
	arrive := func(n int) {
		b.reversed = !b.reversed
		b.arrive(n)
	}
	for b.pair = range int(b.npairs) {
		nictest.Wraps(t, newResponder(t), arrive, b.Queue.Poll)
		if p := &b.pairs[b.pair]; p.posted >= nictest.BeforeWrap || p.rxTail >= nictest.BeforeWrap {
			t.Errorf("pair %d: send %d, receive %d: the test does not reach the end", b.pair, p.posted, p.rxTail)
		}
	}
}
