package nic

import (
	"errors"

	"github.com/rebound-nic/rebound/nic/bus"
)

// Drivers wrap these with the device, the register or command, what was expected and what was seen.
var (
	ErrNoDevice = bus.ErrNoDevice
	ErrGone     = bus.ErrGone // all-ones reads, an interface that vanished
	ErrBusy     = bus.ErrBusy
	ErrRights   = bus.ErrRights

	ErrFull      = errors.New("transmit ring is full")
	ErrFrameSize = errors.New("frame size is out of range")
	ErrDown      = errors.New("interface is down")
	ErrTimeout   = errors.New("device did not answer in time")
	ErrHardware  = errors.New("device reports a failure")
)

// Lost reports whether err says that the device itself is no more: it left the bus, or the interface was removed. No
// restart helps until it is back. After any other error of an open device, closing it and opening it again may.
func Lost(err error) bool { return errors.Is(err, ErrGone) || errors.Is(err, ErrNoDevice) }
