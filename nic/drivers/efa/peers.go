package efa

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rebound-nic/rebound/nic"
)

// maxHandles bounds the device's address handles. Senders that announced themselves (Prewarm, Resolve) have three
// quarters of them and unknown senders the rest. In each part the oldest is evicted for the next, so unknown senders
// displace only each other. A sender that announces itself again becomes the newest. One whose handle went is unknown
// again: its next message waits for another handle, and is answered.
const maxHandles = 1024

// handle is the device's address handle of one GID.
type handle struct {
	gid    netip.Addr
	number atomic.Uint32 // noHandle once it is destroyed
	known  bool          // announced
}

// target is a nic.Peer.
type target struct {
	nic.Address
	handle atomic.Pointer[handle]
}

// peers has the existing address handles, one per GID: the device must not be asked twice for the same GID.
type peers struct {
	mu      sync.Mutex
	byGID   map[netip.Addr]*handle
	age     []*handle // oldest first
	targets map[nic.Address]nic.Peer
	list    atomic.Pointer[[]*target] // by nic.Peer, read by Send
}

var errPeer = errors.New("no such peer")

func (t *peers) peer(p nic.Peer) (*target, error) {
	if list := t.list.Load(); list != nil && p >= 0 && int(p) < len(*list) {
		return (*list)[p], nil
	}
	return nil, fmt.Errorf("%w: %d", errPeer, p)
}

// Resolve has the device create an address handle for a's GID, if there is none.
func (d *Device) Resolve(a nic.Address) (p nic.Peer, err error) {
	if !a.GID.Is6() || a.GID.IsUnspecified() || a.QPN>>16 != 0 {
		return 0, d.card.Errorf("%v cannot be reached: expected a GID and a queue pair of 16 bits", a)
	}
	err = d.card.Ask(func() error {
		d.peers.mu.Lock()
		defer d.peers.mu.Unlock()
		h, err := d.reach(a.GID, true)
		if err != nil {
			return err
		}
		var ok bool
		if p, ok = d.peers.targets[a]; ok {
			(*d.peers.list.Load())[p].handle.Store(h)
			return nil
		}
		var list []*target
		if old := d.peers.list.Load(); old != nil {
			list = append(list, *old...)
		}
		if len(list) >= maxHandles {
			return d.card.Errorf("%w: %d peers are known already", nic.ErrFull, len(list))
		}
		p = nic.Peer(len(list))
		t := &target{Address: a}
		t.handle.Store(h)
		list = append(list, t)
		if d.peers.targets == nil {
			d.peers.targets = map[nic.Address]nic.Peer{}
		}
		d.peers.targets[a] = p
		d.peers.list.Store(&list)
		return nil
	})
	return p, err
}

// Prewarm has the device create an address handle for a GID, so that the first message from there is answered as
// quickly as any other.
func (d *Device) Prewarm(gid netip.Addr) error {
	if !gid.Is6() || gid.IsUnspecified() || gid.Is4In6() {
		return d.card.Errorf("%v is not the GID of an EFA", gid)
	}
	return d.card.Ask(func() error {
		d.peers.mu.Lock()
		defer d.peers.mu.Unlock()
		_, err := d.reach(gid, true)
		return err
	})
}

// reach returns the handle of a GID. The table is locked, and the device must not be restarting.
func (d *Device) reach(gid netip.Addr, known bool) (*handle, error) {
	places := min(maxHandles, int(d.queue.maxAH))
	room := max(places/4, 1)
	if known {
		room = max(places-room, 1)
	}
	h := d.peers.byGID[gid]
	if h != nil && (h.known || !known) {
		if known { // announced again: the last to be evicted
			d.peers.age = append(slices.DeleteFunc(d.peers.age, func(o *handle) bool { return o == h }), h)
		}
		return h, nil
	}
	if oldest, n := d.peers.oldest(known); n >= room {
		if err := d.forget(oldest); err != nil {
			return nil, err
		}
	}
	if h != nil { // an unknown sender that announces itself
		h.known = true
		return h, nil
	}
	h = &handle{gid: gid, known: known}
	if err := d.createAH(h); err != nil {
		return nil, err
	}
	if d.peers.byGID == nil {
		d.peers.byGID = map[netip.Addr]*handle{}
	}
	d.peers.byGID[gid] = h
	d.peers.age = append(d.peers.age, h)
	return h, nil
}

// oldest returns the oldest handle among the known or the unknown, and how many there are.
func (t *peers) oldest(known bool) (first *handle, n int) {
	for _, h := range t.age {
		if h.known == known {
			if n++; n == 1 {
				first = h
			}
		}
	}
	return first, n
}

func (d *Device) createAH(h *handle) error {
	number, err := d.control.createAH(h.gid)
	if err != nil {
		return err
	}
	h.number.Store(uint32(number))
	return nil
}

// forget destroys a handle: messages in flight to it are flushed.
func (d *Device) forget(h *handle) error {
	for i, o := range d.peers.age {
		if o == h {
			d.peers.age = append(d.peers.age[:i], d.peers.age[i+1:]...)
			break
		}
	}
	delete(d.peers.byGID, h.gid)
	return d.control.destroyAH(uint16(h.number.Swap(noHandle)))
}

// reclaim takes back the messages in flight to a handle, with the table locked: the handle is destroyed, and created
// again if Send uses it.
func (d *Device) reclaim(h *handle) error {
	if err := d.forget(h); err != nil {
		return err
	}
	for a, p := range d.peers.targets {
		t := (*d.peers.list.Load())[p]
		if t.handle.Load() != h {
			continue
		}
		again, err := d.reach(a.GID, true)
		if err != nil {
			return err
		}
		t.handle.Store(again)
	}
	return nil
}

// revive recreates the handles that existed before a restart. One that the device refuses now is dropped: its GID is
// unknown.
func (t *peers) revive(d *Device) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	age := t.age
	t.age, t.byGID = nil, map[netip.Addr]*handle{}
	for _, h := range age {
		switch err := d.createAH(h); {
		case refused(err):
			h.number.Store(noHandle)
			continue
		case err != nil:
			return err
		}
		t.age, t.byGID[h.gid] = append(t.age, h), h
	}
	return nil
}

// lookEvery is the interval at which the goroutine checks for unknown senders. It delays the first message of one, in
// addition to the command to the device.
const lookEvery = time.Millisecond

// lookUp creates handles for unknown senders. It does not run on a polling core, and the loops do not wait for it.
func (d *Device) lookUp() {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-d.ended:
			return
		case <-tick.C:
		}
		for _, q := range d.queues {
			if s := &q.unknownSender; s.asked.Load() != s.answered.Load() {
				// An error is reported to the loop as an unreachable sender; the watchdog detects a broken device as
				// well.
				_ = d.card.Ask(func() error { d.introduce(s); return nil })
			}
		}
	}
}

// introduce handles a loop's requests, while the device is not being restarted.
func (d *Device) introduce(s *unknownSender) {
	for n := s.answered.Load(); n != s.asked.Load(); n++ {
		e := &s.entry[n%maxUnknownSenders]
		d.peers.mu.Lock()
		h, err := d.reach(netip.AddrFrom16(e.gid), false)
		d.peers.mu.Unlock()
		if e.reachable = err == nil; e.reachable {
			e.to |= uint64(h.number.Load())
		} else {
			d.card.Log.Warn("a sender cannot be answered", "gid", netip.AddrFrom16(e.gid), "err", err)
		}
		s.answered.Store(n + 1)
	}
}
