package main

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"rebound/cmd/bench/probe"
	"rebound/cmd/internal/device"
)

// settings are what one measured series of probes is made of: all that -ab may vary.
type settings struct {
	name      string
	target    netip.Addr
	proto     probe.Proto
	port      uint16
	rates     []float64 // probes per second; {0} is the closed loop
	sizes     []int     // bytes without FCS; {0} is the smallest
	iface     string
	driver    string
	source    netip.Addr
	gateway   netip.Addr
	mac       [6]byte // the next hop's, where it is known; zero to ask for it
	transport string  // "raw", "socket"
	timeout   time.Duration
}

// set changes one setting by the name of its flag.
func (s *settings) set(key, value string) (err error) {
	switch key {
	case "name":
		s.name = value
	case "target":
		s.target, err = parseAddr(value)
	case "proto":
		s.proto, err = probe.ParseProto(value)
	case "port":
		var n uint64
		if n, err = strconv.ParseUint(value, 10, 16); err != nil || n == 0 {
			return fmt.Errorf("port %q: want 1 to 65535", value)
		}
		s.port = uint16(n)
	case "rate":
		s.rates, err = parseRates(value)
	case "size":
		s.sizes, err = parseSizes(value)
	case "iface":
		s.iface = value
	case "driver":
		if !slices.Contains(device.Drivers(), value) {
			return fmt.Errorf("driver %q: want one of %s", value, strings.Join(device.Drivers(), ", "))
		}
		s.driver = value
	case "source":
		s.source, err = parseAddr(value)
	case "gateway":
		s.gateway, err = parseAddr(value)
	case "transport":
		if value != "raw" && value != "socket" {
			return fmt.Errorf("transport %q: want raw or socket", value)
		}
		s.transport = value
	case "timeout":
		s.timeout, err = time.ParseDuration(value)
		if err == nil && (s.timeout < time.Millisecond || s.timeout > time.Minute) {
			err = fmt.Errorf("timeout %v: want 1ms to 1m", s.timeout)
		}
	default:
		err = fmt.Errorf("no setting %q: -ab takes name, target, proto, port, rate, size, iface, driver, source, gateway, transport, timeout", key)
	}
	return err
}

// vary returns a copy with the settings of an -ab value, "target=10.0.0.2" or "name=big,size=1514".
func (s settings) vary(list string) (settings, error) {
	for item := range strings.SplitSeq(list, ",") {
		key, value, ok := strings.Cut(item, "=")
		if !ok {
			return s, fmt.Errorf("%q in -ab %q: want key=value", item, list)
		}
		if err := s.set(key, value); err != nil {
			return s, fmt.Errorf("-ab %q: %w", list, err)
		}
	}
	if len(s.rates) != 1 || len(s.sizes) != 1 {
		return s, fmt.Errorf("-ab %q: one rate and one size each", list)
	}
	if s.name == "" {
		s.name = list
	}
	return s, nil
}

func parseAddr(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err != nil {
		return a, fmt.Errorf("%q is no IP address", s)
	}
	a = a.Unmap()
	if a.IsMulticast() || a.IsUnspecified() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return a, fmt.Errorf("%v is no address of one host", a)
	}
	return a, nil
}

// parseRates reads "1000", "50k,100k,1M".
func parseRates(s string) ([]float64, error) {
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
		if v *= unit; err != nil || math.IsNaN(v) || v < 0.01 || v > 200e6 {
			return nil, fmt.Errorf("rate %q: want probes per second, 0.01 to 200M, like 500, 20k or 1.5M", item)
		}
		out = append(out, v)
	}
	return out, nil
}

// rfc2544 are the frame sizes of RFC 2544 §9.1, without the four bytes of FCS that it counts.
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
