package enasim

// knobs are faults on demand. They survive resets, except for the fatal error.
type knobs struct {
	fail                                          func(command string) uint8
	noKeepAlive, stall, mute, hold, paused, fatal bool

	tamper      [2]func([]byte) // of the next receive and transmit completion
	duplicate   [2]int
	tamperAdmin func([]byte)
}

func index(tx bool) int {
	if tx {
		return 1
	}
	return 0
}

func (k *knobs) takeTamper(tx bool) func([]byte) {
	f := k.tamper[index(tx)]
	k.tamper[index(tx)] = nil
	return f
}

func (k *knobs) takeDuplicate(tx bool) int {
	n := k.duplicate[index(tx)]
	k.duplicate[index(tx)] = 0
	return n
}

func (m *Model) turn(f func(k *knobs)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f(&m.knob)
}

// FailAdmin is asked before each admin command, by its name ("CREATE_SQ", "SET_FEATURE LLQ"). The command is answered with the status
// that it returns, and not executed, unless that is 0.
func (m *Model) FailAdmin(f func(command string) uint8) { m.turn(func(k *knobs) { k.fail = f }) }

// WithholdKeepAlive stops keep-alive events, or lets them come again.
func (m *Model) WithholdKeepAlive(on bool) { m.turn(func(k *knobs) { k.noKeepAlive = on }) }

// StallAdmin lets admin commands lie.
func (m *Model) StallAdmin(on bool) { m.turn(func(k *knobs) { k.stall = on }) }

// Mute lets read-less register reads go without a response.
func (m *Model) Mute(on bool) { m.turn(func(k *knobs) { k.mute = on }) }

// HoldCompletions keeps transmit completions back, as a stuck transmitter does.
func (m *Model) HoldCompletions(on bool) { m.turn(func(k *knobs) { k.hold = on }) }

// Pause holds the transmitter: entries stay in their queues.
func (m *Model) Pause(on bool) { m.turn(func(k *knobs) { k.paused = on }) }

// Fail raises the fatal error: DEV_STS and an event, until a reset.
func (m *Model) Fail() {
	m.turn(func(k *knobs) {
		k.fatal = true
		m.post(Event{Group: GroupFatal})
	})
}

// Post sends an event. It is dropped where the driver has not set up AENQ or did not enable the group; one of an unknown group
// is always sent.
func (m *Model) Post(e Event) { m.turn(func(*knobs) { m.post(e) }) }

// TamperCompletion hands the next transmit (or receive) completion to f before it is written: 8 or 16 bytes,
// ena_eth_io_tx_cdesc or ena_eth_io_rx_cdesc_base.
func (m *Model) TamperCompletion(tx bool, f func([]byte)) {
	m.turn(func(k *knobs) { k.tamper[index(tx)] = f })
}

// TamperAdmin does so with the next admin completion, 64 bytes, ena_admin_acq_entry.
func (m *Model) TamperAdmin(f func([]byte)) { m.turn(func(k *knobs) { k.tamperAdmin = f }) }

// DuplicateCompletion writes the next transmit (or receive) completion n times more: beyond what the ring has outstanding.
func (m *Model) DuplicateCompletion(tx bool, n int) {
	m.turn(func(k *knobs) { k.duplicate[index(tx)] = n })
}

// SetAllowance sets the allowance counters.
func (m *Model) SetAllowance(a Allowance) { m.turn(func(*knobs) { m.count.Allowance = a }) }

// Counters returns the counters.
func (m *Model) Counters() Counters {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.count
}

// Resets returns the reason of each reset by DEV_CTL, oldest first, ena_regs_reset_reason_types.
func (m *Model) Resets() []int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]int(nil), m.reasons...)
}
