package measure

import (
	"time"

	"github.com/rebound-nic/rebound/internal/bench/route"
)

// nextHop keeps the MAC of a series' next hop up to date, and answers requests for the series' address.
type nextHop struct {
	own   *route.Neighbour // nil if the kernel answers
	reach *route.Reachability
	last  time.Time // when unanswered did anything
}

func (s *Series) newNextHop() *nextHop {
	h := &nextHop{reach: route.NewReachability(s.path.Asker(s.flow.SrcMAC), s.path.Next)}
	if !s.path.Owned {
		h.own = route.NewNeighbour(s.flow.Src, s.flow.SrcMAC)
	}
	return h
}

// setNextHop changes the MAC that the series' frames are sent to.
func (s *Series) setNextHop(mac [6]byte) {
	s.flow.DstMAC = mac
	if s.codec != nil && s.codec.Flow().DstMAC != mac {
		s.codec.SetNextHop(mac)
	}
	s.hop.reach.Confirm()
}

// answer handles a frame that is no reply: it learns the next hop's MAC, and returns the reply to a request for our
// address, or nil.
func (s *Series) answer(frame []byte) []byte {
	if of, mac, ok := route.Announced(frame); ok && of == s.path.Next.WithZone("") && s.MAC == [6]byte{} {
		s.setNextHop(mac)
	}
	if s.hop.own == nil {
		return nil
	}
	return s.hop.own.Answer(frame)
}

// unanswered returns the next request for the next hop's MAC, or nil. Where the kernel receives the reply to it, it
// reads the kernel's table.
func (s *Series) unanswered(first bool) []byte {
	now, r := time.Now(), s.hop.reach
	if first {
		r.Confirm()
	}
	if s.MAC != [6]byte{} || now.Sub(s.hop.last) < route.Between {
		return nil
	}
	s.hop.last = now
	if s.path.Index != 0 && s.path.KernelResolves() && s.VLAN == 0 {
		switch e, ok := s.path.Known(); {
		case !ok:
			_ = s.path.AskKernel() // without that privilege the request below may still be answered
		case e.Permanent:
			return nil
		case e.MAC != s.flow.DstMAC:
			s.setNextHop(e.MAC)
			return nil
		case e.Confirmed < r.Since(now):
			r.Confirm()
		}
	}
	return r.Ask(s.flow.DstMAC, now)
}
