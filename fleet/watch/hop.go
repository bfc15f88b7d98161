package watch

import (
	"errors"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/rebound-nic/rebound/internal/bench/route"
	"github.com/rebound-nic/rebound/nic"
)

// hop is the next hop of some flows of a device. The loop asks for its MAC again when none of them receives replies.
type hop struct {
	next  netip.Addr
	by    *route.Neighbour
	reach *route.Reachability // the loop's
	lost  int                 // the loop's: consecutive probes without a reply, of all flows

	mac     atomic.Uint64 // known and the MAC; set by the loop from replies, and by the manager from the kernel's table
	suspect atomic.Bool   // the loop asks for it again
	static  atomic.Bool   // the administrator has set it

	kernel [6]byte   // the manager's: what the kernel's table had
	since  time.Time // the manager's: when it found that the hop is suspect
}

const known = 1 << 48 // in hop.mac

// set changes the MAC.
func (h *hop) set(mac [6]byte) {
	v := uint64(known)
	for i, b := range mac {
		v |= uint64(b) << (8 * i)
	}
	h.mac.Store(v)
}

// follow has the next probe sent to the present MAC.
func (f *flow) follow() {
	if f.hop == nil {
		return
	}
	if v := f.hop.mac.Load(); v != f.mac {
		f.mac = v
		f.codec.SetNextHop(unpack(v))
	}
}

func unpack(v uint64) (mac [6]byte) {
	for i := range mac {
		mac[i] = byte(v >> (8 * i))
	}
	return mac
}

// heard records a reply.
func (f *flow) heard() {
	h := f.hop
	if h == nil {
		return
	}
	if h.lost = 0; h.suspect.Load() {
		h.suspect.Store(false)
		h.reach.Confirm()
	}
}

// lost records a probe without a reply, and asks for the next hop's MAC if there were several.
func (f *flow) lost() {
	h := f.hop
	if h == nil || f.wire.failure.Load() != nil {
		return
	}
	if h.lost++; h.lost < route.Patience || h.static.Load() {
		return
	}
	h.suspect.Store(true)
	if out := h.reach.Ask(unpack(h.mac.Load()), time.Now()); out != nil {
		if err := f.wire.device.Send(out); err != nil && !errors.Is(err, nic.ErrFull) { // it is repeated
			f.wire.fail(err)
		}
	}
}

// unsettled reports whether the kernel may learn a new MAC soon, because its neighbour has just been asked.
func (h *hop) unsettled(now time.Time) bool {
	if !h.suspect.Load() {
		h.since = time.Time{}
		return false
	}
	if h.since.IsZero() {
		h.since = now
	}
	return now.Sub(h.since) < routeEvery
}
