package measure

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/echohost"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

// A trial that did not pass names the limit, and never the network for drops on this host.
func TestJudge(t *testing.T) {
	for _, c := range []struct {
		name  string
		n     report.Counts
		limit Limit
		why   string
	}{
		{"all answered", report.Counts{Sent: 100, Received: 100}, "", "no loss"},
		{"all answered, other traffic dropped", report.Counts{Sent: 100, Received: 99, Late: 1, DroppedHere: 3}, "", "no loss"},
		{"lost", report.Counts{Sent: 100, Received: 90, Lost: 10}, Network, "loss of 10 %"},
		{"lost, and dropped here", report.Counts{Sent: 100, Received: 90, Lost: 4, DroppedHere: 6}, Network, "loss of 4 %, 6 dropped here"},
		{"dropped here", report.Counts{Sent: 100, Received: 90, DroppedHere: 10}, ThisHost, "not measured by this host: 10 dropped here"},
		{"not sent", report.Counts{Sent: 100, Received: 90, SendFailed: 10}, ThisHost, "not measured by this host: 10 not sent"},
		{"either", report.Counts{Sent: 100, Received: 90, Lost: 10, LostUncertain: 10, DroppedHere: 10}, Ambiguous, "loss of between 0 % and 10 %, 10 dropped here"},
		{"some for certain", report.Counts{Sent: 100, Received: 90, Lost: 10, LostUncertain: 7, DroppedHere: 7}, Network, "loss of between 3 % and 10 %, 7 dropped here"},
		{"one refused", report.Counts{Sent: 100, Received: 99, RefusedThere: 1}, Target, "not answered by the target: 1 refused there"},
		{"refused", report.Counts{Sent: 100, Received: 90, RefusedThere: 10}, Target, "not answered by the target: 10 refused there"},
		{"there or between", report.Counts{Sent: 100, Received: 90, Lost: 10, LostUncertain: 10, DroppedThere: 10}, Unclear, "loss of between 0 % and 10 %, 10 dropped there"},
		{"corrupt", report.Counts{Sent: 100, Received: 90, Corrupt: 10}, Network, "10 answered by corrupt replies only"},
	} {
		trial := Trial{Counts: c.n}
		trial.judge()
		if trial.Limit != c.limit || trial.Passed != (c.limit == "") || !strings.HasPrefix(trial.Why, c.why) {
			t.Errorf("%s: passed %v, limit %q: %s; want %q: %s", c.name, trial.Passed, trial.Limit, trial.Why, c.limit,
				c.why)
		}
	}
}

// A target answers the first 40 probes of each trial. The rates that are tried halve the interval, by what the trials
// before found, and the report is that of the highest rate that passed. A rate that failed is tried again.
func TestSearch(t *testing.T) {
	needs.Long(t)
	const most, window = 1000.0, 40
	var silent atomic.Bool
	device := echohost.Start(t, netip.MustParseAddr("10.0.0.2"), func(_, _ uint16, b []byte) [][]byte {
		if silent.Load() || binary.BigEndian.Uint32(b[4:]) >= window {
			return nil
		}
		return [][]byte{b}
	})
	o := planned(t, varied(t, "iface="+device+",transport=raw,driver=auto,source=10.0.0.1,target=10.0.0.2,proto=udp,"+
		"port=7,timeout=500ms"))
	var shown strings.Builder
	o.Duration, o.ProgressTo = 100*time.Millisecond, &shown
	out, err := Search(o, most, 1)
	low, high, rate, last := 0.0, most, most, Limit("")
	for i, trial := range out.Trials {
		check.Equal(t, trial.Rate, rate, fmt.Sprintf("trial %d, ", i)+"%v/s")
		check.Contains(t, shown.String(), fmt.Sprintf("60 bytes at %s/s: %s\n", latency.FormatRate(rate), trial.Why))
		check.Equal(t, trial.Passed, trial.Limit == "", trial.Why+": passed %t")
		// a trial has the probes of its time, or one more
		if n := rate * o.Duration.Seconds(); n > window+1 && trial.Passed || n < window && trial.Limit == Network {
			t.Errorf("%v/s: %s", rate, trial.Why)
		}
		if trial.Passed {
			low = rate
		} else {
			check.Contains(t, trial.Why, " (trial 2)")
			high, last = rate, trial.Limit
		}
		rate = (low + high) / 2
	}
	if low == 0 { // a machine that is too busy
		check.Fails(t, "a search", err, nil, ", 60 bytes: every rate down to 1 per second lost probes; the limit was "+
			string(last))
		return
	}
	must.OK(t, err)
	check.Equal(t, high-low <= resolution*high, true, "the interval is narrow: %t")
	rep := must.Get(report.Read(out.Reports[0].Dir))(t)
	check.Equal(t, rep.Traffic.Rate, low, "the report's rate is %v")
	check.Contains(t, strings.Join(rep.Notes, "\n"), LimitNote+string(last), "lost nothing in 100.0 ms (RFC 2544")
	check.Equal(t, strings.Contains(strings.Join(rep.Warnings, "\n"), Unended), false, "it is still running: %t")

	silent.Store(true)
	o.Out = t.TempDir()
	check.Fails(t, "a silent target", check.Err(Search(o, 50, 0)), nil, "no usable reply from 10.0.0.2:7 by udp: ",
		"none answered within 500.0 ms")
	o.Stop.Store(true)
	check.Fails(t, "a search that is stopped", check.Err(Search(o, 50, 0)), errNoResult)
}
