package responder

import (
	"fmt"
	"strings"

	"github.com/rebound-nic/rebound/internal/cards"
	"github.com/rebound-nic/rebound/internal/host/handover"
	"github.com/rebound-nic/rebound/nic"
)

// services are the queue pairs of a device that carries messages.
func (s *settings) services() []nic.Service {
	all := []nic.Service{nic.EchoUD, nic.EchoSRD}
	if s.respond.stampMessages {
		all = append(all, nic.STAMPUD, nic.STAMPSRD)
	}
	return all
}

// checkMessages checks the settings for a device that carries messages, or frames, as far as nic.driver decides that.
func (s *settings) checkMessages() error {
	switch {
	case cards.CarriesMessages(s.nic.Driver):
		return s.fits(nic.Info{Driver: s.nic.Driver}, true)
	case s.nic.Driver == "auto" && cards.IsPCIDevice(s.nic.Device):
		return nil // known once it is open
	}
	return s.fits(nic.Info{Driver: s.nic.Driver}, false)
}

// fits returns an error for a setting that means nothing to the driver of an open device.
func (s *settings) fits(info nic.Info, messages bool) error {
	switch {
	case messages && len(s.respond.addresses) > 0:
		return s.table.Fail("respond.addresses",
			"has to be empty: %s carries messages, and has no IP address (clients find it by respond.handover)",
			info.Driver)
	case messages && len(s.respond.stamp.auth) > 0:
		return s.table.Fail("respond.stamp_auth_ports", "are UDP ports: %s carries messages, and has none", info.Driver)
	case !messages && len(s.respond.addresses) == 0:
		return s.table.Fail("respond.addresses",
			"is empty: set the addresses to answer for, as in -set respond.addresses=10.0.0.2/24 (systemd: "+
				"OPTIONS in /etc/rebound/%s.env)", s.nic.Device)
	case !messages && s.respond.handover.IsValid():
		return s.table.Fail("respond.handover", "is for devices that carry messages (efa); %s carries frames",
			info.Driver)
	case !messages && s.respond.stampMessages:
		return s.table.Fail("respond.stamp_messages",
			"is for devices that carry messages (efa); %s carries frames, for which there is respond.stamp_ports",
			info.Driver)
	}
	return nil
}

// readyMessages returns the ready line for a device that carries messages: its GID and Q_Key, the queue pair numbers of
// each service, the first core's first, and the addresses of their hand-over.
func readyMessages(info nic.Info, m nic.Messenger, hand *handover.Server) string {
	all := m.Endpoints()
	line := fmt.Sprintf("ready driver=%s device=%s%s gid=%v qkey=%#x", info.Driver, info.Device, via(info), all[0].GID,
		all[0].QKey)
	for s := range nic.Service(nic.Services) {
		var numbers []string
		for _, e := range all {
			if e.Service == s {
				numbers = append(numbers, fmt.Sprint(e.QPN))
			}
		}
		if numbers != nil {
			line += fmt.Sprintf(" %v=%s", s, strings.Join(numbers, ","))
		}
	}
	if hand != nil {
		line += " handover=" + hand.String()
	}
	return line
}
