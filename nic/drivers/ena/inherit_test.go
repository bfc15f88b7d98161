package ena

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/nic/kit/amazonadmin"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// The next process knows what the device reported, and for how long it has been silent or suspended.
func TestHandedOver(t *testing.T) {
	blank := func() *Device {
		d := &Device{queues: []*Queue{{}}, aq: &amazonadmin.Queue{}, events: &amazonadmin.Events{}}
		d.watchdog.alive(time.Now())
		return d
	}
	old, next := blank(), blank()
	began := time.Now()
	old.version, old.linkSpeed, old.commandTime, old.ringAsked, old.noLLQ = "v", 25000, 3*time.Second, true, "none"
	old.refusedWide, old.refusedLLQ, old.features = "wide", "llq", []string{"a", "b"}
	old.attr.capabilities, old.fatal, old.watchdog.enabled = capMetrics, "broken", true
	old.times = times{keepAlive: 7 * time.Second, missingTx: -1}
	old.up.Store(true)
	old.suspended.Store(true)
	old.suspendedAt = began.Add(-5 * time.Second)
	old.watchdog.alive(began.Add(-4 * time.Second))
	for i, p := range append(old.aq.Place()[:2], old.events.Place()...) {
		*p.(*uint16) = uint16(i + 1)
	}
	old.queues[0].fault, old.queues[0].txRung = resetInvalidTxID+1, 17
	to := append(next.heir().Keep(), next.heir().Place()...)
	for i, p := range append(old.heir().Keep(), old.heir().Place()...) {
		must.OK(t, json.Unmarshal(must.Get(json.Marshal(p))(t), to[i]))
	}
	check.Equal(t, next.version+next.noLLQ+next.refusedWide+next.refusedLLQ+next.fatal, "vnonewidellqbroken", "strings: %v")
	check.Same(t, next.features, old.features, "missing features: %v")
	for i, p := range append(next.aq.Place()[:2], next.events.Place()...) {
		check.Equal(t, *p.(*uint16), uint16(i+1), "a position in the admin or event queue is %d")
	}
	check.Equal(t, next.linkSpeed, 25000, "link speed: %v")
	check.Equal(t, next.commandTime, 3*time.Second, "time of a command: %v")
	check.Equal(t, next.attr.capabilities, uint32(capMetrics), "capabilities: %#x")
	check.Equal(t, next.times, old.times, "times: %v")
	check.Equal(t, next.ringAsked && next.up.Load() && next.suspended.Load() && next.watchdog.enabled, true, "ring asked, link up, suspended, keep-alives expected: %v")
	check.Equal(t, next.queues[0].fault, uint32(resetInvalidTxID+1), "fault of the queue: %d")
	check.Equal(t, next.queues[0].txRung, uint32(17), "transmits reported: %d")
	if now := time.Now(); next.watchdog.silent(now) < 4*time.Second || next.watchdog.silent(now) > 4*time.Second+now.Sub(began) {
		t.Errorf("silent for %v", next.watchdog.silent(now))
	}
	if now := time.Now(); now.Sub(next.suspendedAt) < 5*time.Second || now.Sub(next.suspendedAt) > 5*time.Second+now.Sub(began) {
		t.Errorf("suspended for %v", now.Sub(next.suspendedAt))
	}
}
