package xdpkit

import (
	"fmt"
	"os"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/kit/netif"
)

// dispatcher is the name of the program with which libxdp (xdp-tools) runs several others.
const dispatcher = "xdp_dispatcher"

// Free returns nic.ErrBusy if the interface had an XDP program when it was looked up. The error says whose it is and
// how to remove it, as far as the kernel reports that.
func Free(i *netif.Interface) error {
	if i.XDP == 0 {
		return nil
	}
	name, how := "", ""
	if p, err := ebpf.NewProgramFromID(ebpf.ProgramID(i.XDP)); err == nil {
		if info, err := p.Info(); err == nil {
			name = info.Name
		}
		p.Close()
	}
	held, pin := holder(i)
	switch {
	case name == dispatcher:
		how = fmt.Sprintf("libxdp's dispatcher, which runs programs attached by xdp-loader or with libxdp: "+
			"`xdp-loader status %s` lists them, `xdp-loader unload %s --all` removes them. A responder replaces the "+
			"whole receive path, and does not join it", i.Name, i.Name)
	case ours(name) && pin != "":
		how = fmt.Sprintf("a responder pinned it as %q: start with nic.pin = %q to join and replace it, or `rebound-responder unpin %s`", pin, pin, pin)
	case ours(name):
		how = "another responder or bench uses it: stop that one"
	case held:
		how = "a process or a pin in bpffs holds it through a bpf_link (`bpftool link` names it): stop the process or remove the pin; \"ip link\" cannot detach it"
	default:
		how = fmt.Sprintf("detach it if nothing needs it: ip link set %s xdp off", i.Name)
	}
	if name != "" {
		name = fmt.Sprintf(" (%s)", name)
	}
	return fmt.Errorf("interface %s: %w: XDP program %d%s is attached and stays; %s", i.Name, nic.ErrBusy, i.XDP, name,
		how)
}

// ours reports whether a program of that name is Rebound's.
func ours(name string) bool {
	return strings.HasPrefix(name, "rebound")
}

// holder reports whether the interface's program is on a bpf_link, and the name of our pin that holds it, if any.
func holder(i *netif.Interface) (linked bool, pin string) {
	for it := new(link.Iterator); it.Next(); {
		info, err := it.Link.Info()
		if err != nil || info.Type != link.XDPType || uint32(info.Program) != i.XDP {
			continue
		}
		linked = true
		entries, err := os.ReadDir(PinRoot)
		if err != nil {
			continue
		}
		for _, e := range entries {
			if l, err := link.LoadPinnedLink(PinRoot+"/"+e.Name()+"/"+PinLink,
				&ebpf.LoadPinOptions{ReadOnly: false}); err == nil {
				if pinned, err := l.Info(); err == nil && pinned.ID == info.ID {
					pin = e.Name()
				}
				l.Close()
			}
		}
	}
	return linked, pin
}

// PinRoot is the folder of pins, with one folder per name; PinLink is the link in it.
const (
	PinRoot = "/sys/fs/bpf/rebound"
	PinLink = "link"
)
