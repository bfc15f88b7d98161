package ib

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rebound-nic/rebound/proof/check"
)

// sa is a scripted subnet administration: answer turns each request into the datagrams to return.
type sa struct {
	requests [][]byte
	arrived  [][]byte
	answer   func(request []byte) [][]byte
}

func (s *sa) client() *Client {
	return &Client{
		Port: ourGID, PKey: 0xFFFF, Timeout: time.Minute,
		Send: func(mad []byte) error {
			s.requests = append(s.requests, bytes.Clone(mad))
			s.arrived = append(s.arrived, s.answer(mad)...)
			return nil
		},
		Recv: func(time.Duration) ([]byte, error) { // nothing arrives later
			if len(s.arrived) == 0 {
				return nil, nil
			}
			b := s.arrived[0]
			s.arrived = s.arrived[1:]
			return b, nil
		},
	}
}

func goodJoin(request []byte) []byte {
	return answer(request, saData+32, []byte{0, 0, 0x0B, 0x1B, 0xC0, 0, 0x84, 0, 0xFF, 0xFF, 0x83, 0x92, 0, 0, 0, 0,
		0x21})
}

func joined(request []byte) [][]byte { return [][]byte{goodJoin(request)} }

func TestClient(t *testing.T) {
	type replies func(request []byte) [][]byte
	spoiled := func(at int, v byte) replies {
		return func(r []byte) [][]byte { return [][]byte{answer(goodJoin(r), at, []byte{v})} }
	}
	none, busy, denied := replies(func([]byte) [][]byte { return nil }), spoiled(5, 1), spoiled(4, 7)
	noisy := func(r []byte) [][]byte { return [][]byte{make([]byte, MADSize), r[:10], bytes.Clone(r), goodJoin(r)} }
	late := join(GID{9}, ourGID, 1, 1) // answers the first attempt during the second
	for name, c := range map[string]struct {
		first, later replies
		asked        int
		is           error
		says         string
	}{
		"at once":          {joined, none, 1, nil, ""},
		"lost once":        {none, func(r []byte) [][]byte { return [][]byte{goodJoin(late), goodJoin(r)} }, 2, nil, ""},
		"noise, a request": {noisy, none, 1, nil, ""},
		"busy at first":    {busy, joined, 2, nil, ""},
		"no answer":        {none, none, 4, ErrNoSM, "join of the group: no answer from subnet administration: 4 requests"},
		"always busy":      {busy, busy, 4, errMAD, "busy"},
		"denied":           {denied, none, 1, errMAD, "the request is denied"},
	} {
		s := &sa{}
		s.answer = func(r []byte) [][]byte {
			if len(s.requests) == 1 {
				return c.first(r)
			}
			return c.later(r)
		}
		g, err := s.client().Join(BroadcastGroup(ScopeLink, 0xFFFF))
		if len(s.requests) != c.asked || !errors.Is(err, c.is) || err != nil &&
			!strings.Contains(err.Error(), c.says) || err == nil && (g.MLID != 0xC000 || g.QKey != 0x0B1B) {
			t.Errorf("%s: %+v, %v, %d requests", name, g, err, len(s.requests))
		}
		for i := range s.requests[1:] {
			if bytes.Equal(s.requests[i][8:16], s.requests[i+1][8:16]) {
				t.Errorf("%s: two tries have one number", name)
			}
		}
	}
	s := &sa{answer: func(r []byte) [][]byte {
		return [][]byte{answer(r, saData+40, []byte{0, 3, 0, 7, 0, 0, 0, 1, 0, 0x81, 0xFF, 0xFF, 0, 5, 0x84, 0x83})}
	}}
	c := s.client()
	if p, err := c.Path(farGID); err != nil || p.DLID != 3 || p.SL != 5 || p.DGID != farGID || p.SGID != ourGID {
		t.Errorf("%+v, %v", p, err)
	}
	s.answer = func(r []byte) [][]byte { return [][]byte{answer(r, 0, nil)} }
	check.OK(t, c.Leave(GID{0xFF}))
	s.answer = joined
	if g, err := c.JoinOrCreate(GID{0xFF, 0x12}, Group{MTU: 2048}); err != nil || g.MGID != (GID{0xFF, 0x12}) {
		t.Errorf("%+v, %v", g, err)
	}
	broken := errors.New("broken")
	c.Recv = func(time.Duration) ([]byte, error) { return nil, broken }
	check.Fails(t, "a Recv that fails", c.Leave(GID{}), broken)
	c.Send = func([]byte) error { return broken }
	check.Fails(t, "a Send that fails", check.Err(c.Path(farGID)), broken)
}

// Datagrams that others sent to the queue pair while nothing was receiving do not displace the answer, and a continuous
// stream of them does not delay the end of a request.
func TestClientInFlood(t *testing.T) {
	foreign := make([]byte, MADSize)
	const room = 32
	s := &sa{}
	s.answer = func(r []byte) [][]byte {
		if len(s.arrived) == room {
			return nil
		}
		return joined(r)
	}
	for range room {
		s.arrived = append(s.arrived, foreign)
	}
	if _, err := s.client().Join(GID{9}); err != nil || len(s.requests) != 1 {
		t.Errorf("%d requests, %v; want one that is answered", len(s.requests), err)
	}
	synctest.Test(t, func(t *testing.T) {
		c, looks, began := s.client(), 0, time.Now()
		c.Tries = 3
		c.Send = func([]byte) error { return nil }
		c.Recv = func(time.Duration) ([]byte, error) {
			if looks++; looks > 1_000_000 {
				return nil, errors.New("it does not end")
			}
			time.Sleep(time.Millisecond)
			return foreign, nil
		}
		_, err := c.Join(GID{9})
		if took := time.Since(began); !errors.Is(err, ErrNoSM) || took > 3*c.Timeout+time.Second {
			t.Errorf("%v after %v", err, took)
		}
	})
}
