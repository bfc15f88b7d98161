package matrix

import (
	"bytes"
	"fmt"
	"image/png"
	"regexp"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/browser"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/golden"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/numbers"
)

func drawn(t *testing.T, m *Matrix) string {
	t.Helper()
	var b strings.Builder
	must.OK(t, Write(&b, m))
	return b.String()
}

// A matrix states its answer in the first line, on its page and in the page's title.
func TestAnswer(t *testing.T) {
	m := &Matrix{Title: "Mesh", From: []string{"a"}, To: []string{"b", "c"}, Cells: map[Pair]*Cell{
		{"a", "b"}: {P50: 5000, P99: 9000, Samples: 9, Counts: report.Counts{Sent: 10, Lost: 1}, Verdict: compare.Slower},
		{"a", "c"}: {Silent: true, Counts: report.Counts{Sent: 5, Lost: 5}}}}
	const answer = "of 2 paths, 1 slower than the baseline, 1 with loss, 1 without replies; the slowest is a to b, p50 5.000 µs"
	var text strings.Builder
	must.OK(t, Print(&text, m))
	check.Contains(t, text.String(), answer+"\n\n")
	check.Contains(t, drawn(t, m), "<title>"+answer+" – ", `<meta property="og:description" content="`+answer+`">`)
}

// What the text and the tables say of each kind of path, once and several times.
func TestKindsOfPaths(t *testing.T) {
	kinds := []struct {
		name string
		cell Cell
	}{
		{"same", Cell{P50: 5000, P99: 9000, Samples: 9, Counts: report.Counts{Sent: 10}, Verdict: compare.Noise}},
		{"slower", Cell{P50: 6000, P99: 9000, Now: 6000, Samples: 9, Counts: report.Counts{Sent: 10},
			Verdict: compare.Slower, Stat: "p50", Shift: 400}},
		{"faster", Cell{P50: 6000, P99: 9000, Now: 6000, Samples: 9, Counts: report.Counts{Sent: 10},
			Verdict: compare.Faster, Stat: "p99", Shift: -400}},
		{"lossy", Cell{P50: 4000, P99: 9000, Samples: 9, Counts: report.Counts{Sent: 10, Lost: 3, LostUncertain: 1}}},
		{"perhaps", Cell{P50: 4000, P99: 9000, Samples: 9, Counts: report.Counts{Sent: 10, Lost: 1, LostUncertain: 1}}},
		{"late", Cell{P50: 4000, P99: 9000, Samples: 9, Counts: report.Counts{Sent: 10, Late: 1}}},
		{"corrupt", Cell{P50: 4000, P99: 9000, Samples: 9, Counts: report.Counts{Sent: 10, CorruptOnly: 1}}},
		{"unsent", Cell{P50: 4000, P99: 9000, Samples: 9, Counts: report.Counts{Sent: 10, SendFailed: 1}}},
		{"silent", Cell{Silent: true, Counts: report.Counts{Sent: 5, Lost: 5}, Why: "no reply"}},
		{"empty", Cell{Why: "no data in this time"}},
	}
	var b strings.Builder
	for n := range 3 {
		m := &Matrix{Title: "Mesh", Summary: "summary", Notes: []string{"a note"}, Cells: map[Pair]*Cell{}}
		for i := range n {
			from := fmt.Sprint("h", i)
			m.From = append(m.From, from)
			for _, k := range kinds {
				m.Cells[Pair{from, k.name}] = &k.cell
			}
		}
		for _, k := range kinds {
			m.To = append(m.To, k.name)
		}
		must.OK(t, Print(&b, m))
		fmt.Fprintf(&b, "\n%s\n%s\n", m.data(nil), strings.Join(shown.FindAllString(drawn(t, m), -1), "\n"))
	}
	for _, k := range kinds {
		fmt.Fprintf(&b, "%+v, at most %s\n", k.cell.row(Pair{"a", k.name}), k.cell.mostLoss())
	}
	golden.Equal(t, "testdata/kinds.txt", b.String())
}

// shown are a page's cells and figures, and what it warns of.
var shown = regexp.MustCompile(`<(p class="alert|t[dh]|dd|dt|li)\b[^>]*>[^<]*`)

// The text and the pages write numbers as the other commands do: of thousands of paths, by zone too, and of one.
func TestNumbers(t *testing.T) {
	large := fleet(needs.Cases(1000, 200), 2)
	for pair, c := range large.Cells {
		if strings.HasSuffix(pair.To, "0") {
			c.Verdict, c.Shift, c.Sent, c.Samples = compare.Slower, 41_234, 2_376_267, 2_376_267
		}
	}
	one := &Matrix{Title: "Mesh", From: []string{"a"}, To: []string{"b"},
		Cells: map[Pair]*Cell{{"a", "b"}: {P50: 1.5e9, P99: 61e9, Now: 1.5e9, Samples: 20_360,
			Counts:  report.Counts{Sent: 20_361, Lost: 1, Late: 1, SendFailed: 12_345, Duplicates: 1},
			Verdict: compare.Slower, Stat: "p50", Shift: 1.4e9}}}
	whole := *large
	whole.From = large.From[:50] // not drawn by zone
	whole.To = large.To[:50]
	for name, m := range map[string]*Matrix{"of zones": large, "of hosts": &whole, "of one path": one} {
		var text strings.Builder
		must.OK(t, Print(&text, m))
		for _, f := range append(numbers.Others(text.String(), nil), numbers.Others(drawn(t, m), nil)...) {
			t.Errorf("%s: %s", name, f)
		}
	}
}

// A matrix is saved as displayed, and copied with one line per path.
func TestMatrixIsSaved(t *testing.T) {
	m := &Matrix{Title: "Mesh", From: []string{"a", "=b"}, To: []string{"a", "c"}, Cells: map[Pair]*Cell{
		{"a", "c"}:  {P50: 5000, P99: 9000, Samples: 9, Counts: report.Counts{Sent: 10, Lost: 3, LostUncertain: 1}, Verdict: compare.Slower, Stat: "p50", Shift: 400},
		{"=b", "a"}: {P50: 50000, P99: 90000, Samples: 9, Counts: report.Counts{Sent: 10}, Verdict: compare.Unknown},
		{"=b", "c"}: {Silent: true, Counts: report.Counts{Sent: 5, Lost: 5}}}}
	b := browser.Start(t)
	b.Open(browser.Saved(t, drawn(t, m)), 1280)
	const title = "From row to column"
	check.Same(t, strings.Split(strings.Trim(b.Copied(title, 3), "\n"), "\n")[1:],
		[]string{"a\tc\t5000\t9000\t10\t2\t3\tslower\tp50\t400",
			"'=b\ta\t50000\t90000\t10\t0\t0\tcannot tell\t\t", "'=b\tc\t\t\t5\t5\t5\tcannot tell\t\t"}, "copied %q")
	b.Click(browser.ExportButton(title, 0))
	svg := string(b.Downloaded("Mesh-From-row-to-column.svg"))
	check.Contains(t, svg, ">From row to column<", ">=b<", ">c<", ">5.000\u00a0µs<", ">between 20 % and 30 %<",
		`fill="rgb(170, 196, 234)"`)
	b.Click(browser.ExportButton(title, 1))
	if image, err := png.Decode(bytes.NewReader(b.Downloaded("Mesh-From-row-to-column.png"))); err != nil ||
		image.Bounds().Dy() < 200 {
		t.Errorf("the PNG: %v", err)
	}
	check.Equal(t, b.Console(), "", "console: %s")
}
