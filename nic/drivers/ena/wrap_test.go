package ena

import (
	"testing"

	"github.com/rebound-nic/rebound/proof/nictest"
)

func TestNumbersWrap(t *testing.T) {
	for _, entry := range []uint32{0, 128, 256} {
		b := newBenchQueue(t, nictest.EchoRequest(200), entry)
		for _, n := range []*uint32{&b.rxHead, &b.rxTail, &b.txHead, &b.txTail, &b.txRung, &b.rxDone, &b.txDone} {
			*n += nictest.BeforeWrap
		}
		nictest.Wraps(t, nictest.NewResponder(t), b.arrive, b.Queue.Poll)
		if b.rxHead >= nictest.BeforeWrap || b.txTail >= nictest.BeforeWrap {
			t.Errorf("completion %d, transmit %d: the test does not reach the end", b.rxHead, b.txTail)
		}
		b.arrive(3) // not taken
		b.reset()
		b.rxDone, b.txDone = 0, 0
		nictest.Wraps(t, nictest.NewResponder(t), b.arrive, b.Queue.Poll)
	}
}
