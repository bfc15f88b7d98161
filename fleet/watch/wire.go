package watch

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/bench/observe"
	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/internal/bench/route"
	"github.com/rebound-nic/rebound/internal/bench/socket"
	"github.com/rebound-nic/rebound/latency/outcome"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/kit/netif"
)

// wire is an open device or a socket, with all flows that use it.
type wire struct {
	key    string
	iface  string         // the kernel's, or the driver's name for it
	qdisc  bool           // frames go through its queueing discipline
	device nic.Device     // nil for a socket
	socket *socket.Shared // nil for a device
	echo   bool           // for echo requests; a device also for the others
	ports  *socket.Ports  // sockets of all source ports, the first is socket; nil if there is only one

	ending chan struct{}  // closed when the wire is closed
	traces sync.WaitGroup // those that use the sockets or held ports

	drops        samples
	stopCounting func()
	mac          [6]byte
	locals       map[netip.Addr]*local
	neighbours   []*route.Neighbour // answer for addresses that the kernel does not have
	claims       netif.Claims       // of those addresses
	holds        []int              // sockets on our UDP ports, which prevent the kernel's "port unreachable"

	failure atomic.Pointer[error] // of receiving: the loop no longer uses the wire

	mu   sync.Mutex
	hops map[netip.Addr]*hop // of a device's flows
}

// local is a source address of a device's flows.
type local struct {
	port  uint16           // UDP
	id    uint16           // ICMP
	ports []uint16         // UDP, of flows with several
	held  []*socket.Shared // on these ports, if the kernel has the address
}

// flowKey identifies a reply's flow: the sender of the reply, and the protocol data.
type flowKey struct {
	from netip.Addr // without a zone
	udp  bool
	port uint16 // the target's
}

func (f *flow) key() flowKey {
	of := f.codec.Flow()
	k := flowKey{from: of.Dst, udp: of.Proto != probe.ICMP}
	if k.udp {
		k.port = of.DstPort
	}
	return k
}

func (w *wire) fail(err error) { w.failure.CompareAndSwap(nil, &err) }

func (w *wire) send(f *flow, path uint8, frame []byte) error {
	if w.ports != nil {
		return w.ports.All[path].Send(&f.peer, frame)
	}
	if w.socket != nil {
		return w.socket.Send(&f.peer, frame)
	}
	return w.device.Send(frame)
}

// recv receives one message and finds its flow: n is 0 if there is no message, the flow nil if it belongs to none.
// origin is not None if a socket received it from another address than the flow's target.
func (w *planned) recv(buf []byte) (n int, at int64, f *flow, origin outcome.Reason, err error) {
	if w.socket != nil {
		s := w.socket
		if w.ports != nil {
			if s, err = w.ports.Ready(); s == nil || err != nil {
				return 0, 0, nil, origin, err
			}
		}
		n, from, at, err := s.Recv(buf)
		if n == 0 || err != nil {
			return 0, at, nil, origin, err
		}
		k := flowKey{from: from.Addr(), udp: !w.echo}
		if k.udp {
			k.port = from.Port()
		}
		if f = w.flows[k]; f == nil {
			if f = w.flowByRun(buf[:n], 0); f == nil {
				f = w.flowByCopy(buf[:n])
			}
			if f != nil {
				origin = outcome.Source
			}
		}
		return n, at, f, origin, nil
	}
	n, at, err = w.device.Recv(buf)
	if n == 0 || err != nil {
		return 0, at, nil, origin, err
	}
	b := buf[:n]
	if k, ok := keyOf(b); ok {
		if f = w.flows[k]; f == nil {
			f = w.flowByRun(b, l4At(b)) // the codec sees what is wrong
		}
		return n, at, f, origin, nil
	}
	w.answer(b)
	return n, at, nil, origin, nil
}

// flowByRun returns the flow whose run's number is in the payload of a reply; STAMP has none. The ICMP or UDP header is
// at l4.
func (w *planned) flowByRun(b []byte, l4 int) *flow {
	at := l4 + 8
	if w.socket != nil && !w.echo {
		at = l4 // a UDP socket delivers the payload
	}
	if len(b) < at+4 {
		return nil
	}
	return w.runs[binary.BigEndian.Uint32(b[at:])]
}

// flowByCopy returns the flow whose probe a STAMP reply on a socket copies: number and timestamp are those of a probe
// that is waiting.
func (w *planned) flowByCopy(b []byte) *flow {
	if w.echo {
		return nil
	}
	for _, f := range w.flows {
		if !f.stamp || f.codec.Check(b, &w.reply) != probe.Good {
			continue
		}
		if s := f.find(w.reply.Seq); s != nil && s.t1 == w.reply.Stamped.T1 {
			return f
		}
	}
	return nil
}

// l4At is where the ICMP or UDP header of a frame is.
func l4At(b []byte) int {
	if binary.BigEndian.Uint16(b[typeAt:]) == typeIPv6 {
		return l4of6
	}
	return l4of4
}

// answer handles the neighbours' frames: requests for our addresses, and replies to our requests.
func (w *wire) answer(b []byte) {
	for _, nb := range w.neighbours {
		if out := nb.Answer(b); out != nil {
			_ = w.device.Send(out) // a neighbour without a reply asks again
			return
		}
	}
	of, mac, ok := route.Announced(b)
	if !ok || !w.mu.TryLock() { // the loop never waits: a missed reply is requested again
		return
	}
	h := w.hops[of]
	w.mu.Unlock()
	if h != nil {
		h.set(mac)
		h.reach.Confirm()
	}
}

// solicit asks the next hops for their MAC.
func (w *wire) solicit(asks []ask) {
	for _, a := range asks {
		if err := w.device.Send(a.hop.by.Ask(a.hop.next)); err != nil && !errors.Is(err, nic.ErrFull) {
			w.fail(err)
			return
		}
	}
}

// ask is a request to a next hop.
type ask struct {
	wire *wire
	hop  *hop
}

// Offsets in a frame.
const (
	typeAt   = 12
	ip4      = 14
	l4of4    = ip4 + 20
	l4of6    = ip4 + 40
	typeIPv4 = 0x0800
	typeIPv6 = 0x86dd
)

// keyOf returns the flow of a reply frame: echo replies, datagrams, and ICMP errors that quote a probe. ok is false for
// anything else, and even with ok the frame may not be a reply of ours: a codec checks it.
func keyOf(b []byte) (k flowKey, ok bool) {
	be := binary.BigEndian
	if len(b) < l4of4+8 {
		return k, false
	}
	quoted := 0 // start of a quoted packet
	switch be.Uint16(b[typeAt:]) {
	case typeIPv4:
		k.from = netip.AddrFrom4([4]byte(b[ip4+12:]))
		switch b[ip4+9] {
		case unix.IPPROTO_UDP:
			k.udp, k.port = true, be.Uint16(b[l4of4:])
			return k, true
		case unix.IPPROTO_ICMP:
			if t := b[l4of4]; t == 3 || t == 11 || t == 12 { // RFC 792
				quoted = l4of4 + 8
				break
			}
			return k, b[l4of4] == 0
		default:
			return k, false
		}
		if len(b) < quoted+24 {
			return k, false
		}
		k.from = netip.AddrFrom4([4]byte(b[quoted+16:]))
		if b[quoted+9] == unix.IPPROTO_UDP {
			k.udp, k.port = true, be.Uint16(b[quoted+22:])
		}
		return k, true
	case typeIPv6:
		if len(b) < l4of6+8 {
			return k, false
		}
		k.from = netip.AddrFrom16([16]byte(b[ip4+8:]))
		switch b[ip4+6] {
		case unix.IPPROTO_UDP:
			k.udp, k.port = true, be.Uint16(b[l4of6:])
			return k, true
		case unix.IPPROTO_ICMPV6:
			if t := b[l4of6]; t >= 1 && t <= 4 { // RFC 4443
				quoted = l4of6 + 8
				break
			}
			return k, b[l4of6] == 129
		default:
			return k, false
		}
		if len(b) < quoted+44 {
			return k, false
		}
		k.from = netip.AddrFrom16([16]byte(b[quoted+24:]))
		if b[quoted+6] == unix.IPPROTO_UDP {
			k.udp, k.port = true, be.Uint16(b[quoted+42:])
		}
		return k, true
	}
	return k, false
}

// counters are the sources of this host's drop counters for the wire's frames.
func (w *wire) counters() observe.Source {
	s := observe.Source{Interface: w.iface, Qdisc: w.qdisc}
	if w.ports != nil {
		s.Socket = w.ports
	} else if w.socket != nil {
		s.Socket = w.socket
	} else {
		s.Device = w.device
	}
	return s
}

// close stops the counting, waits for traces in progress, and closes the device or the sockets.
func (w *wire) close() (err error) {
	if w.stopCounting != nil {
		w.stopCounting()
	}
	w.mu.Lock()
	close(w.ending)
	w.mu.Unlock()
	w.traces.Wait()
	w.release()
	if w.device != nil {
		return w.device.Close()
	}
	if w.ports != nil {
		return w.ports.Close()
	}
	return w.socket.Close()
}

// release lets go of the addresses and UDP ports that are held for a device.
func (w *wire) release() {
	w.claims.Close()
	for _, fd := range w.holds {
		unix.Close(fd)
	}
	for _, l := range w.locals {
		for _, s := range l.held {
			s.Close()
		}
	}
}
