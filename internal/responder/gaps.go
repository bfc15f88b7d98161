package responder

import (
	"cmp"
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/rebound-nic/rebound/internal/host/osnoise"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/polling"
)

// Bounds of what is kept for a report. When there is more, the shorter half is dropped.
const (
	keptGaps   = 1 << 16
	keptCauses = 1 << 15
)

// gapLog keeps the longest polling gaps of all loops for the report, and what had the cores meanwhile. All of it has
// its memory from the start.
type gapLog struct {
	loops  []*loop
	clock  *latency.Clock
	read   []polling.Read // for each loop
	least  uint64         // ticks: shorter gaps are not kept
	gaps   []loopGap
	missed uint64

	mu           sync.Mutex // for all below
	anchor       anchor
	causes       []gapCause
	missedCauses int64
}

type loopGap struct {
	core  int
	start int64  // ns since 1970
	took  uint64 // ticks
}

type gapCause struct {
	osnoise.Event
	start int64 // ns since 1970
}

// anchor is the same moment by polling.TSC and in ns since 1970.
type anchor struct {
	tick uint64
	ns   int64
}

// readAnchor returns that of several readings which took least.
func readAnchor() (best anchor) {
	least := ^uint64(0)
	for range 3 {
		before := polling.FencedTSC()
		now := time.Now().UnixNano()
		if took := polling.FencedTSC() - before; took < least {
			least, best = took, anchor{before + took/2, now}
		}
	}
	return best
}

// wall returns a tick of the last second in ns since 1970. The wall clock is steered, so an older anchor would not do.
func (g *gapLog) wall(a anchor, tick uint64) int64 { return a.ns + g.clock.Between(a.tick, tick) }

// newGapLog has the loops keep their gaps. They must not run yet.
func newGapLog(loops []*loop, clock *latency.Clock) *gapLog {
	g := &gapLog{loops: loops, clock: clock, anchor: readAnchor(), read: make([]polling.Read, len(loops)),
		least: clock.Ticks(osnoise.Threshold), gaps: make([]loopGap, 0, keptGaps)}
	for _, l := range loops {
		l.responder.Loop.Keep = g.least
	}
	return g
}

// cause is called for each event of an osnoise.Watcher.
func (g *gapLog) cause(e osnoise.Event) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.causes == nil {
		g.causes = make([]gapCause, 0, keptCauses)
	}
	if len(g.causes) == keptCauses {
		slices.SortFunc(g.causes, func(a, b gapCause) int { return cmp.Compare(b.Took, a.Took) })
		g.causes = g.causes[:keptCauses/2]
		g.missedCauses += keptCauses / 2
	}
	g.causes = append(g.causes, gapCause{e, g.wall(g.anchor, e.From)})
}

// collect reads the loops' latest gaps.
func (g *gapLog) collect() {
	a := readAnchor()
	g.mu.Lock()
	g.anchor = a
	g.mu.Unlock()
	for i, l := range g.loops {
		below, lost := l.responder.Loop.Long.After(&g.read[i], func(from, to uint64) {
			if to-from < g.least {
				return
			}
			if len(g.gaps) == keptGaps {
				slices.SortFunc(g.gaps, func(a, b loopGap) int { return cmp.Compare(b.took, a.took) })
				g.gaps = g.gaps[:keptGaps/2]
				g.least = g.gaps[len(g.gaps)-1].took
			}
			g.gaps = append(g.gaps, loopGap{l.core, g.wall(a, from), to - from})
		})
		g.least, g.missed = max(g.least, below), g.missed+lost
	}
}

// follow reads the gaps until ctx is done.
func (g *gapLog) follow(ctx context.Context) {
	t := time.NewTicker(50 * time.Millisecond)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			g.collect()
			return
		case <-t.C:
			g.collect()
		}
	}
}

// report returns them in the order of time. how says how causes are known.
func (g *gapLog) report(how string) *report.Gaps {
	out := &report.Gaps{From: g.clock.Nanoseconds(g.least), Missed: int64(min(g.missed, math.MaxInt32)), How: how}
	for _, k := range g.gaps {
		if k.took < g.least {
			continue // others of its length are missing
		}
		out.All = append(out.All, report.Gap{Core: k.core, Start: k.start, Duration: g.clock.Nanoseconds(k.took)})
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	out.MissedCauses = g.missedCauses
	for _, e := range g.causes {
		text, name := e.Phrase()
		out.All = append(out.All, report.Gap{Core: e.CPU, Start: e.start,
			Duration: max(g.clock.Between(e.From, e.To), 0), Text: text, Name: name, Weak: e.Weak})
	}
	slices.SortFunc(out.All, func(a, b report.Gap) int { return cmp.Compare(a.Start, b.Start) })
	out.Sum()
	return out
}
