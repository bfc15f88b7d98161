package mlx4

import (
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/kit/netif"
)

// steering selects the frames of each queue. With device-managed flow steering each address is a rule. Without it the
// port's table of addresses selects unicast frames, and all multicast is received (A0 in Linux).
type steering struct {
	managed      bool
	groups       [][6]byte // multicast groups to receive besides broadcast
	allMulticast bool
}

// steeringA0 is Options.Steering for steering by the table of addresses.
const steeringA0 = "a0"

// Rules (Linux, include/linux/mlx4/device.h: mlx4_net_trans_rule_hw_ctrl and _eth).
const (
	ruleControl = 16
	ruleEth     = 48
	ruleIDEth   = 0xE001

	priorityNIC   = 0x5000
	rulePlain     = 0 // promiscuous mode of a rule
	ruleMulticast = 3
)

var broadcast = [6]byte{0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}

// listen chooses the multicast groups: those of the addresses that are answered for, or all if the addresses are
// unknown.
func (d *Device) listen(o nic.Options) {
	d.steering.groups, d.steering.allMulticast = netif.Groups(o)
}

// startSteering makes the rules for our address, broadcast and the groups.
func (d *Device) startSteering() error {
	s := &d.steering
	if s.managed = d.icm.managed; !s.managed { // with an InfiniBand port never
		return nil
	}
	for _, mac := range append([][6]byte{d.card.MAC, broadcast}, s.groups...) {
		if err := d.addRule(ethRule(d.port, d.deflt, mac)); err != nil {
			return err
		}
	}
	if s.allMulticast {
		return d.addRule(rule(d.port, d.deflt, 0, ruleMulticast))
	}
	return nil
}

// rule returns the control part of a rule. Frames of our own do not match (bit 3 of byte 3, allow_loopback, is clear):
// a reply to ourselves would be answered again.
func rule(port, qpn uint32, priority uint16, mode uint8) mailbox {
	in := make(mailbox, ruleControl)
	in.set16(0x00, priority)
	in.set8(0x02, mode)
	in.set8(0x07, uint8(port))
	in.set32(0x08, qpn)
	return in
}

// ethRule returns a rule for a destination address.
func ethRule(port, qpn uint32, mac [6]byte) mailbox {
	in := append(rule(port, qpn, priorityNIC, rulePlain), make(mailbox, ruleEth)...)
	spec := in[ruleControl:]
	spec.set8(0, ruleEth/4)
	spec.set16(2, ruleIDEth)
	copy(spec[10:], mac[:])
	copy(spec[18:], broadcast[:]) // the mask: all of it
	return in
}

func (d *Device) addRule(in mailbox) error {
	_, id, err := d.commands.exec(command{op: opFlowAttach, modifier: uint32(len(in) / 4), in: in})
	if err != nil {
		return err
	}
	d.steps.Done(opFlowDetach.String(), func() error { return d.commands.run(command{op: opFlowDetach, param: id}) })
	return nil
}

func (s *steering) note() string {
	switch {
	case !s.managed:
		return "frames are steered by the port's table of addresses (A0), and all multicast comes in"
	case s.allMulticast:
		return "frames are steered by rules of the device (DMFS), all multicast comes in"
	}
	return "frames are steered by rules of the device (DMFS)"
}
