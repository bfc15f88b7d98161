package bench

import (
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/latency/report"
)

// A responder's report does not fit a measurement of another address, or one with more replies than it answered. What
// an older report or one of a part of the time does not say is no reason.
func TestMisfit(t *testing.T) {
	start := time.Unix(1_700_000_000, 0)
	for what, c := range map[string]struct {
		target string
		change func(*report.Report)
		want   string
	}{
		"fits":                 {"10.98.0.3:862", func(*report.Report) {}, ""},
		"fits by IPv6":         {"[fd98::3]:7", func(*report.Report) {}, ""},
		"a link-local address": {"fe80::3%eth0", func(*report.Report) {}, ""},
		"another address":      {"10.98.0.4", func(*report.Report) {}, "the probes went to 10.98.0.4, and it answers for 10.98.0.3, fd98::3, fe80::3"},
		"an older report":      {"10.98.0.4:7", func(r *report.Report) { r.Addresses = nil }, ""},
		"messages":             {"0102:3", func(*report.Report) {}, ""},
		"answered less":        {"10.98.0.3", func(r *report.Report) { r.Counts.Sent = 19 }, "20 replies came, and it answered 19 requests"},
		"in a part of the time": {"10.98.0.3", func(r *report.Report) {
			r.Counts.Sent, r.Start = 19, start.Add(time.Second)
		}, ""},
	} {
		rep := report.New("bench", report.RoundTrip)
		rep.Start, rep.End, rep.Traffic.Target = start, start.Add(time.Minute), c.target
		rep.Counts.Received, rep.Counts.Late = 18, 2
		far := report.New("responder", report.Turnaround)
		far.Start, far.End = start.Add(-time.Second), start.Add(2*time.Minute)
		far.Addresses, far.Counts.Sent = strings.Fields("10.98.0.3 fd98::3 fe80::3"), 20
		c.change(far)
		if got := misfit(rep, far); got != c.want {
			t.Errorf("%s: %q, want %q", what, got, c.want)
		}
	}
}
