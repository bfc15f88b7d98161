package kit

import (
	"maps"
	"sync"

	"github.com/rebound-nic/rebound/nic"
)

// Totals are the device's own counts since it was opened, over all restarts. Differences may wrap: adding undoes it.
type Totals struct {
	mu       sync.Mutex
	base     nic.Stats // counts before the last reset, minus those at the start
	last     nic.Stats // last reading of the device's counters
	kept     nic.Stats // what ReadStats returned last
	reasons  map[string]uint64
	finished uint64 // restarts
}

// Start sets the counts so far, which are not ours.
func (t *Totals) Start(now nic.Stats) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.base, t.last = combine(nic.Stats{}, now, subtract), now
}

// restarted takes the counters as they are after a restart. A counter below its last reading was cleared; any other one
// continues, like those of a port that other functions share.
func (t *Totals) restarted(now nic.Stats) {
	t.mu.Lock()
	defer t.mu.Unlock()
	cleared := combine(t.last, now, func(was, is uint64) uint64 {
		if is < was {
			return was
		}
		return 0
	})
	t.base, t.last = combine(t.base, cleared, add), now
}

// Add is for a device whose counters are cleared by being read.
func (t *Totals) Add(more nic.Stats) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.base = combine(t.base, more, add)
}

// Read returns the totals for the counters now. Pass the zero Stats for a device whose counts were all passed to Add.
// The caller may add to Extra.
func (t *Totals) Read(now nic.Stats) nic.Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = now
	s := combine(t.base, now, add)
	t.resets(&s)
	return s
}

// resets sets the counts of restarts. The caller holds the lock.
func (t *Totals) resets(s *nic.Stats) {
	s.Resets = 0
	for reason, n := range t.reasons {
		s.Resets += n
		s.Extra["resets_"+reason] = n
	}
	if s.Resets > 0 {
		s.Extra[nic.RestartsFinished] = t.finished
	}
}

// keep copies what ReadStats returns, into the same map, because a scrape leaves no garbage.
func (t *Totals) keep(s *nic.Stats) {
	t.mu.Lock()
	defer t.mu.Unlock()
	extra := t.kept.Extra
	if extra == nil {
		extra = map[string]uint64{}
	}
	clear(extra)
	maps.Copy(extra, s.Extra)
	t.kept = *s
	t.kept.Extra = extra
}

// latest returns what keep took last, with the restarts since.
func (t *Totals) latest() nic.Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := combine(t.kept, nic.Stats{}, add)
	t.resets(&s)
	return s
}

func (t *Totals) countReset(reason string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.reasons == nil {
		t.reasons = map[string]uint64{}
	}
	t.reasons[reason]++
}

func (t *Totals) countRestart() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.finished++
}

func add(a, b uint64) uint64      { return a + b }
func subtract(a, b uint64) uint64 { return a - b }

// Wide continues a counter of the device that has 32 bits and wraps. The zero Wide is for a counter that begins at 0.
type Wide struct {
	Last uint32
	Sum  uint64
}

// Read returns the count where the device says now. It is called more often than the counter wraps.
func (w *Wide) Read(now uint32) uint64 {
	w.Sum += uint64(now - w.Last)
	w.Last = now
	return w.Sum
}

// combine applies f to each count.
func combine(a, b nic.Stats, f func(a, b uint64) uint64) nic.Stats {
	s := nic.Stats{
		RxFrames: f(a.RxFrames, b.RxFrames), RxBytes: f(a.RxBytes, b.RxBytes),
		TxFrames: f(a.TxFrames, b.TxFrames), TxBytes: f(a.TxBytes, b.TxBytes),
		RxDropped: f(a.RxDropped, b.RxDropped), RxErrors: f(a.RxErrors, b.RxErrors),
		TxDropped: f(a.TxDropped, b.TxDropped), TxErrors: f(a.TxErrors, b.TxErrors),
		Resets: f(a.Resets, b.Resets), Extra: maps.Clone(a.Extra),
	}
	if s.Extra == nil {
		s.Extra = map[string]uint64{}
	}
	for name := range b.Extra {
		s.Extra[name] = f(a.Extra[name], b.Extra[name])
	}
	return s
}
