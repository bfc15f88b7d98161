package mlx5

import (
	"encoding/json"
	"errors"
	"fmt"
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
	must.Equal(t, next.commands.dead.Load() != nil, true, "the command queue is dead: %v")
	known := func(d *Device) string {
		return fmt.Sprintf("function %d, next event %d, queue %d, syndrome %d, dropped %+v, symptom %+v, dead: %v, fault %d, completion %+v",
			d.pages.function, d.events.next, d.events.eqn, d.syndrome, d.outOfBuffer, d.wanted.Load(), *d.commands.dead.Load(),
			d.queues[0].fault.Load(), d.queues[0].bad)
	}
	check.Equal(t, known(next), known(old), "%s")
}
