package prom

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/fleet/matrix"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/numbers"
	"github.com/rebound-nic/rebound/proof/synthetic"
)

// mesh responds like a Prometheus that has scraped three watches for two days. The path a → c takes half as long again
// today, b → a loses everything, and c has no data for yesterday. Nothing was scraped before since, and the metric
// missing does not exist.
func mesh(t *testing.T, since time.Time, missing string) *httptest.Server {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.FormValue("query")
		result := []any{}
		defer func() {
			respond(w, map[bool]string{true: "vector", false: "matrix"}[strings.HasPrefix(query, "count")], result)
		}()
		if missing != "" && strings.HasPrefix(query, missing+"{") {
			return
		}
		if strings.HasPrefix(query, "count by (instance)") {
			for _, h := range "abc" {
				result = append(result, map[string]any{"metric": map[string]string{"instance": string(h)},
					"value": []any{0, "2"}})
			}
			return
		}
		var start, end, step float64
		fmt.Sscan(r.FormValue("start"), &start)
		fmt.Sscan(r.FormValue("end"), &end)
		fmt.Sscan(r.FormValue("step"), &step)
		if step == 0 { // an instant query
			return
		}
		today := start > float64(now.Add(-3*time.Hour).Unix())
		for _, from := range "abc" {
			if !strings.Contains(query, fmt.Sprintf("instance=%q", string(from))) {
				continue
			}
			for _, to := range "abc" {
				if strings.Contains(query, "target=") && !strings.Contains(query, fmt.Sprintf(`target="icmp:%c"`, to)) {
					continue
				}
				if from == to || from == 'c' && !today {
					continue
				}
				labels := map[string]string{"instance": string(from), "target": "icmp:" + string(to)}
				silent := from == 'b' && to == 'a'
				var values, moments []any
				h := &history{counts: map[int]float64{}}
				rnd := rand.New(rand.NewPCG(uint64(from), uint64(to)))
				counted := 0
				for at := start; at <= end+0.001; at += step {
					if at < float64(since.Unix()) {
						continue
					}
					n := int(at - max(start, float64(since.Unix())))
					if strings.HasPrefix(query, "rebound_lost") &&
						(!silent || strings.HasPrefix(query, "rebound_lost_uncertain")) {
						n = 0
					}
					values = append(values, []any{at, fmt.Sprint(n)})
					level := 50e-6
					if from == 'a' && to == 'c' && today {
						level = 75e-6
					}
					for ; !strings.HasPrefix(query, "rebound_lost") && counted < n && !silent; counted++ {
						h.add(level * (1 + 0.1*rnd.ExpFloat64()))
					}
					moments = append(moments, []any{at, h.answer()})
				}
				if len(values) == 0 {
					continue
				}
				if trouble := strings.HasPrefix(query, troubleMetric); trouble ||
					strings.HasPrefix(query, placeMetric) {
					for value, n := range map[string]int{"late": 7, "send_failed": 5, "here": 3, "there": 0} {
						if !strings.Contains(query, value) {
							continue
						}
						if from != 'a' || to != 'b' {
							n = 0
						}
						labels := maps.Clone(labels)
						labels[map[bool]string{true: "kind", false: "place"}[trouble]] = value
						last := values[len(values)-1].([]any)[0]
						result = append(result, map[string]any{"metric": labels,
							"values": []any{[]any{start, "0"}, []any{last, fmt.Sprint(n)}}})
					}
					continue
				}
				if strings.HasPrefix(query, DefaultMetric) {
					result = append(result, map[string]any{"metric": labels, "histograms": moments})
				} else {
					result = append(result, map[string]any{"metric": labels, "values": values})
				}
			}
		}
	}))
	t.Cleanup(s.Close)
	return s
}

// anHour are the options of a matrix of the last hour, compared with the same hour of the day before.
var anHour = MatrixOptions{At: now, Range: time.Hour, Before: 24 * time.Hour, Windows: 12, FromName: "instance",
	ToName: "target"}

// aToB is one path in the same hour.
var aToB = &Source{Labels: []Label{{"instance", "a"}, {"target", "icmp:b"}}, Metric: DefaultMetric,
	From: now.Add(-time.Hour), To: now, Windows: 12}

// matrixOf is that of an hour of a server. Its text and its page write numbers in one way.
func matrixOf(t *testing.T, server *httptest.Server, o MatrixOptions) *matrix.Matrix {
	t.Helper()
	m := must.Get((&Server{Base: server.URL}).Matrix(context.Background(), o))(t)
	var html, text bytes.Buffer
	must.OK(t, errors.Join(matrix.Write(&html, m), matrix.Print(&text, m)))
	for _, f := range append(numbers.Others(text.String(), nil), numbers.Others(html.String(), nil)...) {
		t.Error(f)
	}
	return m
}

// always is a mesh that was always scraped, and has every metric.
func always(t *testing.T) *httptest.Server { return mesh(t, time.Unix(0, 0), "") }

// altered is a mesh whose answers change changes.
func altered(t *testing.T, change func(query string, answer []byte) []byte) *httptest.Server {
	truth := always(t)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.FormValue("query")
		got := httptest.NewRecorder()
		truth.Config.Handler.ServeHTTP(got, r)
		w.Write(change(query, got.Body.Bytes()))
	}))
	t.Cleanup(s.Close)
	return s
}

func TestMatrix(t *testing.T) {
	m := matrixOf(t, always(t), anHour)
	if strings.Join(m.From, " ") != "a b c" || strings.Join(m.To, " ") != "icmp:a icmp:b icmp:c" || len(m.Cells) != 6 {
		t.Fatalf("%v to %v, %d cells", m.From, m.To, len(m.Cells))
	}
	for pair, want := range map[matrix.Pair]struct {
		p50     float64
		lost    int64
		verdict compare.Verdict
		why     string
	}{
		{From: "a", To: "icmp:b"}: {53.5e3, 0, compare.Noise, ""}, {From: "a", To: "icmp:c"}: {80e3, 0, compare.Slower, ""},
		{From: "b", To: "icmp:a"}: {0, 3600, compare.Unknown, "no replies"}, {From: "c", To: "icmp:a"}: {53.5e3, 0, compare.Unknown, "no baseline"},
	} {
		c := m.Cells[pair]
		if c == nil || math.Abs(c.P50-want.p50) > 0.03*want.p50 || c.Lost != want.lost || c.Sent != 3600 ||
			c.Verdict != want.verdict || !strings.Contains(c.Why, want.why) {
			t.Errorf("%v: %+v", pair, c)
		}
	}
	if shift := m.Cells[matrix.Pair{From: "a", To: "icmp:c"}].Shift; math.Abs(shift-26.7e3) > 3e3 {
		t.Errorf("shift %v", shift)
	}
	var html, text bytes.Buffer
	must.OK(t, matrix.Write(&html, m))
	must.OK(t, matrix.Print(&text, m))
	check.Contains(t, html.String(), "Slower than the baseline: 1 of 6 paths.", "Without replies: 1 of 6 paths.",
		"a → icmp:c", "b → icmp:a", "100 %",
		"at most 5 % of matrices of this size",
		`<th scope="col">not sent</th><th scope="col">dropped here</th><th scope="col">late</th>`, "between 0 and 3")
	for _, bad := range []string{"http://", "https://", "src=", "@import", "ZgotmplZ"} {
		if strings.Contains(html.String(), bad) {
			t.Errorf("the page has %q: it is to need nothing but itself", bad)
		}
	}
	check.Contains(t, text.String(), "+ a -> icmp:c: p50 slower by", "! b -> icmp:a: 100 % lost (3,600 of 3,600)",
		"6 paths: 1 slower, 0 faster, 2 with no change seen, 3 without a verdict",
		"! a -> icmp:b: 5 not sent, between 0 and 3 dropped here, 7 late (of 3,600)",
		"of 6 paths, 1 slower than the baseline, 0 with loss, 1 without replies;",
		"at most 5 % of matrices of this size show any + or -")
	noColumn, noRow := anHour, anHour
	noColumn.ToName, noRow.FromName = "site", "host"
	s := &Server{Base: always(t).URL}
	check.Fails(t, "columns", check.Err(s.Matrix(context.Background(), noColumn)), nil, "without the label site")
	check.Fails(t, "rows", check.Err(s.Matrix(context.Background(), noRow)), nil, "has no data")
}

// Without label names, rows are the nodes that watches report for themselves and columns are the targets' nodes, both
// with zones.
func TestMatrixOfAFleet(t *testing.T) {
	const self = `{"status":"success","data":{"resultType":"vector","result":[{"metric":{"instance":"a","node":"node-a","zone":"x"},"value":[0,"1"]}]}}`
	s := altered(t, func(query string, answer []byte) []byte {
		if strings.HasPrefix(query,
			"count by (instance, node, zone) (last_over_time(rebound_fleet_self_info{}[3600s]))") {
			return []byte(self)
		}
		return bytes.ReplaceAll(answer, []byte(`"target":"icmp:c"`),
			[]byte(`"node":"node-c","zone":"y","target":"icmp:c"`))
	})
	m := matrixOf(t, s, MatrixOptions{At: now, Range: time.Hour, Before: 24 * time.Hour, Windows: 12})
	if strings.Join(m.From, " ") != "b c node-a" || strings.Join(m.To, " ") != "icmp:a icmp:b node-c" ||
		len(m.Cells) != 6 {
		t.Errorf("%v to %v, %d cells", m.From, m.To, len(m.Cells))
	}
	if fmt.Sprint(m.Zones) != "map[node-a:x node-c:y]" {
		t.Errorf("zones %v", m.Zones)
	}
}

// A watch that started minutes ago is evaluated from the available data, within the default range of an hour.
func TestMatrixOfAYoungWatch(t *testing.T) {
	for _, age := range []time.Duration{50 * time.Minute, 7 * time.Minute, 90 * time.Second} {
		m := matrixOf(t, mesh(t, now.Add(-age), ""), anHour)
		var html, text bytes.Buffer
		must.OK(t, errors.Join(matrix.Write(&html, m), matrix.Print(&text, m)))
		if c := m.Cells[matrix.Pair{From: "a", To: "icmp:b"}]; math.Abs(c.P50-53.5e3) > 2e3 ||
			c.Sent < int64(age.Seconds()/4) || c.Why == "no replies" {
			t.Errorf("%v: the path that answers is %+v", age, c)
		}
		if !regexp.MustCompile(`! b -> icmp:a: 100 % lost \(([\d,]+) of ([\d,]+)\)`).MatchString(text.String()) ||
			!strings.Contains(html.String(), "100 %") {
			t.Errorf("%v: the path without replies is left out:\n%s", age, &text)
		}
		if age < 30*time.Minute && !strings.Contains(text.String(), "less than 1 hour of data for 6 of 6 paths") {
			t.Errorf("%v: no note on the range:\n%s", age, &text)
		}
	}
}

// Without a counter of lost probes, the loss of a path is a range from none to all probes without a reply.
func TestMatrixWithoutLossCounters(t *testing.T) {
	for _, missing := range []string{"rebound_lost_total", "rebound_lost_uncertain_total"} {
		m := matrixOf(t, mesh(t, time.Unix(0, 0), missing), anHour)
		if c := m.Cells[matrix.Pair{From: "b", To: "icmp:a"}]; c.Lost != 3600 || c.LostUncertain != 3600 {
			t.Errorf("without %s: %+v", missing, c)
		}
		if c := m.Cells[matrix.Pair{From: "a", To: "icmp:b"}]; c.Lost != 0 || c.LostUncertain != 0 {
			t.Errorf("without %s, every probe answered: %+v", missing, c)
		}
		check.Contains(t, strings.Join(m.Notes, "\n"), "no "+missing+" for 6 of 6 paths")
	}
}

// Counters that are scraped at different times, or were reset by a restart, may add up to more probes than were sent.
// Then lost probes are limited to those sent, and a note says so.
func TestCountersDisagree(t *testing.T) {
	s := altered(t, func(query string, text []byte) []byte {
		if !strings.HasPrefix(query, lostMetric+"{") {
			return text
		}
		i := -1
		return regexp.MustCompile(`(\[\d+),"\d+"\]`).ReplaceAllFunc(text, func(value []byte) []byte {
			moment, _, _ := bytes.Cut(value, []byte(","))
			i++
			return fmt.Appendf(nil, `%s,"%d"]`, moment, 1000*i) // faster than a probe per second
		})
	})
	m := matrixOf(t, s, anHour)
	for pair, c := range m.Cells {
		if parts := c.Lost + c.Late + c.SendFailed + c.CorruptOnly; c.Sent != 3600 || parts != c.Sent ||
			c.LostLeast() != 0 {
			t.Errorf("%v: %+v: the parts add up to %d", pair, c.Counts, parts)
		}
	}
	check.Contains(t, strings.Join(m.Notes, "\n"), "the counters of 6 of 6 paths "+disagree)
	l := must.Get(Load(context.Background(), &Server{Base: s.URL}, aToB))(t)
	if c := l.Counts; c.Sent != 3600 || c.Lost != 3588 || c.LostLeast() != 0 || c.Received != 0 ||
		!slices.Contains(l.Notes, "the counters "+disagree+": lost is a range") {
		t.Errorf("%+v %q", c, l.Notes)
	}
}

var matrices = flag.Int("matrices", 10, "unchanged matrices that each scenario of TestMatrixCalibration simulates")

// At most 5 % of matrices of unchanged paths show any mark, even if every path is slower by the whole drift permitted
// between two times. docs/internals/calibration.md has the results.
func TestMatrixCalibration(t *testing.T) {
	needs.Long(t)
	const windows, length, day = 12, 300, 24 * 3600.0
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	for _, c := range []struct {
		name   string
		paths  int
		now    func(*rand.Rand) float64                        // the level compared with the previous day
		within func(*rand.Rand, float64) func(float64) float64 // the level within the hours, until end
		tail   float64
		least  float64 // share of paths with a mark
		most   float64 // share of matrices with a mark
	}{
		{"nothing moves", 60, func(*rand.Rand) float64 { return 1 }, nil, 0, 0, 0.05},
		{"10 % slower", 400, func(*rand.Rand) float64 { return 1.1 }, nil, 0, 0, 0.05},
		{"up to 10 % slower or faster, 1 % over 20 minutes", 60,
			func(r *rand.Rand) float64 { return 1 / 1.1 * math.Pow(1.21, r.Float64()) },
			func(r *rand.Rand, end float64) func(float64) float64 {
				return synthetic.AR1(r, 0.01, 1200, end)
			}, 0.05, 0, 0.05},
		{"half slower", 60, func(*rand.Rand) float64 { return 1.5 }, nil, 0.01, 0.9, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(22, 1))
			slots := func(from float64) (all []synthetic.Slot) {
				for i := range windows {
					all = append(all, synthetic.Slot{Start: from + float64(i*length),
						End: from + float64((i+1)*length)})
				}
				return all
			}
			marked, slower := 0, 0
			for range *matrices {
				found := false
				for range c.paths {
					m := &synthetic.Machine{Rnd: rnd, Samples: 300, Level: synthetic.Quiet, Tail: c.tail}
					if c.within != nil {
						m.Level = c.within(rnd, windows*length)
					}
					before := m.Runs(50e3, slots(0), 1)
					if c.within != nil {
						level := c.within(rnd, windows*length)
						m.Level = func(at float64) float64 { return level(at - day) }
					}
					now := m.Runs(50e3*c.now(rnd), slots(day), 1)
					cell := &matrix.Cell{}
					judge(cell, c.paths, before, now)
					if cell.Verdict == compare.Unknown && cell.Why == "" {
						t.Fatalf("%+v", cell)
					}
					if cell.Verdict > compare.Noise {
						found = true
						slower++
					}
				}
				if found {
					marked++
				}
			}
			share := float64(marked) / float64(*matrices)
			ofPaths := float64(slower) / float64(*matrices*c.paths)
			t.Logf("%d of %d matrices of %d paths have a mark, %.2f %% of the paths", marked, *matrices, c.paths,
				100*ofPaths)
			if share > c.most+2/float64(*matrices) || ofPaths < c.least {
				t.Errorf("%.1f %% of the matrices have a mark, want at most %.0f %%; %.2f %% of the paths, want at least %.0f %%", 100*share, 100*c.most, 100*ofPaths, 100*c.least)
			}
		})
	}
}

// The loss of a cell with several series covers all of them, including a silent one.
func TestMatrixOfSeveralSeries(t *testing.T) {
	o := anHour
	o.ToName = "instance"
	m := matrixOf(t, always(t), o)
	if c := m.Cells[matrix.Pair{From: "b", To: "b"}]; len(m.Cells) != 3 || c.Sent != 7200 || c.Lost != 3600 ||
		c.Samples != 3600 || c.Silent {
		t.Errorf("%d cells, %+v", len(m.Cells), c)
	}
	if c := m.Cells[matrix.Pair{From: "a", To: "a"}]; c.Sent != 7200 || c.SendFailed != 5 || c.Late != 7 ||
		c.DroppedHere != 3 || c.Verdict != compare.Slower {
		t.Errorf("%+v", c)
	}
	check.Contains(t, strings.Join(m.Notes, "\n"), "several series in 3 cells")
}

func TestTimeText(t *testing.T) {
	for d, want := range map[time.Duration]string{time.Hour: "1 hour", 36 * time.Hour: "36 hours",
		24 * time.Hour: "1 day", 7 * 24 * time.Hour: "7 days", 90 * time.Minute: "90 minutes",
		45 * time.Second: "45 seconds", 1500 * time.Millisecond: "1.500 s"} {
		check.Equal(t, timeText(d), want, d.String()+": %s")
	}
}

// If a matrix has more paths than its windows can decide, it says how many windows it needs.
func TestMatrixNeedsWindows(t *testing.T) {
	o := anHour
	o.Windows = 8
	m := matrixOf(t, always(t), o)
	if slices.ContainsFunc(m.Notes, func(n string) bool { return strings.Contains(n, "-windows") }) ||
		m.Cells[matrix.Pair{From: "a", To: "icmp:c"}].Verdict != compare.Slower {
		t.Errorf("6 paths in 8 windows: %q", m.Notes)
	}
	o.Windows = 4
	if m = matrixOf(t, always(t), o); !slices.Contains(m.Notes,
		"no path can have a verdict: a test of 6 paths needs 8 windows, set -windows 8") {
		t.Errorf("4 windows: %q", m.Notes)
	}
	if least := compare.RunsAmong(1_000_000, compare.Stats(latency.CellTable)); least < 13 || least > 16 {
		t.Errorf("a million paths need %d windows", least)
	}
}

// A comparison loads as received only the probes that were answered in time.
func TestLoadCountsPlaces(t *testing.T) {
	l := must.Get(Load(context.Background(), &Server{Base: always(t).URL}, aToB))(t)
	if c := l.Counts; c.Sent != 3600 || c.Lost != 0 || c.Late != 7 || c.SendFailed != 5 || c.DroppedHere != 3 ||
		c.Received != 3588 {
		t.Errorf("%+v", c)
	}
}
