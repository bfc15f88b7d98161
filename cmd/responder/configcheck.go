package main

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"rebound/cmd/internal/card"
	"rebound/fastpath"
)

// checker finds out whether a config is possible, short of opening anything.
type checker struct {
	*settings
	from   origins
	online []int // CPUs of this machine
}

// check returns c as settings if it is possible.
func (c *config) check(from origins, online []int) (*settings, error) {
	k := &checker{&settings{config: *c}, from, online}
	for _, part := range []func() error{k.nic, k.respond, k.guard, k.cpu, k.logging, k.statistics} {
		if err := part(); err != nil {
			return nil, err
		}
	}
	return k.settings, nil
}

func (k *checker) fail(key, format string, a ...any) error {
	where, ok := k.from[key]
	list, _, _ := strings.Cut(key, "[")
	if !ok {
		where = k.from[list]
	}
	return &keyError{where, list, fmt.Sprintf(format, a...)}
}

func (k *checker) nic() error {
	device, driver := k.NIC.Device, k.NIC.Driver
	switch {
	case device == "":
		return k.fail("nic.device", "is empty: name an interface, a PCI address or vfio-user:PATH (`responder nics` lists what there is)")
	case device == "vfio-user:":
		return k.fail("nic.device", "vfio-user: wants the path of a socket")
	case card.Named(device):
	case len(device) > 15 || strings.ContainsAny(device, "/: \t\r\n\x00") || device == "." || device == "..":
		return k.fail("nic.device", "%q is no interface name, PCI address (0000:03:00.0) or vfio-user:PATH", device)
	}
	switch {
	case driver == "auto":
	case slices.Contains(socketDrivers, driver):
		if card.Named(device) {
			return k.fail("nic.driver", "%s drives a network interface, and %s is a PCI function", driver, device)
		}
	case slices.Contains(card.Drivers, driver):
		if !card.Named(device) {
			return k.fail("nic.driver", "%s drives a PCI function, and %s is a network interface", driver, device)
		}
	default:
		return k.fail("nic.driver", "%q is not one of %s", driver, strings.Join(driverNames(), ", "))
	}
	if k.NIC.Queue < 0 {
		return k.fail("nic.queue", "%d is negative", k.NIC.Queue)
	}
	if n := k.NIC.RingSize; n != 0 && (n < 32 || n > 1<<16 || n&(n-1) != 0) {
		return k.fail("nic.ring_size", "%d is not a power of two from 32 to 65536, nor 0 for the driver's own", n)
	}
	if !slices.Contains(card.PushModes, k.NIC.Push) {
		return k.fail("nic.push", "%q is not one of %s", k.NIC.Push, strings.Join(card.PushModes, ", "))
	}
	if text := k.NIC.MAC; text != "" {
		m, err := net.ParseMAC(text)
		if err != nil || len(m) != len(k.mac) || m[0]&1 != 0 || [6]byte(m) == [6]byte{} {
			return k.fail("nic.mac", "%q is not the MAC address of one station, such as \"02:00:5e:10:00:01\"", text)
		}
		k.mac = [6]byte(m)
	}
	if n := k.NIC.PushMax; n < 0 || n > 1024 {
		return k.fail("nic.push_max", "%d is not a frame size from 1 to 1024, nor 0 for as much as the device takes", n)
	}
	return nil
}

func (k *checker) respond() error {
	if len(k.Respond.Addresses) == 0 {
		return k.fail("respond.addresses", "is empty: name the addresses to answer for, such as \"10.0.0.2/24\"")
	}
	for i, text := range k.Respond.Addresses {
		key := fmt.Sprintf("respond.addresses[%d]", i)
		p, err := parseAddress(text)
		if err != nil {
			return k.fail(key, "%v", err)
		}
		if slices.ContainsFunc(k.addresses, func(q netip.Prefix) bool { return q.Addr() == p.Addr() }) {
			return k.fail(key, "%s is there twice", p.Addr())
		}
		k.addresses = append(k.addresses, p)
	}
	used := map[int]string{}
	ports := func(key string, list []int) (out []uint16, err error) {
		for i, p := range list {
			elem := fmt.Sprintf("%s[%d]", key, i)
			switch other := used[p]; {
			case p < 1 || p > 65535:
				return nil, k.fail(elem, "%d is not a port (1 to 65535)", p)
			case other == key:
				return nil, k.fail(elem, "port %d is there twice", p)
			case other != "":
				return nil, k.fail(elem, "port %d is in %s already", p, other)
			}
			used[p] = key
			out = append(out, uint16(p))
		}
		return out, nil
	}
	var err error
	if k.udp, err = ports("respond.udp_ports", k.Respond.UDPPorts); err != nil {
		return err
	}
	k.stamp, err = ports("respond.stamp_ports", k.Respond.STAMPPorts)
	return err
}

func (k *checker) guard() error {
	switch k.Guard.Mode {
	case "strict":
		k.mode = fastpath.Strict
	case "open":
		k.mode = fastpath.Open
	default:
		return k.fail("guard.mode", "%q is not strict or open", k.Guard.Mode)
	}
	return nil
}

func (k *checker) cpu() error {
	for i, core := range k.CPU.Cores {
		key := fmt.Sprintf("cpu.cores[%d]", i)
		if !slices.Contains(k.online, core) {
			return k.fail(key, "this machine has no core %d (online: %s)", core, ranges(k.online))
		}
		if slices.Contains(k.CPU.Cores[:i], core) {
			return k.fail(key, "core %d is there twice", core)
		}
	}
	if p := k.CPU.Priority; p < 0 || p > 99 {
		return k.fail("cpu.priority", "%d is not a SCHED_FIFO priority (1 to 99), nor 0 for off", p)
	}
	if k.CPU.Priority > 0 && max(1, len(k.CPU.Cores)) >= len(k.online) {
		return k.fail("cpu.priority", "SCHED_FIFO on every core of this machine would leave none for anything else")
	}
	return nil
}

func (k *checker) logging() error {
	levels := map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}
	var ok bool
	if k.level, ok = levels[k.Log.Level]; !ok {
		return k.fail("log.level", "%q is not debug, info, warn or error", k.Log.Level)
	}
	if k.Log.Format != "text" && k.Log.Format != "json" {
		return k.fail("log.format", "%q is not text or json", k.Log.Format)
	}
	return nil
}

func (k *checker) statistics() error {
	if k.Stats.Listen != "" {
		_, port, err := net.SplitHostPort(k.Stats.Listen)
		if _, perr := strconv.ParseUint(port, 10, 16); err != nil || perr != nil {
			return k.fail("stats.listen", "%q is not HOST:PORT", k.Stats.Listen)
		}
	}
	var err error
	if k.interval, err = time.ParseDuration(k.Stats.Interval); err != nil || k.interval != 0 && k.interval < time.Second {
		return k.fail("stats.interval", "%q is not a duration of a second or more, such as \"10s\", nor \"0s\" for off", k.Stats.Interval)
	}
	return nil
}

// parseAddress reads "10.0.0.2/24" or a bare address, and refuses what no host can have as its own.
func parseAddress(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if a, bare := netip.ParseAddr(text); bare == nil && a.Zone() != "" {
		return p, fmt.Errorf("%s has a zone: the interface is nic.device", text)
	} else if bare == nil {
		p = netip.PrefixFrom(a, a.BitLen())
	} else if err != nil {
		return p, fmt.Errorf("%q is not an address, such as \"10.0.0.2/24\"", text)
	}
	a := p.Addr()
	switch {
	case a.Is4In6():
		return p, fmt.Errorf("%s is an IPv4 address in an IPv6 form: write %s", a, a.Unmap())
	case a.IsUnspecified():
		return p, fmt.Errorf("%s is the unspecified address", a)
	case a.IsLoopback():
		return p, fmt.Errorf("%s is a loopback address", a)
	case a.IsMulticast():
		return p, fmt.Errorf("%s is a multicast address", a)
	case a.Is4() && (a.As4()[0] == 0 || a.As4()[0] >= 240):
		return p, fmt.Errorf("%s is not a unicast address", a)
	case p.Bits() == 0:
		return p, fmt.Errorf("%s: a subnet of length 0 has no host in it", p)
	case a.Is4() && p.Bits() < 31 && a == p.Masked().Addr():
		return p, fmt.Errorf("%s is the address of the subnet itself", p)
	case a.Is4() && p.Bits() < 31 && !p.Contains(a.Next()):
		return p, fmt.Errorf("%s is the broadcast address of its subnet", p)
	}
	return p, nil
}

// ranges writes a sorted list of CPUs as the kernel does: "0-3,8".
func ranges(cpus []int) string {
	var b strings.Builder
	for i := 0; i < len(cpus); {
		j := i
		for j+1 < len(cpus) && cpus[j+1] == cpus[j]+1 {
			j++
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(cpus[i]))
		if j > i {
			b.WriteString("-" + strconv.Itoa(cpus[j]))
		}
		i = j + 1
	}
	return b.String()
}
