package virtio

import (
	"testing"

	"github.com/rebound-nic/rebound/fastpath"
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
	})
}
