package mlx5sim

import "fmt"

// Command queue entry and mailbox, PRM "Command Interface".
const (
	cmdEntry   = 64
	cmdInline  = 16  // bytes of input and of output in the entry itself
	cmdBlock   = 512 // data bytes in a mailbox
	mailbox    = 576
	cmdType    = 7 // PCIe command interface
	maxMessage = 1 << 20

	mbNext  = 0x230
	mbBlock = 0x238
	mbToken = 0x23d
	mbCtrl  = 0x23e // ctrl_signature
	mbSig   = 0x23f

	ownerHW = 1
)

// Delivery status, the high seven bits of an entry's last byte.
const (
	deliveryOK          = 0x0
	deliverySignature   = 0x1
	deliveryToken       = 0x2
	deliveryBlockNumber = 0x3
	deliveryOutPointer  = 0x4
	deliveryInPointer   = 0x5
	deliveryFirmware    = 0x6
	deliveryInLength    = 0x7
	deliveryOutLength   = 0x8
	deliveryReserved    = 0x9
	deliveryType        = 0x10
)

type cmdq struct {
	base    uint64
	pending uint32 // entries whose doorbell was rung
	hung    uint32 // entries whose completion is withheld
}

// ringCommand handles the doorbell vector: one bit for each entry.
func (m *Model) ringCommand(v uint32) error {
	if !m.addressed {
		return fmt.Errorf("command doorbell %08x before the queue's address was written", v)
	}
	if m.pending&v != 0 {
		return fmt.Errorf("command doorbell %08x: entries %08x are the device's already", v, m.pending&v)
	}
	// Stores before the command take effect before it, including those that are only found by polling, such as a
	// queue's last doorbell before the command that destroys the queue.
	m.servePushes()
	if !m.dead() {
		m.stepUARs()
	}
	m.pending |= v &^ m.hung
	return nil
}

func (m *Model) stepCommands() bool {
	if m.pending == 0 {
		return false
	}
	var done uint32
	for i := range 1 << logCmdqSize {
		if m.pending&(1<<i) == 0 {
			continue
		}
		m.pending &^= 1 << i
		polled := !m.mapped(eventCommand) // the command that creates the command EQ is not reported in that EQ
		switch {
		case !m.execute(i):
			m.hung |= 1 << i
		case !polled:
			done |= 1 << i
		}
	}
	if done != 0 {
		m.commandEvent(done)
	}
	return true
}

// delivery is why the transport of a command failed.
type delivery struct {
	status uint8
	text   string
}

func (d *delivery) Error() string { return d.text }

func undelivered(status uint8, format string, args ...any) *delivery {
	return &delivery{status, fmt.Sprintf(format, args...)}
}

// execute runs the command in entry i. It reports whether the entry was returned.
func (m *Model) execute(i int) bool {
	at := m.cmdq.base + uint64(i)<<logCmdqStride
	var e [cmdEntry]byte
	if m.host.DMARead(at, e[:]) != nil {
		return false
	}
	if e[63]&ownerHW == 0 {
		m.host.Errorf("command entry %d: doorbell rung, but the entry is software's (status_own %02x)", i, e[63])
		return false
	}
	opcode := be.Uint16(e[16:])
	if m.opt.Withhold != nil && m.opt.Withhold(opcode) {
		return false
	}
	out, d := m.deliver(i, &e)
	if d != nil {
		m.host.Errorf("command entry %d, %s: %v (delivery status %xh)", i, m.opName(opcode), d, d.status)
		e[63] = d.status << 1
	} else {
		copy(e[32:48], out)
		e[63] = 0
	}
	e[61] = 0
	e[61] = ^xor(e[:])
	return m.host.DMAWrite(at, e[:]) == nil
}

// deliver collects the input, executes the command, and copies the output to the mailboxes.
func (m *Model) deliver(i int, e *[cmdEntry]byte) ([]byte, *delivery) {
	inLen, outLen := int(be.Uint32(e[4:])), int(be.Uint32(e[56:]))
	token := e[60]
	switch {
	case e[0] != cmdType:
		return nil, undelivered(deliveryType, "type is %d, expected %d", e[0], cmdType)
	case e[1]|e[2]|e[3]|e[62] != 0 || e[63]>>1 != 0:
		return nil, undelivered(deliveryReserved, "reserved bytes are %x %x, status %02x", e[1:4], e[62:63], e[63])
	case m.caps.cmdifChecksum() && xor(e[:]) != 0xff:
		return nil, undelivered(deliverySignature, "signature is %02x, expected %02x", e[61], ^(xor(e[:]) ^ e[61]))
	case inLen < cmdInline || inLen > maxMessage || inLen%4 != 0:
		return nil, undelivered(deliveryInLength, "input length is %d", inLen)
	case outLen < 8 || outLen > maxMessage || outLen%4 != 0:
		return nil, undelivered(deliveryOutLength, "output length is %d", outLen)
	}
	in := make([]byte, inLen)
	copy(in, e[16:32])
	sums := m.caps.cmdifChecksum()
	boxes, d := m.chain(be.Uint64(e[8:]), inLen, token, sums, deliveryInPointer)
	if d != nil {
		return nil, d
	}
	for k, b := range boxes {
		copy(in[cmdInline+k*cmdBlock:], b.data[:cmdBlock])
	}
	boxes, d = m.chain(be.Uint64(e[48:]), outLen, token, sums, deliveryOutPointer)
	if d != nil {
		return nil, d
	}
	out := m.command(in, outLen)
	for k := range boxes {
		b := &boxes[k]
		clear(b.data[:cmdBlock])
		copy(b.data[:cmdBlock], out[cmdInline+k*cmdBlock:])
		b.data[mbCtrl], b.data[mbSig] = 0, 0
		b.data[mbCtrl] = ^xor(b.data[cmdBlock:])
		b.data[mbSig] = ^xor(b.data[:])
		if m.host.DMAWrite(b.at, b.data[:]) != nil {
			return nil, undelivered(deliveryOutPointer, "output mailbox %d at %#x", k, b.at)
		}
	}
	return out[:min(cmdInline, outLen)], nil
}

type block struct {
	at   uint64
	data [mailbox]byte
}

// chain reads the mailboxes of a message of n bytes.
func (m *Model) chain(at uint64, n int, token uint8, sums bool, bad uint8) ([]block, *delivery) {
	count := (n - cmdInline + cmdBlock - 1) / cmdBlock
	boxes := make([]block, 0, count)
	for k := range count {
		if at == 0 || at%1024 != 0 {
			return nil, undelivered(bad, "mailbox %d of %d is at %#x: a pointer is aligned to 1024", k, count, at)
		}
		boxes = append(boxes, block{at: at})
		b := boxes[k].data[:]
		if m.host.DMARead(at, b) != nil {
			return nil, undelivered(bad, "mailbox %d of %d at %#x cannot be read", k, count, at)
		}
		if b[mbToken] != token {
			return nil, undelivered(deliveryToken, "mailbox %d has token %02x, the entry %02x", k, b[mbToken], token)
		}
		if num := be.Uint32(b[mbBlock:]); num != uint32(k) {
			return nil, undelivered(deliveryBlockNumber, "mailbox %d has block number %d", k, num)
		}
		if sums && (xor(b[cmdBlock:mbSig]) != 0xff || xor(b) != 0xff) {
			return nil, undelivered(deliverySignature, "mailbox %d has signatures %02x and %02x", k, b[mbCtrl],
				b[mbSig])
		}
		at = be.Uint64(b[mbNext:])
	}
	return boxes, nil
}

// xor is the eight-bit exclusive or used for signatures.
func xor(b []byte) (v uint8) {
	for _, x := range b {
		v ^= x
	}
	return v
}
