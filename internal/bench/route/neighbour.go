package route

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// Port sends and receives a Neighbour's frames: a nic.Device.
type Port interface {
	Send(frame []byte) error
	Recv(buf []byte) (n int, at int64, err error)
}

// ErrNoAnswer means that no host answered for the next hop's address.
var ErrNoAnswer = errors.New("no answer")

// Neighbour implements ARP (RFC 826) and neighbour discovery (RFC 4861) for one of our addresses. It allocates nothing
// after NewNeighbour. One goroutine uses it.
type Neighbour struct {
	mac [6]byte
	ip  netip.Addr
	raw [16]byte
	out [frameND]byte
}

var be = binary.BigEndian

const (
	ethernet = 14
	typeARP  = 0x0806
	typeIPv6 = 0x86dd
	frameARP = 60                 // 42 bytes and padding
	frameND  = ethernet + 40 + 32 // solicitation or advertisement with one link-layer address option
	icmpAt   = ethernet + 40      // start of the ICMPv6 message

	arpRequest, arpReply      = 1, 2
	solicitation, advertising = 135, 136
	optSource, optTarget      = 1, 2
)

// NewNeighbour returns a Neighbour that answers for ip with mac.
func NewNeighbour(ip netip.Addr, mac [6]byte) *Neighbour {
	n := &Neighbour{mac: mac, ip: ip.WithZone("")}
	copy(n.raw[:], ip.AsSlice())
	return n
}

// Tries is how many requests are sent before a neighbour counts as absent (RFC 4861's MAX_MULTICAST_SOLICIT).
const Tries = 3

// Resolve sends requests for next until it answers, up to tries times, one wait apart. It returns ErrNoAnswer if there
// is no answer.
func (n *Neighbour) Resolve(p Port, next netip.Addr, tries int, wait time.Duration) (mac [6]byte, err error) {
	buf := make([]byte, 16<<10)
	next = next.WithZone("")
	for range tries {
		if err := p.Send(n.question(next)); err != nil {
			return mac, fmt.Errorf("asking for the MAC of %v: %w", next, err)
		}
		for end := time.Now().Add(wait); time.Now().Before(end); {
			got, _, err := p.Recv(buf)
			if err != nil {
				return mac, fmt.Errorf("waiting for the MAC of %v: %w", next, err)
			}
			if got == 0 {
				time.Sleep(50 * time.Microsecond)
				continue
			}
			if of, mac, ok := Announced(buf[:got]); ok && of == next {
				return mac, nil
			}
			if out := n.Answer(buf[:got]); out != nil {
				if err := p.Send(out); err != nil {
					return mac, err
				}
			}
		}
	}
	protocol := "ARP"
	if next.Is6() {
		protocol = "neighbour discovery"
	}
	return mac, fmt.Errorf("%w: %v did not answer %d requests by %s", ErrNoAnswer, next, tries, protocol)
}

// Ask returns the request for next's MAC, valid until the next call. Announced reads the reply.
func (n *Neighbour) Ask(next netip.Addr) []byte { return n.question(next.WithZone("")) }

// question builds an ARP request or a neighbour solicitation.
func (n *Neighbour) question(next netip.Addr) []byte {
	if next.Is4() {
		target := next.As4()
		return n.arp(arpRequest, [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, [6]byte{}, target[:])
	}
	t := next.As16()
	group := [16]byte{0xff, 0x02, 11: 1, 12: 0xff, 13: t[13], 14: t[14], 15: t[15]} // RFC 4291 §2.7.1
	return n.nd(solicitation, 0, [6]byte{0x33, 0x33, 0xff, t[13], t[14], t[15]}, group[:], t[:], optSource)
}

func (n *Neighbour) arp(op uint16, to, toHard [6]byte, toIP []byte) []byte {
	b := n.out[:frameARP]
	clear(b)
	copy(b[0:], to[:])
	copy(b[6:], n.mac[:])
	be.PutUint16(b[12:], typeARP)
	copy(b[14:], []byte{0, 1, 0x08, 0x00, 6, 4}) // Ethernet, IPv4, their address lengths
	be.PutUint16(b[20:], op)
	copy(b[22:], n.mac[:])
	copy(b[28:], n.raw[:4])
	copy(b[32:], toHard[:])
	copy(b[38:], toIP)
	return b
}

func (n *Neighbour) nd(kind, flags uint8, to [6]byte, toIP, target []byte, option uint8) []byte {
	b := n.out[:frameND]
	clear(b)
	copy(b[0:], to[:])
	copy(b[6:], n.mac[:])
	be.PutUint16(b[12:], typeIPv6)
	b[14] = 6 << 4
	be.PutUint16(b[18:], uint16(frameND-icmpAt))
	b[20] = unix.IPPROTO_ICMPV6
	b[21] = 255 // RFC 4861 §7.1: proves that no router forwarded it
	copy(b[22:], n.raw[:])
	copy(b[38:], toIP)
	m := b[icmpAt:]
	m[0] = kind
	m[4] = flags
	copy(m[8:], target)
	m[24], m[25] = option, 1
	copy(m[26:], n.mac[:])
	be.PutUint16(m[2:], ^sum(b))
	return b
}

// solicitUnicast is question to one host only (RFC 1122 §2.3.2.1, RFC 4861 §7.2.2).
func (n *Neighbour) solicitUnicast(next netip.Addr, mac [6]byte) []byte {
	if next.Is4() {
		target := next.As4()
		return n.arp(arpRequest, mac, [6]byte{}, target[:])
	}
	t := next.As16()
	return n.nd(solicitation, 0, mac, t[:], t[:], optSource)
}

// Announced returns the host and its MAC that an ARP packet is from, or that a neighbour advertisement is about. A
// request counts too: with it, a host announces that it has taken over an address (RFC 5227 §3).
func Announced(b []byte) (of netip.Addr, mac [6]byte, ok bool) {
	if len(b) >= 42 && be.Uint16(b[12:]) == typeARP {
		op := be.Uint16(b[20:])
		return netip.AddrFrom4([4]byte(b[28:])), [6]byte(b[22:]), (op == arpReply || op == arpRequest) && b[22]&1 == 0
	}
	if !discovery(b, advertising) {
		return of, mac, false
	}
	// RFC 4861 §4.4: a unicast reply may omit the option
	of, mac = netip.AddrFrom16([16]byte(b[icmpAt+8:])), [6]byte(b[6:])
	for opt := b[icmpAt+24:]; len(opt) >= 8 && opt[1] != 0 && int(opt[1])*8 <= len(opt); opt = opt[int(opt[1])*8:] {
		if opt[0] == optTarget {
			mac = [6]byte(opt[2:])
		}
	}
	return of, mac, mac[0]&1 == 0
}

// discovery reports whether b is a complete, valid neighbour message of that type (RFC 4861 §7.1).
func discovery(b []byte, kind uint8) bool {
	return len(b) >= icmpAt+24 && be.Uint16(b[12:]) == typeIPv6 && b[14]>>4 == 6 && b[20] == unix.IPPROTO_ICMPV6 &&
		b[21] == 255 &&
		int(be.Uint16(b[18:])) >= 24 && len(b) >= icmpAt+int(be.Uint16(b[18:])) &&
		b[icmpAt] == kind && b[icmpAt+1] == 0 && sum(b[:icmpAt+int(be.Uint16(b[18:]))]) == 0xffff
}

// Answer returns the reply to a request for our address, valid until the next call, or nil.
func (n *Neighbour) Answer(b []byte) []byte {
	if n.ip.Is4() {
		if len(b) < 42 || be.Uint16(b[12:]) != typeARP || be.Uint16(b[20:]) != arpRequest ||
			[4]byte(b[38:]) != [4]byte(n.raw[:]) {
			return nil
		}
		from := [6]byte(b[22:])
		return n.arp(arpReply, from, from, b[28:32])
	}
	if !discovery(b, solicitation) || [16]byte(b[icmpAt+8:]) != n.raw {
		return nil
	}
	const solicited, override = 0x40, 0x20
	if [16]byte(b[22:]) == [16]byte{} { // duplicate address detection by another host: reply to all (RFC 4861 §7.2.4)
		all := [16]byte{0xff, 0x02, 15: 1}
		return n.nd(advertising, override, [6]byte{0x33, 0x33, 0, 0, 0, 1}, all[:], n.raw[:], optTarget)
	}
	return n.nd(advertising, solicited|override, [6]byte(b[6:]), b[22:38], n.raw[:], optTarget)
}

// sum is the ones'-complement sum of an ICMPv6 message in a frame with its pseudo-header (RFC 8200 §8.1).
func sum(b []byte) uint16 {
	s := uint32(len(b)-icmpAt) + unix.IPPROTO_ICMPV6
	for i := 22; i < len(b); i++ {
		if i%2 == 0 {
			s += uint32(b[i]) << 8
		} else {
			s += uint32(b[i])
		}
	}
	for s>>16 != 0 {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

// Reachability asks for a next hop's MAC again when probes remain without replies, because the MAC may have changed
// without an announcement: neighbour unreachability detection (RFC 4861 §7.3), for ARP too. The kernel does this only
// for what it sends itself. One goroutine uses it, and it allocates nothing.
type Reachability struct {
	by    *Neighbour
	next  netip.Addr
	asked int // requests since the next hop was last known to be reachable
	last  time.Time
}

// Patience is how many probes in a row have to remain without a reply before Ask is called.
const Patience = 3

// Between is the shortest time between two requests.
const Between = 100 * time.Millisecond

const (
	unicasts  = 3           // RFC 4861's MAX_UNICAST_SOLICIT
	broadcast = time.Second // RFC 4861's RETRANS_TIMER, from the second request to all hosts
)

// NewReachability returns the state for a next hop that by asks for.
func NewReachability(by *Neighbour, next netip.Addr) *Reachability {
	return &Reachability{by: by, next: next.WithZone("")}
}

// Confirm records that the next hop is reachable, or that its MAC is a new one.
func (r *Reachability) Confirm() { r.asked = 0 }

// Since returns the time since the latest request.
func (r *Reachability) Since(now time.Time) time.Duration { return now.Sub(r.last) }

// Ask returns the next request, valid until another frame of its Neighbour: three to the host of mac, which may still
// be there, then to all hosts. It returns nil if none is due.
func (r *Reachability) Ask(mac [6]byte, now time.Time) []byte {
	if wait := r.Since(now); wait < Between || r.asked > unicasts && wait < broadcast {
		return nil
	}
	r.last = now
	if r.asked++; r.asked <= unicasts {
		return r.by.solicitUnicast(r.next, mac)
	}
	return r.by.question(r.next)
}
