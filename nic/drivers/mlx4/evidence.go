package mlx4

import (
	"encoding/binary"

	"github.com/rebound-nic/rebound/nic/ib"
)

// attrModule is Mellanox's attribute of the port's own agent that reads the memory of the module or cable (Linux and
// FreeBSD, mlx4_get_module_info). Ethernet ports have it, too.
const attrModule ib.Attribute = 0xFF60

// Fields of the attribute, by their offset in the datagram.
const (
	moduleI2C     = 64
	moduleAddress = 66
	moduleSize    = 70
	moduleData    = 80
	moduleMost    = 48 // bytes of one request
)

// evidence requests what a probe file contains in addition to what Open needs: the board, and each port. The answers
// are in the trace.
func (d *Device) evidence() {
	d.commands.query(opQueryAdapter, 0)
	for port := range d.caps.ports {
		d.commands.query(opQueryPort, port+1)
	}
}

// modules reads what is plugged into each port, except for serial numbers. The agent answers when the card is
// initialized.
func (d *Device) modules() {
	for port := range d.caps.ports {
		const sfp = 3 // identifier, SFF-8024
		switch first := d.readModule(port+1, 0, moduleMost); {
		case first == nil:
		case first[0] == sfp: // SFF-8472
			d.readModule(port+1, 48, 20)
		default: // QSFP and later, SFF-8636: upper page 0
			d.readModule(port+1, 128, moduleMost)
			d.readModule(port+1, 176, 16)
		}
	}
}

// readModule returns a part of the module's memory, nil if firmware or the module does not answer.
func (d *Device) readModule(port uint32, at, size uint16) []byte {
	in := append(mailbox(ib.Query(attrModule, 0, 1)), make(mailbox, mailboxSize-ib.MADSize)...)
	in[moduleI2C] = 0x50
	binary.BigEndian.PutUint16(in[moduleAddress:], at)
	binary.BigEndian.PutUint16(in[moduleSize:], size)
	out, _, err := d.commands.exec(command{op: opMADIFC, opMod: madTrusted, modifier: port, in: in, out: true})
	if err != nil || out.u16(4) != 0 { // status
		return nil
	}
	return out[moduleData:][:size]
}
