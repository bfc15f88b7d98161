package polling

import (
	"sync/atomic"
	_ "unsafe" // for linkname
)

// pinned is the number of goroutines between Pin and Unpin.
var pinned atomic.Int32

// Pin prevents preemption of the calling goroutine. Without it the runtime's monitor asks every goroutine that has run
// for 10 ms to yield at its next function call. A locked thread is then handed off and woken again, which causes a gap
// of tens of microseconds a hundred times a second.
//
// Until Unpin the goroutine must not block, and must not enter the scheduler through a system call (RawSyscall is
// fine): the runtime throws if it loses its P. Nothing that stops the world (a garbage collection, runtime.GOMAXPROCS,
// ReadMemStats, the goroutine profile) can begin until Unpin. Code that pins for long must therefore switch the garbage
// collector off and then call runtime.GC: switching it off waits only for the mark phase, and the end of a collection
// in progress would spin, with its own P, until the goroutine unpins.
func Pin() {
	pinned.Add(1)
	procPin()
}

// Unpin undoes Pin, on the same goroutine.
func Unpin() {
	procUnpin()
	pinned.Add(-1)
}

// Pinned reports whether any goroutine of the process is pinned. If not, the caller is not either, and may block.
func Pinned() bool { return pinned.Load() > 0 }

//go:linkname procPin runtime.procPin
func procPin() int

//go:linkname procUnpin runtime.procUnpin
func procUnpin()
