package probe

import (
	"errors"
	"net/netip"

	"golang.org/x/net/bpf"
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
