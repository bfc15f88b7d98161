package measure

import (
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/latency/report"
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
