package measure

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/rebound-nic/rebound/internal/bench/engine"
	"github.com/rebound-nic/rebound/internal/bench/observe"
	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/latency/sanitize"
)

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
		say("probes reached the reflector with a hop limit of %d: %d routers on the way", st.TTL, hops-int(st.TTL))
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
