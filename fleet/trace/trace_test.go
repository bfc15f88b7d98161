package trace

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
)

// route is a path of hops. A probe with a TTL beyond the last one reaches the target, unless dropAfter hops have
// passed.
type route struct {
	hops      []string // addresses; empty for a silent hop
	dropAfter int      // hops that a probe passes before it is dropped; -1 for none
	cannot    bool     // the hop that drops says so
	lose      int      // answers, one of so many
	anonymous bool     // answers do not show the probe's TTL
	late      bool     // answers come after the patience

	queue []Answer
	count int
}

func (p *route) send(ttl int) error {
	p.count++
	if p.lose > 0 && p.count%p.lose == 1 {
		return nil
	}
	a := Answer{Kind: Expired, TTL: ttl}
	switch {
	case p.dropAfter >= 0 && ttl > p.dropAfter:
		if !p.cannot {
			return nil
		}
		a.Kind, a.From = Unreachable, netip.MustParseAddr(p.hops[p.dropAfter-1])
	case ttl > len(p.hops):
		a.Kind = Reached
	case p.hops[ttl-1] == "":
		return nil
	default:
		a.From = netip.MustParseAddr(p.hops[ttl-1])
	}
	if p.anonymous {
		a.TTL = 0
	}
	p.queue = append(p.queue, a)
	return nil
}

func (p *route) next(wait time.Duration) (Answer, error) {
	if p.late && len(p.queue) < 2 || len(p.queue) == 0 {
		time.Sleep(wait)
		return Answer{}, nil
	}
	a := p.queue[0]
	p.queue = p.queue[1:]
	return a, nil
}

func TestRun(t *testing.T) {
	four := []string{"10.0.0.1", "10.0.1.1", "10.0.2.1", "10.0.3.1"}
	gap := []string{"10.0.0.1", "", "", "", "10.0.4.1"}
	for name, c := range map[string]struct {
		route
		says, path string
		sent       int
	}{
		"dropped after two hops":   {route{hops: four, dropAfter: 2}, "nothing answers after hop 2, 10.0.1.1", "10.0.0.1 10.0.1.1", 2 + 2*Silent},
		"dropped at the host":      {route{hops: four, dropAfter: 0}, "no hop answers", "", 2 * Silent},
		"not dropped":              {route{hops: four, dropAfter: -1}, "a probe reached the target", "10.0.0.1 10.0.1.1 10.0.2.1 10.0.3.1", 5},
		"a router says so":         {route{hops: four, dropAfter: 3, cannot: true}, "hop 3, 10.0.2.1, reports that it cannot reach the target", "10.0.0.1 10.0.1.1 10.0.2.1", 4},
		"silent hops":              {route{hops: gap, dropAfter: 5}, "nothing answers after hop 5, 10.0.4.1", "10.0.0.1 * * * 10.0.4.1", 2 + 6 + 2*Silent},
		"each first answer lost":   {route{hops: four[:1], dropAfter: 1, lose: 2}, "nothing answers after hop 1, 10.0.0.1", "10.0.0.1", 2 + 2*Silent},
		"answers without a TTL":    {route{hops: four, dropAfter: 2, anonymous: true}, "nothing answers after hop 2, 10.0.1.1", "10.0.0.1 10.0.1.1", 2 + 2*Silent},
		"more hops than are tried": {route{hops: make([]string, 100), dropAfter: -1}, "no hop answers", "", 2 * Silent},
		// The answer to the first probe comes while the second is tried.
		"late answers": {route{hops: four[:2], dropAfter: 2, late: true}, "nothing answers after hop 2, 10.0.1.1", "10.0.0.1 10.0.1.1", 4 + 2*Silent},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, err := Run(t.Context(), c.send, c.next)
				if err != nil || r.String() != c.says || r.Path() != c.path || r.Sent != c.sent {
					t.Errorf("%v: %q, path %q, %d sent, %v", name, r.String(), r.Path(), r.Sent, err)
				}
			})
		})
	}
}

// A path of endless hops takes a bounded number of packets.
func TestBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := route{dropAfter: -1, lose: 2}
		for range 1000 {
			p.hops = append(p.hops, "10.0.0.1")
		}
		r, err := Run(t.Context(), p.send, p.next)
		if err != nil || r.Sent != MostHops*Tries || len(r.Hops) != MostHops {
			t.Errorf("%d sent, %d hops, %v", r.Sent, len(r.Hops), err)
		}
	})
}

// A trace ends with its context and with the first probe that cannot be sent.
func TestEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := route{hops: []string{""}, dropAfter: 0}
		ctx, cancel := context.WithTimeout(t.Context(), Patience/2)
		defer cancel()
		if r, err := Run(ctx, p.send, p.next); !errors.Is(err, context.DeadlineExceeded) || r.Sent != 1 {
			t.Errorf("%d sent, %v", r.Sent, err)
		}
		no := errors.New("no route")
		if _, err := Run(t.Context(), func(int) error { return no }, p.next); !errors.Is(err, no) {
			t.Error(err)
		}
	})
}
