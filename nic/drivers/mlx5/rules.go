package mlx5

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/nic"
)

// rule selects frames whose bits equal value where mask has ones. Both are match parameters (PRM, Flow Table Match
// Parameters).
type rule struct {
	what     string // "UDP port 7 of 10.0.0.2"
	v6, udp  bool
	criteria uint8 // the parts of the parameters that are used: criteriaXxx
	mask     message
	value    message
}

// Parts of the match parameters, as match_criteria_enable names them, and their positions.
const (
	criteriaOuter = 1 << 0
	criteriaMisc3 = 1 << 4

	matchOuterSize = 0x40
	misc3          = 0x100
	matchMisc3Size = misc3 + 0x40

	// Parser capabilities (flex_parser_protocols).
	parserICMP4 = 1 << 8
	parserICMP6 = 1 << 9

	protoICMP4 = 1
	protoICMP6 = 58
	typeEcho4  = 8 // types of echo requests
	typeEcho6  = 128
	typeReply4 = 0 // and of replies
	typeReply6 = 129
)

// with adds a field to a rule. Its position is that in fte_match_param.
func (r *rule) with(name string, off, hi, lo int, v uint32) {
	r.mask.set(name, off, hi, lo, ^uint32(0)>>(31-hi+lo))
	r.value.set(name, off, hi, lo, v)
}

// matching is what a card's rules can match.
type matching struct {
	parser uint32 // protocols that the parser knows: parserXxx
	// the IP version. Without it rules match the EtherType, also with queue pairs for raw packets, where it is unknown
	ipVersion bool
}

// rule selects frames to one of our addresses in a protocol, except fragments, because later fragments have no port.
func (m matching) rule(what string, mac [6]byte, to netip.Addr, protocol uint32, vlan int, criteria uint8) *rule {
	size := matchOuterSize
	if criteria&criteriaMisc3 != 0 {
		size = matchMisc3Size
	}
	r := &rule{what: what, v6: to.Is6(), udp: protocol == protoUDP, criteria: criteria, mask: make(message, size),
		value: make(message, size)}
	copy(r.mask[0x08:], broadcast[:])
	copy(r.value[0x08:], mac[:])
	version, kind, address := uint32(4), uint32(etherTypeV4), to.AsSlice()
	if r.v6 {
		version, kind = 6, etherTypeV6
	}
	if m.ipVersion {
		r.with("ip_version", 0x10, 12, 9, version)
	} else {
		r.with("ethertype", 0x04, 15, 0, kind)
	}
	r.with("frag", 0x10, 13, 13, 0)
	r.with("ip_protocol", 0x10, 31, 24, protocol)
	copy(r.mask[0x40-len(address):0x40], bytes.Repeat([]byte{0xFF}, len(address)))
	copy(r.value[0x40-len(address):], address)
	switch {
	case vlan == anyVLAN:
	case vlan == 0:
		r.with("cvlan_tag", 0x10, 15, 15, 0)
		r.with("svlan_tag", 0x10, 14, 14, 0)
	default:
		r.with("cvlan_tag", 0x10, 15, 15, 1)
		r.with("first_vid", 0x0C, 11, 0, uint32(vlan))
	}
	return r
}

// from restricts a rule to frames from an address.
func (r *rule) from(a netip.Addr) {
	b := a.AsSlice()
	copy(r.mask[0x30-len(b):0x30], bytes.Repeat([]byte{0xFF}, len(b)))
	copy(r.value[0x30-len(b):], b)
}

// anyVLAN is a rule for frames with and without a tag.
const anyVLAN = -1

// rulesFor returns the rules for frames that are answered, and what is left to the kernel, with the reason. ARP and
// neighbour discovery always stay with the kernel. dedicated are addresses that the kernel sends nothing from: for
// these, all ICMP may be diverted if the parser cannot distinguish its types. ICMPv6 may not, because it includes
// neighbour discovery.
func rulesFor(c *fastpath.Config, mac [6]byte, can matching, dedicated []netip.Addr) (rules []*rule, left []string) {
	vlans := []int{anyVLAN}
	if c.VLANs != nil {
		vlans = nil
		for _, v := range c.VLANs {
			vlans = append(vlans, int(v))
		}
	}
	for _, p := range c.Addresses {
		to := p.Addr()
		echo := func(vlan int) *rule {
			protocol, kind, known, at := uint32(protoICMP4), uint32(typeEcho4), can.parser&parserICMP4 != 0, 24
			if to.Is6() {
				protocol, kind, known, at = protoICMP6, typeEcho6, can.parser&parserICMP6 != 0, 8
			}
			switch {
			case known:
				r := can.rule(fmt.Sprintf("echo requests to %v", to), mac, to, protocol, vlan,
					criteriaOuter|criteriaMisc3)
				r.with("icmp_type", misc3+0x20, at+7, at, kind)
				return r
			case to.Is4() && slices.Contains(dedicated, to):
				return can.rule(fmt.Sprintf("ICMP to %v", to), mac, to, protocol, vlan, criteriaOuter)
			}
			return nil
		}
		for _, vlan := range vlans {
			if r := echo(vlan); r != nil {
				rules = append(rules, r)
			}
			for _, port := range c.Ports() {
				r := can.rule(fmt.Sprintf("UDP port %d of %v", port, to), mac, to, protoUDP, vlan, criteriaOuter)
				r.with("udp_dport", 0x1C, 15, 0, uint32(port))
				rules = append(rules, r)
			}
		}
		if echo(anyVLAN) == nil {
			left = append(left, fmt.Sprintf(
				"pings to %v are answered by the kernel: the card cannot tell them from its other ICMP (mlxconfig FLEX_PARSER_PROFILE_ENABLE=2)", to))
		}
	}
	return rules, left
}

// errEchoes means that the parser does not distinguish echo replies by their identifier.
var errEchoes = fmt.Errorf(
	"%w: the card cannot tell the replies to this program's pings from other ICMP: probe with UDP or STAMP, "+
		"use driver afpacket, or set FLEX_PARSER_PROFILE_ENABLE=2 with mlxconfig and reset the card",
	errors.ErrUnsupported)

// repliesFor returns the rules for the replies that a bench receives.
func repliesFor(s *nic.Steer, mac [6]byte, can matching) (rules []*rule, err error) {
	add := func(r *rule) {
		if s.Remote.IsValid() {
			r.from(s.Remote)
		}
		rules = append(rules, r)
	}
	for _, to := range append([]netip.Addr{s.Local}, s.Also...) {
		for _, id := range s.EchoIDs {
			protocol, kind, known, header, at := uint32(protoICMP4), uint32(typeReply4), can.parser&parserICMP4 != 0,
				misc3+0x18, 24
			if to.Is6() {
				protocol, kind, known, header, at = protoICMP6, typeReply6, can.parser&parserICMP6 != 0, misc3+0x1C, 8
			}
			if !known {
				return nil, errEchoes
			}
			r := can.rule(fmt.Sprintf("echo replies to %v with identifier %d", to, id), mac, to, protocol, anyVLAN,
				criteriaOuter|criteriaMisc3)
			r.with("icmp_type", misc3+0x20, at+7, at, kind)
			r.with("icmp_header_data", header, 31, 16, uint32(id))
			add(r)
		}
		for _, port := range s.UDPPorts {
			r := can.rule(fmt.Sprintf("UDP port %d of %v", port, to), mac, to, protoUDP, anyVLAN, criteriaOuter)
			r.with("udp_dport", 0x1C, 15, 0, uint32(port))
			add(r)
		}
	}
	return rules, nil
}

// rules returns the rules for what is answered or, for a bench, received.
func (s *shared) rules() (rules []*rule, err error) {
	o := &s.card.Options
	if o.Steer != nil {
		if rules, err = repliesFor(o.Steer, s.card.MAC, s.caps.matching); err != nil {
			return nil, s.card.Errorf("%w", err)
		}
		return rules, nil
	}
	rules, left := rulesFor(o.Match, s.card.MAC, s.caps.matching, s.own.Dedicated)
	s.lacks = append(s.lacks, left...)
	if len(rules) == 0 {
		return nil, s.card.Errorf("nothing to answer: no rule is possible: %v", left)
	}
	return rules, nil
}

// steer creates the rules. The first takes effect immediately, so the queues have to be ready.
func (s *shared) steer() error {
	rules, err := s.rules()
	if err != nil {
		return err
	}
	var targets map[target]uint32
	if s.raw == nil {
		if targets, err = s.targets(); err != nil {
			return err
		}
	}
	matchers := map[string]uint32{}
	for _, r := range rules {
		key := fmt.Sprintf("%d %x", r.criteria, []byte(r.mask))
		matcher, ok := matchers[key]
		if !ok {
			if matcher, err = s.ctx.Matcher(r.mask, r.criteria, 0); err != nil {
				return s.ruleError(r, err)
			}
			matchers[key] = matcher
		}
		if s.raw != nil {
			err = s.ctx.RuleToQP(matcher, r.value, s.raw.qps[s.queues[0].rqn])
		} else {
			err = s.ctx.Rule(matcher, r.value, targets[target{r.v6, r.udp}])
		}
		if err != nil {
			return s.ruleError(r, err)
		}
		s.card.Log.Debug("rule", "for", r.what)
	}
	return nil
}

// ruleError says what a rule requires that the kernel refused.
func (s *shared) ruleError(r *rule, err error) error {
	switch {
	case errors.Is(err, unix.EPERM):
		return s.card.Errorf("rule for %s: %w: %w (CAP_NET_RAW)", r.what, nic.ErrRights, err)
	case errors.Is(err, unix.EOPNOTSUPP):
		return s.card.Errorf("rule for %s: %w: the firmware cannot chain flow tables (a newer one, or driver xdp): %w",
			r.what, errors.ErrUnsupported, err)
	case errors.Is(err, unix.EEXIST):
		return s.card.Errorf("rule for %s: %w: another process has the same rule: %w", r.what, nic.ErrBusy, err)
	}
	return s.card.Errorf("rule for %s: %w", r.what, err)
}

// target is the type of frames that a TIR receives, which determines their hash.
type target struct{ v6, udp bool }

// targets creates the TIRs: for several queues, one for each kind of hash.
func (s *shared) targets() (map[target]uint32, error) {
	all := map[target]uint32{}
	kinds := []target{{false, false}, {false, true}, {true, false}, {true, true}}
	if len(s.queues) == 1 {
		tir, err := s.directTIR(s.queues[0].rqn)
		for _, k := range kinds {
			all[k] = s.objects[object{opDestroyTIR, tir}]
		}
		return all, err
	}
	rqt, err := s.createRQT()
	if err != nil {
		return nil, err
	}
	for _, k := range kinds {
		tir, err := s.indirectTIR(rqt, bit(k.v6), bit(k.udp))
		if err != nil {
			return nil, err
		}
		all[k] = s.objects[object{opDestroyTIR, tir}]
	}
	return all, nil
}

func bit(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}
