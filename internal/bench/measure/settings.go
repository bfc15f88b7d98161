package measure

import (
	"context"
	"fmt"
	"math"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/internal/cards"
	"github.com/rebound-nic/rebound/internal/host/handover"
	"github.com/rebound-nic/rebound/internal/host/process"
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
