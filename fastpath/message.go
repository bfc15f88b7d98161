package fastpath

import (
	"errors"
	"fmt"

	"github.com/rebound-nic/rebound/polling"
)

// ReplyMark is the immediate data of every reply to a message: "RBND". Messages have no ports to distinguish a service
// from a client, so this distinguishes a reply from a request: two connected responders do not bounce messages, and
// neither does one that is made to write to itself. Clients silently accept an immediate that they did not request
// (ibv_ud_pingpong, perftest and libfabric do). A request that has this immediate by chance is not answered, but
// counted.
const ReplyMark uint32 = TimingMark

// NewMessages returns a Responder for a port that carries messages, not frames. It uses Mode, Rate, Burst,
// TicksPerSecond, Clock, STAMPBase and Reflector of a Config, except for AuthPorts; the other fields concern Ethernet
// and IP.
func NewMessages(c Config) (*Responder, error) {
	if c.Mode > Open {
		return nil, fmt.Errorf("%w: mode %d, expected Strict (%d) or Open (%d)", ErrConfig, c.Mode, Strict, Open)
	}
	r := &Responder{mode: c.Mode, open: c.Mode == Open, clock: c.Clock, stampLeast: stampLength}
	if c.STAMPBase {
		r.stampLeast = stampSender
	}
	if len(c.Reflector.AuthPorts) > 0 {
		return nil, fmt.Errorf("%w: authenticated STAMP is for UDP ports, which messages have none of", ErrConfig)
	}
	return r, errors.Join(r.setGuards(&c), r.setReflector(&c))
}

// Unsettled decides about a message that Message turned down, and counts it: its sender may just not be at home in the
// rate table. It reports whether the message is to be sent back.
//
//go:noinline
func (r *Responder) Unsettled(sender uint64, imm uint32) bool {
	v := AnsweredMessage
	switch {
	case imm == ReplyMark:
		v = RefusedReply
	case !r.limit.allow(r.Loop.Start, sender*messageHash):
		v = RefusedRate
	}
	r.stats[v].Add(1)
	return v == AnsweredMessage
}

// RefuseFor counts a message that the driver turned down.
//
//go:noinline
func (r *Responder) RefuseFor(why Verdict) { r.stats[why].Add(1) }

// ReflectMessage turns the test packet in a message, n bytes at the start of p, into its reply in place, and returns
// the reply's length, or 0 if it is not answered, which it counts. sender and imm are as for Message. p is the whole
// buffer: a reply may be longer than its request if Config.STAMPBase permits that. Devices do not report a hop limit
// for messages; the reply contains 255 (RFC 5357 §4.2.1).
//
//go:noinline
func (r *Responder) ReflectMessage(p []byte, n int, sender uint64, imm uint32) int {
	seen := polling.TSC()
	switch {
	case imm == ReplyMark:
		r.stats[RefusedReply].Add(1)
		return 0
	case r.clock == nil || n < r.stampLeast || len(p) < max(n, stampBase):
		r.stats[RefusedSTAMPShort].Add(1)
		return 0
	}
	source := sender * messageHash
	var s *session
	if r.sessions != nil {
		ssid := uint16(0)
		if n >= stampLength {
			ssid = be.Uint16(p[baseSSID:])
		}
		k := messageKey(sender, ssid)
		var why Verdict
		if why, s = r.enter(r.sessions, &r.limit, &k, seen, source); why != 0 {
			r.stats[why].Add(1)
			return 0
		}
	} else if !r.limit.allow(r.Loop.Start, source) {
		r.stats[RefusedRate].Add(1)
		return 0
	}
	in := arrival{seen: seen, hop: 255}
	if n < stampLength {
		in.grown = stampBase - n
		clear(p[n:stampBase])
		n = stampBase
	}
	r.mirror(p[:n], &in, s, false)
	r.stats[AnsweredSTAMPMessage].Add(1)
	return n
}
