package kit

import (
	"fmt"
	"slices"
	"sync"

	"github.com/rebound-nic/rebound/nic/kit/trace"
)

// fallbacks are what a card refused, in words, in the order in which they were met.
type fallbacks struct {
	mu  sync.Mutex
	all []string
}

func (f *fallbacks) list() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.all)
}

// FallBack records that the device cannot do what the driver wanted (from), and what the driver does instead (to). The log, Info and
// every report show it. A restart that meets the same again adds nothing.
func (c *Card) FallBack(from, to, format string, args ...any) {
	reason := fmt.Sprintf(format, args...)
	line := fmt.Sprintf("fell back from %s to %s: %s", from, to, reason)
	f := &c.fallbacks
	f.mu.Lock()
	known := slices.Contains(f.all, line)
	if !known {
		f.all = append(f.all, line)
	}
	f.mu.Unlock()
	if known {
		return
	}
	c.Trace.Add(trace.Entry{Kind: trace.Fallback, Name: from + " to " + to, Err: reason})
	c.Log.Warn("fell back", "from", from, "to", to, "reason", reason)
}
