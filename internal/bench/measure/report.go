package measure

import (
	"fmt"
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
