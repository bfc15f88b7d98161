package efasim

import "github.com/rebound-nic/rebound/sim/amazon"

const eventGroups = 1<<amazon.GroupFatal | 1<<amazon.GroupWarning | 1<<amazon.GroupNotification |
	1<<amazon.GroupKeepAlive

// DropReceives drops all frames that arrive, including acknowledgements: to its peers the device is dead.
func (m *Model) DropReceives(on bool) { m.Turn(func(*amazon.Knobs) { m.deaf = on }) }

// Forget makes receive completions report an unknown sender (AH 0xFFFF), even if there is a handle.
func (m *Model) Forget(on bool) { m.Turn(func(*amazon.Knobs) { m.forgetful = on }) }

// Counters returns the counters.
func (m *Model) Counters() Counters {
	m.Lock()
	defer m.Unlock()
	c := m.count
	c.AdminCommands, c.Events = m.AdminCommands, m.Events
	return c
}

// Objects holds the number of objects of each kind.
type Objects struct{ PDs, UARs, AHs, MRs, CQs, EQs, QPs int }

// Objects counts the objects that the driver has created and not destroyed.
func (m *Model) Objects() (n Objects) {
	m.Lock()
	defer m.Unlock()
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

// GID returns the device's address on the wire.
func (m *Model) GID() [16]byte { return m.gid }
