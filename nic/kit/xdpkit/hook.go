package xdpkit

import (
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/rebound-nic/rebound/nic/kit/netif"
)

// Where a program is attached: values of nic.Info.Push.
const (
	Driver  = "xdp-drv"     // the interface's driver runs it
	Generic = "xdp-generic" // the kernel runs it, behind the driver
)

// Attempt is a way to attach: the hook, and the program that goes there.
type Attempt struct {
	Hook string // Driver or Generic
	Load func() (*ebpf.Program, error)
}

// Attached is a program at its hook. The link holds it there until it is closed, by Close or the end of the process.
type Attached struct {
	Program *ebpf.Program
	Link    link.Link
	Attempt int   // which one it was
	Refused error // why the driver's hook did not take the first program, nil if it did or was not asked
}

// Attach makes the attempts in turn until one succeeds.
func Attach(i *netif.Interface, attempts []Attempt) (a Attached, err error) {
	for n, t := range attempts {
		a.Attempt = n
		a.Program, err = t.Load()
		if err == nil {
			flags := link.XDPGenericMode
			if t.Hook == Driver {
				flags = link.XDPDriverMode
			}
			a.Link, err = link.AttachXDP(link.XDPOptions{Program: a.Program, Interface: i.Index, Flags: flags})
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

// OneLine joins the lines of a verifier's report.
func OneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// FellBack says that the generic hook was taken for lack of the driver's, with what can be done about it.
func (a *Attached) FellBack(i *netif.Interface, f Features) string {
	s := "generic XDP, since the driver's own hook refused: " + OneLine(a.Refused)
	if missing := f.Missing(i); missing != "" {
		s += "; " + missing
	}
	return s
}

// HiddenTags says what becomes of VLAN tags that the interface takes out of frames, where the program cannot request
// them; "" if nothing.
func HiddenTags(i *netif.Interface, hook string, asks, chosen bool) string {
	hidden := i.StripsVLAN()
	switch {
	case asks:
		return ""
	case hook == Generic && (hidden || i.Local()): // veth leaves tags outside whatever its own setting is
		s := "as with rx-vlan-offload, a VLAN tag outside of the frame does not reach generic XDP, and the answer goes untagged"
		if chosen {
			s += " (nic.generic_xdp = false)"
		}
		return s
	case hidden:
		return fmt.Sprintf("rx-vlan-offload is on: tagged frames lose their tag before XDP sees them and are answered untagged "+
			"(ethtool -K %s rxvlan off)", i.Name)
	}
	return ""
}
