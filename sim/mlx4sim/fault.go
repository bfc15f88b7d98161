package mlx4sim

import "sync/atomic"

// faults are the faults that a test enabled.
type faults struct {
	send, receive uint8
	dead          bool
	die           atomic.Uint32
	lose          func(packet []byte) bool // of the transport, on their way to the wire
}

func (f *faults) reset() {
	f.send, f.receive, f.dead = 0, 0, false
	f.die.Store(0)
}

// FailNextSend completes the next send WQE with an error CQE of that syndrome.
func (m *Model) FailNextSend(syndrome uint8) { m.fault.send = syndrome }

// FailNextReceive completes the next receive WQE with an error CQE of that syndrome.
func (m *Model) FailNextReceive(syndrome uint8) { m.fault.receive = syndrome }

// Catastrophe makes the device fail: the catastrophic error buffer contains the code, and commands and queues stop
// until the driver resets it. It takes effect in the next Step, and may be called from any goroutine. The code must not
// be 0.
func (m *Model) Catastrophe(code uint32) { m.fault.die.Store(code) }

func (m *Model) catastrophe(code uint32) {
	m.fault.dead = true
	m.regs.catas[0] = code
	for i := 1; i < catasWords; i++ {
		m.regs.catas[i] = uint32(i) * 0x01010101
	}
}
