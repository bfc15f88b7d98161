package nictest

import (
	"sync/atomic"
	"time"

	"github.com/rebound-nic/rebound/nic/kit"
)

// pass is the virtual time that a pass of ServeVirtual takes.
const pass = 20 * time.Microsecond

// ServeVirtual polls as a driver's Serve does, in a bubble of testing/synctest: Serve never blocks, and the bubble's
// clock would stall. poll makes one pass over the queue. The function that it returns stops the loop and returns its
// error.
func ServeVirtual(gate *kit.Gate, poll func()) (stop func() error) {
	var stopped atomic.Bool
	end := make(chan error, 1)
	go func() {
		if err := gate.Enter(); err != nil {
			end <- err
			return
		}
		defer gate.Leave()
		for !stopped.Load() {
			poll()
			time.Sleep(pass)
			if gate.Closed() {
				if err := gate.Park(); err != nil {
					end <- err
					return
				}
			}
		}
		end <- nil
	}()
	return func() error {
		stopped.Store(true)
		return <-end
	}
}
