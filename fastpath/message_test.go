package fastpath

import (
	"sync/atomic"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

func messages(t *testing.T, c Config) *Responder {
	t.Helper()
	return must.Get(NewMessages(c))(t)
}

func TestMessage(t *testing.T) {
	r := messages(t, Config{Rate: 1000, Burst: 3, TicksPerSecond: 1 << 30})
	r.Loop.Start = 1 << 40
	take := func(sender uint64, imm uint32) bool {
		if r.Message(sender, imm) {
			r.Returned()
			return true
		}
		return r.Unsettled(sender, imm)
	}
	for i := range 5 {
		if got, want := take(7<<16|1, 0), i < 3; got != want {
			t.Errorf("message %d of one sender: answered %v, want %v", i+1, got, want)
		}
	}
	if !take(7<<16|2, 5) {
		t.Error("another queue pair of the same port shares the limit")
	}
	if take(9<<16|1, ReplyMark) {
		t.Error("a reply is answered")
	}
	s := r.Stats()
	if s[AnsweredMessage] != 4 || s[RefusedRate] != 2 || s[RefusedReply] != 1 || s.Answered() != 4 || s.Refused() != 3 {
		t.Errorf("counted %v", s)
	}
	r = messages(t, Config{Mode: Open, Rate: 1, Burst: 1, TicksPerSecond: 1})
	for range 100 {
		if !r.Message(1, 0) {
			t.Fatal("open mode rations")
		}
	}
	if r.Message(1, ReplyMark) {
		t.Error("open mode answers replies")
	}
}

// A test packet in a message is answered like one in a datagram, except for the hop limit, which no device reports.
func TestReflectMessage(t *testing.T) {
	var now atomic.Pointer[Clock]
	now.Store(&Clock{NTP: 5 << 32, Rate: 1 << 30, ErrorEstimate: 0x8142})
	for _, c := range []struct {
		name    string
		n, want int
		base    bool
		imm     uint32
		verdict Verdict
	}{
		{"base packet", 44, 44, false, 0, AnsweredSTAMPMessage},
		{"with padding", 1000, 1000, false, 7, AnsweredSTAMPMessage},
		{"the least", 41, 41, false, 0, AnsweredSTAMPMessage},
		{"one byte less", 40, 0, false, 0, RefusedSTAMPShort},
		{"that may grow", 14, 44, true, 0, AnsweredSTAMPMessage},
		{"that may grow and has a part of the error estimate", 15, 44, true, 0, AnsweredSTAMPMessage},
		{"too short to grow", 13, 0, true, 0, RefusedSTAMPShort},
		{"nothing", 0, 0, true, 0, RefusedSTAMPShort},
		{"a reply", 44, 0, false, ReplyMark, RefusedReply},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := messages(t, Config{STAMPBase: c.base, Clock: &now})
			p := make([]byte, max(c.n, 44)) // no longer than it has to be
			for i := range p {
				p[i] = byte(i + 1)
			}
			was := append([]byte(nil), p...)
			must.Equal(t, r.ReflectMessage(p, c.n, 1, c.imm), c.want, "%d bytes")
			for v, n := range r.Stats() {
				if (n == 1) != (Verdict(v) == c.verdict) {
					t.Errorf("counted %d of %v, want one %v", n, Verdict(v), c.verdict)
				}
			}
			if c.want == 0 {
				if string(p) != string(was) {
					t.Error("a message that is not answered was changed")
				}
				return
			}
			if c.n < 44 && c.base && be.Uint16(p[14:]) != 0 {
				t.Errorf("a packet without an SSID is reflected with %#x", be.Uint16(p[14:]))
			}
			if be.Uint16(p[12:]) != 0x8142 || string(p[:4]) != string(was[:4]) ||
				string(p[24:38]) != string(was[:14]) || p[40] != 255 {
				t.Errorf("reflected as % x", p[:44])
			}
			if t2, t3 := be.Uint64(p[16:]), be.Uint64(p[4:]); t2 < 5<<32 || t3 < t2 {
				t.Errorf("received at %#x, sent at %#x", t2, t3)
			}
			if string(p[44:]) != string(was[44:]) {
				t.Error("the padding was changed")
			}
		})
	}
	for _, sessions := range []int{0, 4} {
		r := messages(t, Config{Clock: &now, Rate: 1, Burst: 1, TicksPerSecond: 1 << 30,
			Reflector: Reflector{Sessions: sessions, Idle: 1 << 60}})
		for _, want := range []int{44, 0} {
			check.Equal(t, r.ReflectMessage(make([]byte, 64), 44, 1, 0), want, "of two at a rate of one: %d bytes")
		}
		if s := r.Stats(); s[RefusedRate] != 1 || s.Answered() != 1 {
			t.Errorf("%d sessions: counted %v", sessions, s)
		}
	}
	check.Equal(t, messages(t, Config{}).ReflectMessage(make([]byte, 64), 44, 1, 0), 0,
		"answered without a clock, with %d bytes")
	for what, c := range map[string]Config{"a rate without ticks": {Rate: 1}, "mode 9": {Mode: 9},
		"authenticated ports": reflector(1)} {
		check.Fails(t, what, check.Err(NewMessages(c)), ErrConfig)
	}
}
