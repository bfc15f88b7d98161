package page

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/synthetic"
)

// targets are n synthetic targets; the k-th is slower by 20 % times k than the fastest, which is the last.
func targets(n int) (all []Item) {
	var rs []*report.Report
	for k := range n {
		m := synthetic.Machine{Rnd: rand.New(rand.NewPCG(uint64(k), 1)), Samples: 20_000, Noise: 0.002,
			Level: synthetic.Quiet}
		s := synthetic.Slices(7, 12, 2, 0.5)
		r, _ := m.Both(4000*(1+0.2*float64(n-1-k)), 4000, s, 2)
		r.Session, r.Schedule = "", nil // made at the same time, which is sufficient
		r.Label, r.Device.Backend, r.Device.Driver = fmt.Sprintf("10.0.0.%d", k+2), "socket", "afpacket"
		rs = append(rs, r)
	}
	rs[1].Counts.Lost, rs[1].Counts.Received = 7, rs[1].Counts.Sent-7
	for k, r := range rs {
		all = append(all, Item{Link{r.Name(), fmt.Sprintf("%02d/report.html", k+1)}, r})
	}
	return all
}

func modelReport() *report.Report {
	r := synthetic.Link{Seed: 9, Median: 123, Spread: 0.1, Runs: 2, Seconds: 2, Rate: 1000}.Report()
	r.Label, r.Device = "mlx5 push", report.Device{Driver: "mlx5", Backend: "sim", Push: "full"}
	r.Transfers = map[string]int64{"dma read": 38, "mmio write": 2 * r.Counts.Received}
	return r
}

var tag = regexp.MustCompile(`<[^>]*>`)

// The overview ranks by p50, links to each report, states the backend on every line, and shows no time of a device
// model.
func TestOverview(t *testing.T) {
	all := append(targets(7), Item{Link{"mlx5 push", "m/report.html"}, modelReport()})
	var page bytes.Buffer
	must.OK(t, Overview(&page, "8 reports", all, nil))
	html := page.String()
	var rows []string
	for _, row := range regexp.MustCompile(`(?s)<tr><th scope="row"><a.*?</tr>`).FindAllString(html, -1) {
		rows = append(rows, strings.Join(strings.Fields(tag.ReplaceAllString(strings.ReplaceAll(row, "</t", " </t"),
			"")), " "))
	}
	if len(rows) != 8 {
		t.Fatalf("%d rows, want 8: %q", len(rows), rows)
	}
	for k := range 7 {
		if want := fmt.Sprintf("10.0.0.%d %d ", 8-k, k+1); !strings.HasPrefix(rows[k], want) ||
			!strings.Contains(rows[k], "kernel's driver, afpacket") &&
				!strings.Contains(rows[k], "kernel&#39;s driver, afpacket") {
			t.Errorf("row %d is %q, want %q with its backend", k, rows[k], want)
		}
	}
	if !strings.Contains(rows[5], " 7 ") {
		t.Errorf("the loss is not in %q", rows[5])
	}
	if want := "mlx5 push device model mlx5 full "; !strings.HasPrefix(rows[7], want) ||
		strings.Contains(rows[7], "ns") || strings.Contains(rows[7], "µs") {
		t.Errorf("row of the model: %q", rows[7])
	}
	if strings.Contains(html, "123 ns") || strings.Contains(html, "123\u00a0ns") {
		t.Error("the page has a time of the model")
	}
	want := "of 7 measurements, 10.0.0.8 has the lowest p50 (4.0"
	if got := OverviewAnswer(all); !strings.HasPrefix(got, want) ||
		!strings.Contains(got, "10.0.0.2 the highest (8.8") || !strings.Contains(got, "1 lost probes") ||
		!strings.HasSuffix(got, "nothing about a card's latency") {
		t.Errorf("answer %q", got)
	}
}

// With a comparison, each percentile has its mark relative to the first report.
func TestOverviewMarks(t *testing.T) {
	all := targets(7)
	var rs []*report.Report
	for _, i := range all {
		rs = append(rs, i.R)
	}
	c := compare.Reports(rs[0], rs[1:]...)
	for i := range all {
		all[i].R = c.Reports[i]
	}
	var page bytes.Buffer
	must.OK(t, Overview(&page, "7 targets", all, c))
	if n := strings.Count(page.String(), "µs -</td>") + strings.Count(page.String(), "\u00a0µs -</td>"); n < 6 {
		t.Errorf("%d marks of faster targets", n)
	}
	if !strings.Contains(page.String(), "Marks compare with 10.0.0.2") {
		t.Error("the page does not say what the marks compare with")
	}
}
