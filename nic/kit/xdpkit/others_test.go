package xdpkit_test

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/kit/netif"
	"github.com/rebound-nic/rebound/nic/kit/xdpkit"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/nictest/veth"
)

// Free tells programs on an interface apart by owner and by how to remove them, and leaves them attached.
func TestFree(t *testing.T) {
	v := veth.New(t)
	free := func() (err error) {
		v.Host.Do(func() {
			i, failed := netif.Lookup(v.Host.Name)
			if failed != nil {
				t.Error(failed)
				return
			}
			defer i.Close()
			err = xdpkit.Free(i)
		})
		return err
	}
	check.OK(t, free())
	for _, c := range []struct {
		name   string
		linked bool
		says   string
	}{
		{"xdp_dispatcher", true, "xdp-loader unload " + v.Host.Name + " --all"},
		{"xdp_dispatcher", false, "libxdp's dispatcher"},
		{"theirs", true, "bpf_link"},
		{"theirs", false, "ip link set " + v.Host.Name + " xdp off"},
		{"rebound_pick", true, "another responder or bench"},
	} {
		p := must.Get(ebpf.NewProgram(&ebpf.ProgramSpec{Name: c.name, Type: ebpf.XDP, License: "Apache-2.0",
			Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}}))(t)
		var err error
		var off func() error
		v.Host.Do(func() {
			var l netlink.Link
			if l, err = netlink.LinkByName(v.Host.Name); err != nil {
				return
			}
			if c.linked {
				var at link.Link
				if at, err = link.AttachXDP(link.XDPOptions{Program: p, Interface: l.Attrs().Index}); err == nil {
					off = at.Close
				}
				return
			}
			err = netlink.LinkSetXdpFd(l, p.FD())
			off = func() (err error) {
				v.Host.Do(func() { err = netlink.LinkSetXdpFd(l, -1) })
				return err
			}
		})
		must.OK(t, err)
		check.Fails(t, c.name, free(), nic.ErrBusy, c.says, c.name)
		check.OK(t, off())
		p.Close()
	}
	check.OK(t, free())
}

// The kernel reports a driver's features: veth runs programs and has times and tags; loopback runs none.
func TestAskFeatures(t *testing.T) {
	v := veth.New(t)
	v.Host.Do(func() {
		i, err := netif.Lookup(v.Host.Name)
		if err != nil {
			t.Error(err)
			return
		}
		defer i.Close()
		for range 20 { // the request's reserved bytes were undefined once
			if f := xdpkit.AskFeatures(i.Index); !f.Has(xdpkit.Basic) || f.Has(xdpkit.ZeroCopy) ||
				!f.Tells(xdpkit.VLANTag) || f.Missing(i) != "" {
				t.Errorf("veth: %v, missing %q", f, f.Missing(i))
				return
			}
		}
		if f := xdpkit.AskFeatures(1 << 30); f.Known || f.Has(0) || f.String() != "unknown" {
			t.Errorf("no interface: %v", f)
		}
		check.Contains(t, xdpkit.Features{Known: true}.Missing(i), "does not support XDP")
	})
}
