// Package targets determines the targets of a watch: from the command line, from a file, from files in the formats of
// Prometheus' file_sd, and from DNS like Prometheus' dns_sd.
package targets

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/internal/host/stampkey"
	"github.com/rebound-nic/rebound/latency/sanitize"
)

// Target is one watched target.
type Target struct {
	Proto  probe.Proto
	Host   string            // an address, or a name to be resolved
	Port   uint16            // UDP and STAMP; 0 for ICMP
	Labels map[string]string // of its metrics; nil for none

	Probes
	SSID uint16       // STAMP: the session identifier (RFC 8972 §3), 0 for none
	Key  stampkey.Key // STAMP: for the HMACs of the authenticated mode; none for the unauthenticated mode
}

// Probes are the properties of the probes to a target.
type Probes struct {
	Interval time.Duration // from one to the next
	Size     int           // bytes of the frame without FCS; 0 for the smallest
	DSCP     uint8

	SourcePorts int // UDP and STAMP: the number of source ports that the probes rotate through; 0 is one
}

// Name is the target as users write it: "icmp:10.0.0.2", "stamp:[fd00::2]:862". Targets with the same name are the
// same.
func (t Target) Name() string {
	host := t.Host
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if t.Proto == probe.ICMP {
		return t.Proto.String() + ":" + host
	}
	return fmt.Sprintf("%v:%s:%d", t.Proto, host, t.Port)
}

// Tag is a name for logs whose tags consist of letters, digits, '_' and '-': readable, and unique for each target name.
func (t Target) Tag() string {
	name := t.Name()
	h := uint32(2166136261) // FNV-1a
	clean := []byte(name)
	for i := range clean {
		h = (h ^ uint32(clean[i])) * 16777619
		if c := clean[i]; !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9') {
			clean[i] = '-'
		}
	}
	return fmt.Sprintf("%s-%08x", clean, h)
}

// Defaults apply to targets without these values.
type Defaults struct {
	Proto probe.Proto
	// 0 for that of the target, file_sd or DNS, and otherwise the protocol's default: 7 (RFC 862), 862 (RFC 8762)
	Port uint16
	SSID uint16 // for STAMP targets without one
	Key  stampkey.Key
	Probes
}

// Parse parses [PROTO:]HOST[:PORT]: "10.0.0.2", "udp:10.0.0.2:7", "stamp:[fd00::2]:862", "host.example".
func (d Defaults) Parse(text string) (Target, error) {
	t, err := d.parse(text)
	if err == nil {
		err = t.portless(text)
	}
	if err == nil && t.Proto == probe.ICMP && d.SourcePorts > 1 {
		err = fmt.Errorf("target %q: icmp has no ports to send from: use udp or stamp, or one source port", text)
	}
	if err != nil {
		return Target{}, err
	}
	return d.complete(t), nil
}

// portless rejects a port in an ICMP target that was written for this watch. file_sd and SRV records are shared with
// other readers: their port belongs to another service of the host, and ICMP ignores it.
func (t *Target) portless(text string) error {
	if t.Proto == probe.ICMP && t.Port != 0 {
		return fmt.Errorf("target %q: icmp has no ports: remove :%d, or use a protocol that has ports, as in %s", text,
			t.Port,
			Target{Proto: probe.UDP, Host: t.Host, Port: t.Port}.Name())
	}
	return nil
}

// parse is Parse without the defaults of the protocol, which labels may still change.
func (d Defaults) parse(text string) (Target, error) {
	t := Target{Proto: d.Proto, Probes: d.Probes}
	t.SourcePorts = 0 // until complete: a label on an ICMP target is an error
	rest := text
	if name, after, ok := strings.Cut(text, ":"); ok {
		if p, err := probe.ParseProto(name); err == nil {
			t.Proto, rest = p, after
		}
	}
	fail := func(format string, args ...any) (Target, error) {
		return Target{}, fmt.Errorf(
			"target %q: %s; want [PROTO:]HOST[:PORT], like 10.0.0.2, udp:10.0.0.2:7 or stamp:[fd00::2]:862", text,
			fmt.Sprintf(format, args...))
	}
	port := ""
	switch {
	case strings.HasPrefix(rest, "["):
		inner, after, ok := strings.Cut(rest[1:], "]")
		if !ok || after != "" && !strings.HasPrefix(after, ":") {
			return fail("the bracket is not closed, or something other than :PORT follows it")
		}
		if a, err := netip.ParseAddr(inner); err != nil || !a.Is6() {
			return fail("%q is not an IPv6 address", inner)
		}
		if t.Host = inner; after != "" {
			if port = after[1:]; port == "" {
				return fail("the port is missing")
			}
		}
	default:
		if _, err := netip.ParseAddr(rest); err == nil { // an IPv6 address has colons and no port
			t.Host = rest
			break
		}
		host, after, ok := strings.Cut(rest, ":")
		if ok && after == "" {
			return fail("the port is missing")
		}
		t.Host, port = host, after
	}
	if a, err := netip.ParseAddr(t.Host); err == nil {
		a = a.Unmap()
		if a.IsMulticast() || a.IsUnspecified() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
			return fail("%v is not the address of one host", a)
		}
		t.Host = a.String()
	} else if !hostname.MatchString(t.Host) || len(t.Host) > 253 {
		return fail("%q is neither an address nor a host name", t.Host)
	} else if digits.MatchString(t.Host) {
		return fail("%q is an incomplete address", t.Host)
	}
	if port != "" {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return fail("port %q is not 1 to 65535", port)
		}
		t.Port = uint16(n)
	}
	return t, nil
}

var (
	hostname = regexp.MustCompile(
		`^[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*\.?$`)
	digits = regexp.MustCompile(`^[0-9.]+$`)
	label  = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)
)

// complete fills in the port, and the values that a STAMP target does not specify.
func (d Defaults) complete(t Target) Target {
	if t.Proto == probe.STAMP {
		if t.SSID == 0 {
			t.SSID = d.SSID
		}
		if t.Key.Bytes() == nil {
			t.Key = d.Key
		}
	}
	if d.Port != 0 {
		t.Port = d.Port
	}
	if t.Proto != probe.ICMP && t.SourcePorts == 0 {
		t.SourcePorts = d.SourcePorts
	}
	switch {
	case t.Proto == probe.ICMP:
		t.Port = 0
	case t.Port == 0 && t.Proto == probe.UDP:
		t.Port = 7
	case t.Port == 0:
		t.Port = 862
	}
	return t
}

// reserved are the labels that the metrics themselves use.
var reserved = []string{"target", "proto", "direction", "kind", "stat", "source_port", "hop", "le", "quantile"}

// Bounds of a target's interval.
const (
	Fastest = 100 * time.Microsecond
	Slowest = 100 * time.Second
)

// MostSourcePorts bounds a target's source ports: each has its own metrics.
const MostSourcePorts = 64

// maxValue bounds a label's value, because each of a target's metrics has it.
const maxValue = 4 << 10

// setLabel adds a label. Its value is escaped, because metrics, logs and pages show it, and metrics must be UTF-8.
// Labels that start with two underscores are internal to Prometheus: __param_proto is the protocol, __param_interval
// the time between probes, __param_size and __param_dscp their size and DSCP, __param_source_ports the number of their
// source ports, __param_stamp_ssid the session identifier, __param_stamp_key the file of the key. For any other the
// error is an unknownLabel.
func (t *Target) setLabel(name, value string) error {
	switch {
	case name == "__param_stamp_ssid":
		n, err := strconv.ParseUint(value, 10, 16)
		if err != nil || n == 0 {
			return fmt.Errorf("label %s: %q is not 1 to 65535", name, value)
		}
		t.SSID = uint16(n)
	case name == "__param_stamp_key":
		k, err := stampkey.Read(value)
		if err != nil {
			return fmt.Errorf("label %s: %w", name, err)
		}
		t.Key = k
	case name == "__param_interval":
		i, err := time.ParseDuration(value)
		if err != nil || i < Fastest || i > Slowest {
			return fmt.Errorf("label %s: %q is not a time from %v to %v, like 500ms", name, value, Fastest, Slowest)
		}
		t.Interval = i
	case name == "__param_size":
		n, err := strconv.ParseUint(value, 10, 16)
		if err != nil {
			return fmt.Errorf("label %s: %q is not 0 to 65535", name, value)
		}
		t.Size = int(n)
	case name == "__param_dscp":
		n, err := strconv.ParseUint(value, 10, 6)
		if err != nil {
			return fmt.Errorf("label %s: %q is not 0 to 63", name, value)
		}
		t.DSCP = uint8(n)
	case name == "__param_source_ports":
		n, err := strconv.ParseUint(value, 10, 16)
		if err != nil || n == 0 || n > MostSourcePorts {
			return fmt.Errorf("label %s: %q is not 1 to %d", name, value, MostSourcePorts)
		}
		t.SourcePorts = int(n)
	case name == "__param_proto":
		p, err := probe.ParseProto(value)
		if err != nil {
			return fmt.Errorf("label __param_proto: %w", err)
		}
		t.Proto = p
	case strings.HasPrefix(name, "__"):
		return unknownLabel(name)
	case !label.MatchString(name):
		return fmt.Errorf("label %q: want letters, digits and underscores, not a digit first", name)
	case slices.Contains(reserved, name):
		return fmt.Errorf("label %q is used by the metrics: choose another name", name)
	default:
		if t.Labels == nil {
			t.Labels = map[string]string{}
		}
		if len(value) > maxValue {
			return fmt.Errorf("label %s: longer than %d bytes", name, maxValue)
		}
		t.Labels[name] = sanitize.Text(value)
	}
	return nil
}

// unknownLabel is a label with two underscores that setLabel does not know. In files of Prometheus' file_sd it belongs
// to another program, and is dropped.
type unknownLabel string

func (l unknownLabel) Error() string {
	return fmt.Sprintf("label %s is none of __param_proto, __param_interval, __param_size, __param_dscp, __param_source_ports, __param_stamp_ssid and __param_stamp_key", string(l))
}

// checkLabels rejects STAMP labels on a target of another protocol, and source ports on one that has none.
func (t *Target) checkLabels() error {
	if t.Proto == probe.ICMP && t.SourcePorts > 0 {
		return fmt.Errorf("target %q: icmp has no ports: __param_source_ports is for udp and stamp", t.Host)
	}
	if t.Proto != probe.STAMP && (t.SSID != 0 || t.Key.Bytes() != nil) {
		return fmt.Errorf("target %q: %v has neither session identifier nor key: __param_stamp_ssid and __param_stamp_key are for stamp", t.Host, t.Proto)
	}
	return nil
}

// Equal reports whether two targets with the same name also have the same labels and the same probes.
func (t Target) Equal(u Target) bool {
	return t.Name() == u.Name() && maps.Equal(t.Labels, u.Labels) && t.SameProbes(u)
}

// SameProbes reports whether the probes of two targets with the same name are the same.
func (t Target) SameProbes(u Target) bool {
	return t.Probes == u.Probes && t.SSID == u.SSID && bytes.Equal(t.Key.Bytes(), u.Key.Bytes())
}
