package probe

import (
	"bytes"
	"errors"
	"net/netip"

	"golang.org/x/net/bpf"

	"github.com/rebound-nic/rebound/latency/outcome"
)

const (
	arp          = 0x0806
	solicitation = 135 // RFC 4861 §4.3
	advertising  = 136
	accepted     = 1 << 18 // bytes to keep of a frame, more than any has
	filterMost   = 1024    // instructions: 8 KiB, of the 20 KiB that a socket may use (net.core.optmem_max)
)

// ErrFilter means that a filter for so many flows would be too long.
var ErrFilter = errors.New("too many flows for one socket filter")

// Filter returns a classic BPF program that accepts every frame for which Check of one of the flows returns anything
// but Foreign, and rejects nearly all others, so that a host's other traffic does not fill the ring. With neighbours it
// also accepts what a route.Neighbour for the flows' source addresses reads. Frames have no VLAN tag, or one that the
// kernel has removed.
func Filter(flows []Flow, neighbours bool) ([]bpf.RawInstruction, error) {
	p := filter{}
	for _, f := range flows {
		p.flow(&f)
	}
	if neighbours {
		known := map[netip.Addr]bool{}
		for _, f := range flows {
			if a := f.Src.WithZone(""); !known[a] {
				known[a] = true
				p.neighbour(a)
			}
		}
	}
	p = append(p, bpf.RetConstant{})
	if len(p) > filterMost {
		return nil, ErrFilter
	}
	return bpf.Assemble(p)
}

// filter is a program. A branch of it is left when a condition does not hold.
type filter []bpf.Instruction

// branch appends the instructions of f, at most 255, and lets those that leave it continue behind it.
func (p *filter) branch(f func()) {
	from := len(*p)
	f()
	for i := from; i < len(*p); i++ {
		if j, ok := (*p)[i].(leave); ok {
			(*p)[i] = bpf.JumpIf{Cond: j.cond, Val: j.val, SkipTrue: uint8(len(*p) - i - 1)}
		}
	}
}

// leave leaves the innermost branch on a condition.
type leave struct {
	bpf.Instruction
	cond bpf.JumpTest
	val  uint32
}

func (p *filter) add(i ...bpf.Instruction) { *p = append(*p, i...) }

// long leaves the branch if the frame has less than n bytes: a load beyond its end would reject it.
func (p *filter) long(n int) {
	p.add(bpf.LoadExtension{Num: bpf.ExtLen}, leave{cond: bpf.JumpLessThan, val: uint32(n)})
}

// is leaves the branch if the size bytes at off differ from v.
func (p *filter) is(off, size int, v uint32) {
	p.add(bpf.LoadAbsolute{Off: uint32(off), Size: size}, leave{cond: bpf.JumpNotEqual, val: v})
}

// has leaves the branch if the address at off is not a.
func (p *filter) has(off int, a netip.Addr) {
	for b := a.AsSlice(); len(b) > 0; b = b[4:] {
		p.is(off, 4, be.Uint32(b))
		off += 4
	}
}

// between leaves the branch if the size bytes at off are outside of [low, high].
func (p *filter) between(off, size int, low, high uint32) {
	p.add(bpf.LoadAbsolute{Off: uint32(off), Size: size}, leave{cond: bpf.JumpLessThan, val: low},
		leave{cond: bpf.JumpGreaterThan, val: high})
}

func (p *filter) accept() { p.add(bpf.RetConstant{Val: accepted}) }

// offsets are where a frame has the fields of an IP header, and its values for ICMP.
type offsets struct {
	src, dst, next, segment int
	icmp, echoReply         uint32    // protocol, type
	errors                  [2]uint32 // types, with some between them that rarely arrive
}

var (
	at4 = offsets{src: ethernet + 12, dst: ethernet + 16, next: ethernet + 9, segment: ethernet + ipv4,
		icmp: nextICMP, echoReply: 0, errors: [2]uint32{3, 12}}
	at6 = offsets{src: ethernet + 8, dst: ethernet + 24, next: ethernet + 6, segment: ethernet + ipv6,
		icmp: nextICMPv6, echoReply: 129, errors: [2]uint32{1, 4}}
)

// flow accepts what Codec.ours and Codec.refused recognize.
func (p *filter) flow(f *Flow) {
	src, dst := f.Src.WithZone(""), f.Dst.WithZone("")
	at := at4
	if src.Is6() {
		at = at6
	}
	if f.Proto != STAMP {
		p.branch(func() {
			p.long(at.segment + udp + 4)
			p.is(at.segment+udp, 4, f.Run)
			p.accept()
		})
	}
	p.branch(func() {
		p.long(at.segment + udp)
		if f.Proto == ICMP {
			p.is(at.next, 1, at.icmp)
			p.is(at.segment, 1, at.echoReply)
			p.is(at.segment+4, 2, uint32(f.ID))
			p.has(at.src, dst)
			p.has(at.dst, src)
			p.accept()
			return
		}
		// Three of four fields are enough.
		ports := append([]uint16{f.SrcPort}, f.SrcPorts...)
		first, last := ports[0], ports[0]
		for _, n := range ports {
			first, last = min(first, n), max(last, n)
		}
		p.add(bpf.LoadConstant{}, bpf.StoreScratch{})
		for _, holds := range []func(){
			func() { p.has(at.src, dst) },
			func() { p.has(at.dst, src) },
			func() { p.is(at.segment, 2, uint32(f.DstPort)) },
			func() { p.between(at.segment+2, 2, uint32(first), uint32(last)) },
		} {
			p.branch(func() {
				holds()
				p.add(bpf.LoadScratch{}, bpf.ALUOpConstant{Op: bpf.ALUOpAdd, Val: 1}, bpf.StoreScratch{})
			})
		}
		p.add(bpf.LoadScratch{}, leave{cond: bpf.JumpLessThan, val: 3})
		p.accept()
	})
	p.branch(func() { // an ICMP error that quotes a probe
		quoted := at.segment + 8 - ethernet
		p.long(quoted + at.segment + 4)
		p.is(at.next, 1, at.icmp)
		p.between(at.segment, 1, at.errors[0], at.errors[1])
		p.has(at.dst, src)
		p.has(quoted+at.src, src)
		p.has(quoted+at.dst, dst)
		p.accept()
	})
}

// neighbour accepts what a neighbour of the address a sends to it.
func (p *filter) neighbour(a netip.Addr) {
	p.branch(func() {
		if a.Is4() {
			p.long(42)
			p.is(12, 2, arp)
			p.has(38, a)
			p.accept()
			return
		}
		const l4 = ethernet + ipv6
		p.long(l4 + 24)
		p.is(ethernet+6, 1, nextICMPv6)
		p.branch(func() {
			p.is(l4, 1, solicitation)
			p.has(l4+8, a)
			p.accept()
		})
		p.is(l4, 1, advertising)
		p.accept()
	})
}

// Verdict is the classification of a received frame.
type Verdict uint8

const (
	Foreign  Verdict = iota // not an answer to this flow
	Good                    // the reply, correct in every byte
	Unsummed                // the same, but its UDP checksum is absent or was left to an offload (as on a veth pair)
	Corrupt                 // a reply of this flow with an error: see Reply.Field
	Refused                 // an ICMP error about a probe of this flow
)

// Field is the part of a frame that was found wrong.
type Field uint8

const (
	None Field = iota
	Length
	DestinationMAC
	SourceMAC
	EtherType
	IPHeader
	IPLength
	IPFragment
	HopLimit
	IPProtocol
	IPChecksum
	SourceAddress
	DestinationAddress
	Ports
	UDPLength
	L4Checksum
	ICMPType
	ICMPIdentifier
	SequenceNumber
	RunTag
	Payload
	SenderCopy
	Authentication
	Fields // number of fields
)

func (f Field) String() string {
	return [...]string{"none", "length", "destination MAC", "source MAC", "ethertype", "IP header", "IP length",
		"IP fragment",
		"hop limit", "IP protocol", "IP checksum", "source address", "destination address", "ports", "UDP length",
		"checksum",
		"ICMP type", "ICMP identifier", "sequence number", "run tag", "payload", "copy of the sender's fields",
		"HMAC"}[f]
}

// Reason returns the class of a field.
func (f Field) Reason() outcome.Reason {
	return [Fields]outcome.Reason{None: outcome.None, Length: outcome.Length, DestinationMAC: outcome.MAC,
		SourceMAC: outcome.MAC,
		EtherType: outcome.Header, IPHeader: outcome.Header, IPLength: outcome.Length, IPFragment: outcome.Header,
		HopLimit:   outcome.Header,
		IPProtocol: outcome.Header, IPChecksum: outcome.Checksum, SourceAddress: outcome.Source,
		DestinationAddress: outcome.Destination,
		Ports:              outcome.Identifier, UDPLength: outcome.Length, L4Checksum: outcome.Checksum,
		ICMPType:       outcome.Header,
		ICMPIdentifier: outcome.Identifier, SequenceNumber: outcome.Sequence, RunTag: outcome.Identifier,
		Payload:    outcome.Payload,
		SenderCopy: outcome.Payload, Authentication: outcome.Authentication}[f]
}

// Reply is the information that Check reads from a frame.
type Reply struct {
	Field   Field  // Corrupt: the first field that is wrong
	HasSeq  bool   // Seq was read; in a Corrupt reply it may itself be wrong
	Seq     uint32 // the probe that this answers
	Payload int    // Corrupt because of its Length: the number of payload bytes received
	Code    uint16 // Refused: ICMP type<<8 | code
	CE      bool   // it is marked Congestion Experienced (RFC 3168)
	Closed  bool   // Refused: nothing listens at the target's port or protocol
	Stamped Stamped
}

// PayloadSize returns the bytes of payload of a probe and of its reply.
func (c *Codec) PayloadSize() int { return len(c.want) }

// Check classifies a received frame, starting with the first byte that the transport delivers. It keeps no reference to
// b.
func (c *Codec) Check(b []byte, r *Reply) Verdict {
	*r = Reply{}
	if !c.ours(b) {
		if c.skip == 0 && c.refused(b, r) {
			return Refused
		}
		return Foreign
	}
	v := Good
	if c.skip == 0 {
		if r.Field = c.network(b); r.Field != None {
			c.sequence(b, r)
			r.Payload = max(len(b)-c.body, 0)
			return Corrupt
		}
		r.CE = c.ecn(b) == 3
		b = b[:c.flow.Size]
	}
	if len(b) != c.flow.Size-c.skip {
		r.Field, r.Payload = Length, max(len(b)-(c.body-c.skip), 0)
		c.sequence(b, r)
		return Corrupt
	}
	c.sequence(b, r)
	if c.skip <= c.l4 {
		v, r.Field = c.transport(b[c.l4-c.skip:], r.Seq)
	}
	if r.Field == None {
		r.Field = c.content(b[c.body-c.skip:], r)
	}
	if r.Field != None {
		return Corrupt
	}
	return v
}

// ours distinguishes this flow's replies, including broken ones, from all other traffic. An intact reply has both
// addresses and both ports or the identifier; a broken one still has the run's tag, or all but one of these four and
// the length.
func (c *Codec) ours(b []byte) bool {
	body := c.body - c.skip
	if c.flow.Proto != STAMP && len(b) >= body+4 && be.Uint32(b[body:]) == c.flow.Run {
		return true
	}
	if c.skip != 0 {
		return true // the kernel delivered it to our connected socket
	}
	if len(b) < c.body {
		return false
	}
	same := 0
	if string(b[c.srcAt:c.srcAt+c.addr]) == string(c.dst[:c.addr]) {
		same++
	}
	if string(b[c.dstAt:c.dstAt+c.addr]) == string(c.src[:c.addr]) {
		same++
	}
	l4 := b[c.l4:]
	if c.flow.Proto == ICMP {
		return same == 2 && b[c.nextAt()] == c.next && l4[0] == c.replyType() && be.Uint16(l4[4:]) == c.flow.ID
	}
	if be.Uint16(l4[0:]) == c.flow.DstPort {
		same++
	}
	to := be.Uint16(l4[2:])
	if c.ports.has(to) {
		same++
	} else if c.others.has(to) {
		return false
	}
	if same == 4 {
		return b[c.nextAt()] == nextUDP || len(b) == c.flow.Size
	}
	return same == 3 && len(b) == c.flow.Size && b[c.nextAt()] == nextUDP
}

func (c *Codec) nextAt() int {
	if c.v6 {
		return ethernet + 6
	}
	return ethernet + 9
}

// ecn returns the ECN field of a frame's IP header.
func (c *Codec) ecn(b []byte) uint8 {
	if c.v6 {
		return b[ethernet+1] >> 4 & 3 // the traffic class, which starts in the previous byte
	}
	return b[ethernet+1] & 3
}

func (c *Codec) replyType() uint8 {
	if c.v6 {
		return 129
	}
	return 0
}

// network checks the Ethernet and IP headers.
func (c *Codec) network(b []byte) Field {
	f := &c.flow
	switch {
	case len(b) < f.Size: // a longer one has a trailer behind its packet, as some switches add
		return Length
	case [6]byte(b[0:6]) != f.SrcMAC:
		return DestinationMAC
	case [6]byte(b[6:12]) != f.DstMAC && !f.Routed:
		return SourceMAC
	}
	ip := b[ethernet:]
	if c.v6 {
		switch {
		case be.Uint16(b[12:]) != typeIPv6:
			return EtherType
		case ip[0]>>4 != 6:
			return IPHeader
		case int(be.Uint16(ip[4:])) != f.Size-c.l4:
			return IPLength
		case ip[6] != c.next:
			return IPProtocol
		case ip[7] == 0:
			return HopLimit
		}
	} else {
		switch {
		case be.Uint16(b[12:]) != typeIPv4:
			return EtherType
		case ip[0] != 4<<4|ipv4/4:
			return IPHeader
		case int(be.Uint16(ip[2:])) != f.Size-ethernet:
			return IPLength
		case be.Uint16(ip[6:])&^0x4000 != 0: // DF may have any value
			return IPFragment
		case ip[8] == 0:
			return HopLimit
		case ip[9] != c.next:
			return IPProtocol
		case fold(sum(0, ip[:ipv4])) != 0xffff:
			return IPChecksum
		}
	}
	switch {
	case string(b[c.srcAt:c.srcAt+c.addr]) != string(c.dst[:c.addr]):
		return SourceAddress
	case string(b[c.dstAt:c.dstAt+c.addr]) != string(c.src[:c.addr]):
		return DestinationAddress
	}
	return None
}

// sequence reads the number of the probe that b answers.
func (c *Codec) sequence(b []byte, r *Reply) {
	at := c.body - c.skip + 4
	if c.flow.Proto == STAMP {
		if at = c.body - c.skip + 24; c.test.Authenticated {
			at = c.body - c.skip + 48
		}
	}
	if len(b) >= at+4 {
		r.Seq, r.HasSeq = be.Uint32(b[at:]), true
	}
}

// transport checks the ICMP or UDP header and the checksum over everything after it.
func (c *Codec) transport(l4 []byte, seq uint32) (Verdict, Field) {
	f := &c.flow
	if f.Proto == ICMP {
		switch {
		case l4[0] != c.replyType() || l4[1] != 0:
			return Corrupt, ICMPType
		case c.skip == 0 && fold(sum(c.fixed, l4)) != 0xffff: // with a ping socket, the kernel has checked it
			return Corrupt, L4Checksum
		case be.Uint16(l4[4:]) != f.ID:
			return Corrupt, ICMPIdentifier
		case be.Uint16(l4[6:]) != uint16(seq):
			return Corrupt, SequenceNumber
		}
		return Good, None
	}
	switch {
	case be.Uint16(l4[0:]) != f.DstPort || be.Uint16(l4[2:]) != c.srcPort(seq):
		return Corrupt, Ports
	case int(be.Uint16(l4[4:])) != len(l4):
		return Corrupt, UDPLength
	}
	switch check := be.Uint16(l4[6:]); {
	case check == 0 && c.v6: // RFC 8200 §8.1
		return Corrupt, L4Checksum
	case check == 0:
		return Unsummed, None
	case fold(sum(c.fixed, l4)) == 0xffff:
		return Good, None
	case check == fold(c.fixed): // the pseudo-header's sum, uncomplemented: a device would have added the rest
		return Unsummed, None
	}
	return Corrupt, L4Checksum
}

// content compares the payload with that of the probe with this sequence number.
func (c *Codec) content(b []byte, r *Reply) Field {
	if c.flow.Proto == STAMP {
		return c.reflected(b, r)
	}
	c.payload(c.want, r.Seq)
	switch {
	case bytes.Equal(b, c.want):
		return None
	case string(b[:4]) != string(c.want[:4]):
		return RunTag
	}
	return Payload
}

// refused recognises an ICMP error (destination unreachable, packet too big, time exceeded, parameter problem) that
// quotes a probe of this flow (RFC 792, RFC 4443).
func (c *Codec) refused(b []byte, r *Reply) bool {
	if len(b) < c.l4+8+(c.l4-ethernet)+4 || string(b[c.dstAt:c.dstAt+c.addr]) != string(c.src[:c.addr]) {
		return false
	}
	kind := b[c.l4]
	if c.v6 {
		if b[ethernet]>>4 != 6 || b[c.nextAt()] != nextICMPv6 || kind < 1 || kind > 4 {
			return false
		}
	} else if b[ethernet] != 4<<4|ipv4/4 || b[c.nextAt()] != nextICMP || kind != 3 && kind != 11 && kind != 12 {
		return false
	}
	quoted := b[c.l4+8-ethernet:] // so that a frame's offsets apply to the quoted packet
	if string(quoted[c.srcAt:c.srcAt+c.addr]) != string(c.src[:c.addr]) ||
		string(quoted[c.dstAt:c.dstAt+c.addr]) != string(c.dst[:c.addr]) || quoted[c.nextAt()] != c.next {
		return false
	}
	if c.flow.Proto != ICMP && be.Uint16(quoted[c.l4+2:]) != c.flow.DstPort {
		return false
	}
	r.Code = uint16(kind)<<8 | uint16(b[c.l4+1])
	closed := r.Code == 0x302 || r.Code == 0x303 // protocol, port unreachable (RFC 792)
	if c.v6 {
		closed = r.Code == 0x104 // port unreachable (RFC 4443 §3.1)
	}
	r.Closed = closed && string(b[c.srcAt:c.srcAt+c.addr]) == string(c.dst[:c.addr])
	return true
}
