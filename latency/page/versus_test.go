package page

import (
	"bytes"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/synthetic"
)

// The first sentence says which is better, whether that is sure and whether it matters; the page has it as its heading.
func TestVersusAnswer(t *testing.T) {
	seed := uint64(0)
	part := func(name string, a, b float64) VersusPart {
		link := func(median float64) synthetic.Link {
			seed++
			return synthetic.Link{Seed: seed, Median: median, Seconds: 20, Rate: 500, Runs: 10}
		}
		ra, rb := link(a).Report(), link(b).Report()
		ra.Label, rb.Label = "A "+name, "B "+name
		return VersusPart{Name: name, C: compare.Reports(ra, rb)}
	}
	for _, c := range []struct {
		name  string
		parts []VersusPart
		want  []string
	}{
		{"B", []VersusPart{part("ICMP", 9000, 4000), part("UDP", 9500, 4500)}, []string{"B is better than A: B ICMP is ", "; B UDP is ", "; this is sure (", ", and matters: it is ", " times the spread between runs"}},
		{"A", []VersusPart{part("ICMP", 4000, 9000)}, []string{"A is better than B: B ICMP is ", "; this is sure ("}},
		{"both", []VersusPart{part("ICMP", 9000, 4000), part("UDP", 4500, 9500)}, []string{"it depends, each is better in one way: B ICMP is ", " faster at p50", " slower at p50"}},
		{"neither", []VersusPart{part("ICMP", 4000, 4000)}, []string{" A and B"}},
	} {
		v := Versus{A: "A", B: "B", Parts: c.parts}
		check.Contains(t, v.Answer(), c.want...)
		if c.name == "neither" && strings.Contains(v.Answer(), "better than") {
			t.Errorf("equal targets: %s", v.Answer())
		}
		v.OnlyICMP = "A does not echo UDP, its port 7 is closed"
		check.Contains(t, v.Answer(), " (by ICMP only: A does not echo UDP, its port 7 is closed): ")
		var page bytes.Buffer
		must.OK(t, v.Write(&page))
		h1, _, _ := strings.Cut(page.String(), "</h1>")
		if _, h1, _ = strings.Cut(h1, "<h1>"); strings.ReplaceAll(h1, "\u00a0", " ") != upperFirst(v.Answer())+"." {
			t.Errorf("%s: heading %q", c.name, h1)
		}
		check.Equal(t, strings.Count(page.String(), "<th scope=\"col\" class=\"verdict\">verdict</th>"), len(c.parts),
			"%d tables")
	}
	for _, c := range []struct {
		least, most float64
		want        string
	}{{2.5, 2.5, ", and matters: it is 2.5 times the spread between runs"},
		{0.2, 0.5, ", but less than the spread between runs (0.2 to 0.5 times)"},
		{0.5, 3, ", and in part more than the spread between runs (0.5 to 3 times)"}, {1e9, 0, ""}} {
		check.Equal(t, matters(c.least, c.most), c.want, "%q")
	}
}
