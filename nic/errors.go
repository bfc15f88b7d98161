package nic

import "errors"

// Drivers wrap these with the device, the register or command, what was expected and what was seen.
var (
	ErrFull      = errors.New("transmit ring is full")
	ErrFrameSize = errors.New("frame size is out of range")
	ErrGone      = errors.New("device is gone") // all-ones reads, an interface that vanished
	ErrDown      = errors.New("interface is down")
	ErrTimeout   = errors.New("device did not answer in time")
	ErrNoDevice  = errors.New("no such device")
	ErrBusy      = errors.New("device is in use")
	ErrRights    = errors.New("not allowed")
	ErrHardware  = errors.New("device reports a failure")
)
