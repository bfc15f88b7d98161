package polling

import _ "unsafe" // for linkname

// Pin keeps the scheduler from taking the calling goroutine off its thread. Without it the runtime's monitor asks
// every goroutine that has run for 10 ms to yield at its next function call: a locked thread is then handed off and
// woken again, which shows as a gap of tens of microseconds a hundred times a second.
//
// Until Unpin the goroutine must not block, and not enter the scheduler by a syscall (RawSyscall is fine): the
// runtime throws if it loses its P there. Nothing that stops the world (a garbage collection, runtime.GOMAXPROCS,
// ReadMemStats, the goroutine profile) can begin until then, so code that pins for long has switched the collector
// off, and has called runtime.GC after that: switching it off waits for a collection's marking only, and the end of
// one that was under way would wait for the pinned goroutine, spinning, with its own P.
func Pin() { procPin() }

// Unpin ends what Pin began, on the same goroutine.
func Unpin() { procUnpin() }

//go:linkname procPin runtime.procPin
func procPin() int

//go:linkname procUnpin runtime.procUnpin
func procUnpin()
