package page

import (
	"bytes"
	"encoding/base64"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// A new column is one row of leading or trailing: text, HTML, JSON and CSV of a sweep and of a ranking have it.
func TestNewColumn(t *testing.T) {
	before := trailing
	defer func() { trailing = before }()
	trailing = append(slices.Clip(trailing), Column{Name: "toys", Key: "toys_ns", In: SweepTable | RankingTable,
		Text: func(*Point) string { return "7.25 toys" }, Value: func(*Point) any { return 7.25 }})
	all, ranked := rateSweep(), targets(3)
	var points Table
	for i, r := range all {
		points.Points = append(points.Points, PointOf(r, links(all)[i]))
	}
	points.Kind = SweepTable
	var text, sweep, ranking bytes.Buffer
	must.OK(t, points.Print(&text))
	must.OK(t, Sweep(&sweep, all, links(all)))
	must.OK(t, Overview(&ranking, "3 reports", ranked, nil))
	check.Equal(t, strings.Count(text.String(), "toys"), 1+len(all), "%d in the text")
	check.Equal(t, strings.Count(sweep.String(), "toys</t"), 1+len(all), "%d in the page of a sweep")
	check.Equal(t, strings.Count(ranking.String(), "toys</t"), 1+len(ranked), "%d in the page of a ranking")
	for name, page := range map[string]string{"sweep": sweep.String(), "ranking": ranking.String()} {
		rows := must.Get(csv.NewReader(strings.NewReader(csvOf(t, page))).ReadAll())(t)
		for i, row := range rows {
			want := "7.25"
			if i == 0 {
				want = "toys_ns"
			}
			if got := row[len(row)-1]; got != want {
				t.Errorf("%s: line %d of the CSV ends with %q, want %q", name, i+1, got, want)
			}
		}
	}
	for i, row := range points.JSON() {
		if row["toys_ns"] != 7.25 || row["name"] != all[i].Name() || row["p50_ns"] != all[i].Quantile(0.5) {
			t.Errorf("row %d of the JSON: %v", i, row)
		}
	}
}

// A new statistic is one row of latency.Stats: all tables, sentences, pages and formats have it.
func TestNewStat(t *testing.T) {
	before := latency.Stats
	defer func() { latency.Stats = before }()
	latency.Stats = append(slices.Clip(before), latency.Stat{Name: "toys", In: ^latency.Tables(0),
		Of: func(*latency.Summary) float64 { return 7250 }})
	a, b := session()
	pair, three := compare.Reports(a, b), compare.Reports(a, b, a)
	a.Add(latency.GapSeries, a.Main().Total)
	points := rateSweep()
	sweep := Table{SweepTable, []Point{PointOf(points[0], Link{Name: "a"})}}
	trials := Table{SearchTable, []Point{{Counts: &a.Counts, Summary: &a.Main().Summary}}}
	ranking := func(w io.Writer, all []Item) error { return Overview(w, "3 reports", all, nil) }
	series := func(w io.Writer, m *latency.Summary) error { PrintSeries(w, "gap", m); return nil }
	timings := func(w io.Writer, m *latency.Summary) error {
		PrintTimings(w, []latency.Series{{Name: "wait", Summary: *m}})
		return nil
	}
	lines := func(w io.Writer, all []*report.Report) error { return Sweep(w, all, links(all)) }
	for name, text := range map[string]string{
		"headline":            answer(a),
		"report":              show(t, PrintReport, a),
		"report's page":       show(t, Report, a),
		"series":              show(t, series, &a.Main().Summary),
		"responder's summary": show(t, timings, &a.Main().Summary),
		"summary of a pair":   show(t, PrintSummary, pair),
		"summary of three":    show(t, PrintSummary, three),
		"comparison":          show(t, PrintComparison, pair),
		"Markdown":            show(t, PrintMarkdown, pair),
		"JSON":                show(t, PrintJSON, pair),
		"comparison's page":   show(t, comparisonPage, pair),
		"sweep":               show(t, func(w io.Writer, s *Table) error { return s.Print(w) }, &sweep),
		"sweep's page":        show(t, lines, points),
		"sweep's CSV":         sweep.CSV(),
		"sweep's JSON":        fmt.Sprint(sweep.JSON()),
		"search":              show(t, func(w io.Writer, s *Table) error { return s.Print(w) }, &trials),
		"ranking":             show(t, ranking, targets(3)),
	} {
		if !strings.Contains(text, "toys") || !strings.Contains(strings.ReplaceAll(text, "\u00a0", " "), "7.250 µs") &&
			!strings.Contains(text, "7250") {
			t.Errorf("%s has no toys of 7.250 µs:\n%s", name, text)
		}
	}
	if text := Answer(pair); !strings.Contains(text, "toys") {
		t.Errorf("the answer of a comparison: %s", text)
	}
}

// What is unknown has no value for programs: the percentiles of a point without a reply, and a place without a counter.
func TestUnknownValues(t *testing.T) {
	r := rateSweep()[0]
	r.Series, r.Traffic.Rate, r.Label = nil, 0, "=1+1"
	points := Table{SweepTable, []Point{PointOf(r, Link{Name: r.Name()})}}
	rows := must.Get(csv.NewReader(strings.NewReader(points.CSV())).ReadAll())(t)
	if _, err := json.Marshal(points.JSON()); err != nil {
		t.Error(err)
	}
	for _, key := range []string{"rate_per_s", "p50_ns", "max_ns", "dropped_here"} {
		if v, ok := points.JSON()[0][key]; ok {
			t.Errorf("%s is %v in the JSON", key, v)
		}
		if i := slices.Index(rows[0], key); i < 0 || rows[1][i] != "" {
			t.Errorf("%s in the CSV: %q", key, rows)
		}
	}
	check.Equal(t, rows[1][0], "'=1+1", "%q")
}

func csvOf(t *testing.T, page string) string {
	t.Helper()
	m := regexp.MustCompile(`href="data:text/csv;charset=utf-8;base64,([^"]*)"`).FindStringSubmatch(page)
	if m == nil {
		t.Fatal("the page has no CSV")
	}
	text := strings.NewReplacer("&#43;", "+", "%2b", "+", "%3d", "=", "&#61;", "=").Replace(m[1])
	return string(must.Get(base64.StdEncoding.DecodeString(text))(t))
}
