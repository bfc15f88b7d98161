package watch

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rebound-nic/rebound/fleet/trace"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/needs"
)

// pathed is a watch of a target with some source ports, from 61000 on, probed once a second.
type pathed struct {
	*archive
	state  *state
	ring   *ring
	log    *bytes.Buffer
	now    time.Time
	turn   int
	probes uint64
}

func newPathed(t *testing.T, ports int) *pathed {
	p := &pathed{now: noon, ring: newRing(1 << 12)}
	p.archive, p.log = logged(nil)
	p.timeout = time.Second
	p.state = p.target(target(t, "10.0.0.2"), noon)
	p.state.paths = &paths{flow: &flow{id: p.state.id}}
	for i := range ports {
		p.state.paths.list = append(p.state.paths.list, path{port: uint16(61000 + i)})
	}
	return p
}

// probe sends the next probe and decides it a second later.
func (p *pathed) probe(lost func(path int) bool) {
	p.now = p.now.Add(time.Second)
	path := uint8(p.turn)
	p.turn = (p.turn + 1) % len(p.state.paths.list)
	p.probes++
	p.ring.put(event{flow: p.state.id, kind: sent, path: path})
	if lost(int(path)) {
		p.ring.put(event{flow: p.state.id, kind: missed, path: path, probe: p.probes, wire: gone})
	} else {
		p.ring.put(event{flow: p.state.id, kind: answered, path: path, ns: 1000})
	}
	p.drain(p.ring, p.now)
}

// round sends n probes of each path.
func (p *pathed) round(n int, lost func(path int) bool) {
	for range n * len(p.state.paths.list) {
		p.probe(lost)
	}
}

func none(int) bool { return false }

func (p *pathed) bad() (ports []int) {
	for _, x := range p.state.paths.list {
		if x.bad {
			ports = append(ports, int(x.port))
		}
	}
	return ports
}

// Two of eight ports lose everything: they are named after three to five probes each, with what was lost; the others
// are not, and the target stays up. Eight replies in a row make them good again.
func TestPathsWithLoss(t *testing.T) {
	p := newPathed(t, 8)
	p.round(10, none)
	p.round(3, func(path int) bool { return path == 2 || path == 5 })
	check.Same(t, p.bad(), []int{61002, 61005}, "bad: %v")
	check.Contains(t, p.log.String(),
		`level=WARN msg="probes from a source port are lost, those from others are not" target=icmp:10.0.0.2 source_port=61002 since=2026-11-22T12:01:22.000Z `+
			`lost="3 of the last 13" others_lost="0 of 74"`, "source_port=61005")
	if p.state.health.down || strings.Contains(p.log.String(), "is down") {
		t.Errorf("the target is down:\n%s", p.log.String())
	}
	check.Same(t, p.state.pathLines(), []string{"source port 61002: 3 of the last 13 lost",
		"source port 61005: 3 of the last 13 lost"}, "%q")
	p.round(7, none)
	if got := p.bad(); len(got) != 2 {
		t.Errorf("bad after seven replies: %v", got)
	}
	p.round(1, none)
	if got := p.bad(); len(got) != 0 || strings.Count(p.log.String(),
		`msg="probes from a source port are answered again"`) != 2 {
		t.Errorf("bad after eight: %v\n%s", got, p.log.String())
	}
}

// Half of the ports may lose everything from the start, and one of two.
func TestHalfOfThePaths(t *testing.T) {
	for _, ports := range []int{2, 4, 8, 16} {
		p := newPathed(t, ports)
		p.round(16, func(path int) bool { return path%2 == 1 })
		if got := p.bad(); len(got) != ports/2 || slices.ContainsFunc(got, func(port int) bool { return port%2 == 0 }) {
			t.Errorf("%d ports: bad %v", ports, got)
		}
	}
}

// Loss that all paths share is no path's, whether it is complete or random.
func TestEqualLoss(t *testing.T) {
	for _, loss := range []float64{0.01, 0.1, 0.3, 0.5, 1} {
		random := rand.New(rand.NewPCG(1, uint64(100*loss)))
		p := newPathed(t, 8)
		p.round(20, none)
		rounds := needs.Cases(5_000, 1_000)
		p.round(rounds, func(int) bool { return random.Float64() < loss })
		n := strings.Count(p.log.String(), "those from others are not")
		t.Logf("%.0f %% loss of all paths: %d times in %d probes one path was named", 100*loss, n, 8*rounds)
		if n > 20 || loss == 1 && n > 0 {
			t.Errorf("%.0f %% loss: %d", 100*loss, n)
		}
	}
}

// The traces of a target are a minute apart, in the order of the requests; a path that recovered has none, and a target
// that is down has one.
func TestTraceLimits(t *testing.T) {
	p := newPathed(t, 4)
	for i, x := range []int{1, 2, 3} {
		p.state.paths.list[x].bad = i != 1
		p.wantTrace(p.state, uint8(x))
	}
	at := p.now
	take := func(after time.Duration, want int) {
		t.Helper()
		at = at.Add(after)
		f, i := p.nextTrace(at)
		if f == nil {
			i = -1
		}
		if i != want {
			t.Errorf("at %v: path %d, want %d", at.Sub(noon), i, want)
		}
	}
	take(0, 1)
	take(59*time.Second, -1)
	take(time.Second, 3)
	take(time.Hour, -1)

	for range 1000 {
		p.wantTrace(p.state, 0)
	}
	check.Equal(t, len(p.wanted), mostWanted, "%d wait")
	take(time.Hour, -1)
	check.Equal(t, len(p.wanted), 0, "%d wait for paths that are good")
	p.state.paths.list[1].bad, p.state.paths.list[3].bad = false, false
	p.round(2, func(int) bool { return true })
	take(time.Hour, 2) // the third probe in a row, with which the target was down
	take(time.Hour, -1)
	p.finishTrace(p.state.paths.flow, 2, trace.Result{Sent: 8}, nil)
	p.drain(p.ring, p.now)
	check.Contains(t, p.log.String(), `source_port=61002 result="no hop answers"`)
	if lines := p.state.pathLines(); len(lines) != 2 || lines[1] != "no hop answers" {
		t.Errorf("%q", lines)
	}
	p.log.Reset()
	p.finishTrace(&flow{id: p.state.id}, 0, trace.Result{}, nil) // a flow that was replaced
	p.drain(p.ring, p.now)
	check.Equal(t, p.log.String(), "", "the log: %s")
}

// A path's metrics have its probes, whether it is up, and the last hop of the trace of a present loss.
func TestPathMetrics(t *testing.T) {
	p := newPathed(t, 4)
	traced := &trace.Result{Hops: []trace.Hop{{TTL: 1, Addr: netip.MustParseAddr("10.0.0.8")},
		{TTL: 3, Addr: netip.MustParseAddr("10.0.0.9")}}}
	p.state.paths.list = []path{{port: 1, sent: 5, lost: 3, bad: true, trace: traced}, {port: 2, bad: true,
		trace: &trace.Result{}}, {port: 3, sent: 7, trace: traced}, {port: 4, bad: true}}
	d := describe(p.state.Target)
	names := map[*prometheus.Desc]string{d.pathProbes: "probes", d.pathLost: "lost", d.pathUp: "up", d.lastHop: "hop"}
	for _, c := range []struct {
		change func()
		want   string
	}{
		{func() {}, "probes 5 [1] lost 3 [1] up 0 [1] hop 3 [1 10.0.0.9] probes 0 [2] lost 0 [2] up 0 [2] hop 0 [2 ] " +
			"probes 7 [3] lost 0 [3] up 1 [3] probes 0 [4] lost 0 [4] up 0 [4]"},
		{func() { p.state.paths.list = p.state.paths.list[2:3]; p.state.health.down = true },
			"probes 7 [3] lost 0 [3] up 1 [3] hop 3 [3 10.0.0.9]"},
		{func() { p.state.gone = true }, "probes 7 [3] lost 0 [3]"},
		{func() { p.state.paths = nil }, ""},
	} {
		var got []string
		c.change()
		p.state.collectPaths(d, func(d *prometheus.Desc, n int64, port string) {
			got = append(got, fmt.Sprint(names[d], " ", n, " [", port, "]"))
		}, func(d *prometheus.Desc, v float64, labels ...string) {
			got = append(got, fmt.Sprint(names[d], " ", v, " ", labels))
		})
		check.Equal(t, strings.Join(got, " "), c.want, "%s")
	}
}
