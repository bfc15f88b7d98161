package measure

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/bench/engine"
	"github.com/rebound-nic/rebound/internal/bench/probe"
	"github.com/rebound-nic/rebound/internal/bench/socket"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/golden"
)

// What a reflector says, and what a report's notes say of it.
func TestNotes(t *testing.T) {
	four, six := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::2")
	var b strings.Builder
	reflectors := []struct {
		name           string
		received, lost int64
		test           probe.TestPacket
		unknown        error
		st             engine.STAMP
	}{
		{"stateful", 10, 3, probe.TestPacket{SSID: 7}, nil, engine.STAMP{Stateful: true, Synchronised: true,
			WorstError: 999, TTL: 64, ZeroSSID: true}},
		{"stateless", 0, 1, probe.TestPacket{Authenticated: true}, nil, engine.STAMP{}},
		{"one late reply", 1, 1, probe.TestPacket{}, nil, engine.STAMP{TTL: 63}},
		{"no estimate", 2, 0, probe.TestPacket{}, nil, engine.STAMP{TTL: 64, Synchronised: true, NoEstimate: true,
			Impossible: 1, Untrusted: 2}},
		{"TAI", 2, 0, probe.TestPacket{}, nil, engine.STAMP{TTL: 60, Synchronised: true, NoTAI: true}},
		{"this host's clock", 2, 0, probe.TestPacket{}, errors.New("no chronyd"), engine.STAMP{TTL: 64,
			Synchronised: true}},
		{"clocks that differ", 2, 0, probe.TestPacket{}, nil, engine.STAMP{TTL: 64, Synchronised: true,
			WorstError: 1, NegativeThere: 1, NegativeBack: 2}},
		{"TLVs", 2, 0, probe.TestPacket{}, nil, engine.STAMP{TTL: 64, TLVs: []engine.TLVAnswers{
			{Type: probe.HostTiming, Answered: 1}, {Type: probe.AccessReport, Unrecognized: 1, Malformed: 2,
				Flagged: 3},
			{Type: probe.AccessReport, Answered: 1, Latest: []byte{0x21, 3}},
			{Type: probe.Location, Answered: 2, Latest: []byte{0, 7, 0x88, 0xb8, 0, 2, 0, 8, 2, 0, 0, 0, 0, 9, 0, 0,
				0, 5, 0, 4, 10, 0, 0, 2,
				0, 8, 0, 4, 10, 0, 0, 1, 1, 8, 0, 4, 1, 1, 1, 1, 0, 2, 0, 4, 1, 2, 3, 4, 0, 9, 0, 2, 1, 1}},
			{Type: probe.Location, Answered: 2, Latest: append(append([]byte{0, 7, 0x88, 0xb8, 0, 6, 0, 16},
				six.AsSlice()...),
				append([]byte{0, 9, 0, 16}, six.AsSlice()...)...)},
			{Type: probe.Location, Answered: 2, Latest: []byte{0, 7, 0x88, 0xb8, 0, 5, 0, 3, 10, 0, 0, 0, 2, 0, 5, 1,
				2, 3, 4, 5, 0, 6, 0, 15, 1, 1,
				1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 5, 0, 9, 10, 0, 0, 2}},
			{Type: probe.TimestampInformation, Answered: 1, Latest: []byte{1, 1, 2, 2}},
			{Type: probe.TimestampInformation, Answered: 1, Latest: []byte{3, 3, 4, 4}},
			{Type: probe.TimestampInformation, Answered: 1, Latest: []byte{5, 0, 6, 0}},
			{Type: probe.ClassOfService, Answered: 1, Other: 2, Reverse: 3, Latest: []byte{0xb2, 0xe4}},
			{Type: probe.DirectMeasurement, Answered: 1, Latest: []byte{0, 0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 9}},
			{Type: probe.FollowUp, Answered: 1, Other: 5},
		}}},
	}
	for _, c := range reflectors {
		s := &Series{Settings: Settings{STAMP: STAMP{ClockError: 2 * time.Microsecond}}, clockUnknown: c.unknown}
		s.flow = probe.Flow{Proto: probe.STAMP, Dst: four, Test: c.test}
		rep := &report.Report{Counts: report.Counts{Late: c.received, Lost: c.lost}}
		s.stamp(rep, &c.st, true)
		o := rep.STAMP.OneWay
		fmt.Fprintf(&b, "%s\n\t%s, SSID %d, near %v far %v error %d negative %d %d; no one-way delays: %s\n\t%s\n",
			c.name, rep.STAMP.Mode,
			rep.STAMP.SSID, o.Near, o.Far, o.ErrorNS, o.NegativeThere, o.NegativeBack, o.Why, strings.Join(rep.Notes,
				"\n\t"))
		for _, v := range rep.STAMP.TLVs {
			fmt.Fprintf(&b, "\t%s %d %d %d %d\n", v.Name, v.Answered, v.Unrecognized, v.Malformed, v.Integrity)
		}
	}
	counted := engine.Counts{Received: 3, Late: 1, Unsummed: 1, Corrupt: 2, CE: 1, Spoiled: 1, Refused: 2, Stray: 1}
	for i, s := range []*Series{
		{port: &port{}}, {port: &port{stamper: &engine.Stamper{}, stamps: nic.Timestamping{RxHardware: true}}},
		{Settings: Settings{ECN: 1, Transport: "socket"}, port: &port{socket: &socket.Port{Refused: 2,
			LastRefusal: unix.ECONNREFUSED}}},
		{Settings: Settings{ECN: 2, Message: true}, port: &port{}}, {Settings: Settings{ECN: 2}, port: &port{}},
		{Settings: Settings{ECN: 3}, port: &port{}},
	} {
		s.stream, s.flow.Dst = &engine.Stream{Full: 1, Error: 0x303}, four
		s.stream.Fields[probe.Length], s.stream.Fields[probe.SourceAddress] = 1, 1
		n := counted
		if i%2 == 1 {
			n, s.stream.Full, s.flow.Dst = engine.Counts{}, 0, six
		}
		fmt.Fprintf(&b, "remarks %d\n\t%s\n", i, strings.Join(s.remarks(n), "\n\t"))
	}
	for _, code := range []uint16{0x101, 0x102, 0x300, 0x301, 0x302, 0x304, 0x30d, 0xb00, 0x100, 0x103, 0x104, 0x200,
		0xb01} {
		fmt.Fprintf(&b, "ICMP error %#x: %s; %s\n", code, icmpError(code, false), icmpError(code, true))
	}
	golden.Equal(t, "testdata/notes.txt", b.String())
}

// A lost probe was lost in the direction that the reflector's numbers say, except for those that a host dropped.
func TestDivideByDirection(t *testing.T) {
	for _, x := range []struct {
		there, back, either int64
		elsewhere           map[report.Place]int64
		want                [3]int64
	}{
		{5, 4, 3, nil, [3]int64{5, 4, 3}},
		{5, 4, 3, map[report.Place]int64{report.DroppedHere: 2}, [3]int64{5, 2, 3}},
		{5, 4, 3, map[report.Place]int64{report.DroppedHere: 6}, [3]int64{5, 0, 1}},
		{5, 4, 3, map[report.Place]int64{report.RefusedThere: 9}, [3]int64{0, 4, 0}},
		{5, 4, 3, map[report.Place]int64{report.NotSent: 1, report.DroppedHere: 1}, [3]int64{4, 3, 3}},
	} {
		var c report.Counts
		divideByDirection(&c, x.there, x.back, x.either, x.elsewhere)
		check.Equal(t, [3]int64{*c.LostForward, *c.LostBackward, *c.LostEither}, x.want, fmt.Sprint(x, ": %v"))
	}
	dm := func(last ...byte) engine.TLVAnswers {
		return engine.TLVAnswers{Type: probe.DirectMeasurement, Answered: 2, First: []byte{0, 0, 0, 9, 0, 0, 0, 5, 0,
			0, 0, 4}, Latest: last}
	}
	few, other := dm(0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 4), dm(0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 4)
	few.Answered, other.Type = 1, probe.Location
	wrapped := dm(0, 0, 0, 20, 0, 0, 0, 20, 0, 0, 0, 6) // after counters of 32 bits began again
	wrapped.First = []byte{0, 0, 0, 9, 0xff, 0xff, 0xff, 0xfb, 0xff, 0xff, 0xff, 0xf7}
	for i, x := range []struct {
		tlv     engine.TLVAnswers
		n       int64
		counted bool
	}{{wrapped, 10, true}, {dm(0, 0, 0, 20, 0, 0, 1, 5, 0, 0, 1, 1), 3, true},
		{dm(0, 0, 0, 20, 0, 0, 0, 5, 0, 0, 0, 9), 0, true}, {few,
			0, false}, {other, 0, false}} {
		n, counted := unanswered(&x.tlv)
		check.Equal(t, fmt.Sprint(n, counted), fmt.Sprint(x.n, x.counted), fmt.Sprintf("%d: %%s", i))
	}
}

// Lengths of loss periods are those that occurred, and the ratio of reordered replies is of all replies.
func TestOrder(t *testing.T) {
	o := order(engine.Counts{Received: 6, Late: 2, Reordered: 2}, engine.Sequence{Extent: 3, LossPeriods: 2,
		LongestLoss: 2,
		LossLengths: [len(engine.Sequence{}.LossLengths)]int64{1: 1, 2: 1}})
	check.Equal(t, fmt.Sprintf("%+v", *o),
		"{ReorderedRatio:0.25 Extent:3 LossPeriods:2 LongestLoss:2 LossLengths:[{Length:1 Count:1} {Length:2 Count:1}]}", "%s")
	check.Equal(t, order(engine.Counts{}, engine.Sequence{}).ReorderedRatio, 0, "%v of no replies")
}
