package fleet

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/rebound-nic/rebound/fleet/prom"
	"github.com/rebound-nic/rebound/fleet/suspects"
	"github.com/rebound-nic/rebound/internal/host/process"
	"github.com/rebound-nic/rebound/proof/golden"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/numbers"
)

// A dead host is named, on stdout and with -listen in the log and on the metrics page, until it answers again; while
// Prometheus cannot be reached there is no verdict.
func TestSuspects(t *testing.T) {
	state := "dead"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		result := []any{}
		add := func(value string, labels map[string]string) {
			result = append(result, map[string]any{"metric": labels, "value": []any{1000, value}})
		}
		query := r.FormValue("query")
		for _, from := range []string{"a", "b", "c", "d"} {
			if state == "broken" {
				http.Error(w, "no", http.StatusInternalServerError)
				return
			}
			if strings.Contains(query, "self_info") {
				if from != "d" || state != "dead" || strings.HasSuffix(query, "[1h])") {
					add("1", map[string]string{"instance": from, "node": from, "zone": "z"})
				}
				continue
			}
			for _, to := range []string{"a", "b", "c", "d"} {
				if strings.Contains(query, "increase") {
					if state == "partial" && from != to && (to == "d" || from == "d") && strings.Contains(query, "/") {
						add("0.3", map[string]string{"instance": from, "target": "icmp:" + to})
					} else if !strings.Contains(query, "/") {
						add("60", map[string]string{"instance": from, "target": "icmp:" + to})
					}
					continue
				}
				if from != to && (from != "d" || state != "dead") {
					up := "1"
					if to == "d" && state == "dead" {
						up = "0"
					}
					add(up, map[string]string{"instance": from, "node": to, "zone": "z", "target": "icmp:" + to})
				}
			}
		}
		json.NewEncoder(w).Encode(map[string]any{"status": "success",
			"data": map[string]any{"resultType": "vector", "result": result}})
	}))
	defer server.Close()
	const line = "3 of 9 paths fail, 1 host silent: 1 suspect\n  host d: all its paths down; explains 4 failures; 0 of these paths work\n"
	run := func(args ...string) (code int, out, said string) {
		var o, e bytes.Buffer
		code = Run(append([]string{"suspects"}, args...), &o, &e)
		return code, o.String(), e.String()
	}
	if code, out, said := run("-prom", server.URL); code != 0 || out != line {
		t.Errorf("exit %d, %q, %s", code, out, said)
	}
	var log bytes.Buffer
	j := &judge{server: &prom.Server{Base: server.URL}, log: slog.New(slog.NewTextHandler(&log, nil))}
	for i, step := range []struct{ state, logs, shows, not string }{
		{"dead", `level=WARN msg=suspect kind=host suspect="host d" fault="all its paths down" explains=4 working=0 failing=3 lossy=0 silent=1 unexplained=0`, `rebound_suspect{kind="host",suspect="host d",zone="z"} 4`, ""},
		{"dead", "", `rebound_fleet_paths{state="working"} 6`, ""},
		{"well", `level=INFO+2 msg="no longer a suspect" kind=host suspect="host d"`, `rebound_fleet_paths{state="failing"} 0`, "rebound_suspect{"},
		{"partial", `suspect="host d" fault="30 % loss on all its paths" explains=6 working=0 failing=0 lossy=6`, `rebound_fleet_paths{state="lossy"} 6`, ""},
		{"broken", "level=ERROR msg=\"no verdict", "rebound_fleet_verdict_failures_total 1", "rebound_fleet_paths"},
		{"broken", "", "rebound_fleet_verdict_failures_total 2", "rebound_fleet_paths"},
	} {
		log.Reset()
		state = step.state
		j.update(t.Context())
		if got := log.String(); !strings.Contains(got, step.logs) || step.logs == "" && got != "" {
			t.Errorf("step %d: the log has %q, want %q", i, got, step.logs)
		}
		if got := metricsOf(j); !strings.Contains(got, step.shows) || step.not != "" &&
			strings.Contains(got, step.not) {
			t.Errorf("step %d: %s\nwant %s, not %s", i, got, step.shows, step.not)
		}
	}
	for _, c := range []struct {
		args []string
		says string
	}{
		{nil, "-prom is missing"}, {[]string{"-prom", "x"}, "not the URL"}, {[]string{"-prom", server.URL, "-every", "10ms"}, "1s or more"},
		{[]string{"-prom", server.URL, "-label", "9=x"}, "not the name of a label"}, {[]string{"-prom", server.URL, "x"}, "left over"},
		{[]string{"-prom", server.URL, "-listen", "nowhere"}, "-listen"},
	} {
		if code, _, said := run(c.args...); code != process.Usage || !strings.Contains(said, c.says) {
			t.Errorf("%q: exit %d, %q, want %q", c.args, code, said, c.says)
		}
	}
	state = "broken"
	if code, _, said := run("-prom", server.URL); code != process.Failed || strings.Count(said, "\n") != 1 {
		t.Errorf("exit %d, %q", code, said)
	}
}

// metricsOf is the metrics page of a judge.
func metricsOf(j *judge) string {
	r, w := prometheus.NewRegistry(), httptest.NewRecorder()
	r.MustRegister(j)
	promhttp.HandlerFor(r, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	return w.Body.String()
}

// What the measurements do not distinguish is printed, and counted on the metrics page.
func TestOtherExplanations(t *testing.T) {
	v := suspects.Verdict{Paths: 9, Failing: 4, Lossy: 1, Unexplained: 1,
		Suspects: []suspects.Suspect{{Kind: suspects.Zone, Reach: suspects.Across, Name: "a", Loss: 1, Down: 1,
			Failing: 4}},
		Alternatives: [][]suspects.Suspect{{{Kind: suspects.Link, Name: "a", Other: "b"},
			{Kind: suspects.Link, Name: "a", Other: "c"}}}}
	var out bytes.Buffer
	const want = "4 of 9 paths fail, 1 with loss, 0 hosts silent: 1 suspect, 1 unexplained\n  zone a: its paths to other zones down; explains 4 failures; 0 of these paths work\n" +
		"other explanations of the same measurements:\n  link between zones a and b and link between zones a and c\n"
	if err := printVerdict(&out, v); err != nil || out.String() != want {
		t.Errorf("%v\n%s", err, &out)
	}
	golden.Equal(t, "testdata/suspects.txt", metricsOf(&judge{verdict: &v, failures: 3}))
}

// Verdicts write numbers as the other commands do: of a large fleet, and of one path.
func TestVerdictNumbers(t *testing.T) {
	for _, v := range []suspects.Verdict{
		{Paths: 60_000, Failing: 12_345, Lossy: 10_001, Silent: 11_000, Unexplained: 20_000,
			Suspects: []suspects.Suspect{
				{Kind: suspects.Zone, Name: "a", Loss: 1.0 / 3, Down: 1, Failing: 23_456, Working: 10_000}, {Kind: suspects.Host, Name: "b", Loss: 1, Down: 0.123_45, Failing: 1, Working: 1}}},
		{Paths: 1, Failing: 1, Lossy: 1, Silent: 1, Unexplained: 1, Suspects: []suspects.Suspect{{Kind: suspects.Host, Name: "b", Loss: 1, Down: 1, Failing: 1, Working: 1}}},
		{Paths: 12_345},
	} {
		var out bytes.Buffer
		must.OK(t, printVerdict(&out, v))
		for _, f := range numbers.Others(out.String(), nil) {
			t.Error(f)
		}
	}
}
