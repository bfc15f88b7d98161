package process

import (
	"os"
	"os/signal"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// OnSignal sets stop at the first SIGINT or SIGTERM. The second one terminates the process as by default.
func OnSignal(stop *atomic.Bool) (restore func()) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, unix.SIGINT, unix.SIGTERM)
	done := make(chan struct{})
	go func() {
		select {
		case <-c:
			stop.Store(true)
			signal.Stop(c)
		case <-done:
		}
	}()
	return func() { signal.Stop(c); close(done) }
}
