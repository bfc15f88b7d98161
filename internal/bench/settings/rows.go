package settings

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/internal/cards"
	"github.com/rebound-nic/rebound/internal/host/setting"
	"github.com/rebound-nic/rebound/nic"
)

// Row is one setting of a measurement. The flag of bench run, the key of -ab, help, manual page, completion and messages follow from it,
// and so do the keys of bench watch that mean the same.
type Row struct {
	Name    string   // of the flag and the key
	Doc     string   // help, with the name of the value in backquotes
	Default string   // as help shows it; empty if Doc says it or there is none
	Values  []string // for completion

	low, high int // the range of an integer
	set       func(s *Settings, value string) error
}

// Rows are all settings of a measurement that one value each chooses.
var Rows = []Row{
	{Name: "target", Doc: "`HOST` to measure: an IPv4 or IPv6 address, or a name; may be given without -target", set: (*Settings).setTarget},
	{Name: "proto", Values: []string{"icmp", "udp", "stamp", "ud", "srd", "stamp-ud", "stamp-srd"}, set: (*Settings).setProto,
		Doc: "`PROTOCOL` to ask for: icmp (echo), udp (echo), or stamp (RFC 8762, TWAMP-Light) (default icmp); with driver efa the\n" +
			"transport of messages, ud or srd, or stamp-ud, stamp-srd (default ud)"},
	integer("port", 1, 65535, "", "UDP `PORT` of the target (default 7 for udp, 862 for stamp); with driver efa the TCP port of its hand-over (default\n"+
		"18515 for ud, 18516 for srd, 18517 and 18518 for STAMP)", func(s *Settings) *uint16 { return &s.Port }),
	{Name: "rate", Doc: "open loop at `N` probes per second (500, 20k, 1.5M); several with commas are a sweep",
		set: func(s *Settings, v string) (err error) { s.Rates, err = ParseRates(v); return err }},
	{Name: "size", Values: []string{"rfc2544"}, Doc: "`BYTES` of the Ethernet frame, headers included, without the 4 bytes of FCS; several with commas are a sweep,\n" +
		"rfc2544 is that document's list; with driver efa of the message (default the smallest)",
		set: func(s *Settings, v string) (err error) { s.Sizes, err = parseSizes(v); return err }},
	{Name: "iface", Doc: "network `INTERFACE` to use (default where the route to the target leads); for a driver that drives the card\n" +
		"itself, what that driver takes", set: func(s *Settings, v string) error { s.Iface = v; return nil }},
	{Name: "driver", Values: cards.Drivers(), Default: "auto", Doc: "`DRIVER` for raw frames, of " + strings.Join(cards.Drivers(), ", ") +
		"; auto takes afxdp where the bench has its own address,\nand afpacket where the host uses the interface too",
		set: func(s *Settings, v string) error { s.Driver = v; return oneOf("driver", v, cards.Drivers()) }},
	{Name: "source", Doc: "`IP` address to send from; it may be one that the kernel does not have (default the kernel's choice)",
		set: func(s *Settings, v string) (err error) { s.Source, err = parseAddr(v); return err }},
	{Name: "gateway", Doc: "`IP` address of the router to go through (default by the kernel's routes)",
		set: func(s *Settings, v string) (err error) { s.Gateway, err = parseAddr(v); return err }},
	{Name: "transport", Values: []string{"raw", "socket"}, Default: "raw", Doc: "`HOW` to send: raw frames, or the kernel's own socket for hosts without the right to raw frames",
		set: func(s *Settings, v string) error {
			s.Transport = v
			return oneOf("transport", v, []string{"raw", "socket"})
		}},
	{Name: "timeout", Default: "1s", Doc: "`DURATION` after which a probe without a reply is overdue; a reply that comes later counts as late",
		set: func(s *Settings, v string) (err error) { s.Timeout, err = ParseTimeout(v); return err }},
	{Name: "responder-metrics", Doc: "`URL` of the responder's metrics page: what it refused, and what its device dropped, is then no loss between the hosts\n" +
		"(default: nothing is known of that)", set: (*Settings).setResponder},
	integer("dscp", 0, 63, "0", "DSCP of the probes", func(s *Settings) *uint8 { return &s.DSCP }),
	integer("ecn", 0, 3, "0", "ECN field of the probes", func(s *Settings) *uint8 { return &s.ECN }),
	integer("ttl", 1, 255, "64", "TTL or hop limit of the probes", func(s *Settings) *uint8 { return &s.TTL }),
	integer("vlan", 1, 4094, "", "send in a tag of this VLAN, `1-4094`, and take replies in it only; -size is without the tag", func(s *Settings) *uint16 { return &s.VLAN }),
	integer("source-ports", 1, 1024, "1", "UDP source ports to send from in turn, `1-1024`: paths that are chosen by a hash of the ports (ECMP) all get probes",
		func(s *Settings) *int { return &s.Ports }),
	{Name: "stamp-mode", Values: []string{"unauthenticated", "authenticated"}, set: (*Settings).setMode,
		Doc: "mode of test packets, unauthenticated or authenticated `(RFC 8762 §4.4)` (default authenticated with -stamp-key)"},
	{Name: "stamp-key", Doc: "`FILE` with the key of STAMP's HMACs: 64 hexadecimal digits (openssl rand -hex 32), for its owner's eyes only", set: (*Settings).setKey},
	integer("stamp-ssid", 1, 65535, "none", "identifier of the test session, `1-65535` (RFC 8972 §3)", func(s *Settings) *uint16 { return &s.STAMP.SSID }),
	{Name: "stamp-zero-ssid", Values: []string{"keep", "stop"}, Default: "keep", Doc: "what to do where the reflector zeroes that: `keep` on, or stop",
		set: func(s *Settings, v string) error {
			s.STAMP.StopAtZero = v == "stop"
			return oneOf("stamp-zero-ssid", v, []string{"keep", "stop"})
		}},
	{Name: "stamp-tlv", set: (*Settings).setTLVs, Doc: "TLVs to put in test packets (RFC 8972 §4), `NAME+NAME...`: time, location, cos:DSCP (of the reply), direct, followup,\n" +
		"access:ID:CODE, hmac; with -size more, padding too"},
	{Name: "clock-error", set: (*Settings).setClockError, Doc: "maximum error of this host's clock, a `TIME` like 2us, if known (PTP): one-way delays are shown with\n" +
		"it (default what chronyd or ptp4l says, or else the kernel)"},
}

// integer makes the row of a number from low to high. Where doc names no value, it is the range.
func integer[T uint8 | uint16 | int](name string, low, high int, def, doc string, to func(*Settings) *T) Row {
	return Row{Name: name, Doc: doc, Default: def, low: low, high: high, set: func(s *Settings, value string) error {
		n, err := strconv.Atoi(value)
		if err != nil || n < low || n > high {
			return fmt.Errorf("%s %q: want %d to %d", name, value, low, high)
		}
		*to(s) = T(n)
		return nil
	}}
}

func oneOf(name, value string, all []string) error {
	if !slices.Contains(all, value) {
		return fmt.Errorf("%s %q: want one of %s", name, value, strings.Join(all, ", "))
	}
	return nil
}

// find returns the row of that name, nil if there is none.
func find(name string) *Row {
	i := slices.IndexFunc(Rows, func(r Row) bool { return r.Name == name })
	if i < 0 {
		return nil
	}
	return &Rows[i]
}

// Flags makes a flag of each setting.
func (s *Settings) Flags(fs *flag.FlagSet) {
	for i := range Rows {
		r := &Rows[i]
		fs.Func(r.Name, r.usage(), func(v string) error { return r.set(s, v) })
	}
}

func (r *Row) usage() string {
	text := r.Doc
	if r.high > 0 && !strings.Contains(text, "`") {
		text += fmt.Sprintf(", `%d-%d`", r.low, r.high)
	}
	if r.Default != "" {
		text += " (default " + r.Default + ")"
	}
	return text
}

// Values are what each setting takes that takes one of a few, for completion.
func Values() map[string][]string {
	all := map[string][]string{}
	for _, r := range Rows {
		if r.Values != nil {
			all[r.Name] = r.Values
		}
	}
	return all
}

// Integer makes the setting of a file that means the same as the row of that name: an integer in its range, or 0 for the default.
func Integer(key string, to *int, name string) setting.Setting {
	r := find(name)
	doc := fmt.Sprintf("%s, %d to %d", r.Doc, r.low, r.high)
	if r.low > 0 {
		doc += "; 0 is " + r.Default
	}
	return setting.Int(key, to, 0, func(n int) error {
		if n != 0 && n < r.low || n > r.high {
			return fmt.Errorf("%d is not %d to %d", n, min(0, r.low), r.high)
		}
		return nil
	}, doc+".")
}

// Set changes one setting by the name of its flag.
func (s *Settings) Set(key, value string) error {
	if key == "name" { // of a variant: no flag
		s.Name = value
		return nil
	}
	if r := find(key); r != nil {
		return r.set(s, value)
	}
	names := []string{"do", "name"}
	for _, r := range Rows {
		names = append(names, r.Name)
	}
	return fmt.Errorf("no setting %q: -ab takes %s", key, strings.Join(names, ", "))
}

func (s *Settings) setTarget(value string) (err error) {
	s.Host, s.Target = "", netip.Addr{}
	if _, bad := netip.ParseAddr(value); bad == nil {
		s.Target, err = parseAddr(value)
	} else if s.Host = value; value == "" {
		err = errors.New("target: an address or a name")
	}
	return err
}

func (s *Settings) setProto(value string) (err error) {
	s.Message = false
	if service, bad := nic.ParseService(value); bad == nil {
		s.setService(service)
		return nil
	}
	if s.Proto, err = probe.ParseProto(value); err != nil {
		err = fmt.Errorf("protocol %q: want icmp, udp or stamp; or ud, srd, stamp-ud or stamp-srd, of messages", value)
	}
	return err
}

func (s *Settings) setResponder(value string) error {
	if !strings.HasPrefix(value, "http://") && !strings.HasPrefix(value, "https://") {
		return fmt.Errorf("responder-metrics %q: want a URL like http://10.0.0.2:9100/metrics", value)
	}
	s.Responder = value
	return nil
}

// ParseTimeout reads how long a reply may take.
func ParseTimeout(value string) (time.Duration, error) {
	d, err := ParseDuration(value)
	if err == nil && (d < time.Millisecond || d > time.Minute) {
		err = fmt.Errorf("timeout %v: want 1ms to 1m", d)
	}
	return d, err
}
