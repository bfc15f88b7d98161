package endtoend

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/rebound-nic/rebound/fleet/matrix"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/attribution"
	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/page"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/browser"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/synthetic"
)

// No page has an accessibility violation that axe-core finds, light or dark, wide or narrow, including pages of other
// tools' files.
func TestPagesPassAxe(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	axe := must.Get(os.ReadFile(filepath.Join(needs.NPM(t, "axe-core"), "axe.min.js")))(t)
	link := func(seed uint64, median, rate float64, size int) *report.Report {
		r := synthetic.Link{Seed: seed, Median: median, Spread: 0.1, Runs: 9, Seconds: 3, Rate: 2000,
			Open: rate > 0}.Report()
		r.Label, r.Traffic.Rate, r.Traffic.FrameSize = fmt.Sprint("point ", seed), rate, size
		return r
	}
	lossy := link(3, 50_000, 1e5, 60)
	lossy.Counts.Received, lossy.Counts.Lost, lossy.Warnings = lossy.Counts.Sent-5, 5,
		[]string{"interrupted by a signal"}
	sim := link(4, 4000, 0, 60)
	sim.Device.Backend = "sim"
	tail := link(6, 4000, 0, 60)
	usual := attribution.Probe{Left: 3000, Looked: 9900, Seen: 10_000, Residence: 400, FarWait: 100, ClockError: -1}
	late := usual
	late.FarWait, late.Seen = 200_000, 200_000
	tail.Attribution = attribution.Explain(slices.Repeat([]attribution.Probe{late}, 20),
		slices.Repeat([]attribution.Probe{usual}, 4000), attribution.About{Total: 9000},
		[]attribution.Cause{{Start: 0, End: 1 << 20, Side: attribution.Here, Text: "interrupts of eth1", Name: "x"}})
	for i, side := range []string{"this host", "responder's host"} {
		tail.Attribution.Timeline = append(tail.Attribution.Timeline,
			attribution.Track{Side: side, Text: "timer tick on cpu 0", Took: 1e6,
				Spans: []attribution.Span{{At: tail.Start.UnixMicro() + int64(1e6*(i+1)), Length: 1000, Took: 1e6}}})
	}
	rates := []*report.Report{link(1, 4000, 1000, 60), link(2, 4200, 10_000, 60), lossy}
	sizes := []*report.Report{link(1, 4000, 0, 60), link(2, 4200, 0, 512), link(5, 5400, 0, 1514)}
	links := make([]page.Link, 3)
	for i := range links {
		links[i] = page.Link{Name: rates[i].Name(), Href: "a/report.html"}
	}
	mesh := &matrix.Matrix{Title: "Mesh", From: []string{"a", "b"}, To: []string{"a", "b", "c"},
		Notes: []string{"a note"}, Cells: map[matrix.Pair]*matrix.Cell{
			{From: "a", To: "b"}: {P50: 5000, P99: 9000, Samples: 9, Counts: report.Counts{Sent: 10, Lost: 1}, Verdict: compare.Slower},
			{From: "b", To: "c"}: {P50: 50000, P99: 90000, Samples: 9, Counts: report.Counts{Sent: 10}, Verdict: compare.Faster},
			{From: "b", To: "a"}: {P50: 500000, P99: 900000, Samples: 9, Counts: report.Counts{Sent: 10}, Verdict: compare.Noise},
			{From: "a", To: "c"}: {Silent: true, Counts: report.Counts{Sent: 5, Lost: 5}}}}
	fleet := &matrix.Matrix{Title: "Fleet", Cells: map[matrix.Pair]*matrix.Cell{}, Zones: map[string]string{}}
	for i := range 80 {
		name := fmt.Sprint("h", i)
		fleet.From, fleet.Zones[name] = append(fleet.From, name), fmt.Sprint("z", i%2)
		for to := range 79 {
			fleet.Cells[matrix.Pair{From: name, To: fmt.Sprint("h", to)}] = &matrix.Cell{P50: 5000 + float64(100*i),
				P99: 9000, Samples: 9, Counts: report.Counts{Sent: 10, Lost: int64(to % 2)}, Verdict: compare.Slower,
				Stat: "p50"}
		}
	}
	fleet.To = fleet.From
	dir := t.TempDir()
	pages := map[string]func(io.Writer) error{
		"report": func(w io.Writer) error { return page.Report(w, rates[0]) },
		"lossy":  func(w io.Writer) error { return page.Report(w, lossy) },
		"tail":   func(w io.Writer) error { return page.Report(w, tail) },
		"model":  func(w io.Writer) error { return page.Report(w, sim) },
		"comparison": func(w io.Writer) error {
			return page.Comparison(w, compare.Reports(sizes[0], sizes[0], lossy), links...)
		},
		"not comparable": func(w io.Writer) error { return page.Comparison(w, compare.Reports(rates[0], sim)) },
		"rates":          func(w io.Writer) error { return page.Sweep(w, rates, links) },
		"sizes":          func(w io.Writer) error { return page.Sweep(w, sizes, links) },
		"overview": func(w io.Writer) error {
			items := []page.Item{{Link: links[0], R: sizes[0]}, {Link: links[1], R: lossy}, {Link: links[2], R: sim}}
			return page.Overview(w, "3 reports", items, compare.Reports(sizes[0], lossy))
		},
		"matrix": func(w io.Writer) error { return matrix.Write(w, mesh) },
		"fleet":  func(w io.Writer) error { return matrix.Write(w, fleet) },
		"history": func(w io.Writer) error {
			h := compare.NewHistory(compare.Stats(latency.AnswerText)[0])
			for i := range 20 {
				h.Add(fmt.Sprint("night ", i), link(uint64(i), 4000+1000*float64(i/10), 0, 60))
			}
			drawn := &page.History{}
			drawn.Lines, drawn.Notes = h.Lines(0.05)
			return page.WriteHistory(w, drawn)
		},
	}
	type look struct {
		scheme string
		width  int
	}
	looks := []look{{"light", 1280}, {"dark", 360}}
	once := map[string]look{"fleet": looks[1]} // the other pages with the same parts are seen both ways
	file := func(name string) string { return filepath.Join("../../internal/bench/foreign/testdata", name) }
	for name, args := range map[string][]string{
		"report of a demo":   {"report", "../../results/demo/01-kernel"},
		"report of a table":  {"report", file("table.csv")},
		"report of vegeta":   {"report", file("vegeta.json")},
		"report of ping":     {"report", file("ping-D.txt")},
		"compared tools":     {"compare", file("fortio.json"), file("oha.json")},
		"a demo and a table": {"compare", file("table.csv"), "../../results/demo/02-xdp"},
	} {
		once[name] = looks[len(once)%2]
		pages[name] = func(w io.Writer) error {
			out := filepath.Join(dir, "command.html")
			inProcess(append([]string{args[0], "-html", out}, args[1:]...)...).prints(t)
			return check.Err(io.WriteString(w, content(t, out)))
		}
	}
	chromium := browser.Start(t)
	for name, write := range pages {
		var b bytes.Buffer
		must.OK(t, write(&b))
		one := filepath.Join(dir, "page.html")
		must.OK(t, os.WriteFile(one, b.Bytes(), 0o644))
		seen := looks
		if l, ok := once[name]; ok {
			seen = []look{l}
		}
		for _, look := range seen {
			chromium.Scheme(look.scheme)
			chromium.Open("file://"+one, look.width)
			chromium.Eval(`document.querySelectorAll("details").forEach(d => d.open = true)`, nil)
			chromium.Eval(string(axe)+";0", nil)
			var got struct {
				Checked    int
				Violations []string
			}
			chromium.Eval(`axe.run(document, {resultTypes: ["violations"]}).then(r => ({Checked: r.passes.length,
				Violations: r.violations.map(v => v.id + ": " + v.help + ": " + v.nodes.map(n => n.html.slice(0, 160) + " " + n.failureSummary).join(" | "))}))`, &got)
			if got.Checked < 10 {
				t.Errorf("%s: %d rules checked", name, got.Checked)
			}
			for _, v := range got.Violations {
				t.Errorf("%s, %s at %d px: %s", name, look.scheme, look.width, v)
			}
		}
	}
	check.Equal(t, chromium.Console(), "", "console: %s")
}
