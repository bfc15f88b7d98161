package observe

import (
	"cmp"
	"slices"
	"sync"

	"github.com/rebound-nic/rebound/internal/host/osnoise"
)

// mostNoise bounds the events that a Noise keeps. When there are more, the shorter half of them is dropped: a long one
// is what makes a round trip slow.
const mostNoise = 1 << 17

// Noise records what had the measuring core while the measuring thread did not run. Unlike Watch it has a start, an end
// and a name for each event, if the kernel's tracepoints may be used.
type Noise struct {
	watcher *osnoise.Watcher
	core    int

	mu     sync.Mutex
	events []osnoise.Event
	missed int64
}

// StartNoise watches the thread tid of this process, which is bound to the core.
func StartNoise(core, tid int) (n *Noise, err error) {
	n = &Noise{core: core}
	if n.watcher, err = osnoise.Watch([]int{core}, osnoise.Threshold, n.add); err != nil {
		return nil, err
	}
	if err := n.watcher.Thread(core, tid); err != nil {
		n.watcher.Close()
		return nil, err
	}
	return n, nil
}

func (n *Noise) add(e osnoise.Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.events) == mostNoise {
		slices.SortStableFunc(n.events, func(a, b osnoise.Event) int { return cmp.Compare(b.Took, a.Took) })
		n.events = n.events[:mostNoise/2]
		n.missed += mostNoise / 2
	}
	n.events = append(n.events, e)
}

// How says in words how causes are known.
func (n *Noise) How() string { return n.watcher.How() }

// Traced reports whether they are known from the kernel's tracepoints.
func (n *Noise) Traced() bool { return n.watcher.Traced() }

// Stop ends the watch. It returns the events, which overlap and have no order, and how many more there were. From and
// To of an event are ticks, as engine.Slow has them.
func (n *Noise) Stop() (events []osnoise.Event, missed int64) {
	lost := n.watcher.Lost()
	n.watcher.Close()
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.events, n.missed + int64(lost)
}
