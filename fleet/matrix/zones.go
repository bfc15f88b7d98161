package matrix

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/page"
	"github.com/rebound-nic/rebound/latency/sanitize"
)

const (
	mostCells  = 2500 // of a matrix that is drawn host by host
	listedRows = 3000 // paths that a page by zone lists in total. Its script lists the others, on request.
)

// byZone reports whether the page is drawn by zone, with the paths of each pair of zones below.
func (m *Matrix) byZone() bool { return len(m.From)*len(m.To) > mostCells }

// zonePair is all paths from one zone to another.
type zonePair struct {
	From, To           string // "" for hosts without a zone
	FromText, ToText   string
	FromField, ToField string // in the data
	ID                 string
	Listed             []pathRow // the worst
	Paths, Slower      int
	Silent             int
	P99, Loss, Most    string // the worst, and of all, which may be a range, at most
	Heat               int
	Lossy, All         bool // All: each path is listed

	paths []Pair // the worst first
	worst float64
	total Cell
}

// Summary describes the pair in one line.
func (p *zonePair) Summary() string {
	s := fmt.Sprintf("%s to %s: %s, worst p99 %s, loss %s", p.FromText, p.ToText, sanitize.Count(p.Paths, "path"),
		p.P99, p.Loss)
	if p.Slower > 0 {
		s += fmt.Sprintf(", %s slower", latency.FormatCount(p.Slower))
	}
	if p.Silent > 0 {
		s += fmt.Sprintf(", %s without replies", latency.FormatCount(p.Silent))
	}
	return s
}

type pathRow struct {
	Name, P50, P99, Loss, Verdict, Class string
	Lossy                                bool
}

type zoneRow struct {
	Name  string
	Pairs []*zonePair // nil where there is no path
}

func zoneText(zone string) string {
	if zone == "" {
		return "no zone"
	}
	return zone
}

// zones returns the names of the zones, the rows of the matrix of zones, and its pairs.
func (m *Matrix) zones() (columns []string, rows []zoneRow, pairs []*zonePair) {
	by := map[[2]string]*zonePair{}
	for _, from := range m.From { // in the order of names, so that the page does not change by chance
		for _, to := range m.To {
			c := m.Cells[Pair{from, to}]
			if c == nil {
				continue
			}
			key := [2]string{m.Zones[from], m.Zones[to]}
			p := by[key]
			if p == nil {
				p = &zonePair{From: key[0], To: key[1], FromText: zoneText(key[0]), ToText: zoneText(key[1]),
					FromField: page.Field(key[0]), ToField: page.Field(key[1])}
				by[key], pairs = p, append(pairs, p)
			}
			p.paths = append(p.paths, Pair{from, to})
			p.total.Add(&c.Counts)
			p.worst = max(p.worst, c.P99)
			if c.Verdict == compare.Slower {
				p.Slower++
			}
			if c.Silent {
				p.Silent++
			}
		}
	}
	slices.SortFunc(pairs, func(a, b *zonePair) int {
		return cmp.Or(cmp.Compare(a.From, b.From),
			cmp.Compare(a.To, b.To))
	})
	low, high := math.Inf(1), 0.0
	for _, p := range pairs {
		if p.worst > 0 {
			low, high = min(low, p.worst), max(high, p.worst)
		}
	}
	most := min(max(listedRows/max(len(pairs), 1), 5), 50)
	for i, p := range pairs {
		p.ID, p.Paths, p.Loss, p.Lossy = fmt.Sprint("pair-", i+1), len(p.paths), lossText(&p.total), p.total.Lost > 0
		p.Most = p.total.mostLoss()
		if p.P99 = "–"; p.worst > 0 {
			p.P99, p.Heat = page.Duration(p.worst), heatOf(p.worst, low, high)
		}
		slices.SortStableFunc(p.paths, func(a, b Pair) int { return m.Cells[a].worse(m.Cells[b]) })
		p.All = len(p.paths) <= most
		for _, path := range p.paths[:min(len(p.paths), most)] {
			p.Listed = append(p.Listed, m.Cells[path].row(path))
		}
	}
	from, to := map[string]bool{}, map[string]bool{}
	for _, p := range pairs {
		from[p.From], to[p.To] = true, true
	}
	names := sortedKeys(to)
	for _, z := range names {
		columns = append(columns, zoneText(z))
	}
	for _, a := range sortedKeys(from) {
		row := zoneRow{Name: zoneText(a)}
		for _, b := range names {
			row.Pairs = append(row.Pairs, by[[2]string{a, b}])
		}
		rows = append(rows, row)
	}
	return columns, rows, pairs
}

// worse orders paths: those without replies first, then those that lose more than 1 % by their loss, then by p99.
func (c *Cell) worse(than *Cell) int {
	rank := func(c *Cell) float64 {
		switch l := c.loss(); {
		case c.Silent:
			return 2
		case l > 0.01:
			return l
		}
		return 0
	}
	return cmp.Or(cmp.Compare(rank(than), rank(c)), cmp.Compare(than.P99, c.P99))
}

func (c *Cell) row(of Pair) pathRow {
	r := pathRow{Name: of.From + " → " + of.To, P50: "–", P99: "–", Loss: lossText(c), Lossy: c.Lost > 0,
		Verdict: c.Verdict.String(), Class: c.Verdict.Class()}
	if c.P50 > 0 {
		r.P50, r.P99 = page.Duration(c.P50), page.Duration(c.P99)
	}
	if c.Verdict > compare.Noise {
		r.Verdict += fmt.Sprintf(", %s %s", c.Stat, latency.FormatSigned(c.Shift))
	}
	return r
}

// mostLoss is the loss in few characters: "≤ 2 %" for a range.
func (c *Cell) mostLoss() string {
	if c.LostUncertain == 0 {
		return lossText(c)
	}
	most := Cell{Counts: c.Counts}
	most.LostUncertain = 0
	return "≤ " + lossText(&most)
}

// heatOf returns 0 to heats-1, by the logarithm of a value between two others.
func heatOf(v, low, high float64) int {
	if v <= 0 || high <= low {
		return 0
	}
	return min(int(math.Log(v/low)/math.Log(high/low)*heats), heats-1)
}

func sortedKeys(m map[string]bool) (all []string) {
	for k := range m {
		all = append(all, k)
	}
	slices.Sort(all)
	return all
}
