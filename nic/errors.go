package nic

import (
	"errors"
	"log/slog"

	"github.com/rebound-nic/rebound/nic/bus"
)

// Notice is the level of log lines that people see without asking for more, although nothing is wrong: a problem that
// was reported has ended, or a setting asks for the line.
const Notice = slog.LevelInfo + 2

// Errors that drivers wrap with the device, the register or command, what was expected and what was found.
var (
	ErrNoDevice = bus.ErrNoDevice
	ErrGone     = bus.ErrGone // all-ones reads, an interface that vanished
	ErrBusy     = bus.ErrBusy
	ErrRights   = bus.ErrRights
	ErrTimeout  = bus.ErrTimeout

	ErrFull      = errors.New("transmit ring is full")
	ErrFrameSize = errors.New("frame size is out of range")
	ErrDown      = errors.New("interface is down")
	ErrHardware  = errors.New("device reports a failure")
)

// Lost reports whether err means that the device itself is gone: it left the bus, or the interface was removed. A
// restart cannot help until it is back. After any other error of an open device, closing and reopening it may help.
func Lost(err error) bool { return errors.Is(err, ErrGone) || errors.Is(err, ErrNoDevice) }
