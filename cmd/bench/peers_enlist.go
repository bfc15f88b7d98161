package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"rebound/cmd/bench/peers"
	"rebound/cmd/bench/probe"
	"rebound/latency/report"
)

// enlist makes the peers, tries each, and keeps those that answer.
func (c *contest) enlist() error {
	kernel, ours := netip.MustParsePrefix(kernelPrefix).Addr(), netip.MustParsePrefix(responderPrefix).Addr()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	idle := func() error { return nil }
	var all []*peer
	responders := func(driver string, set ...string) (start, stop func() error) {
		d := *c.demo
		d.driver = driver
		r := &responder{demo: &d, core: c.core, set: set}
		return r.start, r.stop
	}
	own := net.HardwareAddr(peers.OwnMAC[:]).String()
	variants := map[string][]string{"generic": {"nic.generic_xdp=true"}, "mac": {fmt.Sprintf("nic.mac=%q", own)}}
	macs := map[string][6]byte{"mac": peers.OwnMAC}
	floor := filepath.Join(c.dir, "floor")
	noFloor := peers.BuildFloor(floor)
	if noFloor != nil {
		c.skip("floor", noFloor)
	}
	for _, socket := range peers.FloorSockets {
		kind, variant, _ := strings.Cut(socket, "-")
		start, stop := responders(kind, variants[variant]...)
		all = append(all, &peer{name: "responder-" + socket, proto: probe.ICMP, target: ours, start: start, stop: stop, mac: macs[variant]})
		if noFloor == nil {
			f := peers.Floor(floor, socket, echoIface, c.core)
			f.Within = c.within
			all = append(all, &peer{name: "floor-" + socket, proto: probe.ICMP, target: ours, start: f.Start, stop: f.Stop, mac: macs[variant]})
		}
		if variant != "" {
			continue // testpmd has none
		}
		t, err := peers.Testpmd(map[string]string{"afxdp": "net_af_xdp", "afpacket": "net_af_packet"}[kind], echoIface, c.core, c.other)
		if err != nil {
			c.skip("testpmd-"+kind, err)
			continue
		}
		t.Within = c.within
		all = append(all, &peer{name: "testpmd-" + kind, proto: probe.ICMP, target: ours, start: t.Start, stop: func() error { return errors.Join(t.Stop(), c.detach()) }})
	}
	all = append(all, &peer{name: "kernel", proto: probe.ICMP, target: kernel, start: idle, stop: idle})
	start, stop := responders("afxdp")
	all = append(all, &peer{name: "responder-afxdp-udp", proto: probe.UDP, target: ours, start: start, stop: stop})
	echo := &peers.Process{Command: []string{self, "peers", "udp-echo", netip.AddrPortFrom(kernel, 7).String(), strconv.Itoa(c.core)},
		Ready: "ready", Within: c.within}
	all = append(all, &peer{name: "socket-udp", proto: probe.UDP, target: kernel, start: echo.Start, stop: echo.Stop})
	for _, p := range all {
		if err := c.try(p); err != nil {
			if c.interrupted.Load() {
				return errInterrupted
			}
			c.skip(p.name, err)
			continue
		}
		c.peers = append(c.peers, p)
	}
	for _, p := range c.peers {
		for _, q := range c.peers {
			if p.proto == q.proto && peers.Compared(p.name, q.name) {
				c.table.Versus = append(c.table.Versus, [2]string{p.name, q.name})
			}
		}
	}
	return nil
}

func (c *contest) skip(name string, why error) {
	c.table.Skipped = append(c.table.Skipped, fmt.Sprintf("%s: %v", name, why))
	c.log.Warn("peer skipped", "peer", name, "reason", why)
}

// within runs f in the peers' namespace with all CPUs.
func (c *contest) within(f func() error) error {
	return c.far.do(func() error {
		var all unix.CPUSet
		for i := range len(all) * 64 {
			all.Set(i)
		}
		_ = unix.SchedSetaffinity(0, &all)
		return f()
	})
}

// detach takes off an XDP program that a peer left on the interface.
func (c *contest) detach() error {
	return c.far.do(func() error {
		l, err := netlink.LinkByName(echoIface)
		if err != nil || l.Attrs().Xdp == nil || !l.Attrs().Xdp.Attached {
			return err
		}
		return netlink.LinkSetXdpFd(l, -1)
	})
}

// turnTo ends the peer that answers and starts p.
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
		return err
	}
	c.current = p
	return nil
}

// try starts p, and takes some replies apart that it must give.
func (c *contest) try(p *peer) (err error) {
	if err := c.turnTo(p); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.turnTo(nil)) }()
	dir, err := os.MkdirTemp("", "bench-peers-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	o := &options{count: 20, runs: 1, core: c.other, out: filepath.Join(dir, "r"), variants: []settings{c.setting(p, 0)}}
	if err := c.measure(o, nil); err != nil {
		return fmt.Errorf("it does not answer: %w", err)
	}
	rep, err := report.Read(o.out)
	if err != nil {
		return err
	}
	if n := rep.Counts; n.Received != o.count || n.Corrupt+n.Duplicates > 0 {
		return fmt.Errorf("of %d probes it answered %d; %d corrupt, %d twice: %s", n.Sent, n.Received, n.Corrupt, n.Duplicates, strings.Join(rep.Notes, "; "))
	}
	return nil
}
