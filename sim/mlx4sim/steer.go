package mlx4sim

import (
	"slices"

	"github.com/rebound-nic/rebound/sim/parts"
)

// steering has the rules of device-managed flow steering, and the multicast group table.
type steering struct {
	next   uint64
	rules  []*rule
	groups map[uint32][]byte
}

func newSteering() steering { return steering{next: 1, groups: map[uint32][]byte{}} }

// rule steers matching frames to a QP. Of the matching rules, the one with the lowest priority number wins.
type rule struct {
	id    uint64
	prio  uint32
	mode  uint8
	qpn   uint32
	loop  bool
	specs []spec
}

// spec is one header that a rule matches.
type spec struct {
	kind uint16
	b    []byte
}

// Modes of a rule.
const (
	modeRegular          = 0
	modeAllDefault       = 1 // frames that no regular rule matches
	modeMulticastDefault = 3
	modeMirrorReceived   = 4 // a copy of every frame from the wire
	modeMirrorSent       = 5 // a copy of every frame to it
	modeUnicastSniffer   = 6
	modeMulticastSniffer = 7
)

// Kinds of headers.
const (
	specEth  = 0xe001
	specIPv4 = 0xe002
	specTCP  = 0xe004
	specIB   = 0xe005
	specUDP  = 0xe006
)

var (
	ruleCtrl = lay(16, "00.31:16 prio 00.15:8 type 00.3 allow_loopback 00.2 exclusive 00.0 lifo 04.23:16 funcid 04.15:8 vep 04.7:0 port 08.23:0 qpn")
	// Sizes and layouts by kind.
	specs = map[uint16]*layout{
		specEth: lay(48, `00.31:24 size 00.15:0 id 08.15:0 dst_mac_h 0c.31:0 dst_mac_l 10.15:0 dst_mask_h 14.31:0 dst_mask_l 18.15:0 src_mac_h 1c.31:0 src_mac_l
			20.15:0 src_mask_h 24.31:0 src_mask_l 28.23:16 ether_type_enable 28.15:0 ether_type 2c.31:16 vlan_mask 2c.15:0 vlan`),
		specIPv4: lay(24, "00.31:24 size 00.15:0 id 08.31:0 dst 0c.31:0 dst_mask 10.31:0 src 14.31:0 src_mask"),
		specTCP:  portSpec(),
		specUDP:  portSpec(),
		specIB: lay(48, "00.31:24 size 00.15:0 id 08.31:0 l3_qpn 0c.31:0 qpn_mask 10*4 gid 20*4 gid_mask").
			Without("l3_qpn", "qpn_mask"),
	}
)

func portSpec() *layout {
	return lay(24, "00.31:24 size 00.15:0 id 08.15:0 dst 0c.15:0 dst_mask 10.15:0 src 14.15:0 src_mask")
}

func steeringCommands() map[uint16]*command {
	return map[uint16]*command{
		0x065: {name: "FLOW_STEERING_ATTACH", from: stageReady, in: ruleCtrl, tail: true, outImm: true, mods: 0x3ff, run: (*Model).attach},
		0x066: {name: "FLOW_STEERING_DETACH", from: stageReady, imm: true, run: (*Model).detach},
		0x025: {name: "READ_MCG", from: stageReady, out: sized(0x400), mods: 0xffffff, run: (*Model).readGroup},
		0x026: {name: "WRITE_MCG", from: stageReady, in: sized(0x400), mods: 0xffffff, run: (*Model).writeGroup},
		0x027: {name: "MGID_HASH", from: stageReady, in: sized(16), outImm: true, opMods: 1 << 1, run: (*Model).hashGroup},
	}
}

func (m *Model) attach(c *call) *refusal {
	if !m.hca.deviceManaged {
		return refuse(stBadSysState, "steering is by the MAC table: INIT_HCA did not choose flow rules")
	}
	in := c.in
	n := 4 * int(c.mod)
	r := &rule{prio: in.U32("prio"), mode: uint8(in.U("type")), qpn: in.U32("qpn"), loop: in.Is("allow_loopback")}
	switch {
	case n < 16 || n > mailboxSize:
		return refuse(stBadSize, "in_modifier says %d dwords, expected 4 to %d", c.mod, mailboxSize/4)
	case in.U("port") != 1:
		return refuse(stBadParam, "port %d: the device has port 1", in.U("port"))
	case m.findQP(r.qpn) == nil:
		return refuse(stBadRes, "QP %#x is in RST", r.qpn)
	case !slices.Contains([]uint8{modeRegular, modeAllDefault, modeMulticastDefault, modeMirrorReceived, modeMirrorSent,
		modeUnicastSniffer, modeMulticastSniffer}, r.mode):
		return refuse(stBadParam,
			"type %d: the model has 0 (regular), 1 and 3 (defaults), 4 and 5 (mirrors), 6 and 7 (sniffers)", r.mode)
	case in.U("funcid")|in.U("vep") != 0:
		return refuse(stBadParam, "funcid %d, vep %d: there is one function", in.U("funcid"), in.U("vep"))
	}
	for b := in.B[16:n]; len(b) > 0; {
		kind := be.Uint16(b[2:])
		l := specs[kind]
		if l == nil {
			return refuse(stBadParam, "header %04xh: the model has Ethernet, IPv4, TCP, UDP and InfiniBand", kind)
		}
		size := 4 * int(b[0])
		if size != l.Size || size > len(b) {
			return refuse(stBadSize, "header %04xh says %d dwords, it has %d, and %d bytes are left", kind, b[0],
				l.Size/4, len(b))
		}
		if kind != specIB && m.port.link != Ethernet {
			return refuse(stBadParam, "header %04xh: not of this port's link layer", kind)
		}
		bit := map[uint16]uint64{specUDP: fsUDP, specTCP: fsTCP}[kind]
		if enabled := as(m.hca.in, initHCA).U("fs_eth_bits"); bit&^enabled != 0 {
			return refuse(stBadParam, "header %04xh: INIT_HCA's fs_eth_bits are %#x, expected bit %#x", kind, enabled,
				bit)
		}
		if off, set, found := l.Stray(b[:size]); found {
			m.host.Warnf("FLOW_STEERING_ATTACH: header %04xh: reserved bits %08x set in the dword at %02xh", kind, set,
				off)
		}
		as(b[:size], l).WarnIdle(m.host, "FLOW_STEERING_ATTACH of an InfiniBand header")
		r.specs = append(r.specs, spec{kind, append([]byte(nil), b[:size]...)})
		b = b[size:]
	}
	if r.mode == modeRegular && (len(r.specs) == 0 || r.specs[0].kind != specEth && r.specs[0].kind != specIB) {
		return refuse(stBadParam, "a rule begins with the header of layer 2")
	}
	if in.Is("exclusive") && len(m.rules.same(r)) > 0 {
		return refuse(stResBusy, "the rule is exclusive, and there is one like it")
	}
	if len(m.rules.rules) >= 1<<min(m.hca.mc.log, 13) {
		return refuse(stLimit, "%d rules", len(m.rules.rules))
	}
	r.id = m.rules.next
	m.rules.next++
	if in.Is("lifo") { // before those of its priority, and otherwise behind them
		m.rules.rules = slices.Insert(m.rules.rules, 0, r)
	} else {
		m.rules.rules = append(m.rules.rules, r)
	}
	c.outParam = r.id
	return nil
}

func (m *Model) detach(c *call) *refusal {
	for i, r := range m.rules.rules {
		if r.id == c.inParam {
			m.rules.rules = slices.Delete(m.rules.rules, i, i+1)
			return nil
		}
	}
	return refuse(stBadIndex, "rule %#x is not there", c.inParam)
}

// same returns the rules with the headers of r.
func (s *steering) same(r *rule) (list []*rule) {
	for _, o := range s.rules {
		if o.prio == r.prio && o.mode == r.mode && slices.EqualFunc(o.specs, r.specs,
			func(a, b spec) bool { return a.kind == b.kind && string(a.b) == string(b.b) }) {
			list = append(list, o)
		}
	}
	return list
}

// checkGone reports rules that steer to a QP that is being destroyed.
func (s *steering) checkGone(m *Model, q *qp) {
	for _, r := range s.rules {
		if r.qpn == q.id {
			m.host.Warnf("2RST_QP: %v: rule %#x leads to it", q, r.id)
			return
		}
	}
}

// match returns the QPs of the rules that match a frame: regular ones, by ascending priority number, one for unicast
// and all of them for multicast; otherwise the defaults. Sniffers get copies.
func (s *steering) match(m *Model, b []byte) (to []*qp) {
	f := parts.ParseFrame(b)
	multicast := b[0]&1 != 0
	best := ^uint32(0)
	var regular, defaults, sniffers []*rule
	for _, r := range s.rules {
		switch {
		case r.mode == modeUnicastSniffer && !multicast, r.mode == modeMulticastSniffer && multicast:
			sniffers = append(sniffers, r)
		case r.mode == modeAllDefault, r.mode == modeMulticastDefault && multicast:
			defaults = append(defaults, r)
		case r.mode == modeRegular && r.prio <= best && r.takes(&f):
			if r.prio < best {
				best, regular = r.prio, nil
			}
			regular = append(regular, r)
		}
	}
	if len(regular) == 0 {
		regular = defaults
	}
	if !multicast && len(regular) > 1 {
		regular = regular[:1]
	}
	for _, r := range append(regular, sniffers...) {
		if q := m.findQP(r.qpn); q != nil && !slices.Contains(to, q) {
			to = append(to, q)
		}
	}
	return to
}

// mirror delivers a copy of a frame that crosses the wire to the QPs of rules of one mode.
func (m *Model) mirror(mode uint8, b []byte) (took bool) {
	for _, r := range m.rules.rules {
		if r.mode == mode {
			if q := m.findQP(r.qpn); q != nil {
				f := parts.ParseFrame(b)
				took = m.deliver(q, &f, 0, 127) || took
			}
		}
	}
	return took
}

func (r *rule) takes(f *parts.Frame) bool {
	for _, s := range r.specs {
		if !s.takes(f) {
			return false
		}
	}
	return true
}

func (s *spec) takes(f *parts.Frame) bool {
	x := as(s.b, specs[s.kind])
	masked := func(have uint64, value, mask string) bool { return (have^x.U(value))&x.U(mask) == 0 }
	switch s.kind {
	case specEth:
		d, src := macOf(f.B), macOf(f.B[6:])
		return masked(d>>32, "dst_mac_h", "dst_mask_h") && masked(d&0xffffffff, "dst_mac_l", "dst_mask_l") &&
			masked(src>>32, "src_mac_h", "src_mask_h") && masked(src&0xffffffff, "src_mac_l", "src_mask_l") &&
			masked(uint64(f.VLAN), "vlan", "vlan_mask") && (!x.Is("ether_type_enable") ||
			x.U("ether_type") == uint64(f.EtherType))
	case specIPv4:
		return f.L3 == parts.L3IPv4 && masked(uint64(be.Uint32(f.Dst)), "dst", "dst_mask") &&
			masked(uint64(be.Uint32(f.Src)), "src", "src_mask")
	case specTCP, specUDP:
		want := uint8(parts.L4TCP)
		if s.kind == specUDP {
			want = parts.L4UDP
		}
		return f.L4 == want && masked(uint64(f.DPort), "dst", "dst_mask") && masked(uint64(f.SPort), "src", "src_mask")
	}
	return false
}

// The multicast group table: a hash selects an entry, and the driver chains further entries.

func (m *Model) readGroup(c *call) *refusal {
	if c.mod >= 1<<m.hca.mc.log {
		return refuse(stBadIndex, "entry %#x, mc_base has 2^%d", c.mod, m.hca.mc.log)
	}
	copy(c.out.B, m.rules.groups[c.mod])
	return nil
}

func (m *Model) writeGroup(c *call) *refusal {
	if c.opMod != 0 {
		return refuse(stBadParam, "op_modifier %d: neither VEP steering is offered", c.opMod)
	}
	if r := m.claim(c.mod, m.hca.mc); r != nil {
		return r
	}
	b := append([]byte(nil), c.in.B...)
	for i := range be.Uint32(b[4:]) & 0xffffff {
		if at := 32 + 4*int(i); at+4 > len(b) || uint64(at+4) > m.hca.mc.size {
			return refuse(stBadSize, "%d members, an entry has %d bytes", be.Uint32(b[4:])&0xffffff, m.hca.mc.size)
		}
	}
	m.rules.groups[c.mod] = b
	return nil
}

func (m *Model) hashGroup(c *call) *refusal {
	h := uint32(0)
	for _, x := range c.in.B {
		h = h*31 + uint32(x)
	}
	log := m.hca.mc.log - 1
	if n := int(as(m.hca.in, initHCA).U("log_mc_hash_sz")); n > 0 {
		log = n
	}
	c.outParam = uint64(h & (1<<max(log, 0) - 1))
	return nil
}

// Rules returns the number of rules.
func (m *Model) Rules() int { return len(m.rules.rules) }
