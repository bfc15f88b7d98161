package route

import (
	"net/netip"
	"time"
)

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
