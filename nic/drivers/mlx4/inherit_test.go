package mlx4

import (
	"encoding/json"
	"errors"
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
	check.Equal(t, next.events.next, uint32(130), "next event %d")
	check.Equal(t, next.events.number, uint32(5), "event queue %d")
	check.Equal(t, next.commands.toggle, uint32(hcrToggle), "toggle %#x")
	if w := next.wide[statRxDrop]; w == nil || *w != *old.wide[statRxDrop] {
		t.Errorf("dropped frames: %v", w)
	}
	if s := next.wanted.Load(); s == nil || s.Reason != "cq_error" || s.Why != "text" {
		t.Errorf("symptom %+v", s)
	}
	if err := next.commands.dead.Load(); err == nil || (*err).Error() != why.Error() {
		t.Error("the command register is not dead")
	}
	if next.queues[0].fault.Load() != faultSend || next.queues[0].bad.last != 0x1234 {
		t.Errorf("fault %d, completion %+v", next.queues[0].fault.Load(), next.queues[0].bad)
	}
	check.Same(t, next.inherited.Queues[0].SendContext, []byte{1, 2, 3}, "context of the send queue: %v")
}
