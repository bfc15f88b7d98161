package mlx5

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"github.com/rebound-nic/rebound/nic/kit"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// The next process knows firmware's pages, events, symptoms and a dead command queue.
func TestHandedOver(t *testing.T) {
	blank := func() *Device {
		return &Device{pages: &pagePool{given: map[uint64]struct{}{}}, commands: &commandQueue{}, queues: []*Queue{{}}}
	}
	old, next := blank(), blank()
	old.pages.free, old.pages.function = []uint64{0x5000, 0x1000, 0x4000}, 3
	old.pages.given[0x3000], old.pages.given[0x9000], old.pages.given[0xa000] = struct{}{}, struct{}{}, struct{}{}
	old.events.next, old.events.eqn, old.syndrome, old.outOfBuffer = 70, 5, 9, kit.Wide{Last: 1, Sum: 1 << 33}
	why := errors.New("no answer")
	old.commands.dead.Store(&why)
	old.want("cq_error", "text")
	old.queues[0].fault.Store(faultSend)
	old.queues[0].bad.counterOwn = 0x1234
	to := append(next.heir().Keep(), next.heir().Place()...)
	for i, p := range append(old.heir().Keep(), old.heir().Place()...) {
		must.OK(t, json.Unmarshal(must.Get(json.Marshal(p))(t), to[i]))
	}
	check.Same(t, next.pages.free, []uint64{0x1000, 0x4000, 0x5000}, "free pages: %#x")
	check.Equal(t, next.pages.held(), 3, "%d pages are firmware's")
	if !slices.Equal(runs([]uint64{0x3000, 0xa000, 0x9000}), []pageRun{{0x3000, 1}, {0x9000, 2}}) || next.pages.put([]uint64{0x3000, 0x9000, 0xa000}) != nil {
		t.Error("other pages are firmware's")
	}
	check.Equal(t, next.pages.function, uint32(3), "function %d")
	check.Equal(t, next.events.next, uint32(70), "next event %d")
	check.Equal(t, next.events.eqn, uint32(5), "event queue %d")
	check.Equal(t, next.syndrome, uint32(9), "syndrome %d")
	check.Equal(t, next.outOfBuffer, old.outOfBuffer, "dropped frames: %v")
	if s := next.wanted.Load(); s == nil || s.Reason != "cq_error" || s.Why != "text" {
		t.Errorf("symptom %+v", s)
	}
	if err := next.commands.dead.Load(); err == nil || (*err).Error() != why.Error() {
		t.Error("the command queue is not dead")
	}
	if next.queues[0].fault.Load() != faultSend || next.queues[0].bad.counterOwn != 0x1234 {
		t.Errorf("fault %d, completion %+v", next.queues[0].fault.Load(), next.queues[0].bad)
	}
}
