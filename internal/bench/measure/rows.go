package measure

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"github.com/rebound-nic/rebound/internal/bench/capture"
	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/internal/cards"
	"github.com/rebound-nic/rebound/internal/host/setting"
	"github.com/rebound-nic/rebound/latency/schedule"
	"github.com/rebound-nic/rebound/nic"
)

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
	was := *s
	rows := setting.New(s.Rows()...)
	*s = was
	if r := rows.ByFlag(key); r != nil {
		if err := r.Assign(value); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		return nil
	}
	all := append([]string{"do", "name"}, rows.Flags()...)
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
