package contest

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"

	"github.com/rebound-nic/rebound/internal/bench/measure"
	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/internal/bench/testbed"
	"github.com/rebound-nic/rebound/nic/kit/netif"
	"github.com/rebound-nic/rebound/nic/kit/xdpkit"
	"github.com/rebound-nic/rebound/proof/peers/baseline"
	"github.com/rebound-nic/rebound/proof/peers/tables"
)

// UDPEcho is the command that runs baseline.EchoUDP in this program, with an address and a core.
const UDPEcho = "udp-echo"

// competitors creates the peers, tests each, and keeps those that answer.
func (c *contest) competitors() error {
	kernel, ours := netip.MustParsePrefix(testbed.KernelPrefix).Addr(),
		netip.MustParsePrefix(testbed.ResponderPrefix).Addr()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	core, other := c.bed.Core.Other(), c.bed.Core.CPU
	idle := func() error { return nil }
	var all []*peer
	responders := func(driver string, set ...string) (start, stop func() error) {
		r := &testbed.Responder{Bed: c.bed, Program: c.Responder, Driver: driver, Core: core, Set: set}
		return r.Start, r.Stop
	}
	own := net.HardwareAddr(baseline.OwnMAC[:]).String()
	variants := map[string][]string{"generic": {"nic.generic_xdp=true"}, "mac": {fmt.Sprintf("nic.mac=%q", own)}}
	macs := map[string][6]byte{"mac": baseline.OwnMAC}
	floor := filepath.Join(c.dir, "floor")
	noFloor := baseline.BuildFloor(floor)
	if noFloor != nil {
		c.skip("floor", noFloor)
	}
	for _, socket := range baseline.FloorSockets {
		kind, variant, _ := strings.Cut(socket, "-")
		start, stop := responders(kind, variants[variant]...)
		all = append(all, &peer{name: "responder-" + socket, proto: probe.ICMP, target: ours, start: start, stop: stop,
			mac: macs[variant]})
		if noFloor == nil {
			f := baseline.Floor(floor, socket, testbed.FarIface, core)
			f.Within = c.bed.Within
			all = append(all, &peer{name: "floor-" + socket, proto: probe.ICMP, target: ours, start: f.Start,
				stop: f.Stop, mac: macs[variant]})
		}
		if variant != "" {
			continue // testpmd does not support it
		}
		start, stop = responders(kind, `trust.confine="light"`)
		all = append(all, &peer{name: "responder-" + socket + "-light", proto: probe.ICMP, target: ours, start: start,
			stop: stop})
		t, err := baseline.Testpmd(map[string]string{"afxdp": "net_af_xdp", "afpacket": "net_af_packet"}[kind],
			testbed.FarIface, core, other)
		if err != nil {
			c.skip("testpmd-"+kind, err)
			continue
		}
		t.Within = c.bed.Within
		all = append(all, &peer{name: "testpmd-" + kind, proto: probe.ICMP, target: ours, start: t.Start,
			stop: func() error { return errors.Join(t.Stop(), c.detach()) }})
	}
	for _, hook := range []string{xdpkit.Driver, xdpkit.Generic} {
		name := map[string]string{xdpkit.Driver: "xdp", xdpkit.Generic: "xdp-generic"}[hook]
		start, stop := responders("xdp", fmt.Sprintf("nic.generic_xdp=%t", hook == xdpkit.Generic))
		f := &baseline.Swap{Iface: testbed.FarIface, Hook: hook, Within: c.bed.Within}
		for _, p := range []*peer{{name: "responder-" + name, start: start, stop: stop},
			{name: "floor-" + name, start: f.Start, stop: f.Stop}} {
			p.proto, p.target = probe.ICMP, ours
			if attach := p.start; hook == xdpkit.Driver {
				p.start = func() error { return errors.Join(c.lend(attach), c.at(hook)) }
			}
			all = append(all, p)
		}
	}
	all = append(all, &peer{name: "kernel", proto: probe.ICMP, target: kernel, start: idle, stop: idle})
	start, stop := responders("afxdp")
	all = append(all, &peer{name: "responder-afxdp-udp", proto: probe.UDP, target: ours, start: start, stop: stop})
	echo := &baseline.Process{Command: []string{self, "peers", UDPEcho, netip.AddrPortFrom(kernel, 7).String(),
		strconv.Itoa(core)},
		Ready: "ready", Within: c.bed.Within}
	all = append(all, &peer{name: "socket-udp", proto: probe.UDP, target: kernel, start: echo.Start, stop: echo.Stop})
	for _, p := range all {
		if c.Only != nil && !slices.Contains(c.Only, p.name) {
			continue
		}
		if err := c.try(p); err != nil {
			if c.Stop.Load() {
				return errInterrupted
			}
			c.skip(p.name, err)
			continue
		}
		c.peers = append(c.peers, p)
	}
	for _, p := range c.peers {
		for _, q := range c.peers {
			if p.proto == q.proto && tables.Compared(p.name, q.name) {
				c.table.Versus = append(c.table.Versus, [2]string{p.name, q.name})
			}
		}
	}
	return nil
}

func (c *contest) skip(name string, why error) {
	c.table.Skipped = append(c.table.Skipped, fmt.Sprintf("%s: %v", name, why))
	c.Log.Warn("peer skipped", "peer", name, "reason", why)
}

// detach removes an XDP program that a peer left on the interface.
func (c *contest) detach() error {
	return c.bed.Far.Do(func() error {
		l, err := netlink.LinkByName(testbed.FarIface)
		if err != nil || l.Attrs().Xdp == nil || !l.Attrs().Xdp.Attached {
			return err
		}
		return netlink.LinkSetXdpFd(l, -1)
	})
}

// lend runs f while the bench's end of the wire has an XDP program that passes everything: without one, the kernel
// drops frames that the other end sends in native mode, and a responder does not use native mode. When the bench itself
// measures, its own program is there.
func (c *contest) lend(f func() error) (err error) {
	i, err := netif.Lookup(testbed.NearIface)
	if err != nil {
		return err
	}
	defer i.Close()
	if i.XDP != 0 {
		return f()
	}
	if c.Prober != "afxdp" {
		return errors.New("the bench's end has no XDP program with this prober, and a veth pair would drop all replies")
	}
	at, err := xdpkit.Attach(i, []xdpkit.Attempt{{Hook: xdpkit.Driver, Load: func() (*xdpkit.Program, error) {
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "Apache-2.0",
			Instructions: asm.Instructions{
				asm.Mov.Imm(asm.R0, 2), asm.Return(), // XDP_PASS
			}})
		return &xdpkit.Program{Program: p}, err
	}}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, at.Link.Close(), at.Program.Close()) }()
	return f()
}

// at returns an error unless the responder's interface has an XDP program at that hook.
func (c *contest) at(hook string) error {
	return c.bed.Far.Do(func() error {
		i, err := netif.Lookup(testbed.FarIface)
		if err != nil {
			return err
		}
		defer i.Close()
		if is := map[uint8]string{1: xdpkit.Driver, 2: xdpkit.Generic}[i.XDPHook]; is != hook {
			return fmt.Errorf("the program is at hook %q, not %q", is, hook)
		}
		return nil
	})
}

// turnTo ends the active peer and starts p.
func (c *contest) turnTo(p *peer) error {
	if c.current == p && p != nil {
		return nil
	}
	if was := c.current; was != nil {
		c.current = nil
		if err := was.stop(); err != nil {
			return err
		}
	}
	if p == nil {
		return nil
	}
	if err := p.start(); err != nil {
		return errors.Join(err, p.stop())
	}
	c.current = p
	return nil
}

// try starts p, and checks some of its replies in detail.
func (c *contest) try(p *peer) (err error) {
	if err := c.turnTo(p); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.turnTo(nil)) }()
	const count = 20
	o := c.options(0, 0)
	o.Count, o.Out, o.Variants = count, filepath.Join(c.dir, "try-"+p.name), []measure.Settings{c.setting(p, 0)}
	result, err := measure.Run(o)
	if err != nil {
		return fmt.Errorf("it does not answer: %w", err)
	}
	rep := result.Reports[0]
	if n := rep.Counts; n.Received != count || n.Corrupt+n.Duplicates > 0 {
		return fmt.Errorf("of %d probes it answered %d; %d corrupt, %d twice: %s", n.Sent, n.Received, n.Corrupt,
			n.Duplicates, strings.Join(rep.Notes, "; "))
	}
	return nil
}
