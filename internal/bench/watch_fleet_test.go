package bench

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// A watch in a fleet probes its peers only, follows changes of the fleet, says who it is, and gives each target the
// interval, size and DSCP of its labels.
func TestWatchFleet(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	marks := n.markServer(4100)
	sd := filepath.Join(t.TempDir(), "fleet.yml")
	write := func(members int) {
		t.Helper()
		text := "- {targets: ['" + near4 + "'], labels: {node: h0, zone: a, rack: r1}}\n" +
			"- {targets: ['udp:" + far4 + ":4100'], labels: {node: h1, zone: b, __param_interval: 20ms, __param_size: '500', __param_dscp: '46'}}\n" +
			"- {targets: ['udp:[" + far6 + "]:4100'], labels: {node: h2, zone: b}}\n"
		for i := range members {
			text += fmt.Sprintf("- {targets: [10.98.0.%d], labels: {node: p%d, zone: c%d}}\n", 100+i, i, i%2)
		}
		n.replaceFile(sd, text)
	}
	write(0)
	for i, transport := range [][]string{{"-driver", "afpacket"}, {"-transport", "socket"}} {
		w := n.watch(9495+i, append(transport, "-file-sd", sd, "-peers", "8", "-self", "h0", "-rate", "5")...)
		often := `rebound_probes_total{node="h1",proto="udp",target="udp:` + far4 + `:4100",zone="b"}`
		seldom := `rebound_probes_total{node="h2",proto="udp",target="udp:[` + far6 + `]:4100",zone="b"}`
		first := w.until("both are probed", func(v map[string]float64) bool { return v[often] > 0 && v[seldom] > 0 })
		v := w.until("both have 20 more probes", func(v map[string]float64) bool { return v[seldom] > first[seldom]+20 })
		if a, b := v[often]-first[often], v[seldom]-first[seldom]; a < 7*b || a > 13*b {
			t.Errorf("%v: 50 and 5 probes a second: %v and %v were sent", transport, a, b)
		}
		if v[`rebound_fleet_self_info{node="h0",rack="r1",zone="a"}`] != 1 || v["rebound_fleet_members"] != 3 || v["rebound_watch_targets"] != 2 {
			t.Errorf("%v: %v", transport, v)
		}
		write(60)
		w.until("8 of 63 are probed", func(v map[string]float64) bool {
			return v["rebound_fleet_members"] == 63 && v["rebound_watch_targets"] >= 8 && v["rebound_watch_targets"] < 12
		})
		write(0)
		gone := `rebound_target_up{node="p`
		w.until("the fleet is small again", func(v map[string]float64) bool {
			return v["rebound_fleet_members"] == 3 && v["rebound_watch_targets"] == 2
		})
		for name := range w.page() {
			if strings.HasPrefix(name, gone) {
				t.Errorf("a target that left has a state: %s", name)
			}
		}
		w.end()
		marks.mu.Lock()
		if marks.tos[46<<2] < 50 || marks.tos[0] < 10 || len(marks.tos) != 2 {
			t.Errorf("%v: the targets saw TOS %v", transport, marks.tos)
		}
		clear(marks.tos)
		marks.mu.Unlock()
	}
	w := n.watch(9497, "-driver", "afpacket", "-file-sd", sd, "-peers", "2", "-self", "elsewhere")
	w.says("no target is this host")
	if v := w.page(); len(v) > 0 && !strings.Contains(fmt.Sprint(v), `rebound_fleet_self_info{node="elsewhere"`) {
		t.Errorf("%v", v)
	}
	w.end()
}
