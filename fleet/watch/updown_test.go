package watch

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/polling"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// codecOf makes probes of 100 bytes from 10.0.0.1 to 10.0.0.2.
func codecOf(t *testing.T, proto probe.Proto, run uint32) *probe.Codec {
	t.Helper()
	return must.Get(probe.New(probe.Flow{Proto: proto, Layer: probe.Datagram, Src: netip.MustParseAddr("10.0.0.1"),
		Dst:     netip.MustParseAddr("10.0.0.2"),
		SrcPort: 61000, DstPort: 7, Run: run, Size: 100}))(t)
}

func udpCodec(t *testing.T) *probe.Codec { return codecOf(t, probe.UDP, 1) }

// loopOf is a loop that the test plays.
func loopOf(t *testing.T) *loop {
	t.Helper()
	return newLoop(must.Get(latency.NewClock())(t), 1<<16, time.Second, false, new(atomic.Bool))
}

// spoil returns a copy of a reply with a wrong bit.
func spoil(b []byte) []byte {
	b = bytes.Clone(b)
	b[len(b)-1] ^= 4
	return b
}

// The log has each change of a target's state once: up at its first reply, down since the first unanswered probe, up
// again with the length of the outage, and a target that never answered.
func TestStateChanges(t *testing.T) {
	now := noon
	k, log := logged(nil)
	k.timeout = time.Second
	good, silent := k.target(target(t, "10.0.0.2"), now), k.target(target(t, "10.0.0.3"), now)
	k.found(good, "")
	r := newRing(64)
	probe := uint64(0)
	second := func(answers, tooSlow bool) {
		now = now.Add(time.Second)
		probe++
		r.put(event{flow: good.id, kind: sent})
		if answers {
			r.put(event{flow: good.id, kind: answered, ns: 1000})
		} else {
			r.put(event{flow: good.id, kind: missed, probe: probe, wire: gone})
			if tooSlow {
				r.put(event{flow: good.id, kind: late, probe: probe, ns: 1000})
			}
		}
		r.put(event{flow: silent.id, kind: sent})
		r.put(event{flow: silent.id, kind: missed, probe: probe, wire: gone})
		k.drain(r, now)
	}
	want := func(when string, lines ...string) {
		t.Helper()
		got := slices.Collect(strings.Lines(log.String()))
		log.Reset()
		if !slices.EqualFunc(got, lines, func(got, want string) bool { return strings.HasSuffix(got, want+"\n") }) {
			t.Errorf("%s: %q, want %q", when, got, lines)
		}
	}
	second(true, false)
	want("the first reply", `level=INFO msg="target is up" target=icmp:10.0.0.2`)
	second(false, false)
	second(false, false)
	want("three probes without a reply",
		`level=WARN msg="target has not answered" target=icmp:10.0.0.3 since=2026-11-22T12:00:00.000Z probes=3`)
	second(true, false)
	second(false, true)
	second(false, false)
	second(false, false)
	want("two in a row were lost, and one was late")
	second(false, false)
	want("three in a row", `level=WARN msg="target is down" target=icmp:10.0.0.2 since=2026-11-22T12:00:05.000Z probes=3`)
	if up, known := good.up(); up || !known {
		t.Errorf("up %t, known %t", up, known)
	}
	r.put(event{flow: good.id, kind: refused, closed: true})
	for range 60 {
		second(false, false)
	}
	want("still down")
	second(true, false)
	want("it recovered", `level=INFO+2 msg="target is up again" target=icmp:10.0.0.2 down_since=2026-11-22T12:00:05.000Z recovered_after=1m4s probes=63`)
	if up, known := good.up(); !up || !known {
		t.Errorf("up %t, known %t", up, known)
	}
}

// Probes that this host cannot send are a state of their own: it is unknown whether the target answers, and it is not
// probed. It ends with a reply, or when probes are sent and lost.
func TestNotSent(t *testing.T) {
	now := noon
	k, log := logged(nil)
	k.timeout = time.Second
	s := k.target(target(t, "10.0.0.2"), now)
	k.found(s, "")
	r := newRing(64)
	n := uint64(0)
	second := func(e event) {
		now = now.Add(time.Second)
		n++
		e.flow, e.probe, e.wire = s.id, n, gone
		r.put(event{flow: s.id, kind: sent})
		r.put(e)
		k.drain(r, now)
	}
	want := func(when, line, text string, up, known, probed bool) {
		t.Helper()
		if got := log.String(); !strings.HasSuffix(got, line) || (line == "") != (got == "") {
			t.Errorf("%s: %q, want %q", when, got, line)
		}
		log.Reset()
		if u, ok := s.up(); u != up || ok != known || s.probed() != probed || stateText(s) != text {
			t.Errorf("%s: up %t known %t, probed %t, %s; want %t %t %t %s", when, u, ok, s.probed(), stateText(s), up,
				known, probed, text)
		}
	}
	bad := event{kind: unsent, why: unix.ENETDOWN}
	second(event{kind: answered, ns: 1000})
	log.Reset()
	second(bad)
	second(bad)
	want("two in a row", "", "up", true, true, true)
	second(bad)
	want("three in a row", `level=WARN msg="probes cannot be sent" target=icmp:10.0.0.2 since=2026-11-22T12:00:02.000Z probes=3 error="network is down"`+"\n",
		"not sent", false, false, false)
	check.Equal(t, s.recent.current().lines()[2], "0 of 1 missed, 3 not sent", "%q")
	second(event{kind: answered, ns: 1000})
	want("it recovered", `level=INFO+2 msg="probes are sent again, and answered" target=icmp:10.0.0.2 not_sent_since=2026-11-22T12:00:02.000Z probes=3`+"\n", "up", true, true, true)
	for range 3 {
		second(bad)
	}
	log.Reset()
	for range 2 {
		second(event{kind: missed})
	}
	want("sent again, and lost twice", "", "not sent", false, false, false)
	second(event{kind: missed})
	if text := log.String(); !strings.Contains(text, `msg="target is down"`) || stateText(s) != "down" || !s.probed() {
		t.Errorf("three were lost: %s, %q", stateText(s), text)
	}
	check.Equal(t, s.all.SendFailed, 6, "%d not sent")
}

// A target that is no longer probed is not up.
func TestNotProbedIsNotUp(t *testing.T) {
	k, _ := logged(nil)
	s := k.target(target(t, "10.0.0.2"), noon)
	k.found(s, "")
	s.health.answered(noon)
	k.found(s, "no route")
	if up, known := s.up(); up || known || stateText(s) != "not probed" {
		t.Errorf("up %t, known %t, %s", up, known, stateText(s))
	}
}

// A short loss of probes at a high rate is no outage.
func TestShortLossIsNoOutage(t *testing.T) {
	k, log := logged(nil)
	s := k.target(target(t, "10.0.0.2"), noon)
	r := newRing(64)
	r.put(event{flow: s.id, kind: answered})
	for n := range uint64(20) {
		r.put(event{flow: s.id, kind: missed, probe: n, wire: gone})
	}
	k.drain(r, noon)
	r.put(event{flow: s.id, kind: answered})
	k.drain(r, noon.Add(time.Second))
	check.Equal(t, strings.Count(log.String(), "\n"), 1, "%d lines in the log")
}

// A watch that did not run for seconds gives up late on probes that it sent in quick succession: still no outage.
func TestStoppedWatchSeesNoOutage(t *testing.T) {
	k, log := logged(nil)
	s := k.target(target(t, "10.0.0.2"), noon)
	l, f := loopOf(t), newFlow(s.id, udpCodec(t), 8)
	l.events.put(event{flow: s.id, kind: answered})
	f.wire, l.pending = gone, make([]pending, 8)
	from := polling.TSC()
	for range 4 { // a millisecond apart
		l.pending[l.tail] = pending{at: from, flow: f, seq: l.tail}
		f.slots[l.tail] = slot{seq: l.tail, sent: from, state: waiting}
		l.tail++
		from += l.clock.Ticks(time.Millisecond)
	}
	for _, at := range []time.Duration{1000500 * time.Microsecond, 5 * time.Second} {
		l.expire(l.pending[0].at + l.clock.Ticks(at))
		k.drain(l.events, noon.Add(at))
	}
	if l.head != 4 || s.health.silent != 4 || strings.Contains(log.String(), "down") {
		t.Errorf("%d probes were given up, %d in a row\n%s", l.head, s.health.silent, log.String())
	}
}

// A neighbour that is unknown at the start is a warning only if it remains unknown.
func TestUnknownNeighbour(t *testing.T) {
	k, log := logged(nil)
	w := &watch{archive: k, options: Options{Log: k.log}}
	x := target(t, "10.0.0.2")
	e := &entry{Target: x, state: w.archive.target(x, noon)}
	m := newManager(w, nil)
	for second := range 10 {
		m.await(e, noon.Add(time.Duration(second)*time.Second))
		if warned := strings.Count(log.String(), "level=WARN"); second == 0 && warned != 0 || second == 9 &&
			warned != 1 {
			t.Errorf("after %d s: %s", second, log.String())
		}
	}
	check.Contains(t, e.state.why, "no MAC address")
}
