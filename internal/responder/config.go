package responder

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/internal/cards"
	"github.com/rebound-nic/rebound/internal/host/confine"
	"github.com/rebound-nic/rebound/internal/host/handover"
	"github.com/rebound-nic/rebound/internal/host/isolate"
	"github.com/rebound-nic/rebound/internal/host/metrics"
	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/internal/host/setting"
	"github.com/rebound-nic/rebound/latency/report"
)

// settings are all settings, in the types in which they are used. table describes them and records where each was set.
type settings struct {
	table *setting.Table

	nic     cards.Config
	respond struct {
		addresses []netip.Prefix
		udp       []uint16
		stamp     stampSettings
		vlans     []int
		handover  netip.AddrPort // invalid for none

		stampMessages bool
	}
	guard struct {
		mode          string
		rate, burst   int
		loop          int
		checksumBytes int
	}
	cpu struct {
		cores      []int
		isolate    bool
		priority   int
		guard      string // how to handle the kernel's guard against real-time threads
		lockMemory bool
	}
	trust struct {
		confine string
		user    string
	}
	log   process.Log
	stats struct {
		listen    string
		hosts     []string
		interval  time.Duration
		report    string
		folder    *report.Folder // of the report, if the user was changed; otherwise nil
		anonymous bool
		offcore   bool
	}
}

// intro is the start of config.toml.
const intro = "Rebound's responder. Every key is listed with its default, except for respond.addresses, which has none. " +
	"[afxdp, xdp] before a description names the drivers that use the key. With other drivers it has no " +
	"effect, and the log says so. A key can also be given on the command line: rebound-responder -config config.toml -set " +
	"nic.device=eth1\n\n[debug] is for a card that does not work: settings to try, as is nic.push = \"off\". Report which one helped " +
	"(docs/cards/probe.md).\n\n`rebound-responder config` prints this file."

// newSettings returns the defaults. online are the CPUs of this machine.
func newSettings(online []int) *settings {
	s := &settings{}
	s.table = setting.New(slices.Concat(s.nic.Settings(), cards.For(slices.Concat([]setting.Setting{
		setting.Parsed("nic.down_limit", &s.nic.DownLimit, "10m", func(text string) (time.Duration, error) {
			d, err := time.ParseDuration(text)
			if err != nil || d < 0 {
				return 0, fmt.Errorf("%q is not a duration, such as \"10m\"", text)
			}
			return d, nil
		}, "How long the responder waits for an interface that is down (`ip link set eth1 down`); after that it exits. \"0s\": it exits at once. It "+
			"also exits when the interface is removed: start it again when the interface is back."),
		setting.Strings("respond.addresses", &s.respond.addresses, parseAddress,
			"The addresses to answer for, each with the length of its subnet: [\"10.0.0.2/24\", \"fd00::2/64\"]. Without a length "+
				"the subnet is unknown, so its broadcasts are not recognized."),
		setting.Ints("respond.udp_ports", &s.respond.udp, []int{7}, parsePort,
			"UDP ports whose datagrams are returned unchanged."),
	}, s.respond.stamp.settings(), []setting.Setting{
		setting.Names("respond.vlans", &s.respond.vlans, []string{"any"}, parseVLAN,
			"The VLANs whose frames are answered, ARP and neighbour discovery included: \"any\", or a list of numbers (1 to 4094) "+
				"and \"none\", which means untagged frames. With two tags, both must be listed."),

		setting.Parsed("respond.handover", &s.respond.handover, "", func(text string) (netip.AddrPort, error) {
			if text == "" {
				return netip.AddrPort{}, nil
			}
			return handover.ParseAddress(text)
		}, fmt.Sprintf("ADDRESS:PORT of a TCP service that gives clients the addresses of the queue pairs, with the protocols of ibv_ud_pingpong and "+
			"perftest's ib_send_lat (default port of both: %d); empty is off. PORT is for UD, PORT+1 for SRD, PORT+2 and PORT+3 for "+
			"STAMP over each. Make it reachable only from the test network.", handover.DefaultPort)),
		setting.Bool("respond.stamp_messages", &s.respond.stampMessages, false,
			"Two more queue pairs on each core, UD and SRD, that answer STAMP test packets sent as messages."),

		setting.OneOf("guard.mode", &s.guard.mode, "strict", []setting.Choice{
			{Name: "strict", Doc: "answers only complete unicast requests for the responder's MAC and addresses, not from a " +
				"service's port, and ends loops with services on other ports."},
			{Name: "open", Doc: "answers without these checks; use it only on a dedicated link."},
		}, "Which requests are refused:"),
		setting.Range("guard.rate", &s.guard.rate, 0, math.MaxInt, fastpath.DefaultRate, "no limit",
			"strict: maximum replies per second to one source address.").In("guard.mode=strict"),
		setting.Range("guard.burst", &s.guard.burst, 1, math.MaxInt, fastpath.DefaultBurst, "",
			"strict: maximum burst of replies to one source address, after a pause.").In("guard.mode=strict"),
		setting.Range("guard.loop", &s.guard.loop, 0, math.MaxInt32, fastpath.DefaultLoop, "no limit",
			"strict: how many equal datagrams (by UDP checksum and length) from one source address are answered within 10 ms. More of them are "+
				"a loop with an echo service on that host and are refused, which ends the loop. A client whose data does not change, and that "+
				"sends faster, needs a larger number.").In("guard.mode=strict"),
		setting.Range("guard.checksum_bytes", &s.guard.checksumBytes, 0, math.MaxInt, fastpath.DefaultChecksumBytes,
			"none",
			"strict: the longest IP packet, in bytes, whose ICMP or UDP checksum is verified before it is answered. A longer packet with a wrong "+
				"checksum gets a reply with the same error.").In("guard.mode=strict"),

		setting.Ints("cpu.cores", &s.cpu.cores, nil, func(core int) (int, error) {
			if !slices.Contains(online, core) {
				return 0, fmt.Errorf("this machine has no core %d (online: %s)", core, isolate.FormatCPUs(online))
			}
			return core, nil
		}, "One queue pair on each of these cores; no other thread of the responder runs there. Empty: one core, the last "+
			"isolated one, or the last. `rebound-responder check` reports host settings that hurt latency."),
		setting.Range("cpu.priority", &s.cpu.priority, 1, 99, 0, "the normal scheduler",
			"SCHED_FIFO priority of the polling threads. On a core that is not isolated, other threads starve."),
		setting.OneOf("cpu.realtime_guard", &s.cpu.guard, "refuse", []setting.Choice{
			{Name: "refuse", Doc: "refuse cpu.priority while throttling is active on one of the cores."},
			{Name: "lift", Doc: "disable throttling while the responder runs; refuse cpu.priority if that fails."},
			{Name: "keep", Doc: "accept the throttling."},
		}, "The kernel throttles a real-time thread that never sleeps for 50 ms of each second if other threads wait: up to "+
			"Linux 6.11 with sched_rt_runtime_us (all cores), from 6.12 on with each core's fair server. Action:").In(
			"cpu.priority"),
		setting.Bool("cpu.isolate", &s.cpu.isolate, false,
			"Move all other work off the cores, without a reboot: a cgroup-v2 partition of type isolated, threads, kernel "+
				"threads, unbound work, interrupts, queued timers, deep idle states of all cores. -v logs each step. All "+
				"changes are undone on exit; after a SIGKILL by the next start, or by `rebound-responder release`."),
		setting.Bool("cpu.lock_memory", &s.cpu.lockMemory, true, "Lock all memory, so that page faults do not occur."),

		setting.OneOf("trust.confine", &s.trust.confine, "auto", []setting.Choice{
			{Name: "auto", Doc: "as far as the kernel supports it; -v logs the result."},
			{Name: "require", Doc: "all of it, otherwise the responder does not start."},
			{Name: "light", Doc: "without the system call filter. The filter slows down every call, and socket drivers make one " +
				"per reply: on a veth pair it costs 60 ns of 3.15 µs with afpacket, 20 ns of 3.3 µs with afxdp. Other drivers make no " +
				"calls."},
			{Name: "off", Doc: "no confinement."},
		}, "When ready, the responder permanently drops what it no longer needs: capabilities, except those that a setting "+
			"needs; all files, except reading /proc and /sys and writing reports and cpu.isolate's files (Landlock); new programs, "+
			"processes, sockets and unused system calls (seccomp). Modes:"),
		setting.String("trust.user", &s.trust.user, "auto", checkUser,
			"The user that the responder changes to when it confines itself, if started as uid 0: a name or a number, with only "+
				"the user's own group; \"auto\" is user rebound, or uid and gid 65534 if there is none; \"root\" keeps uid 0. "+
				"cpu.isolate, cpu.realtime_guard = \"lift\", nic.pin and nic.unsafe_no_iommu keep uid 0, because they use root's files "+
				"until exit. So does a process without CAP_SETUID and CAP_SETGID. -v logs the user, or why uid 0 stays. "+
				"trust.confine = \"off\" keeps uid 0.").In("trust.confine!=off"),
	}, s.log.Settings(), metrics.Settings(&s.stats.listen, &s.stats.hosts), []setting.Setting{
		setting.Interval("stats.interval", &s.stats.interval, time.Second,
			"How often to log counters and turnaround: \"10s\"; \"0s\" is off."),
		setting.Bool("stats.offcore", &s.stats.offcore, false,
			"Find out what has the cores while the loops do not run for 5 µs or more: threads, interrupts, softirqs. The metrics page has "+
				"rebound_offcore_seconds_total, and the summary a list. By programs on the kernel's tracepoints with CAP_BPF and CAP_PERFMON at the start "+
				"(or as root) and Linux 5.8 or later, otherwise by counters, which say less; -v logs which. What it costs was not measured. No effect with xdp."),
		setting.String("stats.report", &s.stats.report, "", nil,
			"A folder for a report of turnaround and polling gaps, saved on exit, for `rebound-bench report` and `rebound-bench "+
				"compare`; empty is off."),
		setting.Bool("stats.anonymous", &s.stats.anonymous, false,
			"Leave identifying data out of that report: host name, kernel command line, the kernel release behind its version, "+
				"the responder's command line, MAC addresses, and IP addresses that are not private.").In(
			"stats.report"),
	})), s.nic.DebugSettings())...)
	s.table.Find("nic.device").Doc += " Empty: the interface that has one of respond.addresses."
	s.table.Removed = cards.Removed
	return s
}

// loadConfig reads the file, where one is named, lays the -set flags over it, later ones over earlier ones, and checks
// the whole. online are the CPUs of this machine.
func loadConfig(file string, sets []string, online []int) (*settings, error) {
	s, err := readConfig(file, sets, online)
	if err != nil {
		return nil, err
	}
	if err := s.check(online); err != nil {
		return s, err
	}
	return s, s.checkStamp(file)
}

// readConfig is loadConfig without the checks for missing and contradictory settings.
func readConfig(file string, sets []string, online []int) (*settings, error) {
	s := newSettings(online)
	if file != "" {
		var wrong *setting.Error
		if err := s.table.Read(file); err != nil && !errors.As(err, &wrong) {
			return nil, &setting.Error{Where: "-config", Problem: err.Error()}
		} else if err != nil {
			return nil, err
		}
	}
	for _, assignment := range sets {
		if err := s.table.Set(assignment); err != nil {
			return nil, err
		}
	}
	return s, s.table.Apply()
}

// check checks that the settings are compatible with each other, without opening anything.
func (s *settings) check(online []int) error {
	if s.nic.Device == "" {
		s.nic.Device = interfaceWith(s.respond.addresses)
	}
	if s.nic.Device == "" {
		return s.table.Fail("nic.device",
			"is empty: name an interface, a PCI address or vfio-user:PATH (`rebound-responder nics` lists the devices)")
	}
	if err := cards.Fits(s.nic.Driver, s.nic.Device); err != nil {
		return s.table.Fail("nic.driver", "%w", err)
	}
	if s.nic.Pin != "" && s.nic.Driver != "auto" && !s.nic.InKernel() {
		return s.table.Fail("nic.pin", "is for driver xdp: %s answers in the process, and stops when it exits",
			s.nic.Driver)
	}
	if err := s.checkMessages(); err != nil {
		return err
	}
	for i, p := range s.respond.addresses {
		if slices.ContainsFunc(s.respond.addresses[:i], func(q netip.Prefix) bool { return q.Addr() == p.Addr() }) {
			return s.table.FailAt("respond.addresses", i, "%s is listed twice", p.Addr())
		}
	}
	if err := s.twice("respond.udp_ports", s.respond.udp); err != nil {
		return err
	}
	for i, v := range s.respond.vlans {
		switch {
		case v == anyVLAN && len(s.respond.vlans) > 1:
			return s.table.FailAt("respond.vlans", i, "\"any\" must be the only entry")
		case slices.Contains(s.respond.vlans[:i], v):
			return s.table.FailAt("respond.vlans", i, "%s is listed twice", vlanName(v))
		}
	}
	if u := s.trust.user; u != "auto" && u != "root" {
		if why := s.needsRoot(); why != "" {
			return s.table.Fail("trust.user", "%q cannot be used here: %s (want auto or root)", u, why)
		}
	}
	if len(s.respond.vlans) == 0 {
		return s.table.Fail("respond.vlans", "is empty: no frame would be answered")
	}
	return s.checkCores(online)
}

// match returns what to answer, except for the parts that depend on device and clock.
func (s *settings) match() *fastpath.Config {
	c := &fastpath.Config{Addresses: s.respond.addresses, UDPPorts: s.respond.udp, STAMPPorts: s.respond.stamp.ports,
		STAMPBase: s.respond.stamp.base,
		Reflector: s.respond.stamp.reflector(), Rate: uint64(s.guard.rate), Burst: uint64(s.guard.burst),
		Loop: uint32(s.guard.loop), ChecksumBytes: s.guard.checksumBytes}
	if s.guard.mode == "open" {
		c.Mode = fastpath.Open
	}
	for _, v := range s.respond.vlans {
		if v != anyVLAN {
			c.VLANs = append(c.VLANs, uint16(v))
		}
	}
	return c
}

func (s *settings) twice(key string, ports []uint16) error {
	for i, p := range ports {
		if slices.Contains(ports[:i], p) {
			return s.table.FailAt(key, i, "port %d is listed twice", p)
		}
	}
	return nil
}

func (s *settings) checkCores(online []int) error {
	for i, core := range s.cpu.cores {
		if slices.Contains(s.cpu.cores[:i], core) {
			return s.table.FailAt("cpu.cores", i, "core %d is listed twice", core)
		}
	}
	if s.cpu.isolate && max(1, len(s.cpu.cores)) >= len(online) {
		return s.table.Fail("cpu.isolate", "isolates every core of this machine: leave one for everything else")
	}
	if s.cpu.priority > 0 && max(1, len(s.cpu.cores)) >= len(online) {
		return s.table.Fail("cpu.priority", "SCHED_FIFO on every core of this machine: leave one for everything else")
	}
	return nil
}

// addressList writes the addresses as a user would.
func (s *settings) addressList() string {
	list := make([]string, len(s.respond.addresses))
	for i, p := range s.respond.addresses {
		list[i] = p.String()
		if p.IsSingleIP() {
			list[i] = p.Addr().String()
		}
	}
	return strings.Join(list, ",")
}

func checkUser(name string) error {
	if name == "auto" || name == "root" {
		return nil
	}
	if name == "" {
		return errors.New("it is empty (want auto, root, a name or a number)")
	}
	_, err := confine.FindUser(name)
	return err
}

// anyVLAN is respond.vlans = "any"; 0 is "none", as in fastpath.Config.VLANs.
const anyVLAN = -1

func parseVLAN(text string) (int, error) {
	switch text {
	case "any":
		return anyVLAN, nil
	case "none":
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > 4094 { // IEEE 802.1Q table 9-2
		return 0, fmt.Errorf("%q is not a VLAN (1 to 4094), \"none\" or \"any\"", text)
	}
	return n, nil
}

func vlanName(v int) string {
	switch v {
	case anyVLAN:
		return "any"
	case 0:
		return "none"
	}
	return strconv.Itoa(v)
}

func parsePort(n int) (uint16, error) {
	if n < 1 || n > 65535 {
		return 0, fmt.Errorf("%d is not a port (1 to 65535)", n)
	}
	return uint16(n), nil
}

// parseAddress parses "10.0.0.2/24" or a bare address, and refuses addresses that no host can have.
func parseAddress(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if a, bare := netip.ParseAddr(text); bare == nil && a.Zone() != "" {
		return p, fmt.Errorf("%s has a zone: remove it, nic.device is the interface", text)
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
		return p, fmt.Errorf("%s: a subnet of length 0 has no host", p)
	case a.Is4() && p.Bits() < 31 && a == p.Masked().Addr():
		return p, fmt.Errorf("%s is the address of the subnet itself", p)
	case a.Is4() && p.Bits() < 31 && !p.Contains(a.Next()):
		return p, fmt.Errorf("%s is the broadcast address of its subnet", p)
	}
	return p, nil
}
