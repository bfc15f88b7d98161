package page

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/synthetic"
)

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
		var out bytes.Buffer
		must.OK(t, PrintComparison(&out, cmp))
		text := out.String()
		at, number := strings.Index(text, c.says), strings.Index(text, "µs")
		if at < 0 || number < at || !strings.HasPrefix(text, "NOT COMPARABLE:") {
			t.Errorf("%q at %d, the first number at %d:\n%s", c.says, at, number, text)
		}
		for _, r := range cmp.Pairs[0].Rows {
			if r.Verdict != compare.Unknown {
				t.Errorf("%s: %s has a verdict: %s", c.says, r.Stat, r.Verdict)
			}
		}
		if v := cmp.Pairs[1].Rows[1].Verdict; v != compare.Slower {
			t.Errorf("%s: the pair that is comparable is %s", c.says, v)
		}
		if _, err := cmp.Exceeded(); !errors.Is(err, compare.ErrNotComparable) {
			t.Errorf("%s: Exceeded returns %v", c.says, err)
		}
	}
}

// Reports of models: their bus transactions are compared, and their times are labelled as the model's.
func TestSimReports(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 8))
	a, b := synthetic.Sampled(rnd, 4000, 10, 1, 1000, synthetic.NoDrift), synthetic.Sampled(rnd, 4000, 10, 1, 1000, synthetic.NoDrift)
	for i, r := range []*report.Report{a, b} {
		r.Label = string(rune('a' + i))
		r.Device.Backend = "sim"
		r.Counts.Received = 1000
		r.Transfers = map[string]int64{"mmio write": int64(1000 * (i + 1)), "dma read": 2000}
	}
	c := compare.Reports(a, b)
	var out, page, single bytes.Buffer
	must.OK(t, errors.Join(PrintComparison(&out, c), Comparison(&page, c), Report(&single, a)))
	text := strings.Join(strings.Fields(out.String()), " ")
	check.Contains(t, text, "mmio write 1.000 2.000", "dma read 2.000 2.000", "not a card's", "round trip in the model")
	for name, p := range map[string]string{"compare": page.String(), "report": single.String()} {
		if !strings.Contains(p, "not a card") && !strings.Contains(p, "not of a card") || !strings.Contains(p, "mmio write") {
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
	var out bytes.Buffer
	must.OK(t, PrintComparison(&out, compare.Reports(a, b)))
	if text := out.String(); !strings.Contains(text, "10.0.0.2 (out/before) has") || !strings.Contains(text, "10.0.0.2 (out/after) has udp") {
		t.Error(text)
	}
	if a.Label != "10.0.0.2" {
		t.Error("the report itself was renamed")
	}
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
	var out bytes.Buffer
	c := compare.Reports(got, got)
	if err := errors.Join(PrintComparison(&out, c), Comparison(&out, c), PrintReport(&out, got)); err != nil || !strings.Contains(out.String(), "no samples") {
		t.Errorf("%v\n%s", err, &out)
	}
}

func FuzzReport(f *testing.F) {
	rep := synthetic.Link{Seed: 9, Median: 4000, Seconds: 1, Rate: 10}.Report()
	b := must.Get(json.Marshal(rep))(f)
	f.Add(b)
	f.Add([]byte(`{"schema":1,"series":[{"name":"rtt"}],"runs":[{}],"metric":""}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		rep, err := report.Parse(bytes.NewReader(in), "f.json")
		if err != nil {
			if !strings.HasPrefix(err.Error(), "f.json:") {
				t.Errorf("the error names no file: %v", err)
			}
			return
		}
		// Every report that can be read can be shown.
		var out bytes.Buffer
		c := compare.Reports(rep, rep)
		check.OK(t, errors.Join(PrintComparison(&out, c), Comparison(&out, c), Report(&out, rep), PrintReport(&out, rep)))
	})
}

func FuzzFolder(f *testing.F) {
	seed := func(l synthetic.Link) {
		dir := filepath.Join(f.TempDir(), "seed")
		must.OK(f, report.Write(dir, l.Report(), Report))
		var files [2][]byte
		for i, name := range []string{report.ReportFile, report.HlogFile} {
			var err error
			if files[i], err = os.ReadFile(filepath.Join(dir, name)); err != nil {
				f.Fatal(err)
			}
		}
		f.Add(files[0], files[1])
	}
	seed(synthetic.Link{Seed: 9, Median: 4000, Seconds: 1, Rate: 10})
	seed(synthetic.Link{Seed: 9, Median: 4000, Spread: 0.3, Seconds: 2, Rate: 30, Open: true, Runs: 8})
	f.Fuzz(func(t *testing.T, file, log []byte) {
		dir := t.TempDir()
		must.OK(t, errors.Join(os.WriteFile(filepath.Join(dir, report.ReportFile), file, 0o644), os.WriteFile(filepath.Join(dir, report.HlogFile), log, 0o644)))
		rep, err := report.Read(dir)
		if err != nil {
			if !strings.Contains(err.Error(), dir) {
				t.Errorf("the error names no file: %v", err)
			}
			return
		}
		var out bytes.Buffer
		c := compare.Reports(rep, rep)
		check.OK(t, errors.Join(PrintComparison(&out, c), Comparison(&out, c), Report(&out, rep), PrintReport(&out, rep)))
		rep.FarGaps(rep)
	})
}

func TestHeadline(t *testing.T) {
	rep := synthetic.Link{Seed: 11, Median: 4000, Spread: 0.1, Seconds: 30, Rate: 3000}.Report()
	rep.Add(latency.JitterSeries, latency.FromValues([]int64{20, 20, 1_000_000}))
	rep.Counts.Sent, rep.Counts.Lost = 1_234_567, 0
	var text bytes.Buffer
	must.OK(t, PrintReport(&text, rep))
	lines := strings.Split(text.String(), "\n")
	if !regexp.MustCompile(`^round trip p50 \S+ \S+, p99 \S+ \S+, p99.9 \S+ \S+; 0 of 1,234,567 lost$`).MatchString(lines[0]) {
		t.Errorf("the first line is %q", lines[0])
	}
	rep.Counts.RefusedThere, rep.Counts.Late = 1_200_000, 3
	if first := answer(rep); !strings.HasSuffix(first, "; 0 of 1,234,567 lost, 1,200,000 refused there, 3 late") {
		t.Errorf("probes without a reply are not in the headline: %q", first)
	}
	if n := strings.Count(text.String(), "warning: "); n != 1 || !strings.HasPrefix(lines[1], "warning: ") || !strings.Contains(lines[1], "-core") {
		t.Errorf("%d warnings, the first %q", n, lines[1])
	}
}

func TestOwnTail(t *testing.T) {
	rep := synthetic.Link{Seed: 11, Median: 4000, Spread: 0.1, Seconds: 30, Rate: 3000}.Report()
	rep.Add(latency.JitterSeries, latency.FromValues([]int64{20, 20, 1_000_000}))
	var text, page bytes.Buffer
	must.OK(t, errors.Join(PrintReport(&text, rep), Report(&page, rep)))
	if own := rep.OwnTail(); own == "" || !strings.Contains(text.String(), own) || !strings.Contains(page.String(), own[1:]) {
		t.Errorf("%q is not shown:\n%s", own, &text)
	}
}

// The opacities of heat maps must not apply to the cells of a matrix, whose text would fade.
func TestHeatLevelsAreScoped(t *testing.T) {
	css := must.Get(os.ReadFile("page.css"))(t)
	check.Equal(t, regexp.MustCompile(`(^|[},\n])\.h[1-6]\{`).FindString(string(css)), "", "page.css has the rule %q for any element")
}

// A comparison states its answer in the first line, on its page and in the page's title; so does a matrix.
func TestAnswer(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 7))
	a, b := synthetic.Sampled(rnd, 4000, 10, 1, 2000, synthetic.NoDrift), synthetic.Sampled(rnd, 8000, 10, 1, 2000, synthetic.NoDrift)
	a.Label, b.Label = "before", "after"
	var text, html bytes.Buffer
	c := compare.Reports(a, b)
	m := &Matrix{Title: "Mesh", From: []string{"a"}, To: []string{"b", "c"}, Cells: map[Pair]*Cell{{"a", "b"}: {P50: 5000, P99: 9000, Samples: 9, Counts: report.Counts{Sent: 10, Lost: 1}, Verdict: compare.Slower},
		{"a", "c"}: {Silent: true, Counts: report.Counts{Sent: 5, Lost: 5}}}}
	must.OK(t, errors.Join(PrintComparison(&text, c), Comparison(&html, c), WriteMatrix(&html, m), PrintMatrix(&text, m)))
	if strings.Contains(text.String(), "duplicates") || !strings.Contains(text.String(), "lost") {
		t.Errorf("rows of zeros are printed, or the loss is not:\n%s", &text)
	}
	first, _, _ := strings.Cut(text.String(), "\n")
	if !regexp.MustCompile(`^after is \d\.\d+ µs \(\d+ %\) slower at p50, \d\.\d+ µs \(\d+ %\) slower at p99; no verdict at p99\.9 \(needs about \d+ more seconds\)$`).MatchString(first) {
		t.Errorf("the first line is %q", first)
	}
	for _, answer := range []string{first, "of 2 paths, 1 slower than the baseline, 1 with loss, 1 without replies; the slowest is a to b, p50 5.000 µs"} {
		if !strings.Contains(text.String(), answer+"\n\n") || !strings.Contains(html.String(), "<title>"+answer+" – ") || !strings.Contains(html.String(), `<meta property="og:description" content="`+answer+`">`) {
			t.Errorf("%q is missing", answer)
		}
	}
}
