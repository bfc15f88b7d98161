package matrix

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/browser"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// fleet is the matrix of hosts of several zones, each of which probes 20 others. One path is silent, one loses half of
// its probes.
func fleet(hosts, zones int) *Matrix {
	r := rand.New(rand.NewPCG(1, 2))
	m := &Matrix{Title: "Mesh", Summary: "A fleet.", Cells: map[Pair]*Cell{}, Zones: map[string]string{}}
	name := func(i int) string { return fmt.Sprintf("host-%04d", i) }
	for i := range hosts {
		m.From = append(m.From, name(i))
		m.Zones[name(i)] = fmt.Sprint("zone-", i%zones)
		for range 20 {
			to := (i + 1 + r.IntN(hosts-1)) % hosts
			p50 := 20e3 * (1 + r.Float64())
			if to%zones != i%zones {
				p50 += 100e3 * float64(1+(i+to)%zones)
			}
			m.Cells[Pair{name(i), name(to)}] = &Cell{P50: p50, P99: p50 * (1.5 + r.Float64()), Samples: 3600,
				Counts: report.Counts{Sent: 3600}, Verdict: compare.Noise, Stat: "p50"}
		}
	}
	m.To = m.From
	m.Cells[Pair{name(0), name(1)}] = &Cell{Silent: true, Why: "no replies",
		Counts: report.Counts{Sent: 3600, Lost: 3600}}
	m.Cells[Pair{name(0), name(1 + zones)}] = &Cell{P50: 20e3, P99: 30e3, Samples: 1800,
		Counts: report.Counts{Sent: 3600, Lost: 1800, LostUncertain: 900}, Verdict: compare.Slower, Stat: "p50",
		Shift: 5e3}
	return m
}

// The page of a large matrix shows zones. It is a few MB, has no table of all pairs of hosts, and shows the worst paths
// of each pair of zones without a script.
func TestMatrixByZone(t *testing.T) {
	m := fleet(1000, 5)
	text := drawn(t, m)
	t.Logf("%d paths: %d kB, %d cells of tables", len(m.Cells), len(text)/1000, strings.Count(text, "<td"))
	if len(text) > 4e6 || strings.Count(text, "<td") > 20_000 {
		t.Errorf("the page has %d bytes, %d cells", len(text), strings.Count(text, "<td"))
	}
	page := must.Get(html.Parse(strings.NewReader(text)))(t)
	check.Equal(t, len(elements(page, "details", "class", "pairs")), 25, "%d pairs of zones")
	pairs := elements(page, "details", "id", "pair-2")
	must.Equal(t, len(pairs), 1, "%d elements are pair-2")
	summary := words(elements(pairs[0], "summary", "", "")[0])
	if !strings.HasPrefix(summary, "zone-0 to zone-1: ") || !strings.HasSuffix(summary,
		", 1 slower, 1 without replies") {
		t.Errorf("the summary: %s", summary)
	}
	rows := elements(pairs[0], "tr", "", "")
	check.Equal(t, len(rows), 51, "%d rows of a heading and the 50 worst paths")
	check.Contains(t, words(rows[1]), "host-0000 → host-0001", "100 %")
	check.Contains(t, words(rows[2]), "host-0000 → host-0006", "between 25 % and 50 %")
	matrix := elements(page, "table", "class", "matrix")[0]
	links := elements(matrix, "a", "", "")
	check.Equal(t, len(links), 25, "%d cells of the matrix of zones link to their paths")
	for i, zone := range elements(matrix, "th", "scope", "row") {
		check.Equal(t, words(zone), fmt.Sprint("zone-", i), fmt.Sprintf("row %d is %%q", i))
	}
	check.Contains(t, words(matrix), "≤ 0.19 %")
	small := fleet(50, 5)
	if text := drawn(t, small); strings.Contains(text, "<details") ||
		strings.Count(text, `<td class="h`) != len(small.Cells) {
		t.Errorf("50 hosts are drawn by zone, or not all of %d paths", len(small.Cells))
	}
}

// elements are those of a name, with an attribute unless that is "", in the page's order.
func elements(in *html.Node, name, attribute, value string) (all []*html.Node) {
	for n := range in.Descendants() {
		if n.Type == html.ElementNode && n.Data == name &&
			(attribute == "" || slices.ContainsFunc(n.Attr, func(a html.Attribute) bool {
				return a.Key == attribute &&
					a.Val == value
			})) {
			all = append(all, n)
		}
	}
	return all
}

// words is the text below an element, with one space between words.
func words(in *html.Node) string {
	var text strings.Builder
	for n := range in.Descendants() {
		if n.Type == html.TextNode {
			text.WriteString(n.Data + " ")
		}
	}
	return strings.Join(strings.Fields(text.String()), " ")
}

// A click on a cell opens the paths of its two zones, and a part of a name finds those of a host.
func TestZonesOpen(t *testing.T) {
	m := fleet(1000, 5)
	b := browser.Start(t)
	b.Open(browser.Saved(t, drawn(t, m)), 1280)
	b.Click(`document.querySelector('.matrix a[href="#pair-2"]')`)
	b.Until(`document.querySelector("#pair-2").open && document.querySelector("#pair-2 input")`)
	paths := 0
	for p := range m.Cells {
		if m.Zones[p.From] == "zone-0" && m.Zones[p.To] == "zone-1" {
			paths++
		}
	}
	const rows = `document.querySelectorAll("#pair-2 tbody tr").length`
	b.Until(fmt.Sprintf(`%s == %d && document.querySelector("#pair-2 .foot").textContent.startsWith("The first 500 of %s paths.")`, rows, min(paths, 500), latency.FormatCount(paths)))
	b.Until(`document.activeElement == document.querySelector("#pair-2 summary")`)
	const filter = `(i => { i.value = %q; i.dispatchEvent(new Event("input")) })(document.querySelector("#pair-2 input"))`
	b.Eval(fmt.Sprintf(filter, "host-0006"), nil)
	var found []string
	b.Eval(`[...document.querySelectorAll("#pair-2 tbody tr")].map(r => [...r.cells].map(c => c.textContent).join("|"))`, &found)
	want := "host-0000 → host-0006|20.00\u00a0µs|30.00\u00a0µs|between 25 % and 50 %|slower, p50 +5.000\u00a0µs"
	if len(found) < 2 || len(found) > 40 || found[0] != want {
		t.Errorf("%d paths of host-0006, the first %q, want %q", len(found), found[0], want)
	}
	b.Eval(fmt.Sprintf(filter, "nowhere"), nil)
	b.Until(rows + ` == 0`)
	check.Equal(t, b.Console(), "", "console: %s")
}
