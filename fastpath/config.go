package fastpath

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
)

// ErrConfig is wrapped by every error of New.
var ErrConfig = errors.New("cannot answer")

// MaxAddresses is how many addresses of each IP version a Responder can have.
const MaxAddresses = 32

const (
	slots4, shift4 = 1024, 22 // own4 and not4: slots, and the bits of a hash below its slot number
	slots6, shift6 = 256, 56
)

// New returns a Responder, or an error that names the address, port or field that cannot be used.
func New(c Config) (*Responder, error) {
	if c.Mode > Open {
		return nil, fmt.Errorf("%w: mode %d, expected Strict (%d) or Open (%d)", ErrConfig, c.Mode, Strict, Open)
	}
	if c.MAC == [6]byte{} || c.MAC[0]&1 != 0 {
		return nil, fmt.Errorf("%w: MAC %x is not a unicast address", ErrConfig, c.MAC)
	}
	r := &Responder{
		mode:       c.Mode,
		open:       c.Mode == Open,
		partial:    c.PartialChecksums,
		stampPorts: slices.Clone(c.STAMPPorts),
		stampLeast: stampLength,
		clock:      c.Clock,
		macAddress: c.MAC,
	}
	if c.STAMPBase {
		r.stampLeast = stampSender
	}
	r.mac = le.Uint64(append([]byte{0, 0}, c.MAC[:]...))
	r.macTagged = r.mac
	if err := r.setVLANs(c.VLANs); err != nil {
		return nil, err
	}
	r.skip.macs, r.skip.hosts, r.skip.hops = r.open, r.open, r.open
	if err := r.setGuards(&c); err != nil {
		return nil, err
	}
	if err := r.setPorts(&c); err != nil {
		return nil, err
	}
	if err := r.setReflector(&c); err != nil {
		return nil, err
	}
	if err := r.setAddresses(c.Addresses); err != nil {
		return nil, err
	}
	return r, nil
}

// Ports are all UDP ports that the Responder answers.
func (c *Config) Ports() []uint16 {
	return slices.Concat(c.UDPPorts, c.STAMPPorts, c.Reflector.AuthPorts)
}

// setPorts fills in the port sets of UDP echo and STAMP. An error wraps ErrConfig: a port is 0 or given twice, or
// STAMP has no clock.
func (r *Responder) setPorts(c *Config) error {
	var seen portSet
	for _, p := range c.Ports() {
		if p == 0 {
			return fmt.Errorf("%w: UDP port 0", ErrConfig)
		}
		if seen.has(p) {
			return fmt.Errorf("%w: UDP port %d is given twice", ErrConfig, p)
		}
		seen.add(p)
	}
	if stamp := slices.Concat(c.STAMPPorts, c.Reflector.AuthPorts); len(stamp) > 0 &&
		(c.Clock == nil || c.Clock.Load() == nil) {
		return fmt.Errorf("%w: STAMP on UDP port %d needs a clock", ErrConfig, stamp[0])
	}
	for _, p := range c.UDPPorts {
		r.echo.add(p)
	}
	if c.Reflector.Sessions == 0 {
		for _, p := range c.STAMPPorts {
			r.reflects.add(p)
		}
	}
	if r.stampMost = math.MaxInt; c.Reflector.TLVs {
		r.stampMost = stampBase
	}
	if r.open {
		return nil
	}
	r.service = seen // two responders would answer each other endlessly
	for p := range uint16(systemPorts) {
		r.service.add(p)
	}
	for _, p := range servicePorts {
		r.service.add(p)
	}
	return nil
}

func (r *Responder) setVLANs(ids []uint16) error {
	if ids == nil {
		for i := range r.vlans {
			r.vlans[i] = ^uint64(0)
		}
		return nil
	}
	for _, id := range ids {
		if id >= 4095 { // IEEE 802.1Q table 9-2
			return fmt.Errorf("%w: VLAN %d, expected 0 (untagged) to 4094", ErrConfig, id)
		}
		r.vlans[id>>6] |= 1 << (id & 63)
	}
	if !r.vlan(0) { // Slow refuses untagged frames: no MAC is all ones in eight bytes
		r.mac = ^uint64(0)
		if r.open { // Open does not check it
			r.open, r.macTagged = false, r.mac
		}
	}
	return nil
}

func (r *Responder) setGuards(c *Config) error {
	if c.ChecksumBytes < 0 {
		return fmt.Errorf("%w: checksums of packets of up to %d bytes, expected 0 or more", ErrConfig, c.ChecksumBytes)
	}
	if c.Mode == Open {
		r.repeats.set(0, 0)
		return r.limit.set(0, 0, 0)
	}
	if c.Loop != 0 && c.TicksPerSecond == 0 {
		return fmt.Errorf("%w: loops of %d equal datagrams with 0 ticks a second, expected more", ErrConfig, c.Loop)
	}
	r.repeats.set(c.Loop, c.TicksPerSecond)
	r.checksumBytes, r.unverified = c.ChecksumBytes, c.ChecksumBytes-27
	return r.limit.set(c.Rate, c.Burst, c.TicksPerSecond)
}

// setAddresses checks the addresses and compiles them into the form in which packets have them. An error wraps
// ErrConfig and names the address.
func (r *Responder) setAddresses(prefixes []netip.Prefix) error {
	if len(prefixes) == 0 {
		return fmt.Errorf("%w: no address", ErrConfig)
	}
	var own4, broadcasts []uint32
	var own6 []ip6
	for i, p := range prefixes {
		a := p.Addr()
		if !p.IsValid() {
			return fmt.Errorf("%w: address %d is not a valid prefix", ErrConfig, i+1)
		}
		if slices.ContainsFunc(prefixes[:i], func(q netip.Prefix) bool { return q.Addr() == a }) {
			return fmt.Errorf("%w: address %s is given twice", ErrConfig, a)
		}
		if why := unusable(a); why != "" {
			return fmt.Errorf("%w: address %s %s", ErrConfig, a, why)
		}
		if a.Is6() {
			b := a.As16()
			own6 = append(own6, ip6{le.Uint64(b[:8]), le.Uint64(b[8:])})
			continue
		}
		b := a.As4()
		own4 = append(own4, le.Uint32(b[:]))
		if p.Bits() <= 30 { // in a /31 both addresses are hosts (RFC 3021)
			for _, e := range ends(p) {
				for _, q := range prefixes {
					if q.Addr() == e {
						return fmt.Errorf("%w: address %s is a broadcast address of %s", ErrConfig, e, p.Masked())
					}
				}
				b := e.As4()
				broadcasts = append(broadcasts, le.Uint32(b[:]))
			}
		}
	}
	if n := max(len(own4), len(own6)); n > MaxAddresses {
		return fmt.Errorf("%w: %d addresses of one IP version, the most is %d", ErrConfig, n, MaxAddresses)
	}
	not4 := append(slices.Clone(own4), broadcasts...)
	slices.Sort(not4)
	return errors.Join(r.place4(own4, slices.Compact(not4)), r.place6(own6))
}

// unusable returns the reason why no Ethernet host can have address a, "" if one can.
func unusable(a netip.Addr) string {
	b := a.As16()
	switch {
	case a.Is4In6():
		return "is an IPv4 address in an IPv6 form"
	case a.Zone() != "":
		return "has a zone"
	case a.IsUnspecified():
		return "is the unspecified address"
	case a.IsLoopback():
		return "is a loopback address"
	case a.IsMulticast():
		return "is a multicast address"
	case a.Is4() && (b[12] == 0 || b[12] >= 240), a.Is6() && le.Uint64(b[:8]) == 0:
		return "is reserved"
	}
	return ""
}

// ends returns the directed broadcast address of an IPv4 prefix and its obsolete form, the network's own address (RFC
// 1122 §3.2.1.3).
func ends(p netip.Prefix) [2]netip.Addr {
	first := p.Masked().Addr()
	b := first.As4()
	be.PutUint32(b[:], be.Uint32(b[:])|uint32(1<<(32-p.Bits())-1))
	return [2]netip.Addr{netip.AddrFrom4(b), first}
}

// place4 finds a multiplier under which no two addresses of not4, which includes those of own4, share a slot, and fills
// the tables. With at most 3*MaxAddresses of them in 1024 slots, one multiplier in a hundred does.
//
// An empty slot has an address whose slot is another one, so that looking it up never succeeds: 0, whose slot is the
// first, and in the first slot 1.
func (r *Responder) place4(own4, not4 []uint32) error {
	for i := range uint32(1 << 16) {
		r.mul4 = (i*0x9e37_79b9 + 0x7f4a_7c15) | 1
		if used := [slots4]bool{}; r.mul4>>shift4 != 0 && !slices.ContainsFunc(not4, func(a uint32) bool {
			s := a * r.mul4 >> shift4
			taken := used[s]
			used[s] = true
			return taken
		}) {
			r.own4[0], r.not4[0] = 1, 1
			for _, a := range own4 {
				r.own4[a*r.mul4>>shift4] = a
			}
			for _, a := range not4 {
				r.not4[a*r.mul4>>shift4] = a
			}
			return nil
		}
	}
	return fmt.Errorf("%w: %d IPv4 addresses and broadcast addresses do not fit the table", ErrConfig, len(not4))
}

// place6 is place4 for IPv6, which has no broadcast addresses.
func (r *Responder) place6(own6 []ip6) error {
	for i := range uint64(1 << 16) {
		r.mul6 = (i*0x9e37_79b9_7f4a_7c15 + 0xbf58_476d_1ce4_e5b9) | 1
		if used := [slots6]bool{}; r.mul6>>shift6 != 0 && !slices.ContainsFunc(own6, func(a ip6) bool {
			s := (a.hi + a.lo*r.mul6) * r.mul6 >> shift6
			taken := used[s]
			used[s] = true
			return taken
		}) {
			r.own6[0] = ip6{hi: 1}
			for _, a := range own6 {
				r.own6[(a.hi+a.lo*r.mul6)*r.mul6>>shift6] = a
			}
			return nil
		}
	}
	return fmt.Errorf("%w: %d IPv6 addresses do not fit the table", ErrConfig, len(own6))
}
