package mlx4

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/ib"
)

// stations are the peers of a bench, on a port with artificial MACs. A station is known by its hardware address, GID
// and queue pair, learnt from ARP and neighbour discovery. The path to it is requested from subnet administration, and
// frames are held until it is known.
type stations struct {
	mu     sync.Mutex
	all    map[ib.Address]*whereabouts
	macs   map[[6]byte]*whereabouts
	groups map[ib.GID]*whereabouts
	held   []held
	ready  atomic.Bool // a held frame can be delivered or sent

	// The destination that Send used last, used by Send only, valid until stale is set.
	lastMAC [6]byte
	last    destination
	stale   atomic.Bool
}

// whereabouts is the path to a station or a group.
type whereabouts struct {
	address ib.Address
	group   ib.GID // of a group, instead of address
	mac     [6]byte
	to      destination
	known   bool
	failed  bool
	used    bool // the bench has sent to it
}

// held is a frame that waits: received from an unknown station, or to be sent to an unknown group.
type held struct {
	frame []byte
	at    int64
	from  *whereabouts // or
	to    *whereabouts
}

const (
	mostStations = 1024
	mostHeld     = 16
)

func (t *stations) reset() {
	t.all, t.macs, t.groups = map[ib.Address]*whereabouts{}, map[[6]byte]*whereabouts{}, map[ib.GID]*whereabouts{}
	t.held = nil
	t.stale.Store(true)
}

// toStation returns the datagram segment for a queue pair at the end of a path.
func (q *DatagramQueue) toStation(p ib.Path, qpn uint32) (to destination) {
	to = q.segment(p.DLID, p.SL, qpn)
	if p.HopLimit > 1 { // it leaves the subnet
		to.withGRH(p.DGID, p.HopLimit, 0, p.FlowLabel)
	}
	return to
}

// toGroup is the datagram segment for a multicast group.
func (q *DatagramQueue) toGroup(g ib.Group) (to destination) {
	const multicastQP = 0xFFFFFF
	to = q.segment(g.MLID, g.SL, multicastQP)
	to.withGRH(g.MGID, g.HopLimit, g.TrafficClass, g.FlowLabel)
	return to
}

func (q *DatagramQueue) segment(lid uint16, sl uint8, qpn uint32) destination {
	return destination{
		path: uint64(q.portPD) | uint64(swap(uint32(lid)))<<32, class: uint64(sl) << 36,
		queue: uint64(swap(qpn)) | uint64(atomic.LoadUint32(&q.qkey))<<32,
	}
}

func (to *destination) withGRH(gid ib.GID, hopLimit, class uint8, flow uint32) {
	to.path |= withGRH << 40
	to.class |= uint64(hopLimit)<<24 | uint64(swap(uint32(class)<<20|flow&0xFFFFF))<<32
	to.gid0, to.gid1 = binary.LittleEndian.Uint64(gid[:]), binary.LittleEndian.Uint64(gid[8:])
}

// send sends the packet of a frame. To an unknown station it uses the LID in the MAC. A frame to an unknown group is
// held until subnet administration has answered.
func (s *subnet) send(frame []byte) error {
	t, q := &s.stations, s.d.datagrams
	if t.ready.Load() {
		s.flush()
	}
	if !s.state.Load().member {
		return nic.ErrFull // as on a link that is down
	}
	if [6]byte(frame) == t.lastMAC && !t.stale.Load() {
		return q.sendTo(frame, &t.last, ib.Address{})
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stale.Store(false)
	mac := [6]byte(frame)
	if mac[0]&1 != 0 {
		t.lastMAC = [6]byte{}
		return s.sendGroup(frame)
	}
	lid, qpn, ok := ib.ParseStation(mac)
	if !ok {
		return s.d.card.Errorf("%x is no station of this subnet: on InfiniBand MACs are made of LID and queue pair, as ARP's answers here have them", mac)
	}
	to, peer := q.segment(lid, 0, qpn), ib.Address{}
	if w := t.macs[mac]; w != nil {
		to, peer, w.used = w.to, w.address, true
	}
	t.lastMAC, t.last = mac, to
	if ib.EtherTypeARP == uint16(frame[12])<<8|uint16(frame[13]) {
		t.lastMAC = [6]byte{} // the next frame needs peer, too
	}
	return q.sendTo(frame, &to, peer)
}

// sendGroup sends a frame to a group. The caller holds the lock.
func (s *subnet) sendGroup(frame []byte) error {
	t, q, now := &s.stations, s.d.datagrams, s.state.Load()
	if [6]byte(frame) == [6]byte{0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF} {
		to := q.toGroup(now.group)
		return q.sendTo(frame, &to, ib.Address{})
	}
	mgid, ok := groupOf(now.pkey, frame)
	if !ok {
		return s.d.card.Errorf("a frame to %x, which is no multicast packet of IP", frame[:6])
	}
	w := t.groups[mgid]
	if w == nil {
		if len(t.groups) >= mostStations {
			return nic.ErrFull
		}
		w = &whereabouts{group: mgid}
		t.groups[mgid] = w
	}
	if w.known {
		return q.sendTo(frame, &w.to, ib.Address{})
	}
	w.failed = false
	if len(t.held) < mostHeld {
		t.held = append(t.held, held{frame: bytes.Clone(frame), to: w})
	}
	s.changed(false)
	return nil
}

// groupOf returns the IPoIB group of a multicast frame.
func groupOf(pkey uint16, frame []byte) (ib.GID, bool) {
	var a netip.Addr
	switch kind := uint16(frame[12])<<8 | uint16(frame[13]); {
	case kind == ib.EtherTypeIPv4 && len(frame) >= 14+20:
		a = netip.AddrFrom4([4]byte(frame[30:]))
	case kind == ib.EtherTypeIPv6 && len(frame) >= 14+40:
		a = netip.AddrFrom16([16]byte(frame[38:]))
	default:
		return ib.GID{}, false
	}
	g, err := ib.MulticastGroup(ib.ScopeLink, pkey, a)
	return g, err == nil
}

// recv copies the frame of the next datagram into buf. It returns -1 if there is none.
func (s *subnet) recv(buf []byte) (n int, at int64) {
	t := &s.stations
	if t.ready.Load() {
		s.flush()
		if n, at := s.unhold(buf); n >= 0 {
			return n, at
		}
	}
	for {
		p, c, to, at, ok := s.d.datagrams.receive()
		if !ok {
			return -1, 0
		}
		from := senderOf(&c).mac()
		if !ib.Neighbour(p) {
			if n, _, ok := ib.ToEthernet(buf, p, to, from); ok {
				return n, at
			}
			if len(p) > len(buf) {
				return len(p) + extra, at
			}
			continue
		}
		if n, ok := s.hear(buf, p, to, from, at); ok {
			return n, at
		}
	}
}

// hear handles ARP and neighbour discovery. If the sender is not known yet, it holds the frame.
func (s *subnet) hear(buf, p []byte, to, from [6]byte, at int64) (n int, ok bool) {
	n, sender, ok := ib.ToEthernet(buf, p, to, from)
	if !ok || sender == (ib.Address{}) {
		return n, ok
	}
	sender[0] = 0 // flags
	t := &s.stations
	t.mu.Lock()
	defer t.mu.Unlock()
	w := t.all[sender]
	if w == nil {
		if w = t.admit(sender); w == nil {
			return 0, false
		}
	}
	if !w.known {
		w.failed = false
		f := make([]byte, len(p)+extra)
		n, _, ok = ib.ToEthernet(f, p, to, from)
		t.hold(held{frame: f[:n], at: at, from: w})
		s.changed(false)
		return 0, false
	}
	n, _, ok = ib.ToEthernet(buf, p, to, w.mac)
	return n, ok
}

// admit adds a station. In a full table it displaces one to which the bench has never sent; if there is none, it
// returns nil. The caller holds the lock.
func (t *stations) admit(a ib.Address) *whereabouts {
	if len(t.all) >= mostStations {
		var victim *whereabouts
		for _, w := range t.all {
			if !w.used && (victim == nil || w.failed) {
				if victim = w; w.failed {
					break
				}
			}
		}
		if victim == nil {
			return nil
		}
		t.forget(victim)
	}
	w := &whereabouts{address: a}
	t.all[a] = w
	return w
}

// forget removes a station from the table. The caller holds the lock.
func (t *stations) forget(w *whereabouts) {
	delete(t.all, w.address)
	if t.macs[w.mac] == w {
		delete(t.macs, w.mac)
	}
	t.held = slices.DeleteFunc(t.held, func(h held) bool { return h.from == w })
}

// hold keeps a frame of an unknown station. If there is no room, it drops the oldest frame and its station, so that
// subnet administration is not asked for more stations than frames are held. The caller holds the lock.
func (t *stations) hold(h held) {
	if len(t.held) >= mostHeld {
		i := slices.IndexFunc(t.held, func(o held) bool { return o.from != nil })
		if i < 0 {
			return
		}
		oldest := t.held[i]
		t.held = slices.Delete(t.held, i, i+1)
		if !oldest.from.known && oldest.from != h.from {
			t.forget(oldest.from)
		}
	}
	t.held = append(t.held, h)
}

// flush sends frames to groups that are now known, and drops those to groups that do not exist.
func (s *subnet) flush() {
	t := &s.stations
	t.mu.Lock()
	defer t.mu.Unlock()
	rest := t.held[:0]
	waiting := false
	for _, h := range t.held {
		switch {
		case h.to != nil && h.to.known:
			if s.d.datagrams.sendTo(h.frame, &h.to.to, ib.Address{}) != nil {
				rest = append(rest, h)
			}
		case h.to != nil && h.to.failed, h.from != nil && h.from.failed:
		default:
			waiting = waiting || h.from != nil && h.from.known
			rest = append(rest, h)
		}
	}
	t.held = rest
	t.ready.Store(waiting)
}

// unhold copies out a held frame whose sender is now known.
func (s *subnet) unhold(buf []byte) (n int, at int64) {
	t := &s.stations
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, h := range t.held {
		if h.from == nil || !h.from.known {
			continue
		}
		t.held = append(t.held[:i], t.held[i+1:]...)
		restation(h.frame, h.from.mac)
		return copy(buf, h.frame), h.at
	}
	t.ready.Store(false)
	return -1, 0
}

// restation replaces the sender's MAC in an ARP or neighbour discovery frame.
func restation(f []byte, mac [6]byte) {
	copy(f[6:], mac[:])
	if f[13] == ib.EtherTypeARP&0xFF {
		copy(f[22:], mac[:])
	}
}

// resolve asks subnet administration for all paths that are needed. again means that known paths may have changed. Only
// run calls it.
func (s *subnet) resolve(again bool) {
	t, q := &s.stations, s.d.datagrams
	t.mu.Lock()
	var wanted []*whereabouts
	for _, w := range t.all {
		if !w.failed && (!w.known || again) {
			wanted = append(wanted, w)
		}
	}
	for _, w := range t.groups {
		if !w.failed && (!w.known || again) {
			wanted = append(wanted, w)
		}
	}
	t.mu.Unlock()
	if len(wanted) == 0 {
		return
	}
	now := s.last
	c := s.newClient(&now, saTimeout, saTries)
	for _, w := range wanted {
		var to destination
		var mac [6]byte
		var err error
		if w.group != (ib.GID{}) {
			var g ib.Group
			if g, err = c.JoinToSend(w.group); err == nil {
				to = q.toGroup(g)
			}
		} else {
			var p ib.Path
			if p, err = c.Path(w.address.GID()); err == nil {
				to, mac = q.toStation(p, w.address.QPN()), ib.Station(p.DLID, w.address.QPN())
			}
		}
		if errors.Is(err, errStopped) {
			return
		}
		t.mu.Lock()
		if err != nil {
			w.failed = true
			s.failures.Add(1)
			s.d.card.Log.Warn("subnet administration knows no way", "to", w.name(), "err", err)
		} else {
			w.known, w.to = true, to
			if w.group == (ib.GID{}) {
				w.mac = mac
				t.macs[mac] = w
			}
		}
		t.stale.Store(true)
		t.ready.Store(true)
		t.mu.Unlock()
	}
}

func (w *whereabouts) name() string {
	if w.group != (ib.GID{}) {
		return netip.AddrFrom16(w.group).String()
	}
	return netip.AddrFrom16(w.address.GID()).String()
}

// sendTo posts the packet of a frame.
func (q *DatagramQueue) sendTo(frame []byte, to *destination, peer ib.Address) error {
	q.reclaim()
	at, iova, free := q.out.Next(q.txDone)
	if q.fault.Load() != faultNone || !free {
		return nic.ErrFull
	}
	at = unsafe.Add(at, slotPayload)
	l, ok := ib.FromEthernet(unsafe.Slice((*byte)(at), maxPayload), frame, *q.address.Load(), peer)
	if !ok {
		return nic.ErrFrameSize
	}
	q.head.to = *to
	if uint32(l) <= q.inlineMax {
		if !q.post(at, uint32(l)) {
			return nic.ErrFull
		}
		q.pushed.Add(1)
	} else {
		if !q.point(iova+slotPayload, uint32(l)) {
			return nic.ErrFull
		}
		q.out.Use(q.txTail)
	}
	if q.txRung != q.txTail {
		q.ring()
	}
	return nil
}
