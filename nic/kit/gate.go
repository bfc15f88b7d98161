package kit

import (
	"errors"
	"sync/atomic"
	"time"
)

// Parked is what a parked loop calls while it spins. Tests in a bubble of testing/synctest, where time stalls while a
// goroutine spins, sleep in it.
var Parked = func() {}

// Gate is where a device's polling loops and its watch meet: the goroutine that looks after the device, and restarts it
// while the loops are parked. The loops are pinned (polling.Pin), so their side never blocks: they look at Closed once a pass,
// and park by spinning. The zero Gate is open.
// docs/memory-order.md (parking the loops) says why what one side wrote is there for the other.
type Gate struct {
	closed         atomic.Bool
	active, parked atomic.Int32
	joined         atomic.Bool // a caller of Send and Recv is among the active
	fatal          atomic.Pointer[error]
}

// Enter registers a loop. It returns the error that ended the device, if there was one; the loop does not run then.
func (g *Gate) Enter() error {
	if g.joined.Swap(false) {
		g.active.Add(-1) // the queues are the loops' now
	}
	g.active.Add(1)
	err := g.Park()
	if err != nil {
		g.Leave()
	}
	return err
}

// Leave takes a loop out that Enter let in.
func (g *Gate) Leave() { g.active.Add(-1) }

// Call is what Send and Recv begin with: their caller is pinned too, and owns the queues where no loop does. From its first
// call on it counts as a loop, one that may park at its next call only.
func (g *Gate) Call() error {
	if !g.joined.Load() {
		g.joined.Store(true)
		g.active.Add(1)
	}
	if g.closed.Load() {
		return g.Park()
	}
	return g.Err()
}

// Active reports whether any loop runs or is parked.
func (g *Gate) Active() bool { return g.active.Load() > 0 }

// Closed reports whether the loops are to park.
func (g *Gate) Closed() bool { return g.closed.Load() }

// Park holds a loop until the gate opens, and returns the error that ended the device, if there was one.
func (g *Gate) Park() error {
	g.parked.Add(1)
	for g.closed.Load() {
		Parked()
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

// Alone closes the gate, runs f once every loop is parked, and opens it when every loop saw the outcome. An error of
// f ends all loops, permanently. One goroutine, the watch, calls it; where stop is closed first, f does not run.
func (g *Gate) Alone(stop <-chan struct{}, f func() error) error {
	const nap = 20 * time.Microsecond
	g.closed.Store(true)
	for g.parked.Load() < g.active.Load() {
		select {
		case <-stop:
			g.closed.Store(false)
			return errStopped
		case <-time.After(nap):
		}
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

var errStopped = errors.New("the device is being closed")
