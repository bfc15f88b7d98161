package responder

import (
	"log/slog"

	"github.com/rebound-nic/rebound/fastpath"
)

// loopGuard logs the first time that datagrams were refused as a loop.
type loopGuard struct {
	limit int    // guard.loop
	since uint64 // refused before: the counts of a pinned program are older than the process
	said  bool
}

// check reads the counts.
func (g *loopGuard) check(s fastpath.Stats, log *slog.Logger) {
	n := s[fastpath.RefusedLoop]
	if g.said || n <= g.since {
		return
	}
	g.said = true
	log.Warn("UDP datagrams are refused as a loop with an echo service on another host (counter: loop)", "refused",
		n-g.since,
		"why", "one source sent more equal datagrams within 10 ms than guard.loop", "limit", g.limit,
		"fix", "find the service that answers the responder's UDP port; for a client that sends constant data, raise guard.loop, or set 0")
}
