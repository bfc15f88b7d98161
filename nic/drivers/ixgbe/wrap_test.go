package ixgbe

import (
	"testing"

	"github.com/rebound-nic/rebound/proof/nictest"
)

func TestNumbersWrap(t *testing.T) {
	b := newBenchQueue(t, nictest.EchoRequest(64))
	for _, n := range []*uint32{&b.rxNext, &b.refilled, &b.posted, &b.txTail, &b.txDone, &b.txRoom} {
		*n += nictest.BeforeWrap
	}
	nictest.Wraps(t, nictest.NewResponder(t), b.arrive, b.Queue.Poll)
	if b.rxNext >= nictest.BeforeWrap || b.txTail >= nictest.BeforeWrap {
		t.Errorf("slot %d, transmit %d: the test does not reach the end", b.rxNext, b.txTail)
	}
	b.receive(3) // not taken
	b.restart()
	nictest.Wraps(t, nictest.NewResponder(t), b.arrive, b.Queue.Poll)
}
