package kit

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/rebound-nic/rebound/polling"
)

// Gate synchronises a device's polling loops with its watchdog, which restarts the device while the loops are parked.
// The loops are pinned (polling.Pin) and must not block, or the runtime ends the process ("schedule: holding locks"):
// they check Closed once per pass, and park by spinning. Loops that are not pinned, as in tests, sleep while they are
// parked. The zero Gate is open. nic/memory-order.md (parking the loops) explains why each side sees what the other
// wrote.
type Gate struct {
	closed         atomic.Bool
	active, parked atomic.Int32
	joined         atomic.Bool // a caller of Send and Recv is among the active
	fatal          atomic.Pointer[error]
}

// Enter registers a loop. It returns the error that ended the device, if there was one; the loop does not run then.
func (g *Gate) Enter() error {
	if g.joined.Swap(false) {
		g.active.Add(-1) // the loops own the queues now
	}
	g.active.Add(1)
	err := g.Park()
	if err != nil {
		g.Leave()
	}
	return err
}

// Leave removes a loop that Enter admitted.
func (g *Gate) Leave() { g.active.Add(-1) }

// Call starts Send and Recv: their caller is pinned too, and owns the queues while no loop runs. From its first call it
// counts as a loop that parks only at its next call.
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

// Park holds a loop until the gate opens. It returns the error that ended the device, if any. A loop that nothing has
// pinned sleeps: the virtual time of testing/synctest does not advance while a goroutine spins.
func (g *Gate) Park() error {
	g.parked.Add(1)
	for g.closed.Load() {
		if !polling.Pinned() {
			time.Sleep(nap)
		}
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

// alone closes the gate, runs f once every loop is parked, and opens the gate when every loop has seen the outcome. An
// error of f ends all loops permanently. Only the watchdog calls it. If stop is closed first, f does not run.
func (g *Gate) alone(stop <-chan struct{}, f func() error) error {
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

// nap is how long alone and Park sleep between two looks at the other's state.
const nap = 20 * time.Microsecond

var errStopped = errors.New("the device is being closed")
