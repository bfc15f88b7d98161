package testbed

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Namespace is a thread in a separate, unnamed network namespace, which ends with the thread and its children.
type Namespace struct {
	FD  int // the network namespace
	ask chan func()
}

// NewNamespace returns a namespace with only a loopback interface, which is down.
func NewNamespace() (*Namespace, error) {
	f := &Namespace{ask: make(chan func())}
	begun := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends here
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			f.FD, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
		begun <- err
		if err != nil {
			return
		}
		for job := range f.ask {
			job()
		}
	}()
	return f, <-begun
}

// Do runs job in the namespace.
func (f *Namespace) Do(job func() error) error {
	done := make(chan error)
	f.ask <- func() { done <- job() }
	return <-done
}

// Close ends the thread.
func (f *Namespace) Close() {
	close(f.ask)
	unix.Close(f.FD)
}
