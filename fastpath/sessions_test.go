package fastpath

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/rebound-nic/rebound/polling"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// Replies are numbered from 0 by session: source address, source port, our address and port, and SSID.
func TestSessionsNumberReplies(t *testing.T) {
	c := reflector(16)
	c.STAMPPorts = []uint16{862, 863}
	r := responder(t, c)
	number := func(frame []byte) uint32 {
		g := inBuffer(frame)
		if poll(r, g) == 0 {
			t.Fatal("refused")
		}
		return be.Uint32(g[42:])
	}
	frames := map[string][]byte{
		"base":            datagram(862, open(500, 0)),
		"another port":    toUs(0, udp(their4, our4, 40001, 862, open(500, 0))),
		"to another port": datagram(863, open(500, 0)),
		"another address": toUs(0, udp(netip.MustParseAddr("10.1.2.10"), our4, 40000, 862, open(500, 0))),
		"to our other":    toUs(0, udp(their4, netip.MustParseAddr("192.0.2.77"), 40000, 862, open(500, 0))),
		"an SSID":         datagram(862, open(500, 1)),
		"SSID, 41 bytes":  datagram(862, open(500, 2)[:stampLength]),
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
	if open, sealed := r.Sessions(); open != (Sessions{Begun: uint64(len(frames) - 2)}) ||
		sealed != (Sessions{Begun: 2}) {
		t.Errorf("%+v and %+v, want %d sessions begun and 2", open, sealed, len(frames)-2)
	}
}

// The requested number of sessions find a place, whatever the seed.
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
				table.begin(s, &k, 5000)
			}
		}
		if refused > 0 {
			t.Errorf("%d of %d tables of %d sessions had no room for one of them", refused, c.tables, c.sessions)
		}
	}
}

// enter does what a Responder does with a packet of session i at tick now, and returns its place, nil if there is no
// room.
func (t *sessions) enter(i int, now uint64) *session {
	k := messageKey(uint64(i), 0)
	s, going := t.find(&k, now)
	if s != nil && !going {
		t.begin(s, &k, now)
	}
	if s != nil {
		s.seen = now
		s.sent++
	}
	return s
}

// A flood of sessions of one packet each, at any rate, neither displaces an active session nor keeps a new one, or one
// with bursts, out for long. An idle session makes room, and restarts at 0 when it comes back.
func TestFloodDisplacesItself(t *testing.T) {
	const second = 1 << 20 // ticks
	for _, rate := range []int{35, 100, 1000, 20_000} {
		table := newSessions(64, 60*second)
		must.Equal(t, len(table.places), 128, "%d places for 64 sessions")
		now, source := uint64(1)<<40, 1_000_000
		flood := func(ticks uint64) {
			for end := now + ticks; now < end; now += second / uint64(rate) {
				table.enter(source, now)
				source++
			}
		}
		for i := range 32 {
			table.enter(i, now)
		}
		now += second / 10
		for round := range uint32(100) {
			for i := range 32 {
				if s := table.enter(i, now); s == nil || s.sent != round+2 {
					t.Fatalf("%d/s: session %d lost its place in round %d: %+v", rate, i, round, s)
				}
			}
			flood(second / 4)
		}
		// New sessions send often enough for a second packet to arrive before the flood has replaced all places: some
		// of the first may be displaced.
		pace, lost := uint64(second/max(10, rate/10)), 0
		for i := range 16 {
			numbers := uint32(0)
			for range 50 {
				switch s := table.enter(100+i, now); {
				case s == nil:
					t.Fatalf("%d/s: new session %d is refused", rate, i)
				case s.sent <= numbers:
					lost++
					numbers = s.sent
				default:
					numbers = s.sent
				}
				flood(pace)
			}
		}
		if lost > 8 {
			t.Errorf("%d/s: new sessions began again %d times", rate, lost)
		}
		begun, gone := table.begun.Load(), table.ended.Load()+table.displaced.Load()
		if n := held(table); table.displaced.Load() == 0 || begun-gone != uint64(n) {
			t.Errorf("%d/s: %d begun, %d gone, %d held", rate, begun, gone, n)
		}
	}
}

func held(t *sessions) (n int) {
	for i := range t.places {
		if t.places[i].seen != 0 {
			n++
		}
	}
	return n
}

// Active sessions fill the table: then a new one is refused until one of them has been silent for four times its
// duration, or is idle.
func TestSessionsAreBounded(t *testing.T) {
	t0 := uint64(1) << 40
	table := newSessions(64, 1000)
	entered := []int{}
	for i := range 10_000 { // each sends two packets, 10 ticks apart
		if table.enter(i, t0) != nil && table.enter(i, t0+10) != nil {
			entered = append(entered, i)
		}
	}
	if len(entered) < 64 || len(entered) > 128 {
		t.Fatalf("%d sessions found a place", len(entered))
	}
	for i := range 1000 {
		if table.enter(20_000+i, t0+10+40) != nil {
			t.Fatalf("session %d displaced one that was silent for 4 times what it lasted", i)
		}
	}
	if table.enter(30_000, t0+10+41+patience) == nil {
		t.Error("no session made room after a longer silence")
	}
	check.Equal(t, table.displaced.Load(), 1, "%d displaced")
	table = newSessions(64, 1000)
	for now := t0; now <= t0+5000; now += 500 {
		table.enter(5, now)
	}
	if s := table.enter(5, t0+6000); s == nil || s.sent != 12 {
		t.Errorf("a session begins again before it is idle: %+v", s)
	}
	if s := table.enter(5, t0+7001); s == nil || s.sent != 1 {
		t.Errorf("an idle session continues: %+v", s)
	}
	check.Equal(t, table.ended.Load(), 1, "%d sessions ended")
}

// Unauthenticated packets from random sources reduce neither the places nor the rate of authenticated senders, new or
// old.
func TestFloodSparesAuthenticated(t *testing.T) {
	c := reflector(16)
	c.Rate, c.Burst, c.TicksPerSecond = 1, 4, 1_000_000
	r := responder(t, c)
	r.Loop.Start = 1 << 40
	ask := func(port uint16, ssid uint16) int { return poll(r, inBuffer(datagram(port, sealed(500, ssid)))) }
	if ask(authPort, 1) == 0 {
		t.Fatal("refused")
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 100_000 {
		a := netip.AddrFrom4([4]byte{10, 1, byte(rnd.Uint32()), byte(1 + rnd.IntN(200))})
		p := open(0, uint16(rnd.Uint32()))
		poll(r, inBuffer(toUs(0, udp(a, our4, uint16(2000+rnd.IntN(60_000)), 862, p))))
	}
	if ask(authPort, 1) == 0 || ask(authPort, 2) == 0 {
		t.Errorf("an authenticated sender is refused: %v", r.Stats())
	}
	if s := r.Stats(); s[RefusedRate] == 0 {
		t.Error("the flood did not exhaust what it can")
	}
}

// A packet for which there is no room is refused with a separate reason, unchanged, and not charged to its source.
func TestSessionsFull(t *testing.T) {
	c := reflector(1)
	r := responder(t, c)
	for i := range r.sessions.places { // sessions that have lasted, and were active recently
		s := &r.sessions.places[i]
		s.begun, s.seen = 1, polling.TSC()
	}
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
	if s := r.Stats(); refused != 1000 || s[RefusedSTAMPSessions] != uint64(refused) {
		t.Errorf("%d refused, %d under %s", refused, s[RefusedSTAMPSessions], RefusedSTAMPSessions)
	}
}
