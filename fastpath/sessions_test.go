package fastpath

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
)

// Replies are numbered from 0 by session: source address, source port, our address and port, and SSID.
func TestSessionsNumberReplies(t *testing.T) {
	c := reflector(16)
	r := responder(t, c)
	number := func(frame []byte) uint32 {
		g := inBuffer(frame)
		if poll(r, g) == 0 {
			t.Fatal("refused")
		}
		return binary.BigEndian.Uint32(g[42:])
	}
	frames := map[string][]byte{
		"base":            datagram(862, open(500, 0)),
		"another port":    eth(ourMAC, theirMAC, 0, 0x0800, udp(their4, our4, 40001, 862, open(500, 0))),
		"another address": eth(ourMAC, theirMAC, 0, 0x0800, udp(netip.MustParseAddr("10.1.2.10"), our4, 40000, 862, open(500, 0))),
		"to our other":    eth(ourMAC, theirMAC, 0, 0x0800, udp(their4, netip.MustParseAddr("192.0.2.77"), 40000, 862, open(500, 0))),
		"an SSID":         datagram(862, open(500, 1)),
		"another SSID":    datagram(862, open(500, 0xffff)),
		"sealed":          datagram(authPort, sealed(500, 0)),
		"sealed, SSID":    datagram(authPort, sealed(500, 1)),
	}
	for i := range uint32(5) {
		for name, f := range frames {
			if got := number(f); got != i {
				t.Errorf("%s: reply %d is numbered %d", name, i, got)
			}
		}
	}
	if s := r.Sessions(); s.Begun != uint64(len(frames)) || s.Ended != 0 {
		t.Errorf("%+v, want %d sessions begun", s, len(frames))
	}
}

// As many sessions as were asked for find a place, whatever the seed.
func TestSessionsFindPlaces(t *testing.T) {
	for _, c := range []struct{ sessions, tables int }{{1, 10}, {64, 2000}, {100, 1000}, {4096, 30}, {1 << 16, 2}} {
		refused := 0
		for range c.tables {
			table := newSessions(c.sessions, 1000)
			for i := range c.sessions {
				k := messageKey(uint64(i), 0)
				s, going := table.find(&k, 5000)
				if s == nil || going {
					refused++
					break
				}
				table.begin(s, &k)
				s.seen = 5000
			}
		}
		if refused > 0 {
			t.Errorf("%d of %d tables of %d sessions had no room for one of them", refused, c.tables, c.sessions)
		}
	}
}

// A session that goes on keeps its place however many others come; one that is idle makes room, and begins at 0 if it comes back.
func TestSessionsAreBounded(t *testing.T) {
	t0 := uint64(1) << 40
	table := newSessions(64, 1000)
	if len(table.places) != 128 {
		t.Fatalf("%d places for 64 sessions", len(table.places))
	}
	key := func(i int) sessionKey { return messageKey(uint64(i), 0) }
	enter := func(i int, now uint64) *session {
		k := key(i)
		s, going := table.find(&k, now)
		if s != nil && !going {
			table.begin(s, &k)
		}
		if s != nil {
			s.seen = now
			s.sent++
		}
		return s
	}
	for i := range 64 {
		if enter(i, t0) == nil {
			t.Fatalf("no room for session %d of 64", i)
		}
	}
	full := 0
	for i := range 10_000 {
		if enter(1000+i, t0+500) == nil {
			full++
		}
	}
	if full < 10_000-64 {
		t.Errorf("%d of 10000 more found no room", full)
	}
	for i := range 64 {
		if s := enter(i, t0+1000); s == nil || s.sent != 2 {
			t.Fatalf("session %d lost its place to others", i)
		}
	}
	if n := table.ended.Load(); n != 0 {
		t.Errorf("%d sessions ended while they went on", n)
	}
	if s := enter(5, t0+2001); s == nil || s.sent != 1 {
		t.Errorf("an idle session goes on: %+v", s)
	}
	if n := table.ended.Load(); n != 1 {
		t.Errorf("%d sessions ended, want 1", n)
	}
}

// What there is no room for is refused under its own reason, unchanged, and costs its source nothing.
func TestSessionsFull(t *testing.T) {
	c := reflector(1)
	r := responder(t, c)
	refused := 0
	for i := range 1000 {
		f := datagram(862, open(0, uint16(i)))
		g := inBuffer(f)
		if poll(r, g) == 0 {
			if refused++; !bytes.Equal(f, g) {
				t.Fatal("a refused packet was changed")
			}
		}
	}
	if s := r.Stats(); refused < 1000-len(r.sessions.places) || s[RefusedSTAMPSessions] != uint64(refused) {
		t.Errorf("%d refused, %d under %s", refused, s[RefusedSTAMPSessions], RefusedSTAMPSessions)
	}
}
