package efasim

// knobs are faults on demand. They survive resets, except for the fatal error.
type knobs struct {
	noKeepAlive, stall, mute, paused, fatal, deaf, forgetful bool

	tamper      [2]func([]byte) // of the next receive and transmit completion
	duplicate   [2]int
	tamperAdmin func([]byte)
	ignore      func(opcode uint8) bool
	fail        func(opcode uint8) uint8
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

// WithholdKeepAlive stops keep-alive events, or lets them come again.
func (m *Model) WithholdKeepAlive(on bool) { m.turn(func(k *knobs) { k.noKeepAlive = on }) }

// StallAdmin lets admin commands lie.
func (m *Model) StallAdmin(on bool) { m.turn(func(k *knobs) { k.stall = on }) }

// IgnoreAdmin lets commands go without a completion for which f returns true; nil for none. Their effects are lost, too.
func (m *Model) IgnoreAdmin(f func(opcode uint8) bool) { m.turn(func(k *knobs) { k.ignore = f }) }

// FailAdmin fails commands with the status that f returns, efa_admin_aq_completion_status, unless it is 0; nil for none.
func (m *Model) FailAdmin(f func(opcode uint8) uint8) { m.turn(func(k *knobs) { k.fail = f }) }

// Mute lets read-less register reads go without a response.
func (m *Model) Mute(on bool) { m.turn(func(k *knobs) { k.mute = on }) }

// Pause holds the transmitter: WQEs stay in their queues.
func (m *Model) Pause(on bool) { m.turn(func(k *knobs) { k.paused = on }) }

// DropReceives loses what arrives, acknowledgements too: to its peers the device is dead.
func (m *Model) DropReceives(on bool) { m.turn(func(k *knobs) { k.deaf = on }) }

// Forget lets receive completions say that the sender is unknown (AH 0xFFFF), whatever handles there are.
func (m *Model) Forget(on bool) { m.turn(func(k *knobs) { k.forgetful = on }) }

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

// TamperCompletion hands the next transmit (or receive) completion to f before it is written: 16 or 32 bytes,
// efa_io_tx_cdesc or efa_io_rx_cdesc_ex.
func (m *Model) TamperCompletion(tx bool, f func([]byte)) {
	m.turn(func(k *knobs) { k.tamper[index(tx)] = f })
}

// TamperAdmin does so with the next admin completion, 64 bytes, efa_admin_acq_entry.
func (m *Model) TamperAdmin(f func([]byte)) { m.turn(func(k *knobs) { k.tamperAdmin = f }) }

// DuplicateCompletion writes the next transmit (or receive) completion n times more: beyond what is outstanding.
func (m *Model) DuplicateCompletion(tx bool, n int) {
	m.turn(func(k *knobs) { k.duplicate[index(tx)] = n })
}

// Counters returns the counters.
func (m *Model) Counters() Counters {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.count
}

// Resets returns the reason of each reset by DEV_CTL, oldest first, efa_regs_reset_reason_types.
func (m *Model) Resets() []int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]int(nil), m.reasons...)
}

// Objects is how many there are of each kind.
type Objects struct{ PDs, UARs, AHs, MRs, CQs, EQs, QPs int }

// Objects counts what the driver has created and not destroyed.
func (m *Model) Objects() (n Objects) {
	m.mu.Lock()
	defer m.mu.Unlock()
	count := func(n *int, live bool) {
		if live {
			*n++
		}
	}
	for i := range m.pds {
		count(&n.PDs, m.pds[i].live)
	}
	for i := range m.uars {
		count(&n.UARs, m.uars[i].live)
	}
	for i := range m.ahs {
		count(&n.AHs, m.ahs[i].live)
	}
	for i := range m.cqs {
		count(&n.CQs, m.cqs[i].live)
	}
	for i := range m.eqs {
		count(&n.EQs, m.eqs[i].live)
	}
	for i := range m.qps {
		count(&n.QPs, m.qps[i].live)
	}
	n.MRs = len(m.mrs)
	return n
}

// GID is the device's address on the wire.
func (m *Model) GID() [16]byte { return m.gid }
