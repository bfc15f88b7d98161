package page

import (
	"bytes"
	"encoding/csv"
	"encoding/xml"
	"errors"
	"fmt"
	"image/png"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/browser"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/synthetic"
)

// exported are the pages that these tests use: a report, and a comparison of alternating slices with a clear
// difference.
func exported(t *testing.T) map[string]string {
	t.Helper()
	a, b := session()
	return map[string]string{"report": browser.Saved(t, show(t, Report, a)),
		"compare": browser.Saved(t, show(t, comparisonPage, compare.Reports(a, b)))}
}

// session is two variants measured alternately, the second slower by 10 %, with a name that looks like a formula.
func session() (a, b *report.Report) {
	m := synthetic.Machine{Rnd: rand.New(rand.NewPCG(4, 4)), Samples: 20_000, Noise: 0.005, Tail: 0.05,
		Level: synthetic.Quiet}
	a, b = m.Both(4000, 4400, synthetic.Slices(5, 12, 2, 0.5), 4)
	a.Label, b.Label = "plain", `=2+"3",4`
	return a, b
}

// Each plot of both pages offers its image and its data for copying, on desktop and phone; the copied data is the
// plotted data.
func TestPlotsAreCopied(t *testing.T) {
	urls := exported(t)
	b := browser.Start(t)
	for _, name := range []string{"report", "compare"} {
		for _, width := range []int{1280, 360} {
			b.Open(urls[name], width)
			var titles []string
			b.Eval(`[...document.querySelectorAll("section.plot")].map(p => p.querySelector("h2").textContent)`,
				&titles)
			if len(titles) < 5 {
				t.Errorf("%s: plots %q", name, titles)
			}
			for _, title := range titles {
				tsv := b.Copied(title, 3)
				rows := strings.Split(strings.TrimSpace(tsv), "\n")
				for _, row := range rows[1:] {
					if row != "" && strings.Count(row, "\t") < 2 {
						t.Errorf("%s, %s: row %q", name, title, row)
					}
				}
				if len(rows) < 10 || strings.Contains(tsv, "NaN") || strings.Contains(tsv, "Inf") {
					t.Errorf("%s, %s: %d rows, %.200q", name, title, len(rows), tsv)
				}
				b.Click(browser.ExportButton(title, 2))
				b.Until(fmt.Sprintf(`(async () => (await navigator.clipboard.readText()).includes(",") && %s)()`,
					"true"))
				table, err := csv.NewReader(strings.NewReader(b.Clipboard())).ReadAll()
				if wide := errors.Is(err, csv.ErrFieldCount); err != nil && !(wide && strings.Contains(tsv, "\n\n")) {
					t.Errorf("%s, %s: CSV: %v", name, title, err)
				} else if blank := strings.Count(tsv, "\n\n"); !wide && len(table) != len(rows)-blank {
					t.Errorf("%s, %s: %d rows of CSV, %d of TSV", name, title, len(table), len(rows))
				}
			}
			var overflow float64
			b.Eval("document.documentElement.scrollWidth - innerWidth", &overflow)
			if overflow > 0 {
				t.Errorf("%s at %d px is %v px wider than the screen", name, width, overflow)
			}
		}
	}
	check.Equal(t, b.Console(), "", "console: %s")
}

// The copied points of the shift function are those of the comparison, and a name is not copied as a formula.
func TestShiftFunctionIsCopied(t *testing.T) {
	x, y := session()
	c := compare.Reports(x, y)
	want := map[string]compare.Row{}
	for _, r := range c.Pairs[0].ShiftFunction() {
		want[strings.TrimPrefix(r.Stat.String(), "p")] = r
	}
	urls := exported(t)
	b := browser.Start(t)
	b.Open(urls["compare"], 1280)
	rows := strings.Split(strings.TrimSpace(b.Copied("Difference at each percentile", 3)), "\n")
	check.Equal(t, rows[0], "series\tpercentile\tB above A, %\tlow\thigh", "header %q")
	tested := 0
	for _, r := range want {
		if r.Tested() {
			tested++
		}
	}
	if len(rows)-1 != tested || tested < 10 {
		t.Errorf("%d points are copied, %d are tested", len(rows)-1, tested)
	}
	for _, line := range rows[1:] {
		f := strings.Split(line, "\t")
		r, ok := want[f[1]]
		if !ok {
			t.Fatalf("no percentile %q", f[1])
		}
		for i, v := range []float64{r.Percent(), 100 * r.Lo / r.Base, 100 * r.Hi / r.Base} {
			if got, err := strconv.ParseFloat(f[2+i], 64); err != nil || math.Abs(got-v) > 1e-5 {
				t.Errorf("p%s, column %d: %q, want %v", f[1], 2+i, f[2+i], v)
			}
		}
		if r.Stat.String() == "p50" && !(r.Lo > 0) {
			t.Errorf("p50 differs by 10 %%, the band is %v to %v", r.Lo, r.Hi)
		}
	}
	table, err := csv.NewReader(strings.NewReader(b.Copied("Percentiles", 2))).ReadAll()
	if err != nil || !slices.ContainsFunc(table, func(row []string) bool { return row[0] == `'=2+"3",4` }) {
		t.Errorf("CSV of percentiles: %v, %.200q", err, table)
	}
}

// Saved images are self-contained: an SVG with its styles, title and legend, and a PNG that shows the curves.
func TestPlotsAreSaved(t *testing.T) {
	urls := exported(t)
	b := browser.Start(t)
	for _, width := range []int{1280, 360} {
		b.Open(urls["compare"], width)
		b.Click(browser.ExportButton("Percentiles", 0))
		name := "plain-against-2-3-4-Percentiles"
		svg := b.Downloaded(name + ".svg")
		check.Contains(t, string(svg), `xmlns="http://www.w3.org/2000/svg"`, ">Percentiles<", ">plain<", "99.9%",
			"stroke-width")
		selfContained(t, string(svg))
		d := xml.NewDecoder(bytes.NewReader(svg))
		for {
			if _, err := d.Token(); err == io.EOF {
				break
			} else if err != nil {
				t.Fatalf("the SVG is no XML: %v", err)
			}
		}
		b.Click(browser.ExportButton("Percentiles", 1))
		image := must.Get(png.Decode(bytes.NewReader(b.Downloaded(name + ".png"))))(t)
		box := image.Bounds()
		if box.Dx() != 1840 || box.Dy() < 800 {
			t.Errorf("the PNG is %v", box)
		}
		count := map[[3]uint32]int{}
		for y := box.Min.Y; y < box.Max.Y; y++ {
			for x := box.Min.X; x < box.Max.X; x++ {
				r, g, bl, _ := image.At(x, y).RGBA()
				count[[3]uint32{r >> 8, g >> 8, bl >> 8}]++
			}
		}
		for name, colour := range map[string][3]uint32{"card": {0xff, 0xff, 0xff}, "first curve": {0x1f, 0x63, 0xc7},
			"second curve": {0xc2, 0x41, 0x0c}} {
			if count[colour] < 500 {
				t.Errorf("at %d px: the PNG has %d pixels in the colour of the %s", width, count[colour], name)
			}
		}
		for _, kind := range []string{".svg", ".png"} {
			must.OK(t, os.Remove(filepath.Join(b.Downloads, name+kind)))
		}
	}
	check.Equal(t, b.Console(), "", "console: %s")
}

func selfContained(t *testing.T, svg string) {
	t.Helper()
	for _, bad := range []string{"var(--", "class=", "data-name"} {
		if strings.Contains(svg, bad) {
			t.Errorf("the SVG has %q, which means nothing outside of the page", bad)
		}
	}
}
