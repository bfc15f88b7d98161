package xdpkit

import (
	"fmt"
	"strings"

	"github.com/cilium/ebpf/link"

	"github.com/rebound-nic/rebound/nic/kit/netif"
)

// Attachment points of a program: values of nic.Info.Push.
const (
	Driver  = "xdp-drv"     // the interface's driver runs it
	Generic = "xdp-generic" // the kernel runs it after the driver
)

// Attempt is an attempt to attach a program to a hook.
type Attempt struct {
	Hook string // Driver or Generic
	Load func() (*Program, error)
}

// Attached is an attached program. The link keeps it attached until Close or the end of the process.
type Attached struct {
	Program *Program
	Link    link.Link
	Attempt int   // which one it was
	Refused error // why the driver's hook refused the first program; nil if it did not, or was not tried
}

// Attach makes the attempts in order until one succeeds.
func Attach(i *netif.Interface, attempts []Attempt) (a Attached, err error) {
	for n, t := range attempts {
		a.Attempt = n
		a.Program, err = t.Load()
		if err == nil {
			flags := link.XDPGenericMode
			if t.Hook == Driver {
				flags = link.XDPDriverMode
			}
			a.Link, err = link.AttachXDP(link.XDPOptions{Program: a.Program.Program, Interface: i.Index, Flags: flags})
			if err == nil {
				return a, nil
			}
			a.Program.Close()
		}
		if refusedForGood(err) {
			break
		}
		if t.Hook == Driver {
			a.Refused = err
		}
	}
	return Attached{}, i.ExplainBPF("XDP program", err)
}

// oneLine joins the lines of a verifier's report.
func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// FellBack reports that the generic hook is used instead of the driver's, and what to do about it.
func (a *Attached) FellBack(i *netif.Interface, f Features) string {
	s := "generic XDP, because the driver's own hook refused: " + oneLine(a.Refused)
	if missing := f.Missing(i); missing != "" {
		s += "; " + missing
	}
	return s
}

// HiddenTags describes the effect of VLAN tags that the interface removes from frames, if the program cannot request
// them; otherwise "".
func HiddenTags(i *netif.Interface, hook string, asks, chosen bool) string {
	hidden := i.StripsVLAN()
	switch {
	case asks:
		return ""
	case hook == Generic && (hidden || i.Local()): // veth keeps tags outside of frames, whatever its setting
		s := "generic XDP does not see VLAN tags that the kernel keeps outside the frame, and replies to tagged frames are untagged"
		if chosen {
			s += " (nic.generic_xdp = false)"
		}
		return s
	case hidden:
		return fmt.Sprintf("rx-vlan-offload is on: XDP does not see VLAN tags, and replies to tagged frames are untagged "+
			"(ethtool -K %s rxvlan off)", i.Name)
	}
	return ""
}
