package watch

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/rebound-nic/rebound/fleet/trace"
	"github.com/rebound-nic/rebound/internal/bench/engine"
	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/internal/bench/socket"
)

// Limits on traces. Each sends trace.MostHops × trace.Tries packets at most.
const (
	traceEvery       = 5 * time.Second // from the begin of one to the next, of all targets
	traceTargetEvery = time.Minute     // of one target
	mostWanted       = 256             // traces that wait for that; further ones are left out
	// sequence number of a trace's probes, plus the TTL: far from those of other probes
	traceSeq  = 0xffffff00
	tracePoll = 50 // ms between two looks at whether a probe reached the target
)

// wantedTrace is a path that lost probes.
type wantedTrace struct {
	state *state
	port  uint16
}

// wantTrace requests a trace of a path. It does nothing for a target with one source port.
func (k *archive) wantTrace(s *state, path uint8) {
	if s.paths != nil && len(k.wanted) < mostWanted {
		k.wanted = append(k.wanted, wantedTrace{s, s.paths.path(path).port})
	}
}

// traceAll runs the requested traces, one at a time, until ctx is done.
func (k *archive) traceAll(ctx context.Context) {
	tick := time.NewTicker(soonEvery)
	defer tick.Stop()
	var last time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			if now.Sub(last) < traceEvery {
				continue
			}
			if f, i := k.nextTrace(now); f != nil {
				last = now
				r, err := f.trace(ctx, i)
				k.finishTrace(f, i, r, err)
			}
		}
	}
}

// nextTrace returns the path that was requested first and may be traced now.
func (k *archive) nextTrace(now time.Time) (*flow, int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	kept := k.wanted[:0]
	defer func() { k.wanted = kept }()
	for n, w := range k.wanted {
		s, at := w.state, -1
		for i := 0; s.paths != nil && i < len(s.paths.list); i++ {
			if x := &s.paths.list[i]; x.port == w.port && (x.bad || s.health.down) {
				at = i
			}
		}
		switch {
		case at < 0 || s.gone: // it recovered
		case !s.paths.traced.IsZero() && now.Sub(s.paths.traced) < traceTargetEvery:
			kept = append(kept, w)
		default:
			s.paths.traced = now
			kept = append(kept, k.wanted[n+1:]...)
			return s.paths.flow, at
		}
	}
	return nil, 0
}

// finishTrace records and logs the result of a trace.
func (k *archive) finishTrace(f *flow, i int, r trace.Result, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.byID[f.id]
	if s == nil || s.paths == nil || s.paths.flow != f {
		return
	}
	x := &s.paths.list[i]
	c := change{slog.LevelWarn, "trace of the source port", []any{"source_port", x.port, "result", r.String(), "hops",
		r.Path(), "packets", r.Sent}}
	if err != nil {
		c.text, c.args = "no trace of the source port", []any{"source_port", x.port, "error", err}
	} else {
		x.trace = &r
		if r.End == trace.Reached {
			x.direction.seen = false // the reflector has counted the trace's probes
		}
	}
	k.report(s, &c)
}

// tracing recognises replies to a trace's probes among those that the loop receives.
type tracing struct {
	codec   *probe.Codec // the loop's
	reply   probe.Reply
	reached atomic.Bool
}

// traced reports whether a message is the target's reply to a probe of the flow's trace.
func (f *flow) traced(b []byte) bool {
	t := f.tracing.Load()
	if t == nil || t.codec.Check(b, &t.reply) != probe.Good || t.reply.Seq < traceSeq {
		return false
	}
	t.reached.Store(true)
	return true
}

// expired reports whether an ICMP error is a router's report about a probe of the flow's trace.
func (f *flow) expired(r *probe.Reply) bool {
	kind := uint16(11) // RFC 792
	if f.codec.Flow().Dst.Is6() {
		kind = 3 // RFC 4443 §3.3
	}
	return r.Code>>8 == kind && f.tracing.Load() != nil
}

// trace sends probes whose TTL expires on the way from one of the flow's source ports, so that routers choose the same
// path for them.
func (f *flow) trace(ctx context.Context, path int) (r trace.Result, err error) {
	w := f.wire
	if f.tracers == nil {
		return r, errors.New("the kernel sends traces, and it does not send to this target from the same address by the same way")
	}
	w.mu.Lock()
	select {
	case <-w.ending:
		w.mu.Unlock()
		return r, context.Canceled
	default:
	}
	w.traces.Add(1)
	w.mu.Unlock()
	defer w.traces.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-w.ending:
			cancel()
		case <-ctx.Done():
		}
	}()

	of := f.codec.Flow()
	of.Run = rand.Uint32()
	if f.frames {
		of.SrcPort, of.SrcPorts = f.ports[path], nil
	}
	t := &tracing{}
	if t.codec, err = probe.New(of); err != nil { // as the loop receives replies
		return r, err
	}
	of.Layer = probe.Datagram
	build, err := probe.New(of)
	if err != nil {
		return r, err
	}
	if f.stamp {
		build.SetErrorEstimate(engine.OwnEstimate())
		t.codec.SetErrorEstimate(engine.OwnEstimate())
	}
	f.tracing.Store(t) // until the next trace: a reply may come late
	from, to := f.tracers[path], netip.AddrPortFrom(of.Dst, of.DstPort)
	if f.frames { // the ports are held for flows with any DSCP
		if err := from.Mark(of.TOS, 0); err != nil {
			return r, err
		}
	}
	if err := from.KeepErrors(true); err != nil {
		return r, err
	}
	defer from.KeepErrors(false)
	buf := make([]byte, 1<<16)
	send := func(ttl int) error {
		return from.SendTTL(to, f.peer.Scope(), build.Build(traceSeq+uint32(ttl), engine.NTP(time.Now())), ttl)
	}
	return trace.Run(ctx, send, func(wait time.Duration) (trace.Answer, error) {
		if t.reached.Load() {
			return trace.Answer{Kind: trace.Reached}, nil
		}
		e, ok, err := from.NextError(buf, int(min(wait.Milliseconds()+1, tracePoll)))
		if err != nil || !ok || e.To != to {
			return trace.Answer{}, err
		}
		return f.answer(&e, of.Run), nil
	})
}

// answer interprets an ICMP error about a datagram to the flow's target. Errors about other probes than those of a
// trace say nothing about the TTL, and are ignored if they quote enough to be recognised.
func (f *flow) answer(e *socket.ICMPError, run uint32) (a trace.Answer) {
	a.Kind, a.From = trace.Unreachable, e.From
	if e.TimeExceeded() {
		a.Kind = trace.Expired
	}
	seq := e.Payload
	if !f.stamp {
		if len(seq) < 8 {
			return a
		}
		if binary.BigEndian.Uint32(seq) != run {
			return trace.Answer{}
		}
		seq = seq[4:]
	}
	if len(seq) < 4 {
		return a
	}
	n := binary.BigEndian.Uint32(seq)
	if n < traceSeq {
		return trace.Answer{}
	}
	a.TTL = int(n - traceSeq)
	return a
}
