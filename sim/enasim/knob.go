package enasim

import "github.com/rebound-nic/rebound/sim/amazon"

// Syndromes of notifications. Suspend and resume are from drivers before 2017, and their numbers are still reserved.
const (
	NotifySuspend     = 0
	NotifyResume      = 1
	NotifyUpdateHints = 2
)

// HoldCompletions withholds transmit completions, as a stuck transmitter does.
func (m *Model) HoldCompletions(on bool) { m.Turn(func(*amazon.Knobs) { m.hold = on }) }

// SetAllowance sets the allowance counters.
func (m *Model) SetAllowance(a Allowance) { m.Turn(func(*amazon.Knobs) { m.count.Allowance = a }) }

// Counters returns the counters.
func (m *Model) Counters() Counters {
	m.Lock()
	defer m.Unlock()
	c := m.count
	c.AdminCommands, c.Events = m.AdminCommands, m.Events
	return c
}
