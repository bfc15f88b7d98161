package measure

import (
	"fmt"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/check"
)

func TestLivenessReportsAnOutageOnce(t *testing.T) {
	var l liveness
	s, start := &Series{}, time.Unix(1000, 0)
	for i, o := range []struct {
		at             time.Duration
		sent, received int64
		want           int
	}{
		{0, 10, 10, unchanged},
		{time.Second, 20, 19, unchanged},
		{2 * time.Second, 30, 19, unchanged}, // probes are sent, no replies arrive
		{3 * time.Second, 40, 19, unchanged},
		{4 * time.Second, 50, 19, stopped},
		{9 * time.Second, 90, 19, unchanged},
		{10 * time.Second, 91, 20, resumed},
		{20 * time.Second, 91, 20, unchanged}, // nothing is sent: a hook runs
		{21 * time.Second, 92, 20, unchanged},
		{30 * time.Second, 92, 20, unchanged},
	} {
		check.Equal(t, l.observe(s, o.sent, o.received, start.Add(o.at)), o.want,
			fmt.Sprintf("observation %d: ", i)+"%d")
	}
}

// A target whose round trip takes longer than two seconds is not reported as silent before a probe can have timed out.
func TestLivenessWaitsForTheTimeout(t *testing.T) {
	var l liveness
	s, start := &Series{}, time.Unix(1000, 0)
	s.Timeout = 5 * time.Second
	for i, want := range []int{unchanged, unchanged, unchanged, unchanged, unchanged, unchanged, unchanged, stopped} {
		check.Equal(t, l.observe(s, int64(10*i), 0, start.Add(time.Duration(i)*time.Second)), want,
			fmt.Sprintf("after %d s: ", i)+"%d")
	}
}
