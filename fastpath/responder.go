package fastpath

import (
	"encoding/binary"
	"net/netip"

	"rebound/latency/hot"
)

// Mode says how much of a request is checked before it is answered.
type Mode uint8

const (
	Strict Mode = iota // every guard; replies leave with hop limit 64
	Open               // the seeds' cropped checks, for a wire you own; the hop limit stays
)

// Config is what a Responder answers. It does not change while a Responder is in use.
type Config struct {
	Mode      Mode
	MAC       [6]byte
	Addresses []netip.Prefix // our addresses, each with its subnet (/32 or /128 where that is unknown)
	UDPPorts  []uint16       // answered by echo

	// PartialChecksums says that frames may come from this host's own kernel (veth, a socket driver on a bridge) with
	// UDP checksums that hold only the pseudo-header's sum, for a device to complete. Such a reply is completed here.
	PartialChecksums bool
}

// Responder answers frames for one queue. One goroutine uses it at a time; its counters and Loop may be read by others.
type Responder struct {
	Loop hot.Loop

	mac           uint64 // as the leaves load it: shifted up by two bytes
	mul6          uint64
	mul4          uint32
	open, partial bool
	stats         [Verdicts]uint64
	own4, not4    [256]uint32
	own6          [64]ip6
	echo, service [1024]uint64

	cfg Config
}

// ip6 is an IPv6 address as the leaves load it.
type ip6 struct{ hi, lo uint64 }

// New returns a Responder, or an error that names the address or port that cannot be used.
func New(c Config) (*Responder, error) {
	r := &Responder{cfg: c, open: c.Mode == Open, partial: c.PartialChecksums, mul4: 0x9e3779b1, mul6: 0x9e3779b97f4a7c15}
	var m [8]byte
	copy(m[2:], c.MAC[:])
	r.mac = binary.LittleEndian.Uint64(m[:])
	for _, p := range c.Addresses {
		if b := p.Addr().AsSlice(); len(b) == 4 {
			a := le.Uint32(b)
			r.own4[a*r.mul4>>24], r.not4[a*r.mul4>>24] = a, a
		} else {
			a := ip6{le.Uint64(b), le.Uint64(b[8:])}
			r.own6[(a.hi+a.lo*r.mul6)*r.mul6>>58] = a
		}
	}
	for _, p := range c.UDPPorts {
		p = p<<8 | p>>8
		r.echo[p>>6] |= 1 << (p & 63)
		r.service[p>>6] |= 1 << (p & 63)
	}
	return r, nil
}

// Slow answers frame in place if it is for us and passes every guard, and returns the reply's length, which is never
// more than len(frame). It returns 0 where there is nothing to send; the reason is counted.
//
//go:noinline
func (r *Responder) Slow(frame []byte) int { return 0 }
