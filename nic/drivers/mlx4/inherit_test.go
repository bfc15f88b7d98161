package mlx4

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/rebound-nic/rebound/nic/kit"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// The next process knows events, counters, symptoms and a dead command register.
func TestHandedOver(t *testing.T) {
	blank := func() *Device { return &Device{commands: &hcr{}, queues: []*Queue{{}}} }
	old, next := blank(), blank()
	old.events.next, old.events.number, old.commands.toggle = 130, 5, hcrToggle
	old.wide = map[int]*kit.Wide{statRxDrop: {Last: 1, Sum: 1 << 33}}
	why := errors.New("no answer")
	old.commands.dead.Store(&why)
	old.want("cq_error", "text")
	old.queues[0].fault.Store(faultSend)
	old.queues[0].bad.last = 0x1234
	old.queues[0].sendContext = mailbox{1, 2, 3}
	to := append(next.heir().Keep(), next.heir().Place()...)
	for i, p := range append(old.heir().Keep(), old.heir().Place()...) {
		must.OK(t, json.Unmarshal(must.Get(json.Marshal(p))(t), to[i]))
	}
	must.Equal(t, next.commands.dead.Load() != nil, true, "the command register is dead: %v")
	known := func(d *Device) string {
		return fmt.Sprintf("next event %d, event queue %d, toggle %#x, dropped frames %+v, symptom %+v, dead: %v, fault %d, completion %+v", d.events.next,
			d.events.number, d.commands.toggle, d.wide[statRxDrop], d.wanted.Load(), *d.commands.dead.Load(), d.queues[0].fault.Load(), d.queues[0].bad)
	}
	check.Equal(t, known(next), known(old), "%s")
	check.Same(t, next.inherited.Queues[0].SendContext, []byte{1, 2, 3}, "context of the send queue: %v")
}
