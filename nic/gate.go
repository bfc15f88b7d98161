package nic

import (
	"sync/atomic"
	"time"
)

// Gate is where a device's polling loops and its watch meet: the goroutine that looks after the device, and restarts it
// while the loops are parked. The loops are pinned (hot.Pin), so their side never blocks: they look at Closed once a pass,
// and park by spinning. The zero Gate is open.
type Gate struct {
	closed         atomic.Bool
	active, parked atomic.Int32
	fatal          atomic.Pointer[error]
}

// Enter registers a loop. It returns the error that ended the device, if there was one; the loop does not run then.
func (g *Gate) Enter() error {
	g.active.Add(1)
	err := g.Park()
	if err != nil {
		g.Leave()
	}
	return err
}

// Leave takes a loop out that Enter let in.
func (g *Gate) Leave() { g.active.Add(-1) }

// Active reports whether any loop runs or is parked.
func (g *Gate) Active() bool { return g.active.Load() > 0 }

// Closed reports whether the loops are to park.
func (g *Gate) Closed() bool { return g.closed.Load() }

// Park holds a loop until the gate opens, and returns the error that ended the device, if there was one.
func (g *Gate) Park() error {
	g.parked.Add(1)
	for g.closed.Load() {
	}
	g.parked.Add(-1)
	return g.Err()
}

// Err returns the error that ended the device, if there was one.
func (g *Gate) Err() error {
	if err := g.fatal.Load(); err != nil {
		return *err
	}
	return nil
}

// Alone closes the gate, runs f once every loop is parked, and opens it when every loop saw the outcome. An error of f ends
// all loops, for good. One goroutine, the watch, calls it.
func (g *Gate) Alone(f func() error) error {
	const nap = 20 * time.Microsecond
	g.closed.Store(true)
	for g.parked.Load() < g.active.Load() {
		time.Sleep(nap)
	}
	err := f()
	if err != nil {
		g.fatal.Store(&err)
	}
	g.closed.Store(false)
	for g.parked.Load() > 0 { // a loop that is still on its way out would count as parked the next time
		time.Sleep(nap)
	}
	return err
}
