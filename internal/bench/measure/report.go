package measure

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/rebound-nic/rebound/internal/bench/engine"
	"github.com/rebound-nic/rebound/internal/bench/observe"
	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/host"
	"github.com/rebound-nic/rebound/latency/outcome"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/latency/sanitize"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/nic/bus/pci"
)

// Circumstances are the properties common to all reports of one command.
type Circumstances struct {
	Clock       *latency.Clock
	Host        host.Facts
	Session     string             // the same in reports whose runs alternated, otherwise empty
	SelfTest    *latency.Histogram // nil for none
	Watched     []observe.Sample   // of the core; nil if it was not watched
	Noise       Noise
	Slack       time.Duration // how late a run may end that still counts as having reached its rate
	Interrupted bool
	Anonymous   bool
}

// Report creates the report of the measurement.
func (s *Series) Report(c Circumstances) *report.Report {
	rep := s.newReport(c, true)
	rep.Fill(s.rec.Recording())
	rep.Series = dropEmpty(rep.Series)
	if rep.STAMP != nil && !rep.STAMP.OneWay.Known() {
		rep.Series = slices.DeleteFunc(rep.Series, func(s *latency.Series) bool { return latency.OneWay(s.Name) })
	}
	rep.Add(latency.GapSeries, latency.FromHot(&s.stream.Gap, c.Clock))
	rep.Tail = findCauses(s.stream.Slowest(), rep.Main().Summary.P50, c.Clock, c.Watched)
	rep.Attribution = s.explain(rep, c.Clock, &c.Noise)
	rep.Traffic.Warmup = s.stream.Warmup / int64(max(len(rep.Runs), 1))
	if c.SelfTest != nil {
		rep.Add(latency.JitterSeries, c.SelfTest)
	}
	rep.Own = rep.OwnPercentiles()
	if c.Anonymous {
		rep.Anonymize()
	}
	return rep
}

// newReport creates a report with everything except the recorded times. Before the end, it uses the error of this
// host's clock at the start.
func (s *Series) newReport(c Circumstances, end bool) *report.Report {
	rep := report.New("bench", report.RoundTrip)
	rep.Label = s.Label()
	rep.Session = c.Session
	rep.Host = c.Host
	n := s.stream.Counts()
	rep.Traffic = report.Traffic{Target: s.flow.Dst.String(), Protocol: s.Protocol(), IPVersion: 4,
		FrameSize: s.flow.Size,
		Mode:      "closed", Outstanding: 1, Transport: s.Transport}
	if s.flow.Dst.Is6() {
		rep.Traffic.IPVersion = 6
	}
	rep.Traffic.DSCP, rep.Traffic.ECN, rep.Traffic.TTL, rep.Traffic.VLAN, rep.Traffic.SourcePorts = int(s.DSCP),
		int(s.ECN), int(s.TTL), int(s.VLAN), s.Ports
	if s.Proto != probe.ICMP {
		rep.Traffic.Target = netip.AddrPortFrom(s.flow.Dst, s.flow.DstPort).String()
	}
	if s.Message {
		rep.Traffic.Target, rep.Traffic.FrameSize, rep.Traffic.Transport = netip.AddrPortFrom(s.Target,
			s.Port).String(), s.message(), "message"
		rep.Traffic.IPVersion = 0
	}
	if s.Rates[0] > 0 {
		rep.Traffic.Mode, rep.Traffic.Rate, rep.Traffic.Outstanding = "open", s.Rates[0], 0
		rep.Traffic.Arrivals = s.Arrivals.Text()
	}
	rep.Counts, rep.Drops = s.Counts()
	for why, n := range s.stream.Rejected {
		if n > 0 {
			rep.Rejected = append(rep.Rejected, report.Rejection{Reason: outcome.Reason(why).String(), Frames: n})
		}
	}
	rep.Order = order(n, s.stream.Sequence())
	s.device(rep)
	rep.Notes = append(rep.Notes, s.Notes...)
	rep.Warnings = append(rep.Warnings, s.Warnings...)
	if s.Do != "" {
		note := "before each slice this command was run: " + s.Do
		if c.Anonymous {
			note = "before each slice a command was run, which an anonymous report leaves out"
		}
		rep.Notes = append(rep.Notes, note)
	}
	if c.Interrupted {
		rep.Warnings = append(rep.Warnings, "interrupted by a signal: the report has what was measured until then")
	}
	rep.Notes = append(rep.Notes, s.remarks(n)...)
	if late := time.Duration(c.Clock.Nanoseconds(s.stream.Behind)); late > c.Slack {
		rep.Warnings = append(rep.Warnings, fmt.Sprintf(report.NotOffered+": a run ended %s behind its schedule",
			latency.FormatDuration(late)))
	}
	if s.counters().Uncounted() && rep.Counts.LostUncertain > 0 {
		rep.Warnings = append(rep.Warnings,
			"lost is a range: the device does not count the frames that it drops for lack of a receive buffer ("+
				rep.Device.Driver+")")
	}
	switch {
	case s.unread != nil:
		rep.Warnings = append(rep.Warnings,
			fmt.Sprintf("the responder's metrics could not be read around every run, so what was refused or dropped there is incomplete and "+
				"lost is a range: check that -responder-metrics still answers, at most 5 times a second for all its clients (%v)", s.unread))
	case s.droppedUncountedThere() && rep.Counts.Lost > 0:
		rep.Warnings = append(rep.Warnings,
			"lost is a range: the responder's device does not count the frames that it drops for lack of a receive buffer")
	}
	if rep.Counts.Lost > 0 {
		const why = "lost is a range: %s was restarted while measuring, and no counter includes the frames on its rings"
		if s.restartedHere {
			rep.Warnings = append(rep.Warnings, fmt.Sprintf(why, "this host's device"))
		}
		if s.restartedThere {
			rep.Warnings = append(rep.Warnings, fmt.Sprintf(why, "the responder or its device"))
		}
	}
	if st := s.stream.STAMP(); st != nil {
		s.stamp(rep, st, end)
	}
	return rep
}

func order(n engine.Counts, q engine.Sequence) *report.Order {
	o := &report.Order{Extent: q.Extent, LossPeriods: q.LossPeriods, LongestLoss: q.LongestLoss,
		ReorderedRatio: float64(n.Reordered) / float64(max(n.Received+n.Late, 1))}
	for length, count := range q.LossLengths {
		if count > 0 {
			o.LossLengths = append(o.LossLengths, report.LossLength{Length: length, Count: count})
		}
	}
	return o
}

func dropEmpty(all []*latency.Series) []*latency.Series {
	var out []*latency.Series
	for _, each := range all {
		if each.Summary.Count > 0 || each.Name == latency.MainSeries {
			out = append(out, each)
		}
	}
	return out
}

// device describes the interface. A kernel interface on top of a model counts as a model.
func (s *Series) device(rep *report.Report) {
	defer func() {
		if d := &rep.Device; d.Backend == string(nic.Socket) && pci.InterfaceIsModel(d.Device) {
			d.Backend = string(nic.Sim)
			d.Notes = append(d.Notes,
				"the interface's kernel driver runs on a device model: its timestamps are the model's, not a card's")
		}
	}()
	if s.port.device == nil {
		rep.Device = report.Device{Driver: "socket", Device: s.path.Interface, MTU: s.path.MTU,
			Backend: string(nic.Socket),
			Notes:   []string{"through the kernel's own socket: the round trip includes its network stack in both directions"}}
		return
	}
	i := s.port.device.Info()
	rep.Device = report.Device{Driver: i.Driver, Device: i.Device, Model: i.Model, MAC: i.MAC, MTU: i.MTU,
		Queues:  i.Queues,
		Backend: string(i.Backend), Push: i.Push, Notes: i.Notes}
	if l, err := s.port.device.Link(); err == nil {
		rep.Device.Speed = l.Speed
	}
	var st nic.Stats
	if err := s.port.device.ReadStats(&st); err == nil {
		rep.Device.Counters = map[string]uint64{"rx_frames": st.RxFrames, "tx_frames": st.TxFrames,
			"rx_dropped": st.RxDropped,
			"rx_errors":  st.RxErrors, "tx_dropped": st.TxDropped, "tx_errors": st.TxErrors, "resets": st.Resets}
		for k, v := range st.Extra {
			rep.Device.Counters[k] = v
		}
		if i.NoDropCounter {
			delete(rep.Device.Counters, "rx_dropped")
		}
	}
}

// remarks describes findings that the counts alone do not show.
func (s *Series) remarks(n engine.Counts) []string {
	var out []string
	say := func(count int64, thing, format string, args ...any) {
		if count > 0 {
			out = append(out, sanitize.Count(count, thing)+fmt.Sprintf(format, args...))
		}
	}
	say(n.Unsummed, "reply",
		" without a finished UDP checksum (left to an offload, as on a veth pair), and correct otherwise")
	say(n.Corrupt, "reply", " rejected, the warm-up included, by the first thing wrong in each: %s", s.wrong())
	if s.ECN == 1 || s.ECN == 2 || n.CE > 0 {
		switch {
		case s.Transport == "socket" || s.Message:
			out = append(out, "marks of congestion (CE) are not counted: the transport does not show the IP header of a reply")
		default:
			out = append(out, fmt.Sprintf(
				"%s of %s marked as having met congestion (CE, RFC 3168), on their way or their probe's where the target copies the mark", latency.FormatCount(n.CE), sanitize.Count(n.Received+n.Late, "reply")))
		}
	}
	say(n.Spoiled, "probe", " answered by rejected replies only: neither received nor lost")
	say(n.Refused, "ICMP error", ", the last %s", icmpError(s.stream.Error, s.flow.Dst.Is6()))
	if p := s.port.socket; p != nil {
		say(p.Refused, "error", " that the kernel reported on the socket, the last: %v", p.LastRefusal)
	}
	say(n.Stray, "reply", " to probes older than the bench remembers, which count as lost")
	say(s.stream.Full, "time", " that the transmit ring was full and the bench had to wait")
	if s.port.stamper != nil {
		t := s.port.stamps
		out = append(out, fmt.Sprintf(
			"timestamps requested; active: kernel receive %t, kernel send %t, card receive %t, card send %t",
			t.RxSoftware, t.TxSoftware, t.RxHardware, t.TxHardware))
	}
	return out
}

// wrong lists the errors in rejected replies.
func (s *Series) wrong() string {
	var out []string
	for f, k := range s.stream.Fields {
		if k > 0 {
			out = append(out, fmt.Sprintf("%v %d", probe.Field(f), k))
		}
	}
	return strings.Join(out, ", ")
}

// counters are the sources of this host's drop counters for the series' frames.
func (s *Series) counters() observe.Source {
	from := observe.Source{Device: s.port.device, Interface: s.path.Interface, Qdisc: s.Qdisc, Responder: s.Responder}
	if p := s.port.socket; p != nil {
		from.Socket = p
	}
	if kernel := s.port.device == nil || s.port.device.Info().Backend == nic.Socket; kernel &&
		(s.port.device == nil || s.port.device.Info().Driver != "afpacket") {
		from.Rejects = observe.Rejects{Echo: s.Proto == probe.ICMP, Identifiers: s.Proto == probe.ICMP,
			UDP: s.Proto != probe.ICMP, V4: s.flow.Dst.Is4(), V6: s.flow.Dst.Is6()}
	}
	return from
}

// Counts returns the measured probes by outcome, and the counters that show where those without a reply were dropped.
func (s *Series) Counts() (c report.Counts, drops []report.Drop) {
	n := s.stream.Counts()
	c = report.Counts{Sent: n.Sent, Received: n.Received, Late: n.Late, Duplicates: n.Duplicates, CE: n.CE,
		Reordered: n.Reordered, Corrupt: n.Corrupt - n.CorruptInWarmup,
		CorruptOnly: n.Spoiled, SendFailed: n.Unsent, NotAwaited: n.Abandoned,
		DroppedHereCounted: !s.uncounted[report.DroppedHere], RefusedThereCounted: !s.uncounted[report.RefusedThere],
		DroppedThereCounted: !s.uncounted[report.DroppedThere], UnknownCounted: !s.uncounted[report.Unknown]}
	drops = report.AddDrops(nil, s.drops)
	for i := range drops {
		d := &drops[i]
		// A filter or a flow rule before the ring is no proof. Foreign counts frames that passed it and were not ours.
		d.Ours = d.Ours && n.Foreign == 0 && n.Stray == 0 && s.VLAN == 0 && !s.port.mixed
		if d.Place == report.NotSent && d.Ours { // a refused frame is in both
			d.Frames = max(d.Frames-n.Unsent, 0)
		}
	}
	closed, merged := n.Closed, n.Closed > 0 // a host limits the rate of its ICMP errors
	if p := s.port.socket; p != nil {
		closed, merged = p.Closed-s.closed, p.Closed > s.closed
	}
	if closed > 0 {
		drops = append(drops, report.Drop{Place: report.RefusedThere, By: "target: port unreachable", Frames: closed,
			Ours: true})
	}
	if n := s.stream.Unmatched; n > 0 {
		drops = append(drops, report.Drop{Place: report.Unknown,
			By: "bench: replies rejected without the number of a probe", Frames: n})
	}
	st := s.stream.STAMP()
	if st != nil {
		for i := range st.TLVs {
			n, counted := unanswered(&st.TLVs[i])
			c.RefusedThereCounted = c.RefusedThereCounted || counted
			if n > 0 {
				drops = append(drops, report.Drop{Place: report.RefusedThere, By: "reflector: STAMP direct measurement",
					Frames: n, Ours: true})
			}
		}
	}
	u := report.Unanswered{Measured: n.Unanswered(), Warmup: n.Silent + n.Abandoned, Copies: n.Duplicates > 0}
	if st == nil || !st.Stateful {
		c.Locate(u, drops)
	} else {
		u.Forward = min(st.LostThere, u.Measured)
		back := min(st.LostBack, u.Measured-u.Forward)
		divideByDirection(&c, u.Forward, back, u.Measured-u.Forward-back, c.Locate(u, drops))
	}
	if s.counters().Uncounted() { // only probes that did not reach the target were certainly lost
		c.LostUncertain = max(c.LostUncertain, c.Lost-u.Forward)
	}
	c.LostUncertain = min(c.Lost, c.LostUncertain+n.Stray) // a reply to a forgotten probe is late
	if merged {                                            // without an ICMP error, too
		perhapsRefused(&c, u.Measured)
	}
	if merged || s.unread != nil || s.droppedUncountedThere() || s.restartedHere || s.restartedThere {
		c.LostUncertain = c.Lost
	}
	return c, drops
}

// perhapsRefused makes each lost probe one that the target may have refused, of all that have no reply.
func perhapsRefused(c *report.Counts, unanswered int64) {
	least := c.RefusedThere - c.RefusedThereUncertain
	c.RefusedThere = min(c.RefusedThere+c.Lost, unanswered)
	c.RefusedThereUncertain = c.RefusedThere - least
}

// droppedUncountedThere reports whether the responder's metrics were read, but its device does not count the frames
// that it drops.
func (s *Series) droppedUncountedThere() bool {
	return s.Responder != "" && s.unread == nil && s.uncounted[report.DroppedThere]
}

// unanswered is how many packets a reflector received and did not answer, from its first answer to a Direct Measurement
// TLV to its latest (RFC 8972 §4.5). counted is false if that is unknown.
func unanswered(t *engine.TLVAnswers) (n int64, counted bool) {
	if t.Type != probe.DirectMeasurement || t.Answered < 2 {
		return 0, false
	}
	be := binary.BigEndian
	received := be.Uint32(t.Latest[4:]) - be.Uint32(t.First[4:])
	sent := be.Uint32(t.Latest[8:]) - be.Uint32(t.First[8:])
	return max(int64(int32(received-sent)), 0), true
}

// divideByDirection divides the lost probes by direction. there, back and either are those without a reply, elsewhere
// how many of them were dropped at one of the hosts.
func divideByDirection(c *report.Counts, there, back, either int64, elsewhere map[report.Place]int64) {
	for place, n := range elsewhere {
		first := &there
		if place == report.DroppedHere {
			first = &back
		}
		for _, way := range []*int64{first, &either} {
			part := min(n, *way)
			*way -= part
			n -= part
		}
	}
	c.LostForward, c.LostBackward, c.LostEither = &there, &back, &either
}

// stamp adds a STAMP reflector's information to the report.
func (s *Series) stamp(rep *report.Report, st *engine.STAMP, end bool) {
	test := &s.flow.Test
	out := &report.STAMP{Mode: "unauthenticated", SSID: int(test.SSID), ZeroSSID: st.ZeroSSID, Stateful: st.Stateful}
	if test.Authenticated {
		out.Mode = "authenticated"
	}
	rep.STAMP = out
	say := func(format string, a ...any) { rep.Notes = append(rep.Notes, fmt.Sprintf(format, a...)) }
	answered := rep.Counts.Received+rep.Counts.Late > 0
	switch {
	case st.Stateful:
		say("the reflector numbers its own packets: loss is distinguished by direction")
	case rep.Counts.Lost > 0 && answered:
		say("the reflector repeats the sender's numbers (stateless): it is unknown which direction lost the probes")
	}
	if st.ZeroSSID {
		say("the reflector zeroes the session identifier: it does not know RFC 8972")
	}
	if answered {
		s.oneWay(rep, st, end)
		clock := "not synchronised"
		if st.Synchronised {
			clock = "synchronised"
		}
		if st.NoEstimate {
			say("the reflector sends no usable error estimate (multiplier 0); it reports its clock as %s", clock)
		} else {
			say("the reflector reports its clock as %s, with an error of at most %s; residence is measured on that clock alone", clock, latency.FormatNS(st.WorstError))
		}
	} else {
		out.OneWay.Why = "no reply was received"
	}
	if st.Impossible > 0 {
		say("%s below zero or above the round trip: left out of residence, network and one-way delays",
			sanitize.Count(int64(st.Impossible), "residence time"))
	}
	if hops := int(s.flow.HopLimit()); answered && int(st.TTL) < hops {
		say("probes reached the reflector with a hop limit of %d: %s on the way", st.TTL,
			sanitize.Count(int64(hops-int(st.TTL)), "router"))
	}
	if st.Untrusted > 0 {
		say("TLVs whose HMAC the reflector did not verify were ignored, in %s",
			sanitize.Count(int64(st.Untrusted), "reply"))
	}
	for i := range st.TLVs {
		t := &st.TLVs[i]
		if t.Type == probe.HostTiming { // the attribution has what it says
			continue
		}
		out.TLVs = append(out.TLVs, report.TLV{Name: t.Type.String(), Answered: t.Answered,
			Unrecognized: t.Unrecognized, Malformed: t.Malformed,
			Integrity: t.Flagged, Answers: explain(t)})
	}
	for _, t := range out.TLVs {
		line := fmt.Sprintf("TLV %s: %s answered", t.Name, latency.FormatCount(t.Answered))
		for _, n := range []struct {
			n    int64
			what string
		}{{t.Unrecognized, "not understood (U)"}, {t.Malformed, "reported as malformed (M)"},
			{t.Integrity, "reported with a wrong HMAC (I)"}} {
			if n.n > 0 {
				line += fmt.Sprintf(", %d %s", n.n, n.what)
			}
		}
		if t.Answers != nil {
			line += ": " + strings.Join(t.Answers, ", ")
		}
		rep.Notes = append(rep.Notes, line)
	}
}

// oneWay returns the error bound of the one-way delays, or why there are none.
func (s *Series) oneWay(rep *report.Report, st *engine.STAMP, end bool) {
	o := &rep.STAMP.OneWay
	near, unknown := s.clock, error(nil)
	if end {
		near, unknown = observe.Read(s.STAMP.ClockError, s.path.Interface)
	}
	if s.clockUnknown != nil {
		unknown = s.clockUnknown
	}
	switch {
	case unknown != nil:
		o.Why = unknown.Error()
	case !st.Synchronised:
		o.Why = "the reflector reports its clock as not synchronised"
	case st.NoEstimate:
		o.Why = "the reflector sends no usable error estimate of its clock (multiplier 0)"
	case st.NoTAI:
		o.Why = "the reflector's timestamps are PTP's (TAI), and this host's kernel does not know the offset to UTC (adjtimex: tai)"
	}
	if o.Why != "" {
		return
	}
	near = observe.Worst(s.clock, near)
	o.Near = report.ClockError{NS: near.Error.Nanoseconds(), Source: near.Source}
	o.Far = report.ClockError{NS: int64(st.WorstError + 1), Source: "the reflector's error estimate"}
	o.ErrorNS = o.Near.NS + o.Far.NS
	o.NegativeThere, o.NegativeBack = st.NegativeThere, st.NegativeBack
	rep.Notes = append(rep.Notes,
		fmt.Sprintf("one-way delays are wrong by up to %s: this host's clock by %s (%s), the reflector's by %s (%s)",
			latency.FormatNS(float64(o.ErrorNS)), latency.FormatNS(float64(o.Near.NS)), o.Near.Source,
			latency.FormatNS(float64(o.Far.NS)), o.Far.Source))
	if n := st.NegativeThere + st.NegativeBack; n > 0 {
		rep.Notes = append(rep.Notes,
			fmt.Sprintf("%s below zero (%s there, %s back) and counted as 0: the clocks differ by more than a delay",
				sanitize.Count(n, "one-way delay"), latency.FormatCount(st.NegativeThere),
				latency.FormatCount(st.NegativeBack)))
	}
}

// explain describes the latest answer to a TLV.
func explain(t *engine.TLVAnswers) (out []string) {
	if t.Answered == 0 {
		return nil
	}
	say := func(format string, a ...any) { out = append(out, fmt.Sprintf(format, a...)) }
	be, v := binary.BigEndian, t.Latest
	switch t.Type {
	case probe.Location:
		say("probes came from port %d to port %d", be.Uint16(v[2:]), be.Uint16(v))
		for x := v[4:]; len(x) >= 4 && len(x) >= 4+int(be.Uint16(x[2:])); x = x[4+int(be.Uint16(x[2:])):] {
			sub := x[4:]
			switch {
			case x[0] != 0:
			case x[1] == 2 && len(sub) >= 6:
				say("from MAC %v", net.HardwareAddr(sub[:6]))
			case x[1] == 5 && len(sub) >= 4, x[1] == 8 && len(sub) >= 4:
				say("%s %v", map[byte]string{5: "to", 8: "from"}[x[1]], netip.AddrFrom4([4]byte(sub)))
			case x[1] == 6 && len(sub) >= 16, x[1] == 9 && len(sub) >= 16:
				say("%s %v", map[byte]string{6: "to", 9: "from"}[x[1]], netip.AddrFrom16([16]byte(sub)))
			}
		}
	case probe.TimestampInformation: // RFC 8972 §5.4, §5.5
		source := func(n byte) string {
			return map[byte]string{1: "NTP", 2: "PTP", 3: "SSU/BITS", 4: "satellites", 5: "nothing (free-running)"}[n]
		}
		method := func(n byte) string {
			return map[byte]string{1: "with hardware support", 2: "in software", 3: "by the control plane"}[n]
		}
		say("T2 from a clock that follows %s, %s", orNumber(source(v[0]), v[0]), orNumber(method(v[1]), v[1]))
		say("T3 from one that follows %s, %s", orNumber(source(v[2]), v[2]), orNumber(method(v[3]), v[3]))
	case probe.ClassOfService:
		say("the latest probe arrived with DSCP %d and ECN %d", v[0]<<4&0x30|v[1]>>4, v[1]>>2&3)
		say("%d probes arrived with a different DSCP or ECN than they were sent with", t.Other)
		say("%d replies could not be sent with DSCP %d", t.Reverse, v[0]>>2)
	case probe.DirectMeasurement:
		say("of %d sent in the session, warm-up included, the reflector had received %d and answered %d", be.Uint32(v),
			be.Uint32(v[4:]), be.Uint32(v[8:]))
	case probe.AccessReport:
		say("access %d and code %d were returned", v[0]>>4, v[1])
	case probe.FollowUp:
		say("%d replies left at a different time than their T3", t.Other)
	}
	return out
}

func orNumber(s string, n byte) string {
	if s == "" {
		return fmt.Sprintf("number %d", n)
	}
	return s
}
