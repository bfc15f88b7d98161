package nic

import (
	"sync"
	"sync/atomic"
)

// Gate is where a device's polling loops and its watch meet: the goroutine that looks after the device while loops run, and
// restarts it while they are parked. A loop looks at Closed once a pass; everything else happens off the hot path. The zero
// Gate is open.
type Gate struct {
	closed atomic.Bool

	mu             sync.Mutex
	change         sync.Cond
	active, parked int
	fatal          error
	stop           chan struct{} // ends the watch
	stopped        chan struct{}
}

// Closed reports whether the loops are to park.
func (g *Gate) Closed() bool { return g.closed.Load() }

// Enter registers a loop; the first starts watch.
func (g *Gate) Enter(watch func(stop <-chan struct{})) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.change.L = &g.mu
	if g.fatal != nil {
		return g.fatal
	}
	if g.active++; g.active == 1 {
		stop, stopped := make(chan struct{}), make(chan struct{})
		g.stop, g.stopped = stop, stopped
		go func() {
			defer close(stopped)
			watch(stop)
		}()
	}
	return nil
}

// Leave takes a loop out; the last waits for the watch to end.
func (g *Gate) Leave() {
	g.mu.Lock()
	g.active--
	g.change.Broadcast()
	last := g.active == 0
	stop, stopped := g.stop, g.stopped
	g.mu.Unlock()
	if last {
		close(stop)
		<-stopped
	}
}

// Park holds a loop until the gate opens, and returns the failure if there was one.
func (g *Gate) Park() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.parked++
	g.change.Broadcast()
	for g.closed.Load() {
		g.change.Wait()
	}
	g.parked--
	return g.fatal
}

// Alone closes the gate, runs f once every loop is parked, and opens it. An error of f ends the loops.
func (g *Gate) Alone(f func() error) error {
	g.closed.Store(true)
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.parked < g.active {
		g.change.Wait()
	}
	if g.active > 0 {
		g.fatal = f()
	}
	g.closed.Store(false)
	g.change.Broadcast()
	return g.fatal
}
