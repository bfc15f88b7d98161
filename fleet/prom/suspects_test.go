package prom

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/fleet/suspects"
	"github.com/rebound-nic/rebound/internal/bench/answer"
)

// Paths have the names and zones of prober and target, and the smaller loss of two minutes. A host is silent if its
// watch was scraped before, is not scraped now, and others probe it.
func TestFleet(t *testing.T) {
	empty := false
	find := func(query string) []any {
		out := []any{}
		add := func(value string, labels map[string]string) {
			out = append(out, map[string]any{"metric": labels, "value": []any{1000, value}})
		}
		self := func(node, zone string) {
			add("1", map[string]string{"job": "w", "instance": node + ":9470", "node": node, "zone": zone})
		}
		switch {
		case empty:
		case strings.HasSuffix(query, "[1h])"):
			self("a", "x")
			self("dead", "y")
			self("left", "y") // no other host probes it now
			self("b", "y")
		case strings.HasSuffix(query, "[2m])"):
			self("b", "y")
			self("a", "x")
		case strings.HasPrefix(query, "sum by (job, instance, target) (increase(rebound_probes_total{"):
			add("60", map[string]string{"job": "w", "instance": "a:9470", "target": "icmp:10.0.0.3"})
			add("50", map[string]string{"job": "w", "instance": "a:9470", "target": "icmp:10.0.0.2"})
		case strings.Contains(query, "increase"):
			if !strings.HasSuffix(query, " > 0") || strings.Count(query, "increase(rebound_lost_") != 2 {
				t.Errorf("query %s", query)
			}
			if strings.Count(query, "[1m] offset 1m") == 3 {
				add("0.1", map[string]string{"job": "w", "instance": "a:9470", "target": "icmp:10.0.0.2"})
			} else {
				add("1", map[string]string{"job": "w", "instance": "a:9470", "target": "icmp:10.0.0.3"})
				add("0.5", map[string]string{"job": "w", "instance": "a:9470", "target": "icmp:10.0.0.2"})
			}
		default:
			add("0", map[string]string{"job": "w", "instance": "a:9470", "node": "dead", "zone": "y",
				"target": "icmp:10.0.0.3"})
			add("1", map[string]string{"job": "w", "instance": "a:9470", "node": "b", "zone": "y",
				"target": "icmp:10.0.0.2"})
			add("1", map[string]string{"job": "w", "instance": "old:9470", "target": "udp:[fd00::1]:7"})
		}
		return out
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		respond(w, "vector", find(r.FormValue("query")))
	}))
	defer server.Close()
	s := &Server{Base: server.URL}
	paths, silent, err := s.Fleet(t.Context(), nil, time.Unix(1000, 0))
	a, b, dead := suspects.Member{Name: "a", Zone: "x"}, suspects.Member{Name: "b", Zone: "y"},
		suspects.Member{Name: "dead", Zone: "y"}
	want := []suspects.Path{{From: a, To: dead, Failing: true, Sent: 60}, {From: a, To: b, Sent: 50, Lost: 5},
		{From: suspects.Member{Name: "old:9470"}, To: suspects.Member{Name: "fd00::1"}}}
	if err != nil || !slices.Equal(paths, want) || !slices.Equal(silent, []suspects.Member{dead}) {
		t.Errorf("%v, %v, %v", paths, silent, err)
	}
	empty = true
	if _, _, err := s.Fleet(t.Context(), nil, time.Unix(1000, 0)); !errors.Is(err, answer.ErrNothing) {
		t.Errorf("without series: %v", err)
	}
}
