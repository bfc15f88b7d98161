package mlx4

import (
	"errors"
	"time"

	"github.com/rebound-nic/rebound/nic/ib"
)

const (
	// madFromWire is MAD_IFC's opcode modifier for a datagram that was received: firmware checks its keys and gets its
	// source.
	madFromWire = 1 << 2

	smiLook = 5 * time.Millisecond // polling interval of queue pair 0: managers wait for tenths of a second

	specialUARs = 2 // pages of doorbells of the special QPs
)

// answer answers requests of the subnet manager on queue pair 0 until the port is stopped. The agent is in firmware. As
// in Linux, software passes each datagram to firmware (MAD_IFC) and sends the response.
func (s *subnet) answer() {
	log := s.d.card.Log
	for !s.stopped() {
		mad, c, err := s.smi.next()
		if err == nil && mad == nil {
			time.Sleep(smiLook)
			continue
		}
		if err == nil {
			err = s.ask0(mad, &c)
		}
		if errors.Is(err, errStopped) {
			return
		}
		if err != nil {
			s.unanswered.Add(1)
			log.Warn("the subnet manager was not answered", "err", err)
			if !refused(err) { // the queue pair itself failed
				s.d.want("management_error", err.Error())
				return
			}
		}
	}
}

// ask0 answers one datagram.
func (s *subnet) ask0(mad []byte, c *cqe) error {
	d := s.d
	if !ib.SubnetRequest(mad, uint8(d.port)) {
		return nil // for a subnet manager, which is not here
	}
	s.asked.Add(1)
	again := ib.Reregisters(mad)
	source := swap(c.source)
	slid, sl := uint16(source), uint8(source>>28)
	in := make(mailbox, mailboxSize)
	copy(in, mad)
	info := in[ib.MADSize:]
	// The first field is the QP to which the datagram was sent: 0, not the device's number of it (Linux, mlx4_MAD_IFC).
	info.set32(0x08, swap(c.remote)&0xFFFFFF)
	info.set8(0x0C, sl<<4)
	info.set8(0x0D, uint8(swap(c.remote)>>24))
	reply, _, err := d.commands.exec(command{op: opMADIFC, opMod: madFromWire, modifier: d.port | uint32(slid)<<16,
		in: in, out: true})
	if err != nil {
		return err
	}
	if reply = reply[:ib.MADSize]; !ib.SubnetAnswer(reply, mad) {
		return nil
	}
	to := ib.Datagram{SLID: slid, DLID: slid, VL: 15, PKey: 0xFFFF, DstQ: swap(c.remote) & 0xFFFFFF}
	if slid != ib.LIDPermissive {
		to.SLID = s.state.Load().info.LID
	}
	if err := s.smi.send(reply, to); err != nil {
		return err
	}
	if again {
		d.card.Log.Info("the subnet manager asks for memberships to be made again")
	}
	s.changed(again)
	return nil
}
