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

// flow accepts what Codec.ours and Codec.refused recognize.
func (p *filter) flow(f *Flow) {
	src, dst := f.Src.WithZone(""), f.Dst.WithZone("")
	srcAt, dstAt, nextAt, l4, next, icmpType := ethernet+12, ethernet+16, ethernet+9, ethernet+ipv4, uint32(nextICMP),
		uint32(0)
	low, high := uint32(3), uint32(12) // ICMP errors, and other types between them that rarely arrive
	if src.Is6() {
		srcAt, dstAt, nextAt, l4, next, icmpType = ethernet+8, ethernet+24, ethernet+6, ethernet+ipv6, nextICMPv6, 129
		low, high = 1, 4
	}
	if f.Proto != STAMP {
		p.branch(func() {
			p.long(l4 + udp + 4)
			p.is(l4+udp, 4, f.Run)
			p.accept()
		})
	}
	p.branch(func() {
		p.long(l4 + udp)
		if f.Proto == ICMP {
			p.is(nextAt, 1, next)
			p.is(l4, 1, icmpType)
			p.is(l4+4, 2, uint32(f.ID))
			p.has(srcAt, dst)
			p.has(dstAt, src)
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
			func() { p.has(srcAt, dst) },
			func() { p.has(dstAt, src) },
			func() { p.is(l4, 2, uint32(f.DstPort)) },
			func() { p.between(l4+2, 2, uint32(first), uint32(last)) },
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
		quoted := l4 + 8 - ethernet
		p.long(quoted + l4 + 4)
		p.is(nextAt, 1, next)
		p.between(l4, 1, low, high)
		p.has(dstAt, src)
		p.has(quoted+srcAt, src)
		p.has(quoted+dstAt, dst)
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
