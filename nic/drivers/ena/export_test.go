package ena

import "time"

// A model grants a command one second, for which a busy machine may not run the model's thread.
func init() { leastAdmin = 3 * time.Second }

// Entries returns the depth of the receive ring.
func (q *Queue) Entries() int { return int(q.mask + 1) }
