// Package bus names what can be wrong with a device, for the bus that leads to it and for the drivers on it (package nic)
// alike: errors.Is finds the same error whichever of them met it.
package bus

import "errors"

// Errors wrap these with the device, what was expected and what was seen.
var (
	ErrNoDevice = errors.New("no such device")
	ErrGone     = errors.New("device is gone")   // all-ones reads, an interface that vanished
	ErrBusy     = errors.New("device is in use") // by another process, or by a driver
	ErrRights   = errors.New("not allowed")      // rights of this process, or kernel lockdown
)
