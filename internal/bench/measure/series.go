package measure

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rebound-nic/rebound/internal/bench/engine"
	"github.com/rebound-nic/rebound/internal/bench/observe"
	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/internal/bench/route"
	"github.com/rebound-nic/rebound/internal/cards"
	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/latency/sanitize"
)

// Series is one series of probes, which results in one report. One goroutine uses it, except for Progress.
type Series struct {
	Settings
	Notes    []string // for the report
	Warnings []string // likewise

	path   route.Path
	taken  error // another process uses the source
	flow   probe.Flow
	port   *port
	wire   engine.Port  // port, or a wrapper that tags its frames
	codec  *probe.Codec // the stream's, of frames
	hop    *nextHop     // of frames
	rec    *latency.Recorder
	stream *engine.Stream

	clock        observe.Bound // of this host, before the first run
	clockUnknown error

	drops  []report.Drop // while the stream was running
	closed int64         // of the socket, before the stream started

	// error reading the responder's metrics, around the latest run for which they could not be read
	unread    error
	uncounted map[report.Place]bool // places without a counter in some run

	restartedHere, restartedThere bool // this host's device was restarted in some run, or the responder or its device

	asked       uint32 // calls of exchange
	timingTried bool   // askTiming was called
	farUnknown  string // why the responder's loop is unknown, if it could have been asked
}

// Recording selects what a series records of its round trips.
type Recording struct {
	Duration time.Duration // of a run, 0 if it ends after a number of probes; determines the length of the intervals
	Interval time.Duration // 0 for a twentieth of Duration
	Raw      bool          // also record single round trips
}

// Prepare creates a new stream and recorder for a rate in probes per second, 0 for a closed loop.
func (s *Series) Prepare(clock *latency.Clock, o Recording, rate float64) error {
	s.requestTiming()
	s.flow.OtherPorts = s.port.otherPorts(s)
	codec, err := probe.New(s.flow)
	if err != nil {
		return process.Usagef("%w", err)
	}
	s.Rates, s.drops, s.unread, s.uncounted = []float64{rate}, nil, nil, map[report.Place]bool{}
	s.restartedHere, s.restartedThere = false, false
	if s.port.socket != nil {
		s.closed = s.port.socket.Closed
	}
	ro := latency.RecorderOptions{OpenLoop: rate > 0, Interval: min(max(o.Duration/20, 10*time.Millisecond),
		time.Second)}
	switch {
	case o.Interval > 0:
		ro.Interval = o.Interval
	case o.Duration == 0:
		ro.Interval = 100 * time.Millisecond
	}
	if o.Raw {
		ro.Raw = 1 << 20
	}
	if s.rec, err = latency.NewRecorder(clock, ro); err != nil {
		return err
	}
	eo := engine.Options{Port: s.wire, Codec: codec, Recorder: s.rec, Rate: rate, Arrivals: s.Arrivals,
		Timeout: s.Timeout, Stamps: s.port.stamper, Unpinned: s.port.stamper != nil && cards.Blocks(s.port.device),
		StopAtZero: s.STAMP.StopAtZero}
	if s.Explain {
		eo.Sample = sampleSize
	}
	if s.port.device != nil && !s.Message {
		s.codec = codec
		eo.Answer, eo.Unanswered = s.answer, s.unanswered
	}
	if s.Proto == probe.STAMP {
		s.clock, s.clockUnknown = observe.Read(s.STAMP.ClockError, s.path.Interface)
	}
	s.stream, err = engine.New(eo)
	return err
}

// requestTiming adds the Host Timing TLV to the probes if they have room for it and the target answers it. It does so
// once, because all reports of a series must be of the same packets.
func (s *Series) requestTiming() {
	if s.Proto != probe.STAMP || s.Message || !s.Explain || s.timingTried {
		return
	}
	s.timingTried = true
	flow := s.flow
	flow.Test.Ask = append([]probe.Ask{probe.AskTiming()}, flow.Test.Ask...)
	least := probe.MinSize(s.Proto, s.Target.Is6()) + flow.Test.Extra()
	switch room := flow.Size - least; {
	case s.Sizes[0] == 0:
		flow.Size = least
	case room < 0 || room > 0 && room < 4:
		s.farUnknown = "probes of this -size have no room for the request"
		return
	}
	if s.path.MTU != 0 && probe.CheckSize(s.Proto, s.Target.Is6(), flow.Size, flow.Test.Extra(), s.path.MTU) != nil {
		s.farUnknown = "probes with the request would exceed the MTU"
		return
	}
	reply, err := s.probeOnce(flow, 20)
	switch {
	case err != nil: // the measurement finds out why
		s.farUnknown = "the target did not answer the request for its loop's times"
	case !slices.ContainsFunc(reply.Stamped.Answers, func(a probe.Answer) bool {
		return a.Type == probe.HostTiming &&
			a.Usable()
	}):
		s.farUnknown = "the target does not report when its loop ran"
	default:
		s.flow = flow
	}
}

// probeOnce sends a probe of a flow until it is answered, in another session than the measured one, and returns the
// reply. A late reply to an earlier probe does not suffice.
func (s *Series) probeOnce(flow probe.Flow, tries int) (r probe.Reply, err error) {
	flow.Test.SSID ^= 0xffff // a stateful reflector counts it separately
	codec, err := probe.New(flow)
	if err != nil {
		return r, err
	}
	if s.hop != nil {
		defer func(c *probe.Codec) {
			if s.codec = c; c != nil {
				s.setNextHop(s.flow.DstMAC)
			}
		}(s.codec)
		s.codec = codec
	}
	ok, err := s.exchange(codec, tries, &r)
	if err == nil && !ok {
		err = errNoReply
	}
	return r, err
}

// Run measures on the calling thread, as engine.Stream.Run does.
func (s *Series) Run(l engine.Limit, stop *atomic.Bool) error {
	err := s.stream.Discard()
	if err == nil && s.port.ptp != nil {
		err = s.port.ptp.TimestampPort(s.flow.SrcPort)
	}
	if err == nil {
		counters := s.counters()
		before, unread := counters.Read()
		err = s.stream.Run(l, stop)
		after, failed := counters.Read()
		grown := counters.Grown(before, after)
		s.drops = report.AddDrops(s.drops, grown)
		s.restartedHere = s.restartedHere || after.Here.Restarted(before.Here)
		s.restartedThere = s.restartedThere || after.There.Restarted(before.There)
		for _, place := range report.Places {
			s.uncounted[place] = s.uncounted[place] || !observe.Counted(grown, place)
		}
		if unread = cmp.Or(unread, failed); unread != nil {
			s.unread = unread
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", s.Label(), err)
	}
	return nil
}

// Sent returns how many probes were measured.
func (s *Series) Sent() int64 { return s.stream.Counts().Sent }

// Label is the name of the series in tables.
func (s *Series) Label() string {
	if s.Name != "" {
		return s.Name
	}
	return s.Target.String()
}

// Replies returns how many probes were answered, in time or late.
func (s *Series) Replies() int64 {
	n := s.stream.Counts()
	return n.Received + n.Late
}

// Silent reports whether no reply to the probes could be timed.
func (s *Series) Silent() bool {
	n := s.stream.Counts()
	return n.Sent > 0 && n.Received+n.Late == 0
}

// errNoReply means that the target was silent, or answered with something other than the requested reply.
var errNoReply = errors.New("no usable reply")

// NoReply returns errNoReply with the known reason.
func (s *Series) NoReply() error {
	to := s.Target.String()
	if s.Proto != probe.ICMP && !s.Message {
		to = netip.AddrPortFrom(s.Target, s.flow.DstPort).String()
	}
	n := s.stream.Counts()
	refused := ""
	if n.Refused > 0 {
		refused = fmt.Sprintf("; it answered with %s, the last %s", sanitize.Count(n.Refused, "ICMP error"),
			icmpError(s.stream.Error, s.Target.Is6()))
	}
	if p := s.port.socket; p != nil && p.Refused > 0 {
		refused = fmt.Sprintf("; the kernel reports: %v", p.LastRefusal)
	}
	answered := "none answered within " + latency.FormatDuration(s.Timeout)
	if c, _ := s.Counts(); c.Elsewhere() != "" {
		answered += " (" + c.Elsewhere() + ")"
	}
	if n.Corrupt > 0 {
		answered = fmt.Sprintf("and %s, those to the warm-up included, rejected, by the first thing wrong in each: %s",
			sanitize.Count(n.Corrupt, "reply"), s.wrong())
		if s.stream.Fields[probe.Length] > 0 {
			answered += fmt.Sprintf(". The latest had %d bytes of payload, the probe has %d", s.stream.Payload,
				s.stream.PayloadSize())
			if s.Proto == probe.STAMP {
				answered += ": a reflector's packets must have the sender's length (RFC 8762 §4.3)"
			}
		}
	}
	switch {
	case s.Proto != probe.STAMP || n.Corrupt > 0:
	case s.STAMP.Key.Bytes() == nil:
		refused += fmt.Sprintf("; is there a reflector? A responder has one with -set respond.stamp_ports=%d", s.Port)
	default:
		refused += "; a reflector is silent if its key differs: compare -stamp-key with the reflector's (respond.stamp_key), and -port with its respond.stamp_auth_ports"
	}
	return fmt.Errorf("%w from %s by %s: %s sent through %s to %v, %s%s",
		errNoReply, to, s.Protocol(), sanitize.Count(int(n.Sent), "probe"), s.path.Interface, s.path.Next, answered,
		refused)
}

// icmpError names the ICMP errors that probes usually cause (RFC 792, RFC 4443).
func icmpError(code uint16, v6 bool) string {
	names := map[uint16]string{0x300: "network unreachable", 0x301: "host unreachable", 0x302: "protocol unreachable",
		0x303: "port unreachable",
		0x304: "fragmentation needed", 0x30d: "administratively prohibited", 0xb00: "time to live exceeded"}
	if v6 {
		names = map[uint16]string{0x100: "no route", 0x101: "administratively prohibited", 0x103: "address unreachable",
			0x104: "port unreachable",
			0x200: "packet too big", 0x300: "hop limit exceeded"}
	}
	if n, ok := names[code]; ok {
		return n
	}
	return fmt.Sprintf("type %d code %d", code>>8, code&0xff)
}

// askTimeout is how long exchange waits for the reply to a probe.
const askTimeout = 50 * time.Millisecond

// exchange sends probes of a codec until one is answered, and reports whether one was.
func (s *Series) exchange(codec *probe.Codec, tries int, r *probe.Reply) (bool, error) {
	buf := make([]byte, 1<<12)
	seq := 1<<31 | s.asked // not the number of a measured probe
	s.asked++
	for try := range tries {
		if s.hop != nil && try >= route.Patience {
			if out := s.unanswered(try == route.Patience); out != nil {
				if err := s.sendOther(out); err != nil {
					return false, err
				}
			}
		}
		if err := s.sendOther(codec.Build(seq, 0)); err != nil {
			return false, err
		}
		for end := time.Now().Add(askTimeout); time.Now().Before(end); {
			n, _, err := s.wire.Recv(buf)
			if err != nil {
				return false, err
			}
			if n == 0 {
				continue
			}
			if v := codec.Check(buf[:n], r); v == probe.Good || v == probe.Unsummed {
				if o, ok := s.wire.(engine.Origin); r.Seq == seq && (!ok || o.FromTarget()) {
					return true, nil
				}
				continue
			}
			if s.hop == nil {
				continue
			}
			if out := s.answer(buf[:n]); out != nil {
				if err := s.sendOther(out); err != nil {
					return false, err
				}
			}
		}
	}
	return false, nil
}

// sendOther sends a frame outside of the stream.
func (s *Series) sendOther(frame []byte) error {
	err := s.wire.Send(frame)
	if err == nil {
		s.port.stamper.Other()
	}
	return err
}

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
