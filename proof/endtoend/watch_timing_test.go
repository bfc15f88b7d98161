package endtoend

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/check"
)

// With -stamp-timing rebound-watch divides the slow time that a stopped responder causes between the responder's host
// and the network, by the responder's own report. Without it the responder says only how long it took to answer, so
// that the wait is elsewhere.
func TestWatchStampTiming(t *testing.T) {
	n := newNetwork(t)
	key := filepath.Join(t.TempDir(), "key")
	n.must(os.WriteFile(key, []byte(strings.Repeat("5a", 32)+"\n"), 0o600))
	const plain, authenticated = "stamp:10.98.0.3:862", "stamp:10.98.0.3:863"
	pid := n.startResponder(t, "afpacket", "10.98.0.3/24", "respond.stamp_auth_ports=[863]", "respond.stamp_key="+key)
	for i, c := range []struct {
		target     string
		args       []string
		side, none string
	}{
		{plain, []string{"-stamp-timing"}, "responder", "elsewhere"},
		{authenticated, []string{"-stamp-timing", "-set", "probe.stamp_key=" + key}, "responder", "elsewhere"},
		{plain, nil, "elsewhere", "network"},
	} {
		probes := of("rebound_probes_total", c.target)
		w := n.watch(9431+i, append([]string{c.target, "-rate", "200", "-timeout", "4s", "-driver", "afpacket"},
			c.args...)...)
		spent := func(v map[string]float64, side string) float64 {
			return v[`rebound_slow_seconds_total{proto="stamp",side="`+side+`",target="`+c.target+`"}`]
		}
		v := w.until("slow time of "+c.side, func(v map[string]float64) bool {
			if v[probes] == 0 {
				return false // a stopped responder would not answer for its address either
			}
			n.must(unix.Kill(pid, unix.SIGSTOP))
			w.until("probes to the stopped responder", func(now map[string]float64) bool {
				return now[probes] > v[probes]+3
			})
			n.must(unix.Kill(pid, unix.SIGCONT))
			return spent(v, c.side) > 0.1
		})
		check.Equal(t, spent(v, c.none), 0, c.none+" has %v s")
		w.end()
	}
}
