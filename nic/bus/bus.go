// Package bus defines the errors that a device or its bus can return. Drivers and bus implementations wrap the same
// values, so callers can test for them with errors.Is.
package bus

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Wrapping errors name the device, what was expected and what was found.
var (
	ErrNoDevice = errors.New("no such device")
	ErrTimeout  = errors.New("device did not answer in time")
	ErrGone     = errors.New("device is gone")   // all-ones reads, an interface that vanished
	ErrBusy     = errors.New("device is in use") // another process or a driver has it
	ErrRights   = errors.New("not allowed")      // missing privileges, or kernel lockdown
)

// CloseFiles closes descriptors that another process passed, and that are not used.
func CloseFiles(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}
