package foreign

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/report"
)

// golden are files that the tools wrote (testdata/make), with what the tool itself printed in the file: statistics in ns.
var golden = []struct {
	file   string
	o      Options
	metric report.Metric
	tool   string
	count  int64
	runs   int // that compare may test
	stats  map[string]float64
	within float64 // the tool's rounding, as a share of the value
}{
	{"java.hgrm", Options{Unit: "us"}, report.Unlabeled, "HdrHistogram", 4800, 1,
		map[string]float64{"min": 9.679e3, "p50": 20.095e3, "p90": 26.047e3, "p99.9": 37.375e3, "max": 39.647e3}, 0},
	{"c.hgrm", Options{Unit: "us"}, report.Unlabeled, "HdrHistogram", 2400, 1,
		map[string]float64{"min": 2000e3, "p50": 2503e3, "p90": 2899e3, "max": 2999e3}, 0},
	{"js.hgrm", Options{Unit: "us"}, report.Unlabeled, "HdrHistogram", 2000, 1,
		map[string]float64{"min": 100.031e3, "p50": 200.063e3, "p90": 535.039e3, "max": 599.551e3}, 0},
	{"vegeta.hdrplot", Options{}, report.Unlabeled, "HdrHistogram", 200, 1,
		map[string]float64{"min": 90806, "p50": 231584, "p90": 405749, "max": 7794194}, 0},
	{"java.hlog", Options{}, report.Unlabeled, "HdrHistogram", 4800, 16,
		map[string]float64{"p50": 20.095e3, "p90": 26.047e3, "max": 39.647e3}, 0},
	{"c.hlog", Options{}, report.Unlabeled, "HdrHistogram", 2400, 12,
		map[string]float64{"p50": 2503e3, "p90": 2899e3, "max": 2999e3}, 0},
	{"js.hlog", Options{Unit: "ns", Series: "read"}, report.Unlabeled, "HdrHistogram", 1000, 10, nil, 0},
	{"numbers.txt", Options{Unit: "ms"}, report.Unlabeled, "unknown tool", 200, 16,
		map[string]float64{"min": 3e3, "p50": 6e3, "p90": 16e3, "p99": 37e3, "max": 114e3, "mean": 9e3}, 0.1},
	{"table.csv", Options{}, report.Unlabeled, "unknown tool", 200, 16,
		map[string]float64{"min": 3e3, "p50": 6e3, "p90": 16e3, "p99": 37e3, "max": 114e3, "mean": 9e3}, 0.1},
}

// histogramDigits is the precision of a report's histograms.
const histogramDigits = 0.001

func TestFilesOfRealTools(t *testing.T) {
	for _, g := range golden {
		t.Run(g.file, func(t *testing.T) {
			r, err := Read(filepath.Join("testdata", g.file), g.o)
			if err != nil {
				t.Fatal(err)
			}
			if r.Metric != g.metric || r.Tool != g.tool || r.Name() != g.file {
				t.Errorf("%s of %s, named %s", r.Metric, r.Tool, r.Name())
			}
			if n := r.Main().Total.Count; n != g.count {
				t.Errorf("%d samples, want %d", n, g.count)
			}
			if n := len(r.Runs); n != g.runs && g.runs > 1 || g.runs == 1 && r.Foreign.Single == "" && r.Foreign.Points == nil {
				t.Errorf("%d runs (%q), want %d", n, r.Foreign.Single, g.runs)
			}
			for name, want := range g.stats {
				st, err := compare.ParseStat(name)
				if err != nil {
					t.Fatal(err)
				}
				if got := st.OfReport(r); !(math.Abs(got-want) <= 1+want*(g.within+histogramDigits)) {
					t.Errorf("%s is %.0f ns, the tool printed %.0f ns", name, got, want)
				}
			}
			if lines := strings.Join(r.Foreign.Lines(), "; "); !strings.Contains(lines, "values in ") {
				t.Errorf("no unit in %q", lines)
			}
			if c := compare.Reports(r, r); len(c.Obstacles) > 0 {
				t.Errorf("not comparable with itself: %q", c.Obstacles)
			}
		})
	}
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestMalformedFiles(t *testing.T) {
	for _, c := range []struct {
		name, text string
		o          Options
		says       string
	}{
		{"nothing", "", Options{}, "format unknown"},
		{"prose", "these are words\n", Options{}, "format unknown"},
		{"a word among numbers", "1\n2\nx\n", Options{Unit: "ms"}, `:3: malformed list of numbers: "x" is no number`},
		{"a negative latency", "1\n-2\n", Options{Unit: "ms"}, ":2: malformed list of numbers: -2 is out of range"},
		{"an infinite latency", "1\nInf\n", Options{Unit: "ms"}, ":2: malformed list of numbers: +Inf is out of range"},
		{"no unit", "1\n2\n", Options{}, "does not state the unit of its values (set -unit ns, us, ms or s)"},
		{"a unit that does not exist", "1\n", Options{Unit: "h"}, `unit "h": want ns, us, ms or s`},
		{"no values", "rtt_us\n", Options{}, "no latencies in it"},
		{"two columns of latencies", "rtt_us,delay_us\n1,2\n", Options{}, ":1: malformed CSV table: which column has the latencies? Set -series to one of: rtt_us, delay_us"},
		{"a column that does not exist", "a,b\n1,2\n", Options{Series: "c"}, `:1: malformed CSV table: no column "c": it has a, b`},
		{"a row that is cut off", "seq,rtt_us\n1,2\n3\n", Options{}, ":3: malformed CSV table: 1 columns, expected 2"},
		{"percentiles that are cut off", "Value Percentile TotalCount 1/(1-Percentile)\n1 0.5 2 2\n", Options{Unit: "us"}, "it is cut off"},
		{"percentiles that decrease", "Value Percentile TotalCount 1/(1-Percentile)\n1 0.5 2 2\n0.5 1.0 4 inf\n", Options{Unit: "us"}, ":3: malformed HdrHistogram percentiles: smaller than the line before"},
		{"percentiles without counts", "Value Percentile TotalCount 1/(1-Percentile)\n1 0.5\n", Options{Unit: "us"}, ":2: malformed HdrHistogram percentiles: 2 columns"},
		{"a log with a broken histogram", "#[Histogram log format version 1.3]\n0,1,1,xyz\n", Options{}, ":2: malformed log"},
		{"a log with several tags", string(content(t, "js.hlog")), Options{Unit: "ns"}, "which tag? Set -series to one of: read, write"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Read(write(t, "x", c.text), c.o)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want one with %q", err, c.says)
			}
		})
	}
}

func content(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestFolderOfRuns: files of histograms, which have no order in time, are runs, and get a verdict.
func TestFolderOfRuns(t *testing.T) {
	folder := func(shift float64) string {
		dir := t.TempDir()
		for i := range 10 {
			text := "Value Percentile TotalCount 1/(1-Percentile)\n"
			for j := range 10 {
				text += fmt.Sprintf("%.3f %.2f %d 0\n", 10*shift+0.01*float64(i)+0.1*float64(j), float64(j+1)/10, 100*(j+1))
			}
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%02d.hgrm", i)), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	read := func(shift float64) *report.Report {
		r, err := Read(folder(shift), Options{Unit: "us"})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	p50 := func(c *compare.Comparison) compare.Row {
		return c.Pairs[0].Rows[slices.IndexFunc(c.Pairs[0].Rows, func(r compare.Row) bool { return r.Stat.String() == "p50" })]
	}
	a, b, same := read(1), read(1.5), read(1)
	if len(a.Runs) != 10 || a.Main().Total.Count != 10000 {
		t.Errorf("%d runs, %d samples", len(a.Runs), a.Main().Total.Count)
	}
	if v := p50(compare.Reports(a, b)); v.Verdict != compare.Slower {
		t.Errorf("50 %% slower: %v, %s", v.Verdict, v.Why)
	}
	if v := p50(compare.Reports(a, same)); v.Verdict != compare.Noise {
		t.Errorf("unchanged: %v, %s", v.Verdict, v.Why)
	}
}

// TestHalvesOfOneMeasurement: the two halves of one measurement, whose level wanders as a machine's does, seldom get a verdict. If
// nothing changed, at most 5 % of tables show one.
func TestHalvesOfOneMeasurement(t *testing.T) {
	const tables, samples = 200, 4000
	random := rand.New(rand.NewPCG(28, 5))
	marks := 0
	for range tables {
		level := 0.0
		var text [2]strings.Builder
		for i := range samples {
			level = 0.999*level + 0.004*random.NormFloat64() // wanders by about 9 % over a thousand samples
			fmt.Fprintf(&text[2*i/samples], "%.3f\n", 20*math.Exp(level+0.2*random.NormFloat64()))
		}
		var sides [2]*report.Report
		for i := range sides {
			m, err := parse("half", []byte(text[i].String()), Options{Unit: "us"})
			if err != nil {
				t.Fatal(err)
			}
			sides[i] = m.report()
		}
		if slices.ContainsFunc(compare.Reports(sides[0], sides[1]).Pairs[0].Rows, func(r compare.Row) bool { return r.Verdict > compare.Noise }) {
			marks++
		}
	}
	t.Logf("%d of %d tables have a verdict", marks, tables)
	if marks > tables*5/100 {
		t.Errorf("%d of %d tables that compare a measurement with itself have a verdict", marks, tables)
	}
}

// fuzz feeds files like those of the pattern to the readers.
func fuzz(f *testing.F, pattern string, o Options) {
	files, err := filepath.Glob(filepath.Join("testdata", pattern))
	if err != nil || len(files) == 0 {
		f.Fatalf("no file %s: %v", pattern, err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		if len(b) > 2000 {
			f.Add(b[:2000])
		}
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		m, err := parse("f", in, o)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "f:") || !errors.Is(err, report.ErrFormat) && !errors.Is(err, ErrFormat) && !errors.Is(err, ErrUnit) && !errors.Is(err, report.ErrSchema) {
				t.Errorf("error %v names no file, or has no kind", err)
			}
			return
		}
		r := m.report()
		if !r.Measured() {
			t.Error("nothing measured, and no error")
		}
		for i, run := range r.Runs {
			if run.End < run.Start || i > 0 && run.Start < r.Runs[i-1].Start {
				t.Errorf("runs %v", r.Runs)
			}
		}
		compare.Reports(r, r)
	})
}

func FuzzLog(f *testing.F)      { fuzz(f, "*.hlog", Options{Unit: "us"}) }
func FuzzSpectrum(f *testing.F) { fuzz(f, "*.h*r*", Options{Unit: "us"}) }
func FuzzNumbers(f *testing.F)  { fuzz(f, "numbers.txt", Options{Unit: "us"}) }
func FuzzTable(f *testing.F)    { fuzz(f, "table.csv", Options{Unit: "us"}) }
