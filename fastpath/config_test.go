package fastpath

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/random"
)

func TestNewRefuses(t *testing.T) {
	p := netip.MustParsePrefix
	for want, change := range map[string]func(*Config){
		"mode 2":                                           func(c *Config) { c.Mode = 2 },
		"MAC 000000000000 is not a unicast":                func(c *Config) { c.MAC = [6]byte{} },
		"MAC 030000000001 is not a unicast":                func(c *Config) { c.MAC[0] = 3 },
		"no address":                                       func(c *Config) { c.Addresses = nil },
		"address 5 is not a valid prefix":                  func(c *Config) { c.Addresses = append(c.Addresses, netip.Prefix{}) },
		"10.1.2.3 is given twice":                          func(c *Config) { c.Addresses = append(c.Addresses, p("10.1.2.3/16")) },
		"fe80::1 is given twice":                           func(c *Config) { c.Addresses = append(c.Addresses, p("fe80::1/128")) },
		"224.0.0.1 is a multicast":                         func(c *Config) { c.Addresses[0] = p("224.0.0.1/32") },
		"ff02::1 is a multicast":                           func(c *Config) { c.Addresses[0] = p("ff02::1/128") },
		"127.0.0.1 is a loopback":                          func(c *Config) { c.Addresses[0] = p("127.0.0.1/8") },
		"::1 is a loopback":                                func(c *Config) { c.Addresses[0] = p("::1/128") },
		"0.0.0.0 is the unspecified":                       func(c *Config) { c.Addresses[0] = p("0.0.0.0/0") },
		":: is the unspecified":                            func(c *Config) { c.Addresses[0] = p("::/0") },
		"0.1.2.3 is reserved":                              func(c *Config) { c.Addresses[0] = p("0.1.2.3/8") },
		"255.255.255.255 is reserved":                      func(c *Config) { c.Addresses[0] = p("255.255.255.255/32") },
		"::2 is reserved":                                  func(c *Config) { c.Addresses[0] = p("::2/64") },
		"::ffff:10.0.0.1 is an IPv4 address in":            func(c *Config) { c.Addresses[0] = p("::ffff:10.0.0.1/128") },
		"10.9.0.255 is a broadcast address of 10.9.0.0/24": func(c *Config) { c.Addresses[0] = p("10.9.0.255/24") },
		"10.9.0.0 is a broadcast address of 10.9.0.0/24":   func(c *Config) { c.Addresses[0] = p("10.9.0.0/24") },
		"10.1.2.255 is a broadcast address of 10.1.2.0/24": func(c *Config) { c.Addresses[1] = p("10.1.2.255/16") },
		"UDP port 0":                                       func(c *Config) { c.UDPPorts = []uint16{0} },
		"UDP port 9000 is given":                           func(c *Config) { c.UDPPorts = []uint16{9000, 7, 9000} },
		"UDP port 862 is given":                            func(c *Config) { c.UDPPorts = []uint16{862} },
		"port 862 needs a clock":                           func(c *Config) { c.Clock = nil },
		"UDP port 862 needs a clock":                       func(c *Config) { c.Clock = new(atomic.Pointer[Clock]) },
		"VLAN 4095, expected 0":                            func(c *Config) { c.VLANs = []uint16{1, 4095} },
		"up to -1 bytes":                                   func(c *Config) { c.ChecksumBytes = -1 },
		"rate 5/s with burst 0 and 1000 ticks":             func(c *Config) { c.Rate, c.TicksPerSecond = 5, 1000 },
		"rate 5/s with burst 1 and 0 ticks":                func(c *Config) { c.Rate, c.Burst = 5, 1 },
		"is beyond a counter of 1000 ticks":                func(c *Config) { c.Rate, c.Burst, c.TicksPerSecond = 16_001, 1, 1000 },
		"rate 1/s with burst 1152921504606846976 ":         func(c *Config) { c.Rate, c.Burst, c.TicksPerSecond = 1, 1<<60, 1000 },
		"-1 STAMP sessions, expected 0 (stateless) to 1":   func(c *Config) { c.Reflector.Sessions = -1 },
		"over after 0 ticks":                               func(c *Config) { c.Reflector.Idle = 0 },
		"a STAMP key of 31 bytes, expected 32":             func(c *Config) { c.Reflector.Key = c.Reflector.Key[:31] },
		"authenticated STAMP on UDP port 8620 needs a key": func(c *Config) { c.Reflector.Key = nil },
		"UDP port 862 is given twice":                      func(c *Config) { c.Reflector.AuthPorts = []uint16{862} },
		"STAMP on UDP port 8620 needs a clock":             func(c *Config) { c.Clock, c.STAMPPorts = nil, nil },
		"33 addresses of one IP version": func(c *Config) {
			for i := range MaxAddresses - 1 {
				c.Addresses = append(c.Addresses, p(fmt.Sprintf("10.2.%d.1/24", i)))
			}
		},
	} {
		c := reflector(4)
		change(&c)
		r, err := New(c)
		if r != nil || !errors.Is(err, ErrConfig) || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// The rules for a program elsewhere are those of the configuration: an address, port or VLAN is in a set if and only if
// it is given, in a network's broadcast addresses, or where a service may answer.
func TestRules(t *testing.T) {
	c := config(Strict)
	c.UDPPorts, c.STAMPPorts, c.VLANs = []uint16{7, 9000, 65535}, []uint16{862, 4096}, []uint16{0, 63, 4094}
	c.Rate, c.Burst, c.TicksPerSecond, c.Loop = 1000, 10, 1_000_000, 5
	c.Addresses = nil
	for _, a := range []string{"10.1.2.3/24", "10.1.2.4/24", "10.2.0.1/30", "10.3.0.0/31", "10.4.0.9/32",
		"2001:db8::1/64", "fe80::1/64"} {
		c.Addresses = append(c.Addresses, netip.MustParsePrefix(a))
	}
	r := must.Get(c.Rules())(t)
	want4 := []string{"10.1.2.3", "10.1.2.4", "10.2.0.1", "10.3.0.0", "10.4.0.9"}
	address := func(a uint32) string { return netip.AddrFrom4([4]byte(le.AppendUint32(nil, a))).String() }
	names := func(all []uint32) (s []string) {
		for _, a := range all {
			s = append(s, address(a))
		}
		slices.Sort(s)
		return s
	}
	check.Same(t, names(r.Own4), want4, "our addresses are %v, want %v")
	want4 = append(want4, "10.1.2.0", "10.1.2.255", "10.2.0.0", "10.2.0.3")
	slices.Sort(want4)
	check.Same(t, names(r.Not4), want4, "no sources are %v, want %v")
	var own6 []string
	for _, a := range r.Own6 {
		own6 = append(own6, netip.AddrFrom16([16]byte(le.AppendUint64(le.AppendUint64(nil, a[0]), a[1]))).String())
	}
	slices.Sort(own6)
	check.Same(t, own6, []string{"2001:db8::1", "fe80::1"}, "our addresses are %v, want %v")
	for p := range 1 << 16 {
		own := slices.Contains([]int{7, 9000, 65535, 862, 4096}, p)
		loaded := p>>8 | p&0xff<<8 // as a little-endian machine loads it
		in := func(set *[1 << 16 / 64]uint64) bool { return set[loaded/64]>>(loaded%64)&1 != 0 }
		if in(&r.Echo) != slices.Contains(c.UDPPorts, uint16(p)) ||
			in(&r.STAMP) != slices.Contains(c.STAMPPorts, uint16(p)) ||
			in(&r.Service) != (own || p < 1024 || slices.Contains(servicePorts[:], uint16(p))) {
			t.Errorf("port %d is in the sets: %t, %t, %t", p, in(&r.Echo), in(&r.STAMP), in(&r.Service))
		}
		if p < 4096 && (r.VLANs[p/64]>>(p%64)&1 != 0) != slices.Contains(c.VLANs, uint16(p)) {
			t.Errorf("VLAN %d is in the set, or missing", p)
		}
	}
	const tick = 16
	check.Equal(t, fmt.Sprint(r.ChecksumBytes, r.Cost, r.Burst, r.Most, r.Idle, r.Loop, r.Window),
		fmt.Sprint(100, 1000*tick, 9*1000*tick, 10*1000*tick, 600*1_000_000*tick, 5, 10_000), "limits %s")

	for want, change := range map[string]func(*Config){
		"stateful STAMP reflector": func(c *Config) { c.Reflector.Sessions = 1 },
		"authenticated mode":       func(c *Config) { c.Reflector.AuthPorts = []uint16{1} },
		"STAMP's TLVs":             func(c *Config) { c.Reflector.TLVs = true },
		"mode 2":                   func(c *Config) { c.Mode = 2 },
	} {
		c := c
		change(&c)
		check.Fails(t, want, check.Err(c.Rules()), ErrConfig, want)
	}
}

// The tables are exact for any addresses, up to the maximum number of each IP version, and know the broadcast addresses
// of their subnets.
func TestAddressTables(t *testing.T) {
	rnd := random.New(t)
	for range 40 {
		c := Config{MAC: ourMAC}
		for i := range MaxAddresses {
			b := le.AppendUint64(nil, 0x20|rnd.Uint64()<<8)
			b = le.AppendUint64(b, rnd.Uint64N(1<<(1+rnd.IntN(63))))
			c.Addresses = append(c.Addresses, netip.PrefixFrom(netip.AddrFrom16([16]byte(b)), 64),
				netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(rnd.Uint32()), byte(i), 1}), 24))
		}
		r := responder(t, c)
		for _, p := range c.Addresses {
			for _, change := range []byte{0, 1, 0x80, 1 ^ 0xff} { // to a subnet's first and last, too
				b := p.Addr().AsSlice()
				b[len(b)-1] ^= change
				a, _ := netip.AddrFromSlice(b)
				packets := [][]byte{icmp6(their6, a, 64, echo(128, 56)),
					icmp6(a, c.Addresses[0].Addr(), 64, echo(128, 56))}
				if a.Is4() {
					packets = [][]byte{icmp4(their4, a, 56), icmp4(a, c.Addresses[1].Addr(), 56)}
				}
				for _, packet := range packets {
					must.OK(t, judge(&c, r, r, toUs(0, packet)))
				}
			}
		}
	}
}
