package watch

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/rebound-nic/rebound/fleet/trace"
	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/internal/bench/socket"
	"github.com/rebound-nic/rebound/latency/outcome"
	"github.com/rebound-nic/rebound/polling"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/echohost"
)

// tracedFlow returns a flow with a trace, and the trace's codec.
func tracedFlow(t *testing.T, proto probe.Proto) (*flow, *probe.Codec) {
	t.Helper()
	f := newFlow(0, codecOf(t, proto, 1), 8)
	f.tracing.Store(&tracing{codec: codecOf(t, proto, 2)})
	return f, codecOf(t, proto, 2)
}

// A reply to a trace's probe is none of the flow's events; one with an error still is.
func TestReplyToATrace(t *testing.T) {
	for _, proto := range []probe.Proto{probe.UDP, probe.STAMP} {
		f, codec := tracedFlow(t, proto)
		l := loopOf(t)
		for range 1000 {
			f.nextNumber()
		}
		events := func() (n int) { l.events.drain(func(*event) { n++ }); return n }
		reply := func(seq uint32) []byte {
			b := bytes.Clone(codec.Build(seq, 77))
			if proto == probe.STAMP {
				b = echohost.Reflect(b)
			}
			return b
		}
		l.process(f, reply(42), polling.TSC(), 0, false, outcome.None)
		if n := events(); n != 1 || f.tracing.Load().reached.Load() {
			t.Errorf("%v: %d events from a reply that is not to a trace", proto, n)
		}
		l.process(f, reply(traceSeq+7), polling.TSC(), 0, false, outcome.None)
		if n := events(); n != 0 || !f.tracing.Load().reached.Load() {
			t.Errorf("%v: %d events, reached %t", proto, n, f.tracing.Load().reached.Load())
		}
	}
}

// While some of a target's paths are dead, the loop sleeps after their probes, and polls after those of the others.
func TestDeadPathIsNotPolledFor(t *testing.T) {
	f, _ := tracedFlow(t, probe.UDP)
	f.paths, f.missed = make([]uint32, 2), make([]int, 2)
	l := loopOf(t)
	next := func() (*slot, uint64) {
		seq := f.nextNumber()
		s := &f.slots[seq&uint64(len(f.slots)-1)]
		*s = slot{seq: seq, state: waiting}
		f.from(s, seq)
		f.rotate(s, true)
		return s, seq
	}
	answered := func() {
		_, seq := next()
		l.process(f, bytes.Clone(f.codec.Build(uint32(seq), 0)), polling.TSC(), 0, false, outcome.None)
	}
	for range patience {
		if !f.hopeful(0) || !f.hopeful(1) {
			t.Fatal("a path is given up too early")
		}
		answered()
		s, _ := next()
		l.giveUp(f, s, s.sent+l.timeout)
	}
	if answered(); !f.hopeful(0) || f.hopeful(1) {
		t.Errorf("path 0, which answers: %t; path 1, which does not: %t", f.hopeful(0), f.hopeful(1))
	}
	if answered(); !f.hopeful(1) {
		t.Error("path 1 answers again, and is still given up")
	}
}

// The TTL comes from the quoted probe. An error about a probe that is not a trace's is no answer; one that quotes too
// little is an answer without a TTL.
func TestAnswer(t *testing.T) {
	from := netip.MustParseAddr("10.0.9.9")
	for _, proto := range []probe.Proto{probe.UDP, probe.STAMP} {
		f, codec := tracedFlow(t, proto)
		for name, c := range map[string]struct {
			seq       uint32
			run       uint32
			quoted    int
			typ, code uint8
			want      trace.Answer
		}{
			"a hop":                    {traceSeq + 7, 2, 100, 11, 0, trace.Answer{Kind: trace.Expired, TTL: 7, From: from}},
			"eight bytes quoted":       {traceSeq + 30, 2, 8, 11, 0, trace.Answer{Kind: trace.Expired, TTL: 30, From: from}},
			"nothing quoted":           {traceSeq + 7, 2, 0, 11, 0, trace.Answer{Kind: trace.Expired, From: from}},
			"three bytes quoted":       {traceSeq + 7, 2, 3, 11, 0, trace.Answer{Kind: trace.Expired, From: from}},
			"host unreachable":         {traceSeq + 7, 2, 100, 3, 1, trace.Answer{Kind: trace.Unreachable, TTL: 7, From: from}},
			"about the flow's probe":   {1000, 2, 100, 3, 1, trace.Answer{}},
			"about another run, UDP":   {traceSeq + 7, 3, 100, 11, 0, trace.Answer{}},
			"the largest TTL possible": {traceSeq + 255, 2, 100, 11, 0, trace.Answer{Kind: trace.Expired, TTL: 255, From: from}},
		} {
			if proto == probe.STAMP && c.run != 2 {
				continue // test packets do not show a run
			}
			packet := codec.Build(c.seq, 0)
			e := &socket.ICMPError{From: from, Type: c.typ, Code: c.code, Payload: packet[:min(c.quoted, len(packet))]}
			if c.run != 2 {
				binary.BigEndian.PutUint32(e.Payload, c.run)
			}
			if got := f.answer(e, 2); got != c.want {
				t.Errorf("%v, %s: %+v, want %+v", proto, name, got, c.want)
			}
		}
	}
}

// Whatever an ICMP error quotes, its answer has a TTL of 0 to 255.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte{0, 0, 0, 2, 0xff, 0xff, 0xff, 7}, false, uint8(11))
	f.Add([]byte{0xff, 0xff, 0xff, 7}, true, uint8(3))
	f.Fuzz(func(t *testing.T, quoted []byte, stamp bool, typ uint8) {
		x := &flow{stamp: stamp}
		a := x.answer(&socket.ICMPError{Type: typ, Payload: quoted}, 2)
		if a.TTL < 0 || a.TTL > 255 || a.Kind == trace.Reached {
			t.Errorf("%+v", a)
		}
	})
}

// A trace of a source port ends at the target, whose reply the loop receives.
func TestTraceOfAPort(t *testing.T) {
	plain := &scripted{reply: func(_ *scripted, _ uint16, b []byte) [][]byte { return [][]byte{b} }}
	stamp := &scripted{reply: func(_ *scripted, _ uint16, b []byte) [][]byte { return [][]byte{echohost.Reflect(b)} }}
	names := []string{fmt.Sprintf("udp:127.0.0.1:%d", plain.listen(t)), fmt.Sprintf("stamp:127.0.0.1:%d",
		stamp.listen(t))}
	m := newManaged(t, Options{Transport: "socket", Source: []netip.Addr{netip.MustParseAddr("127.0.0.1")}},
		names[0]+" __param_source_ports=2", names[1]+" __param_source_ports=2")
	m.update(t.Context(), false)
	m.loop.adopt(m.loop.offer.Load(), 0)
	defer func() { check.OK(t, m.close()) }()
	for i, name := range names {
		f, over := m.entries[name].flow, make(chan error, 1)
		go func() {
			r, err := f.trace(t.Context(), 1)
			if err == nil && r.End != trace.Reached {
				err = fmt.Errorf("%+v", r)
			}
			over <- err
		}()
		var err error
		await.Until(t, name+" is reached", func() bool {
			m.loop.receive(false)
			select {
			case err = <-over:
				return true
			default:
				return false
			}
		})
		check.OK(t, err)
		if n := []*scripted{plain, stamp}[i].probes(); n == 0 {
			t.Errorf("%s got no probe", name)
		}
	}
	m.loop.events.drain(func(e *event) { t.Errorf("an event: %+v", e) })
	f := m.entries[names[0]].flow
	close(f.wire.ending)
	_, err := f.trace(t.Context(), 0)
	check.Fails(t, "a wire that is closed", err, context.Canceled)
	f.wire.ending = make(chan struct{})
	f.tracers = nil
	_, err = f.trace(t.Context(), 0)
	check.Fails(t, "frames of another way", err, nil, "the kernel sends traces, and it does not send to this target")
}
