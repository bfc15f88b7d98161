package watch

import (
	"fmt"
	"log/slog"
	"math"
	"math/bits"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rebound-nic/rebound/fleet/trace"
	"github.com/rebound-nic/rebound/latency/sanitize"
	"github.com/rebound-nic/rebound/nic"
)

// paths are the source ports of a target's probes. Routers choose one of several equal-cost paths by a hash of the
// ports, so each port stands for a path.
type paths struct {
	list   []path
	flow   *flow
	traced time.Time // when the latest trace began
}

// path is one source port.
type path struct {
	port       uint16
	sent, lost int64
	direction  direction

	outcomes uint32 // of its latest probes, the latest in the lowest bit: 1 is lost
	decided  int    // number of outcomes
	silent   int    // consecutive probes without a reply
	good     int    // consecutive probes with one
	first    time.Time
	heard    time.Time // of the latest reply
	bad      bool      // since first: it loses probes that other paths do not lose
	trace    *trace.Result
}

const (
	latest   = 32   // outcomes kept of a path
	unlikely = 1e-4 // a row of losses that the loss of other paths explains less often than this is the path's own
	// consecutive replies after which a path is good again; after as many losses, what was before does not count
	goodAgain   = 8
	pathsInCell = 4 // paths with loss that the status page shows in a target's row
)

// follow begins a target's flow. The counts of its ports continue if they are the same.
func (k *archive) follow(e *entry) {
	k.mu.Lock()
	defer k.mu.Unlock()
	old := e.state.paths
	if e.state.paths = nil; e.flow.ports == nil {
		return
	}
	p := &paths{flow: e.flow}
	for i, port := range e.flow.ports {
		if p.list = append(p.list, path{port: port}); old != nil && i < len(old.list) && old.list[i].port == port {
			p.list[i].sent, p.list[i].lost = old.list[i].sent, old.list[i].lost
		}
	}
	if old != nil {
		p.traced = old.traced
	}
	e.state.paths = p
}

// path returns a path. Events of a flow that was replaced may have any index.
func (p *paths) path(i uint8) *path { return &p.list[int(i)%len(p.list)] }

// count records an event of a path. failed means that the path has begun to lose probes that other paths do not lose.
func (p *paths) count(e *event, now time.Time, timeout time.Duration) (c *change, failed bool) {
	x := p.path(e.path)
	switch e.kind {
	case sent:
		x.sent++
	case missed:
		return p.missed(x, now, timeout)
	case answered, late:
		return x.answered(now, e.kind == late), false
	}
	return nil, false
}

func (x *path) decide(lost uint32) {
	x.outcomes = x.outcomes<<1 | lost
	x.decided = min(x.decided+1, latest)
}

// lossOf returns how many of a path's latest probes are lost.
func (x *path) lossOf() int { return bits.OnesCount32(x.outcomes) }

// missed records a probe without a reply. A path is bad after at least three in a row, over a second or more, if the
// loss of the other paths makes such a row unlikely, and one of them has answered meanwhile. Others that are bad, or
// perhaps about to be, are left out.
func (p *paths) missed(x *path, now time.Time, timeout time.Duration) (*change, bool) {
	sent := now.Add(-timeout)
	x.decide(1)
	if x.silent++; x.silent == 1 && !x.bad {
		x.first = sent
	}
	x.good = 0
	if x.bad || x.silent < downProbes || sent.Sub(x.first) < downFor {
		return nil, false
	}
	lost, of, answered := 0, 0, false
	for i := range p.list {
		if y := &p.list[i]; y != x && !y.bad && y.silent < 2 {
			lost, of = lost+y.lossOf(), of+y.decided
			answered = answered || y.heard.After(x.first)
		}
	}
	if !answered || math.Pow(float64(lost+1)/float64(of+2), float64(x.silent)) >= unlikely {
		return nil, false
	}
	x.bad, x.trace = true, nil
	return &change{slog.LevelWarn, "probes from a source port are lost, those from others are not",
		[]any{"source_port", x.port, "since", x.first,
			"lost", fmt.Sprintf("%d of the last %d", x.lossOf(), x.decided), "others_lost",
			fmt.Sprintf("%d of %d", lost, of)}}, true
}

// answered records a reply. A path that was down begins again: what was lost before says nothing about it now.
func (x *path) answered(now time.Time, late bool) *change {
	if x.silent >= goodAgain && !x.bad {
		x.outcomes, x.decided = 0, 0
	}
	if !late {
		x.decide(0)
	}
	x.heard, x.silent = now, 0
	if x.good++; !x.bad || x.good < goodAgain {
		return nil
	}
	x.bad, x.trace, x.outcomes, x.decided = false, nil, 0, 0
	return &change{nic.Notice, "probes from a source port are answered again",
		[]any{"source_port", x.port, "lost_since", x.first,
			"recovered_after", now.Sub(x.first).Round(time.Millisecond)}}
}

// oneWay returns the probes lost in each direction, from all source ports.
func (s *state) oneWay() (forward, backward int64, known bool) {
	if s.paths == nil {
		return s.direction.forward, s.direction.backward, s.direction.stateful
	}
	for i := range s.paths.list {
		d := &s.paths.list[i].direction
		forward, backward, known = forward+d.forward, backward+d.backward, known || d.stateful
	}
	return forward, backward, known
}

// collectPaths collects the metrics of each source port.
func (s *state) collectPaths(d descs, count func(d *prometheus.Desc, n int64, port string),
	gauge func(d *prometheus.Desc, v float64, labels ...string)) {
	if s.paths == nil {
		return
	}
	for i := range s.paths.list {
		x := &s.paths.list[i]
		port := strconv.Itoa(int(x.port))
		count(d.pathProbes, x.sent, port)
		count(d.pathLost, x.lost, port)
		if s.gone {
			continue
		}
		gauge(d.pathUp, float64(one(!x.bad)), port)
		if s.traceOf(x) {
			hop := ""
			if last := x.trace.Last(); last.TTL > 0 {
				hop = last.Addr.String()
			}
			gauge(d.lastHop, float64(x.trace.Last().TTL), port, hop)
		}
	}
}

// traceOf reports whether a path has a trace of the present loss.
func (s *state) traceOf(x *path) bool { return x.trace != nil && (x.bad || s.health.down) }

// pathLines describes the source ports with loss, for the status page.
func (s *state) pathLines() (lines []string) {
	if s.paths == nil {
		return nil
	}
	more := 0
	for i := range s.paths.list {
		x := &s.paths.list[i]
		if !x.bad && !s.traceOf(x) {
			continue
		}
		if len(lines) >= 2*pathsInCell-1 {
			more++
			continue
		}
		lines = append(lines, fmt.Sprintf("source port %d: %d of the last %d lost", x.port, x.lossOf(), x.decided))
		if s.traceOf(x) {
			lines = append(lines, x.trace.String())
		}
	}
	if more > 0 {
		lines = append(lines, "and "+sanitize.Count(more, "more source port"))
	}
	return lines
}

// withBadPaths returns how many targets lose probes from some source ports only.
func (k *archive) withBadPaths() (n int) {
	for _, s := range k.byName {
		for i := 0; s.paths != nil && i < len(s.paths.list); i++ {
			if s.paths.list[i].bad {
				n++
				break
			}
		}
	}
	return n
}
