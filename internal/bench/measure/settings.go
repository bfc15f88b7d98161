package measure

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rebound-nic/rebound/internal/bench/capture"
	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/internal/cards"
	"github.com/rebound-nic/rebound/internal/host/handover"
	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/internal/host/setting"
	"github.com/rebound-nic/rebound/internal/host/stampkey"
	"github.com/rebound-nic/rebound/latency/schedule"
	"github.com/rebound-nic/rebound/nic"
)

// Settings are the settings of one measured series of probes.
type Settings struct {
	Name      string
	Do        string // -ab: the command that is run before each slice, to change something other than the bench's flags
	Target    netip.Addr
	Host      string // the target's name, if it has to be resolved: see Complete
	Proto     probe.Proto
	Port      uint16
	Rates     []float64         // probes per second; {0} is the closed loop
	Arrivals  schedule.Arrivals // open loop: how probes are spread
	Sizes     []int             // bytes without FCS; {0} is the smallest
	Iface     string
	Driver    string
	Source    netip.Addr
	Gateway   netip.Addr
	MAC       [6]byte // the next hop's, if known; zero to resolve it
	Transport string  // "raw", "socket"
	Qdisc     bool    // frames go through the interface's queueing discipline
	Timeout   time.Duration
	Responder string // URL of the responder's metrics
	DSCP, ECN uint8  // RFC 2474, RFC 3168
	TTL       uint8  // or hop limit; 0 means 64
	VLAN      uint16 // 802.1Q VID of a tag around the frames, 0 for none
	Ports     int    // number of UDP source ports used in rotation; 0 means 1

	// Message means that probes are messages, not frames, and are answered by one of the target's queue pairs; Target
	// and Port are where it publishes their addresses. Proto is then UDP, for an echo of any payload, or STAMP.
	Message bool
	Service nic.Service

	STAMP STAMP

	// Explain attributes the slowest round trips to hosts and network. STAMP probes then request the responder's part,
	// if it answers that.
	Explain bool
}

func (s *Settings) setService(service nic.Service) {
	s.Message, s.Service, s.Proto = true, service, probe.UDP
	if service.STAMP() {
		s.Proto = probe.STAMP
	}
}

// Protocol is the protocol's name, as in the flag -proto.
func (s *Settings) Protocol() string {
	if s.Message {
		return s.Service.String()
	}
	return s.Proto.String()
}

// TOS returns DSCP and ECN in the header's format.
func (s *Settings) TOS() uint8 { return s.DSCP<<2 | s.ECN }

// Vary returns a copy with the settings of an -ab value, "target=10.0.0.2" or "name=big,size=1514". Everything after
// "do=" is a command, commas included.
func (s Settings) Vary(list string) (Settings, error) {
	rest, do, has := strings.Cut(","+list, ",do=")
	if s.Do = do; has && strings.TrimSpace(do) == "" {
		return s, fmt.Errorf("-ab %q: do= needs a command", list)
	}
	for item := range strings.SplitSeq(strings.TrimPrefix(rest, ","), ",") {
		key, value, ok := strings.Cut(item, "=")
		if item == "" && has {
			continue
		}
		if !ok {
			return s, fmt.Errorf("%q in -ab %q: want key=value", item, list)
		}
		if err := s.Set(key, value); err != nil {
			return s, fmt.Errorf("-ab %q: %w", list, err)
		}
	}
	if len(s.Rates) != 1 || len(s.Sizes) != 1 {
		return s, fmt.Errorf("-ab %q: want one rate and one size per variant", list)
	}
	if s.Name == "" {
		s.Name = list
	}
	return s, nil
}

func parseAddr(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err != nil {
		return a, fmt.Errorf("%q is not an IP address", s)
	}
	a = a.Unmap()
	if a.IsMulticast() || a.IsUnspecified() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return a, fmt.Errorf("%v is not the address of one host", a)
	}
	return a, nil
}

// lookUp resolves the target's name: to an address of the source's family if there is a source, otherwise to the first
// address.
func (s *Settings) lookUp() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	all, err := net.DefaultResolver.LookupNetIP(ctx, "ip", s.Host)
	if err != nil {
		return process.Usagef("-target %s is not an IP address, and looking up the name failed: %w", s.Host, err)
	}
	for _, a := range all {
		if a = a.Unmap(); s.Source.IsValid() && a.Is4() != s.Source.Is4() {
			continue
		}
		if s.Target, err = parseAddr(a.String()); err != nil {
			return process.Usagef("-target %s: %w", s.Host, err)
		}
		if s.Name == "" {
			s.Name = s.Host
		}
		return nil
	}
	return process.Usagef("-target %s has no address of the same family as source %v, only %v", s.Host, s.Source, all)
}

// ParseDuration parses a non-negative time with its unit: 5s, 300ms.
func ParseDuration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if _, number := strconv.ParseFloat(s, 64); err != nil && number == nil {
		return 0, fmt.Errorf("%q has no unit: %ss are seconds, %sms milliseconds", s, s, s)
	}
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%q: want a time of zero or more with its unit, like 300ms, 5s or 2m", s)
	}
	return d, nil
}

// maxRate is the highest rate of probes per second.
const maxRate = 200e6

// ParseRates parses "1000", "50k,100k,1M".
func ParseRates(s string) ([]float64, error) {
	var out []float64
	for item := range strings.SplitSeq(s, ",") {
		digits, unit := item, 1.0
		switch {
		case strings.HasSuffix(item, "k"):
			digits, unit = item[:len(item)-1], 1e3
		case strings.HasSuffix(item, "M"):
			digits, unit = item[:len(item)-1], 1e6
		}
		v, err := strconv.ParseFloat(digits, 64)
		if v *= unit; err != nil || math.IsNaN(v) || v < 0.01 || v > maxRate {
			return nil, fmt.Errorf("rate %q: want probes per second, 0.01 to 200M, like 500, 20k or 1.5M", item)
		}
		out = append(out, v)
	}
	return out, nil
}

// rfc2544 are the frame sizes of RFC 2544 §9.1, without the four bytes of FCS that it includes.
var rfc2544 = []int{60, 124, 252, 508, 1020, 1276, 1514}

func parseSizes(s string) ([]int, error) {
	if s == "rfc2544" {
		return rfc2544, nil
	}
	var out []int
	for item := range strings.SplitSeq(s, ",") {
		n, err := strconv.Atoi(item)
		if err != nil || n < 0 || n > 1<<16 {
			return nil, fmt.Errorf("size %q: want bytes of the Ethernet frame without FCS, 0 for the smallest, or rfc2544", item)
		}
		out = append(out, n)
	}
	return out, nil
}

func rateName(r float64) string {
	switch {
	case r == 0:
		return "closed"
	case r >= 1e6:
		return strconv.FormatFloat(r/1e6, 'g', 6, 64) + "M"
	case r >= 1e3:
		return strconv.FormatFloat(r/1e3, 'g', 6, 64) + "k"
	}
	return strconv.FormatFloat(r, 'g', 6, 64)
}

func sizeName(n int) string {
	if n == 0 {
		return "smallest"
	}
	return strconv.Itoa(n)
}

// Sweep returns one variant for each combination of rate and size.
func (s Settings) Sweep() []Settings {
	var out []Settings
	for _, r := range s.Rates {
		for _, n := range s.Sizes {
			v := s
			v.Rates, v.Sizes = []float64{r}, []int{n}
			var name []string
			if len(s.Rates) > 1 {
				name = append(name, "rate-"+rateName(r))
			}
			if len(s.Sizes) > 1 {
				name = append(name, "size-"+sizeName(n))
			}
			v.Name = strings.Join(name, "-")
			out = append(out, v)
		}
	}
	return out
}

// Complete fills in settings that depend on others, and resolves the target's name.
func (s *Settings) Complete() error {
	if s.Host != "" {
		if err := s.lookUp(); err != nil {
			return err
		}
	}
	if !s.Target.IsValid() {
		return process.Usagef("-target is missing: the address to measure")
	}
	if !s.Arrivals.Even() && s.Rates[0] == 0 {
		if s.Rates = []float64{s.Arrivals.Rate()}; s.Rates[0] == 0 {
			return process.Usagef("-arrivals %s needs -rate: in a closed loop, replies decide when probes leave",
				s.Arrivals.Text())
		}
		if s.Rates[0] > maxRate {
			return process.Usagef("-arrivals %s: its mean rate is %.3g packets per second: use a lower one with -rate",
				s.Arrivals.Text(), s.Rates[0])
		}
	}
	if err := s.completeMessages(); err != nil {
		return err
	}
	if err := s.completeSTAMP(); err != nil {
		return err
	}
	if s.Qdisc && s.Driver == "auto" {
		defer func() { s.Driver = "afpacket" }()
	}
	if s.Port == 0 {
		switch s.Proto.String() {
		case "udp":
			s.Port = 7 // RFC 862
		case "stamp":
			s.Port = 862 // RFC 8762 §4.1
		}
	}
	switch {
	case s.Ports > 1 && s.Proto == probe.ICMP:
		return process.Usagef("-source-ports: ICMP has no ports; use -proto udp or stamp")
	case s.Ports > 1 && s.Transport == "socket":
		return process.Usagef("-source-ports: -transport socket sends from one port; use -transport raw")
	case s.Qdisc && s.Transport == "socket":
		return process.Usagef("-qdisc has no effect with -transport socket, whose datagrams always go through the queueing discipline")
	case s.Qdisc && s.Driver != "auto" && s.Driver != "afpacket":
		return process.Usagef("-qdisc: driver %s sends without the kernel's queueing discipline: use -driver afpacket",
			s.Driver)
	case s.VLAN != 0 && s.Transport == "socket":
		return process.Usagef("-vlan: -transport socket has no tags; use -transport raw, or a kernel interface on that VLAN")
	}
	return nil
}

// completeMessages chooses the driver for messages, or messages for the driver, and rejects settings that messages do
// not support.
func (s *Settings) completeMessages() error {
	switch carries := cards.CarriesMessages(s.Driver); {
	case !s.Message && !carries:
		return nil
	case s.Message && s.Driver == "auto":
		s.Driver = "efa"
	case s.Message && !carries:
		return process.Usagef("-proto %v: driver %s carries frames, not messages", s.Service, s.Driver)
	case !s.Message && s.Proto == probe.UDP:
		return process.Usagef("-proto udp: driver %s carries messages: use ud, srd, stamp-ud or stamp-srd", s.Driver)
	case !s.Message && s.Proto == probe.STAMP:
		s.setService(nic.STAMPUD)
	case !s.Message:
		s.setService(nic.EchoUD)
	}
	if s.Port == 0 {
		s.Port = handover.DefaultPort + uint16(s.Service)
	}
	switch {
	case s.Transport != "raw":
		return process.Usagef("-transport %s: messages go through the device itself", s.Transport)
	case s.VLAN != 0 || s.TOS() != 0 || s.TTL != 0 || s.Ports > 1 || s.Source.IsValid() || s.Gateway.IsValid() ||
		s.MAC != [6]byte{}:
		return process.Usagef("-vlan, -dscp, -ecn, -ttl, -source-ports, -source and -gateway apply to frames: a message has none of these")
	case !cards.IsPCIDevice(s.Iface):
		return process.Usagef("-iface %q: messages need an EFA: its RDMA device (rdmap0s6), its PCI address (0000:05:00.0), or vfio-user:PATH", s.Iface)
	}
	return nil
}

// Rows are all settings of a measurement that have a single value. The flags of bench run, the keys of -ab, help,
// manual page, completion and messages are derived from them, and so are the corresponding settings of rebound-watch.
// Rows sets the defaults in s.
func (s *Settings) Rows() []setting.Setting {
	s.Rates, s.Sizes = []float64{0}, []int{0}
	of := func(key, arg string, set func(string) error, doc string) setting.Setting {
		return setting.Func("probe."+key, "", set, doc).Flag("", arg)
	}
	return []setting.Setting{
		of("target", "HOST", s.setTarget,
			"HOST to measure: an IPv4 or IPv6 address, or a name; may be given without -target"),
		of("proto", "", s.setProto, "Protocol of the probes (default icmp; with driver efa ud):").OneOf(
			[]setting.Choice{
				{Name: "icmp", Doc: "echo"}, {Name: "udp", Doc: "echo"},
				{Name: "stamp", Doc: "RFC 8762, TWAMP-Light: loss by direction, where the reflector counts its packets"},
				{Name: "ud", Doc: "with driver efa: messages, unreliable datagrams"}, {Name: "srd", Doc: "with driver efa: messages, scalable reliable datagrams"},
				{Name: "stamp-ud", Doc: "test packets as messages of ud"},
				{Name: "stamp-srd", Doc: "test packets as messages of srd"}}),
		setting.Range("probe.port", &s.Port, 1, 65535, 0, "the protocol's own: 7 for udp, 862 for stamp",
			"UDP port of the target. With "+
				"driver efa it is the TCP port of the hand-over, 18515 for ud, 18516 for srd, 18517 and 18518 for STAMP."),
		of("rate", "N", func(v string) (err error) { s.Rates, err = ParseRates(v); return err },
			"open loop at N probes per second (500, 20k, 1.5M); several with commas are a sweep"),
		of("arrivals", "HOW", s.setArrivals,
			"HOW the probes of -rate are spread over time: periodic (default); poisson, whose times between probes are exponential (they see "+
				"averages over time, whatever the target does periodically); burst:N, N at once and then a pause; replay:FILE, as the packets of a pcap or pcapng file, at "+
				"their own mean rate without -rate"),
		of("size", "BYTES", func(v string) (err error) { s.Sizes, err = parseSizes(v); return err },
			"BYTES of the Ethernet frame, headers included, without the 4 bytes of FCS; several with commas are a sweep, rfc2544 is that document's list; "+
				"with driver efa of the message (default the smallest)"),
		of("iface", "INTERFACE", func(v string) error { s.Iface = v; return nil },
			"network INTERFACE to use (default where the route to the target leads); for a driver that drives the card itself, what that driver takes"),
		setting.OneOf("probe.driver", &s.Driver, "auto", names(cards.Senders()...),
			"The driver for raw frames. auto is afxdp where the bench has its own address, "+
				"and afpacket where the host uses the interface too:"),
		of("source", "IP", func(v string) (err error) { s.Source, err = parseAddr(v); return err },
			"IP address to send from; it may be one that the kernel does not have (default the kernel's choice)"),
		of("gateway", "IP", func(v string) (err error) { s.Gateway, err = parseAddr(v); return err },
			"IP address of the router to go through (default by the kernel's routes)"),
		setting.OneOf("probe.transport", &s.Transport, "raw", []setting.Choice{
			{Name: "raw", Doc: "frames, through a driver: needs CAP_NET_RAW, with afxdp also CAP_NET_ADMIN, CAP_BPF and CAP_PERFMON"},
			{Name: "socket", Doc: "kernel sockets; the round trip includes the kernel's network stack. UDP needs no permissions, ICMP a group within " +
				"net.ipv4.ping_group_range"},
		}, "How probes are sent:"),
		setting.Bool("probe.qdisc", &s.Qdisc, false,
			"Send raw frames through the interface's queueing discipline and egress filters (tc, netem), as sockets do. Needs "+
				"driver afpacket. Otherwise frames bypass them, and a warning says so if there are any."),
		setting.Parsed("probe.timeout", &s.Timeout, "1s", parseTimeout,
			"TIME after which a probe without a reply is overdue, \"1ms\" to \"1m\"; a reply that "+
				"comes later counts as late.").Flag("", "TIME"),
		of("responder_metrics", "URL", s.setResponder,
			"URL of the responder's metrics page: what it refused, and what its device dropped, is then no loss "+
				"between the hosts (default: unknown)"),
		setting.Range("probe.dscp", &s.DSCP, 0, 63, 0, "", "DSCP of the probes"),
		setting.Range("probe.ecn", &s.ECN, 0, 3, 0, "", "ECN field of the probes"),
		setting.Range("probe.ttl", &s.TTL, 1, 255, 0, "64", "TTL or hop limit of the probes"),
		setting.Range("probe.vlan", &s.VLAN, 1, 4094, 0, "no tag",
			"VLAN of the probes. Replies without its tag do not count. -size is without the tag."),
		setting.Range("probe.source_ports", &s.Ports, 1, 1024, 0, "1",
			"UDP source ports to rotate through. Paths that are chosen by a hash of the ports "+
				"(ECMP) all get probes."),
		setting.OneOf("probe.stamp_mode", &s.STAMP.Mode, "", names("", "unauthenticated", "authenticated"),
			"Mode of test packets (RFC 8762 §4.4). Empty: authenticated with -stamp-key."),
		of("stamp_key", "FILE", s.setKey,
			"FILE with the key of STAMP's HMACs: 64 hexadecimal digits (openssl rand -hex 32), readable only by its owner"),
		setting.Range("probe.stamp_ssid", &s.STAMP.SSID, 1, 65535, 0, "none",
			"identifier of the test session (RFC 8972 §3)"),
		of("stamp_zero_ssid", "", func(v string) error { s.STAMP.StopAtZero = v == "stop"; return nil },
			"What to do if the reflector zeroes the identifier (default keep):").OneOf(
			[]setting.Choice{{Name: "keep", Doc: "continue"}, {Name: "stop", Doc: "end the measurement"}}),
		of("stamp_tlv", "NAME+NAME...", s.setTLVs,
			"TLVs to put in test packets (RFC 8972 §4), NAME+NAME...: time, location, cos:DSCP (of the reply), direct, "+
				"followup, access:ID:CODE, hmac; with -size more, padding too"),
		of("clock_error", "TIME", s.setClockError,
			"maximum error of this host's clock, a TIME like 2us, if known (PTP): one-way delays are shown with it (default "+
				"reported by chronyd, ptp4l or else the kernel)"),
	}
}

// names are choices that need no description.
func names(all ...string) (choices []setting.Choice) {
	for _, n := range all {
		choices = append(choices, setting.Choice{Name: n})
	}
	return choices
}

// Default returns the default settings of a measurement, without a target.
func Default() Settings {
	var s Settings
	s.Rows()
	return s
}

// Set changes one setting by the name of its flag.
func (s *Settings) Set(key, value string) error {
	if key == "name" { // name of a variant, which is not a flag
		s.Name = value
		return nil
	}
	if key == "explain" { // its flag is for all variants
		on, err := strconv.ParseBool(value)
		if err != nil {
			return fmt.Errorf("explain: %q is not true or false", value)
		}
		s.Explain = on
		return nil
	}
	was := *s
	rows := setting.New(s.Rows()...)
	*s = was
	if r := rows.ByFlag(key); r != nil {
		if err := r.Assign(value); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		return nil
	}
	all := append([]string{"do", "explain", "name"}, rows.Flags()...)
	return fmt.Errorf("unknown setting %q%s: -ab accepts %s", key, setting.Meant("", key, all), strings.Join(all, ", "))
}

func (s *Settings) setTarget(value string) (err error) {
	s.Host, s.Target = "", netip.Addr{}
	if _, bad := netip.ParseAddr(value); bad == nil {
		s.Target, err = parseAddr(value)
	} else if s.Host = value; value == "" {
		err = errors.New("want an address or a name")
	}
	return err
}

func (s *Settings) setProto(value string) (err error) {
	s.Message = false
	if service, bad := nic.ParseService(value); bad == nil {
		s.setService(service)
		return nil
	}
	s.Proto, err = probe.ParseProto(value)
	return err
}

func (s *Settings) setArrivals(value string) (err error) {
	file, replay := strings.CutPrefix(value, "replay:")
	if !replay {
		s.Arrivals, err = schedule.ParseArrivals(value)
		return err
	}
	times, err := capture.ReadFile(file)
	if err == nil {
		s.Arrivals, err = schedule.Replay(filepath.Base(file), times)
	}
	if err != nil {
		err = fmt.Errorf("arrivals: %w", err)
	}
	return err
}

func (s *Settings) setResponder(value string) error {
	if !strings.HasPrefix(value, "http://") && !strings.HasPrefix(value, "https://") {
		return fmt.Errorf("%q: want a URL like http://10.0.0.2:9100/metrics", value)
	}
	s.Responder = value
	return nil
}

func parseTimeout(value string) (time.Duration, error) {
	d, err := ParseDuration(value)
	if err == nil && (d < time.Millisecond || d > time.Minute) {
		err = fmt.Errorf("%v is not 1ms to 1m", d)
	}
	return d, err
}

// STAMP has the settings of test packets other than their size.
type STAMP struct {
	Mode       string // "unauthenticated", "authenticated"; if empty, the latter with a key
	Key        stampkey.Key
	SSID       uint16
	Ask        []probe.Ask
	StopAtZero bool          // stop if the reflector zeroes the SSID (RFC 8972 §3)
	ClockError time.Duration // maximum error of this host's clock; 0 to determine it automatically
}

func (s *Settings) setKey(file string) (err error) {
	if s.STAMP.Key = (stampkey.Key{}); file != "" {
		s.STAMP.Key, err = stampkey.Read(file)
	}
	return err
}

func (s *Settings) setTLVs(value string) error {
	s.STAMP.Ask = nil
	for item := range strings.FieldsFuncSeq(value, func(r rune) bool { return r == '+' || r == ',' }) {
		a, err := probe.ParseAsk(item)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(s.STAMP.Ask, func(b probe.Ask) bool { return b.Type == a.Type }) {
			return fmt.Errorf("%v is given twice", a.Type)
		}
		s.STAMP.Ask = append(s.STAMP.Ask, a)
	}
	return nil
}

func (s *Settings) setClockError(value string) (err error) {
	if s.STAMP.ClockError, err = ParseDuration(value); err == nil && s.STAMP.ClockError == 0 {
		err = errors.New("want the maximum error of this host's clock, above zero, like 2us")
	}
	return err
}

// Packet describes the probes.
func (s *STAMP) Packet() probe.TestPacket {
	return probe.TestPacket{SSID: s.SSID, Key: s.Key.Bytes(), Ask: s.Ask,
		Authenticated: s.Mode == "authenticated" || s.Mode == "" && s.Key.Bytes() != nil}
}

// firstSet returns the name of a given setting that only applies to STAMP, or "".
func (s *STAMP) firstSet() string {
	switch {
	case s.Mode != "":
		return "-stamp-mode"
	case s.Key.Bytes() != nil:
		return "-stamp-key"
	case s.SSID != 0:
		return "-stamp-ssid"
	case s.Ask != nil:
		return "-stamp-tlv"
	case s.StopAtZero:
		return "-stamp-zero-ssid"
	}
	return ""
}

// completeSTAMP rejects settings that exclude each other.
func (s *Settings) completeSTAMP() error {
	p := s.STAMP.Packet()
	if name := s.STAMP.firstSet(); s.Proto != probe.STAMP && name != "" {
		return process.Usagef("%s: probes of %s are not test packets; use -proto stamp", name, s.Protocol())
	}
	hmac := slices.ContainsFunc(p.Ask, func(a probe.Ask) bool { return a.Type == probe.HMAC })
	switch {
	case p.Authenticated && p.Key == nil:
		return process.Usagef("-stamp-mode authenticated needs a key: -stamp-key FILE")
	case hmac && p.Key == nil:
		return process.Usagef("-stamp-tlv hmac needs a key: -stamp-key FILE")
	case s.STAMP.StopAtZero && p.SSID == 0:
		return process.Usagef("-stamp-zero-ssid stop: there is no SSID to zero; set -stamp-ssid")
	}
	return nil
}
