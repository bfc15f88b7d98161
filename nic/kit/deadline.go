package kit

import "time"

// Deadline is the timeout of a polling loop. It expires only after a minimum number of polls, too: a thread that was
// descheduled, in a stalled guest or on a busy machine, has let time pass without polling.
type Deadline struct {
	end   time.Time
	looks int // polls before it may expire
}

// NewDeadline returns a deadline that expires after limit and that many polls.
func NewDeadline(limit time.Duration, looks int) Deadline {
	return Deadline{time.Now().Add(limit), looks}
}

// Over is called before each poll and reports whether it is the last one, so that a thread that was descheduled still
// polls once afterwards.
func (d *Deadline) Over() bool {
	d.looks--
	return d.looks < 0 && time.Now().After(d.end)
}
