package prom

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/internal/bench/answer"
	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/page"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

var now = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

func TestParseSource(t *testing.T) {
	s, err := Parse("prom:https://h:9090/prom/?target=stamp:10.0.0.2:862&from=2026-11-22T10:00:00Z&to=now-1h&windows=6&instance=a:9470", now)
	if err != nil || s.Base != "https://h:9090/prom" || s.Windows != 6 || s.Step() != 10*time.Minute ||
		s.Metric != DefaultMetric ||
		s.selector("m") != `m{instance="a:9470",target="stamp:10.0.0.2:862"}` ||
		s.Name() != "stamp:10.0.0.2:862 instance=a:9470 2026-11-22 10:00Z" {
		t.Errorf("%+v, %v", s, err)
	}
	for text, says := range map[string]string{
		"x": "does not begin", "prom:": "not the URL", "prom:ftp://h?target=a&from=now-1h&to=now": "not the URL",
		"prom:http://h?from=now-1h&to=now": "target is missing",
		"prom:http://h?target=a&to=now":    "both required", "prom:http://h?target=a&from=now&to=now-1h": "not before",
		"prom:http://h?target=a&from=x&to=now":                "from: ",
		"prom:http://h?target=a&from=now-1h&to=now&windows=0": "windows",
		"prom:http://h?target=a&from=now-5s&to=now":           "at least a second each",
		"prom:http://h?target=a&target=b&from=now-1h&to=now":  "given 2 times",
		"prom:http://h?target=a&from=now-1h&to=now&a-b=1":     "or the name of a label",
		"prom:http://h?target=a&from=now-1h&to=now&metric=1x": "not the name of a metric",
		"prom:http://h?target=%zz&from=now-1h&to=now":         "invalid URL escape",
	} {
		check.Fails(t, text, check.Err(Parse(text, now)), nil, says, "want prom:http://")
	}
	for text, want := range map[string]string{"now": "2026-11-22T12:00:00Z", "now-90m": "2026-11-22T10:30:00Z",
		"now-7d": "2026-11-15T12:00:00Z", "1795341600": "2026-11-22T10:00:00Z",
		"2026-11-22": "2026-11-22T00:00:00Z", "2026-11-22T11:00:00 02:00": "2026-11-22T09:00:00Z", "now+1h": "",
		"now1h": "", "-5": "", "1e300": "", "nowx": "", "now-xd": "", "": ""} {
		got, err := ParseTime(text, now)
		if err == nil && got.UTC().Format(time.RFC3339) != want || err != nil && want != "" {
			t.Errorf("%q: %v, %v, want %s", text, got, err, want)
		}
	}
}

// answer writes a server's response.
func respond(w http.ResponseWriter, kind string, result []any) {
	json.NewEncoder(w).Encode(map[string]any{"status": "success",
		"data": map[string]any{"resultType": kind, "result": result}})
}

// history is a server's data: counts by bucket index with 2^5 buckets per octave, for each step.
type history struct {
	counts map[int]float64
	n, sum float64
}

func (h *history) add(seconds float64) {
	h.counts[int(math.Ceil(math.Log2(seconds)*32))]++
	h.n++
	h.sum += seconds
}

func (h *history) answer() map[string]any {
	var buckets [][4]any
	for i, n := range h.counts {
		buckets = append(buckets, [4]any{0, fmt.Sprint(math.Exp2(float64(i-1) / 32)),
			fmt.Sprint(math.Exp2(float64(i) / 32)), fmt.Sprint(n)})
	}
	slices.SortFunc(buckets, func(a, b [4]any) int { return strings.Compare(a[1].(string), b[1].(string)) })
	return map[string]any{"count": fmt.Sprint(h.n), "sum": fmt.Sprint(h.sum), "buckets": buckets}
}

// server responds like a Prometheus that has scraped a watch whose round trips have these levels, one for each window
// of five minutes, with 300 round trips each. The watch restarts at window restart.
func server(t *testing.T, levels []float64, restart int) *httptest.Server {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.FormValue("query")
		labels := map[string]string{"target": "icmp:10.0.0.2", "proto": "icmp", "instance": "a:9470", "job": "watch"}
		if strings.Contains(query, "uncounted") {
			labels["site"] = "uncounted"
		}
		if strings.Contains(query, "silent") { // its watch is unknown
			labels["instance"] = "silent:9470"
		}
		switch {
		case strings.Contains(query, "refuse"):
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `{"status":"error","errorType":"bad_data","error":"parse error"}`)
			return
		case strings.Contains(query, "elsewhere"), strings.HasPrefix(query, "rebound_lost") &&
			strings.Contains(query, "uncounted"):
			respond(w, "matrix", []any{})
			return
		case strings.HasPrefix(query, "rebound_watch_info") && strings.Contains(query, "silent"):
			respond(w, "vector", []any{})
			return
		case strings.HasPrefix(query, "rebound_watch_info"):
			info := map[string]string{"rate": "0.2", "size": "0", "transport": "raw", "driver": "afpacket"}
			respond(w, "vector", []any{map[string]any{"metric": info, "value": []any{0, "1"}}})
			return
		case strings.HasPrefix(query, "rebound_probes_total"):
			respond(w, "matrix", []any{map[string]any{"metric": labels,
				"values": [][]any{{0, "10"}, {300, "310"}, {600, "20"}}}})
			return
		case strings.HasPrefix(query, "rebound_lost_total"):
			respond(w, "matrix", []any{map[string]any{"metric": labels, "values": [][]any{{0, "0"}, {300, "3"}}}})
			return
		}
		var start float64
		fmt.Sscan(r.FormValue("start"), &start)
		rnd := rand.New(rand.NewPCG(uint64(len(levels)), 1))
		h := &history{counts: map[int]float64{}}
		var moments []any
		for i, level := range levels {
			moments = append(moments, []any{start + 300*float64(i), h.answer()})
			if i == restart {
				h = &history{counts: map[int]float64{}}
				continue
			}
			for range 300 {
				h.add(level * (1 + 0.2*rnd.ExpFloat64()))
			}
		}
		moments = append(moments, []any{start + 300*float64(len(levels)), h.answer()})
		result := []any{map[string]any{"metric": labels, "histograms": moments}}
		if strings.Contains(query, "two") {
			result = append(result, map[string]any{"metric": map[string]string{"instance": "b:9470"},
				"histograms": moments})
		}
		respond(w, "matrix", result)
	}))
	t.Cleanup(s.Close)
	return s
}

func load(t *testing.T, levels []float64, restart int, more string) (*report.Report, error) {
	t.Helper()
	h := server(t, levels, restart)
	s := must.Get(Parse("prom:"+h.URL+"?target=icmp:10.0.0.2&from=2026-11-22T10:00:00Z&to=2026-11-22T11:00:00Z"+more,
		now))(t)
	return Load(context.Background(), &Server{Base: s.Base}, s)
}

func twelve(level float64) []float64 { return slices.Repeat([]float64{level}, 12) }

// Each window has exactly the counts of its time, and a comparison of two hours finds the actual change, and nothing
// else.
func TestLoad(t *testing.T) {
	a := must.Get(load(t, twelve(50e-6), -1, ""))(t)
	if len(a.Runs) != 12 || a.Main().Total.Count != 3600 || a.Resolution < 0.02 || a.Resolution > 0.025 ||
		a.Counts.Sent != 320 || a.Counts.Lost != 3 || a.Traffic.Rate != 0.2 ||
		a.Traffic.FrameSize != 60 || a.Traffic.Transport != "raw" || a.Traffic.Protocol != "icmp" {
		t.Errorf("%d runs, %d values, width %v, %+v, %+v", len(a.Runs), a.Main().Total.Count, a.Resolution, a.Counts,
			a.Traffic)
	}
	if p50 := a.Main().Summary.P50; math.Abs(float64(p50)-57e3) > 2e3 { // 50 µs and the median of the added noise
		t.Errorf("p50 %d ns", p50)
	}
	if advice := strings.Join(Advice(&Source{Windows: 12, To: now, From: now.Add(-time.Hour)}, a.Resolution),
		"\n"); !strings.Contains(advice, "2.1 %") && !strings.Contains(advice, "2.2 %") {
		t.Error(advice)
	}
	for level, want := range map[float64]compare.Verdict{50e-6: compare.Noise, 100e-6: compare.Slower} {
		b := must.Get(load(t, twelve(level), -1, ""))(t)
		b.Start, b.End = b.Start.Add(time.Hour), b.End.Add(time.Hour) // an hour later
		c := compare.Reports(a, b)
		for _, row := range c.Pairs[0].Rows {
			if row.Stat.String() == "p50" && row.Verdict != want {
				t.Errorf("at %v: %+v; %v", level, row, c.Obstacles)
			}
			if row.Stat.String() == "p99.9" && row.Verdict != compare.Unknown {
				t.Errorf("p99.9 of 300 a window: %+v", row)
			}
		}
	}
}

// Without a counter of lost probes, the loss is a range.
func TestLoadWithoutLossCounters(t *testing.T) {
	l := must.Get(load(t, twelve(50e-6), -1, "&site=uncounted"))(t)
	if c := l.Counts; c.Sent == 0 || c.Lost != max(c.Sent-l.Main().Total.Count, 0) || c.LostLeast() != 0 ||
		!strings.Contains(strings.Join(l.Notes, "\n"), "no rebound_lost_total") {
		t.Errorf("%+v, %q", c, l.Notes)
	}
}

func TestRestart(t *testing.T) {
	l := must.Get(load(t, twelve(50e-6), 4, ""))(t)
	if len(l.Runs) != 11 || l.Main().Total.Count != 11*300 ||
		!strings.Contains(strings.Join(l.Notes, " "), "left out 1 window in which the watch was started again") {
		t.Errorf("%d runs, %d values, %q", len(l.Runs), l.Main().Total.Count, l.Notes)
	}
}

// The lines that name the two sides of a comparison, and its table, have the information that Prometheus has, and no
// placeholder for the rest.
func TestComparisonText(t *testing.T) {
	a := must.Get(load(t, twelve(50e-6), -1, "&instance=a:9470"))(t)
	b := must.Get(load(t, twelve(50e-6), 4, "&site=silent"))(t)
	var out strings.Builder
	must.OK(t, page.PrintComparison(&out, compare.Reports(a, b)))
	check.Contains(t, out.String(),
		"A  icmp:10.0.0.2 instance=a:9470 2026-11-22 10:00Z, afpacket, icmp to 10.0.0.2, 60 bytes, open loop at 0.2/s, 3,600 samples, 12 runs\n",
		"B  icmp:10.0.0.2 site=silent 2026-11-22 10:00Z, icmp to 10.0.0.2, open loop, 3,300 samples, 11 runs\n")
	b = must.Get(load(t, twelve(50e-6), 4, "&site=other"))(t)
	must.OK(t, page.PrintComparison(&out, compare.Reports(a, b)))
	if text := out.String(); strings.Contains(text, " +0 ns") ||
		!regexp.MustCompile(`p50 .* <1\.\d+ µs  <2\.1 %  ~`).MatchString(text) {
		t.Errorf("a shift within one bucket, 2.1 %% wide, has a number:\n%s", text)
	}
}

func TestErrors(t *testing.T) {
	for more, says := range map[string]string{"&site=elsewhere": "no series",
		"&site=refuse": "it rejected the query: parse error", "&site=two": "instance=a:9470|b:9470"} {
		check.Fails(t, more, check.Err(load(t, twelve(50e-6), -1, more)), nil, says)
	}
	check.Fails(t, "no levels", check.Err(load(t, nil, -1, "")), answer.ErrNothing)
	none := httptest.NewServer(http.NotFoundHandler())
	defer none.Close()
	check.Fails(t, "no server", check.Err((&Server{Base: none.URL}).instant(context.Background(), "x", now)), nil,
		"404")
}

// A server's counts are accepted in chronological order, or rejected with an error.
func TestImpossibleCounters(t *testing.T) {
	for _, values := range []string{`[1,"NaN"]`, `[1,"-1"]`, `[1,"1e300"]`, `[1,"+Inf"]`, `[9,"1"],[5,"2"]`,
		`[5,"1"],[5,"2"]`} {
		body := canned(`{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"a":"b"},"values":[` +
			values + `]}]}}`)
		s := &Server{Base: "http://prometheus", Client: &http.Client{Transport: body}}
		check.Fails(t, values, check.Err(s.Range(context.Background(), "x", now, now.Add(time.Hour), time.Minute)), nil)
	}
}

// Every text is a source or an error, and every source has a time range.
func FuzzParse(f *testing.F) {
	f.Add("prom:http://h:9090?target=a&from=now-1h&to=now")
	f.Add("prom:https://u:p@h/x?target=a&from=2026-11-22T10:00:00Z&to=1795345200&windows=8&instance=b")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse(text, now)
		if err == nil && (s.Step() < time.Second || s.Base == "" || !strings.Contains(s.selector("m"), "target=")) {
			t.Errorf("%q: %+v", text, s)
		}
	})
}

// canned answers every request with the same body.
type canned []byte

func (c canned) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(bytes.NewReader(c)), Request: r}, nil
}

// Every response yields series or an error, and every list of series yields a report or an error.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte(`{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"a":"b"},"histograms":[[1,{"count":"1","sum":"1","buckets":[[0,"1e-6","2e-6","1"]]}],[301,{"count":"3","sum":"1","buckets":[[0,"1e-6","2e-6","3"]]}]]}]}}`))
	f.Add([]byte(`{"status":"error","error":"x"}`))
	f.Add([]byte(`{"status":"success","data":{"resultType":"vector","result":[{"value":[1,"2"]}]}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		server := &Server{Base: "http://prometheus", Client: &http.Client{Transport: canned(body)}}
		all, err := server.instant(context.Background(), "up", now)
		if err != nil {
			return
		}
		for _, s := range all {
			if l, err := answer.Report(s.Histograms, time.Unix(0, 0), 5*time.Minute, 12); err == nil &&
				l.Main().Total.Count <= 0 {
				t.Errorf("a report of nothing: %+v", s)
			}
		}
	})
}
