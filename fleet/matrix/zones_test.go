package matrix

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/browser"
	"github.com/rebound-nic/rebound/proof/check"
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
			m.Cells[Pair{name(i), name(to)}] = &Cell{P50: p50, P99: p50 * (1.5 + r.Float64()), Samples: 3600, Counts: report.Counts{Sent: 3600}, Verdict: compare.Noise, Stat: "p50"}
		}
	}
	m.To = m.From
	m.Cells[Pair{name(0), name(1)}] = &Cell{Silent: true, Why: "no replies", Counts: report.Counts{Sent: 3600, Lost: 3600}}
	m.Cells[Pair{name(0), name(1 + zones)}] = &Cell{P50: 20e3, P99: 30e3, Samples: 1800, Counts: report.Counts{Sent: 3600, Lost: 1800, LostUncertain: 900}, Verdict: compare.Slower, Stat: "p50", Shift: 5e3}
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
	check.Equal(t, strings.Count(text, "<details class=\"pairs\""), 25, "%d pairs of zones")
	_, pair, _ := strings.Cut(text, `<details class="pairs" id="pair-2"`)
	pair, _, _ = strings.Cut(pair, "</details>")
	if !strings.Contains(pair, "<summary>zone-0 to zone-1: ") || !strings.Contains(pair, ", 1 slower, 1 without replies</summary>") {
		t.Errorf("the summary: %.400s", pair)
	}
	silent, lossy := strings.Index(pair, "host-0000 → host-0001<"), strings.Index(pair, "host-0000 → host-0006<")
	if silent < 0 || lossy < silent || strings.Count(pair, "<tr>") != 51 || !strings.Contains(pair, "between 25 % and 50 %") {
		t.Errorf("paths without replies at %d, with loss at %d, %d rows", silent, lossy, strings.Count(pair, "<tr>"))
	}
	_, table, _ := strings.Cut(text, `<table class="matrix">`)
	table, _, _ = strings.Cut(table, "</table>")
	if strings.Count(table, "<a href=\"#pair-") != 25 || strings.Count(table, "<th scope=\"row\">zone-") != 5 || !strings.Contains(table, ">≤ 0.19 %<") {
		t.Errorf("the matrix of zones:\n%.2000s", table)
	}
	small := fleet(50, 5)
	if text := drawn(t, small); strings.Contains(text, "<details") || strings.Count(text, `<td class="h`) != len(small.Cells) {
		t.Errorf("50 hosts are drawn by zone, or not all of %d paths", len(small.Cells))
	}
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
	b.Until(fmt.Sprintf(`%s == %d && document.querySelector("#pair-2 .foot").textContent.startsWith("The first 500 of %d paths.")`, rows, min(paths, 500), paths))
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
