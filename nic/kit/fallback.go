package kit

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/rebound-nic/rebound/nic/bus/mmio"
	"github.com/rebound-nic/rebound/nic/bus/pci"
	"github.com/rebound-nic/rebound/nic/kit/cmdtrace"
)

// fallbacks describe what a card refused, in the order of occurrence.
type fallbacks struct {
	mu  sync.Mutex
	all []string
}

func (f *fallbacks) list() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.all)
}

// FallBackToOne records that the device does not spread frames over the queues. The others stay open and receive
// nothing.
func (c *Card) FallBackToOne(format string, args ...any) {
	c.FallBack(fmt.Sprintf("RSS over %d queues", c.Options.Queues), "queue 0 for all frames", format, args...)
}

// FallBackToUncached records that the part of a BAR to which bytes are pushed is mapped uncached. It does nothing on a
// device model, or if one instruction stores 64 bytes, which needs no write combining.
func (c *Card) FallBackToUncached(bar int, w *mmio.Window) {
	if why := c.Uncached(bar, w); why != "" {
		c.FallBack(fmt.Sprintf("write combining in BAR %d", bar), "uncached stores, one bus write for each 8 bytes",
			"%s", why)
	}
}

// Uncached returns why stores to a window leave the CPU in pieces, "" if they do not.
func (c *Card) Uncached(bar int, w *mmio.Window) string {
	if w.WriteCombining() || c.Fn.Simulated() || mmio.PushMethod() == mmio.MOVDIR64B {
		return ""
	}
	why := fmt.Sprintf("BAR %d is not mapped write-combining", bar)
	for _, n := range pci.Notes(c.Fn) {
		if strings.HasPrefix(n, why) {
			return n
		}
	}
	return why
}

// FallBack records that the device cannot do what the driver tried first (from), and what the driver does instead (to).
// The log, Info and every report show it. Repeating it after a restart adds nothing.
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
	c.Trace.Add(cmdtrace.Entry{Kind: cmdtrace.Fallback, Name: from + " to " + to, Err: reason})
	c.Log.Warn("fell back", "from", from, "to", to, "reason", reason)
}
