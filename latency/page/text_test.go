package page

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/synthetic"
)

// show returns what a function writes of a report, a comparison or a matrix.
func show[V any](t testing.TB, write func(io.Writer, V) error, v V) string {
	t.Helper()
	var b strings.Builder
	must.OK(t, write(&b, v))
	return b.String()
}

func comparisonPage(w io.Writer, c *compare.Comparison) error { return Comparison(w, c) }

// Obstacles are printed before any number, and reports that cannot be compared have no verdict.
func TestObstacles(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 7))
	base := synthetic.Sampled(rnd, 4000, 10, 1, 1000, synthetic.NoDrift)
	base.Label = "base"
	for _, c := range []struct {
		change func(*report.Report)
		says   string
	}{
		{func(r *report.Report) { r.Metric = report.HalfTrip }, "metric: base has round trip, other has half round trip"},
		{func(r *report.Report) { r.Metric = report.Turnaround }, "turnaround"},
		{func(r *report.Report) { r.Traffic.FrameSize = 128 }, "frame size: base has 64, other has 128"},
		{func(r *report.Report) { r.Traffic.Protocol = "udp" }, "protocol"},
		{func(r *report.Report) { r.Traffic.Mode = "open" }, "mode"},
		{func(r *report.Report) { r.Traffic.Rate = 1000 }, "rate: base has none, other has 1000"},
		{func(r *report.Report) { r.Traffic.IPVersion = 6 }, "IP version"},
		{func(r *report.Report) { r.Device.Backend = "sim" }, "backend: base has none, other has sim"},
		{func(r *report.Report) { r.Series = nil }, "other has no samples"},
	} {
		other := synthetic.Sampled(rnd, 8000, 10, 1, 1000, synthetic.NoDrift)
		other.Label = "other"
		c.change(other)
		cmp := compare.Reports(base, other, synthetic.Sampled(rnd, 8000, 10, 1, 1000, synthetic.NoDrift))
		text := show(t, PrintComparison, cmp)
		at, number := strings.Index(text, c.says), strings.Index(text, "µs")
		if at < 0 || number < at || !strings.HasPrefix(text, "NOT COMPARABLE:") {
			t.Errorf("%q at %d, the first number at %d:\n%s", c.says, at, number, text)
		}
		for _, r := range cmp.Pairs[0].Rows {
			if r.Verdict != compare.Unknown {
				t.Errorf("%s: %s has a verdict: %s", c.says, r.Stat, r.Verdict)
			}
		}
		check.Equal(t, cmp.Pairs[1].Rows[1].Verdict, compare.Slower, c.says+": the pair that is comparable is %s")
		check.Fails(t, "Exceeded, "+c.says, check.Err(cmp.Exceeded()), compare.ErrNotComparable)
	}
}

// Reports of models: their bus transactions are compared, and their times are labelled as the model's.
func TestSimReports(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 8))
	a, b := synthetic.Sampled(rnd, 4000, 10, 1, 1000, synthetic.NoDrift),
		synthetic.Sampled(rnd, 4000, 10, 1, 1000, synthetic.NoDrift)
	for i, r := range []*report.Report{a, b} {
		r.Label = string(rune('a' + i))
		r.Device.Backend = "sim"
		r.Counts.Received = 1000
		r.Transfers = map[string]int64{"mmio write": int64(1000 * (i + 1)), "dma read": 2000}
	}
	c := compare.Reports(a, b)
	text := strings.Join(strings.Fields(show(t, PrintComparison, c)), " ")
	check.Contains(t, text, "mmio write 1.000 2.000", "dma read 2.000 2.000", "not a card's", "round trip in the model")
	for name, p := range map[string]string{"compare": show(t, comparisonPage, c), "report": show(t, Report, a)} {
		if !strings.Contains(p, "not a card") && !strings.Contains(p, "not of a card") ||
			!strings.Contains(p, "mmio write") {
			t.Errorf("%s page does not call the time a model's, or has no bus transactions", name)
		}
	}
}

// Two reports of one target, before a change and after it, are distinguished by their folders.
func TestSameNames(t *testing.T) {
	a := synthetic.Link{Seed: 1, Median: 4000, Spread: 0.1, Seconds: 3, Rate: 3000}.Report()
	b := synthetic.Link{Seed: 2, Median: 4000, Spread: 0.1, Seconds: 3, Rate: 3000}.Report()
	a.Label, a.Dir, b.Label, b.Dir = "10.0.0.2", "out/before", "10.0.0.2", "out/after/"
	b.Traffic.Protocol = "udp"
	check.Contains(t, show(t, PrintComparison, compare.Reports(a, b)), "10.0.0.2 (out/before) has",
		"10.0.0.2 (out/after) has udp")
	check.Equal(t, a.Label, "10.0.0.2", "the report itself is now %s")
}

// An empty report can be written, read and shown: an interrupted run may have no replies.
func TestEmptyReport(t *testing.T) {
	r := must.Get(latency.NewRecorder(synthetic.Clock(), latency.RecorderOptions{}))(t)
	r.Begin(1)
	r.End(2)
	rep := report.New("bench", report.RoundTrip)
	rep.Fill(r.Recording())
	dir := filepath.Join(t.TempDir(), "empty")
	must.OK(t, report.Write(dir, rep, Report))
	got := must.Get(report.Read(dir))(t)
	check.Contains(t, allForms(t, got), "no samples")
}

// allForms is everything that is written of a report.
func allForms(t testing.TB, r *report.Report) string {
	t.Helper()
	c := compare.Reports(r, r)
	return show(t, PrintComparison, c) + show(t, comparisonPage, c) + show(t, Report, r) + show(t, PrintReport, r)
}

func FuzzReport(f *testing.F) {
	rep := synthetic.Link{Seed: 9, Median: 4000, Seconds: 1, Rate: 10}.Report()
	b := must.Get(json.Marshal(rep))(f)
	f.Add(b)
	f.Add([]byte(`{"schema":1,"series":[{"name":"rtt"}],"runs":[{}],"metric":""}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		rep, err := report.Parse(bytes.NewReader(in), "f.json")
		if err != nil {
			check.Fails(t, "an error without a file", err, nil, "f.json:")
			return
		}
		allForms(t, rep) // every report that can be read can be shown
	})
}

func FuzzFolder(f *testing.F) {
	seed := func(l synthetic.Link) {
		dir := filepath.Join(f.TempDir(), "seed")
		must.OK(f, report.Write(dir, l.Report(), Report))
		var files [2][]byte
		for i, name := range []string{report.ReportFile, report.HlogFile} {
			files[i] = must.Get(os.ReadFile(filepath.Join(dir, name)))(f)
		}
		f.Add(files[0], files[1])
	}
	seed(synthetic.Link{Seed: 9, Median: 4000, Seconds: 1, Rate: 10})
	seed(synthetic.Link{Seed: 9, Median: 4000, Spread: 0.3, Seconds: 2, Rate: 30, Open: true, Runs: 8})
	f.Fuzz(func(t *testing.T, file, log []byte) {
		dir := t.TempDir()
		must.OK(t, errors.Join(os.WriteFile(filepath.Join(dir, report.ReportFile), file, 0o644),
			os.WriteFile(filepath.Join(dir, report.HlogFile), log, 0o644)))
		rep, err := report.Read(dir)
		if err != nil {
			check.Fails(t, "an error without a file", err, nil, dir)
			return
		}
		allForms(t, rep)
		rep.FarGaps(rep)
	})
}

// The first lines are the answer and the warning about the bench's own pauses, which the page has, too.
func TestHeadline(t *testing.T) {
	rep := synthetic.Link{Seed: 11, Median: 4000, Spread: 0.1, Seconds: 30, Rate: 3000}.Report()
	rep.Add(latency.JitterSeries, latency.FromValues([]int64{20, 20, 1_000_000}))
	rep.Counts.Sent, rep.Counts.Lost = 1_234_567, 0
	text := show(t, PrintReport, rep)
	lines := strings.Split(text, "\n")
	if !regexp.MustCompile(`^round trip p50 \S+ \S+, p99 \S+ \S+, p99.9 \S+ \S+, where this host's own lag accounts for p99.9; 0 of 1,234,567 lost$`).MatchString(lines[0]) {
		t.Errorf("the first line is %q", lines[0])
	}
	rep.Counts.RefusedThere, rep.Counts.Late = 1_200_000, 3
	if first := answer(rep); !strings.HasSuffix(first, "; 0 of 1,234,567 lost, 1,200,000 refused there, 3 late") {
		t.Errorf("probes without a reply are not in the headline: %q", first)
	}
	if n := strings.Count(text, "warning: "); n != 1 || !strings.HasPrefix(lines[1], "warning: ") ||
		!strings.Contains(lines[1], "-core") {
		t.Errorf("%d warnings, the first %q", n, lines[1])
	}
	own := rep.OwnTail()
	must.Equal(t, own != "", true, "pauses of 1 ms: %t")
	check.Contains(t, text, own)
	check.Contains(t, show(t, Report, rep), own[1:])
}

// The opacities of heat maps must not apply to the cells of a matrix, whose text would fade.
func TestHeatLevelsAreScoped(t *testing.T) {
	css := must.Get(os.ReadFile("page.css"))(t)
	check.Equal(t, regexp.MustCompile(`(^|[},\n])\.h[1-6]\{`).FindString(string(css)), "",
		"page.css has the rule %q for any element")
}

// A comparison states its answer in the first line, on its page and in the page's title.
func TestAnswer(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 7))
	a, b := synthetic.Sampled(rnd, 4000, 10, 1, 2000, synthetic.NoDrift),
		synthetic.Sampled(rnd, 8000, 10, 1, 2000, synthetic.NoDrift)
	a.Label, b.Label = "before", "after"
	c := compare.Reports(a, b)
	text, html := show(t, PrintComparison, c), show(t, comparisonPage, c)
	if strings.Contains(text, "duplicates") || !strings.Contains(text, "lost") {
		t.Errorf("rows of zeros are printed, or the loss is not:\n%s", text)
	}
	first, _, _ := strings.Cut(text, "\n")
	if !regexp.MustCompile(`^after is \d\.\d+ µs \(\d+ %\) slower at p50, \d\.\d+ µs \(\d+ %\) slower at p99; no verdict at p99\.9 \(needs about \d+ more seconds\)$`).MatchString(first) {
		t.Errorf("the first line is %q", first)
	}
	check.Contains(t, text, first+"\n\n")
	check.Contains(t, html, "<title>"+first+" – ", `<meta property="og:description" content="`+first+`">`)
}

// Why there are no one-way delays is a warning.
func TestNoOneWayDelays(t *testing.T) {
	r := synthetic.Sampled(rand.New(rand.NewPCG(1, 9)), 4000, 10, 1, 1000, synthetic.NoDrift)
	for why, want := range map[string]bool{"": false, "clock error unknown": true} {
		r.STAMP = &report.STAMP{OneWay: report.OneWay{Why: why}}
		check.Equal(t, slices.Contains(warnings(r), "no one-way delays: clock error unknown"), want, why+": %t")
	}
}
