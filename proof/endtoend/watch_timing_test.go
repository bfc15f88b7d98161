package endtoend

import (
	"testing"

	"golang.org/x/sys/unix"
)

// With -stamp-timing rebound-watch divides the slow time that a stopped responder causes between the responder's host
// and the network, by the responder's own report. Without it the responder says only how long it took to answer, so
// that the wait is elsewhere, and so it is if the responder has a key and the watch has not.
func TestWatchStampTiming(t *testing.T) {
	t.Parallel()
	const usual = 16 * 200 // probes by which the watch knows the usual time
	const plain, authenticated = "stamp:10.98.0.3:862", "stamp:10.98.0.3:863"
	key := keyFile(t)
	keyed := []string{"respond.stamp_auth_ports=863", "respond.stamp_tlvs=true", "respond.stamp_key=" + key}
	port := 9431
	for name, c := range map[string]struct {
		target     string
		settings   []string // of the responder
		args       []string
		side, none string
	}{
		"timing":          {plain, nil, []string{"-stamp-timing"}, "responder", "elsewhere"},
		"no timing":       {plain, nil, nil, "elsewhere", "network"},
		"timing by a key": {authenticated, keyed, []string{"-stamp-timing", "-stamp-key", key}, "responder", "elsewhere"},
		"without the key": {plain, keyed, []string{"-stamp-timing"}, "elsewhere", "responder"},
	} {
		port++
		port := port
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNetwork(t)
			pid := n.startResponder(t, "afpacket", append([]string{"10.98.0.3/24"}, c.settings...)...)
			probes := of("rebound_probes_total", c.target)
			w := n.watch(port, append([]string{c.target, "-rate", "200", "-timeout", "4s", "-driver", "afpacket"},
				c.args...)...)
			spent := func(v map[string]float64, side string) float64 {
				return v[`rebound_slow_seconds_total{proto="stamp",side="`+side+`",target="`+c.target+`"}`]
			}
			// T2 to T3 is the responder's in any case, and it may be descheduled there, but seldom.
			w.until("slow time of "+c.side+", and hardly any of "+c.none, func(v map[string]float64) bool {
				if v[probes] < usual {
					return false
				}
				n.must(unix.Kill(pid, unix.SIGSTOP))
				w.until("probes to the stopped responder", func(now map[string]float64) bool {
					return now[probes] > v[probes]+3
				})
				n.must(unix.Kill(pid, unix.SIGCONT))
				return spent(v, c.side) > max(0.1, 1000*spent(v, c.none))
			})
			w.end()
		})
	}
}
