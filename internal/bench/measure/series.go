package measure

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/rebound-nic/rebound/internal/bench/engine"
	"github.com/rebound-nic/rebound/internal/bench/observe"
	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/internal/bench/route"
	"github.com/rebound-nic/rebound/internal/bench/socket"
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

// find fills in the path to the target, and makes the checks that are possible without opening anything.
func (s *Series) find() error {
	if s.Target.Is6() && s.Target.IsLinkLocalUnicast() && s.Target.Zone() == "" && s.Iface != "" {
		s.Target = s.Target.WithZone(s.Iface)
	}
	s.flow = probe.Flow{Proto: s.Proto, Dst: s.Target.WithZone(""), DstPort: s.Port, Run: rand.Uint32(),
		Size: s.Sizes[0],
		TOS:  s.TOS(), TTL: s.TTL}
	if s.Proto == probe.STAMP {
		s.flow.Test = s.STAMP.Packet()
	}
	if s.flow.Size == 0 {
		s.flow.Size = probe.MinSize(s.Proto, s.Target.Is6()) + s.flow.Test.Extra()
	}
	if s.Message {
		return s.findMessage()
	}
	if s.Transport == "raw" && !onKernel(s.Iface) {
		if !s.Source.IsValid() {
			return process.Usagef("%s is not a kernel interface, so it has no routes: set -source, and -gateway if the target is behind a router", s.Iface)
		}
		s.path = route.Path{Interface: s.Iface, Source: s.Source, Next: s.Target}
		if s.Gateway.IsValid() {
			s.path.Next = s.Gateway
		}
		return nil
	}
	var err error
	s.path, err = route.Find(s.Target, route.Constraints{Interface: s.Iface, Source: s.Source, Gateway: s.Gateway,
		TOS:      s.TOS(),
		Protocol: s.Proto.IP(s.Target.Is6()), Port: s.flow.DstPort})
	switch {
	case errors.Is(err, route.ErrNoInterface), errors.Is(err, route.ErrNoSource), errors.Is(err, route.ErrNoRoute):
		return process.Usagef("%w", err)
	case err != nil:
		return err
	case s.Transport == "raw" && s.path.NoFrames(s.Target) != nil:
		return process.Usagef("%w", s.path.NoFrames(s.Target))
	case s.Transport == "socket" && s.Source.IsValid() && !s.path.Owned:
		return process.Usagef("source %v is not an address of this host: a socket needs one, -transport raw does not",
			s.Source)
	}
	return s.checkSize(s.path.MTU)
}

func (s *Series) checkSize(mtu int) error {
	if err := probe.CheckSize(s.Proto, s.Target.Is6(), s.flow.Size, s.flow.Test.Extra(), mtu); err != nil {
		return process.Usagef("%w", err)
	}
	return nil
}

// address chooses the source of a raw flow, before the device is open.
func (s *Series) address(p *port) error {
	s.flow.Src = s.path.Source.WithZone("")
	s.flow.ID = uint16(1 + rand.IntN(0xffff))
	if s.Proto == probe.ICMP || s.Message {
		return nil
	}
	count := max(s.Ports, 1)
	if !s.path.Owned {
		const first, dynamic = 49152, 16384 // RFC 6335 §6
		at := rand.IntN(dynamic)
		for i := range count {
			s.flow.SrcPorts = append(s.flow.SrcPorts, uint16(first+(at+i)%dynamic))
		}
	} else {
		for range count {
			fd, own, err := socket.Hold(s.flow.Src, s.path.Index)
			if err != nil {
				return err
			}
			p.holds = append(p.holds, fd)
			s.flow.SrcPorts = append(s.flow.SrcPorts, own)
		}
	}
	s.flow.SrcPort = s.flow.SrcPorts[0]
	return nil
}

// known sets the next hop's MAC if it is configured or the kernel knows it or finds it.
func (s *Series) known() error {
	s.flow.Routed = s.path.Routed(s.Target)
	s.flow.DstMAC = s.MAC
	if s.MAC != [6]byte{} {
		return nil
	}
	if onKernel(s.Iface) && s.path.KernelResolves() && s.VLAN == 0 {
		if e, ok := s.path.Known(); ok {
			s.flow.DstMAC = e.MAC
			return nil
		}
		if s.path.AskKernel() == nil {
			for range 300 {
				time.Sleep(10 * time.Millisecond)
				if e, ok := s.path.Known(); ok {
					s.flow.DstMAC = e.MAC
					return nil
				}
			}
			return fmt.Errorf("%w: the kernel found no MAC for %v on %s", route.ErrNoAnswer, s.path.Next,
				s.path.Interface)
		}
	}
	return nil
}

// resolve asks for the next hop's MAC if it is not known.
func (s *Series) resolve() error {
	if s.flow.DstMAC != [6]byte{} {
		return nil
	}
	tries := route.Tries
	if !onKernel(s.Iface) {
		// Opening the NIC has just brought its link up. A switch with spanning tree forwards 30 s later (IEEE
		// 802.1D-2004 §17.14: two Forward Delays), and a peer on InfiniBand waits until the subnet manager has detected
		// the link.
		tries = 40
	}
	mac, err := s.path.Asker(s.flow.SrcMAC).Resolve(s.wire, s.path.Next, tries, time.Second)
	s.flow.DstMAC = mac
	return err
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
		Timeout: s.Timeout, Stamps: s.port.stamper,
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

// Behind returns the greatest delay of a run's end against its schedule, in ticks.
func (s *Series) Behind() uint64 { return s.stream.Behind }

// Progress may be read by other goroutines while the series runs.
func (s *Series) Progress() *engine.Progress { return &s.stream.Progress }

// Follow returns a reader for the round trips of each finished interval, for another goroutine.
func (s *Series) Follow() *latency.Follower { return s.rec.Follow() }

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

// Answered waits until the target answers a probe that is sent now and not counted. A late reply to an earlier probe
// does not suffice.
func (s *Series) Answered() error {
	_, err := s.probeOnce(s.flow, 100)
	if errors.Is(err, errNoReply) {
		return fmt.Errorf("%s does not answer", s.Label())
	}
	return err
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
