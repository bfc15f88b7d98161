package kit

import "time"

// Deadline is the timeout of a loop that looks at a device. It counts only after a number of looks as well: a thread
// that was delayed, in a guest that stalled or on a machine with much else to do, has let time pass without waiting.
type Deadline struct {
	end   time.Time
	looks int // that do not count yet
}

// NewDeadline returns one that is over after limit, and after that many looks.
func NewDeadline(limit time.Duration, looks int) Deadline {
	return Deadline{time.Now().Add(limit), looks}
}

// Over is asked before each look, and reports whether it is the last: a thread that was delayed then still sees what
// the device did meanwhile.
func (d *Deadline) Over() bool {
	d.looks--
	return d.looks < 0 && time.Now().After(d.end)
}
