package page

import (
	"bytes"
	"fmt"
	"html"
	"math/rand/v2"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/synthetic"
)

// bounds is a number that is known to be between least and most.
type bounds struct{ least, most int64 }

// parseBounds reads a number, a range, "unknown" or "–".
func parseBounds(text string) (bounds, error) {
	text = separators.ReplaceAllString(strings.TrimSpace(text), "")
	if text == "unknown" || text == "–" {
		return bounds{}, nil
	}
	var b bounds
	if n, _ := fmt.Sscanf(text, "between %d and %d", &b.least, &b.most); n == 2 {
		return b, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return bounds{n, n}, err
}

// randomReport is a report whose counts are derived from the outcome of each probe, as a bench derives them.
func randomReport(rnd *rand.Rand, seed uint64) *report.Report {
	r := synthetic.Link{Seed: seed, Median: 4000, Seconds: 1, Rate: 40}.Report()
	c := &r.Counts
	c.Late, c.CorruptOnly, c.SendFailed = rnd.Int64N(2)*rnd.Int64N(20), rnd.Int64N(2)*rnd.Int64N(20),
		rnd.Int64N(2)*rnd.Int64N(20)
	c.Received = r.Main().Total.Count - c.Late
	c.Duplicates, c.Reordered, c.Corrupt = rnd.Int64N(2)*rnd.Int64N(2000), rnd.Int64N(2)*rnd.Int64N(20),
		c.CorruptOnly+rnd.Int64N(2)*rnd.Int64N(20)
	c.DroppedHereCounted, c.RefusedThereCounted, c.DroppedThereCounted = rnd.IntN(2) == 0, rnd.IntN(2) == 0,
		rnd.IntN(2) == 0
	u := report.Unanswered{Measured: rnd.Int64N(2) * rnd.Int64N(3000), Warmup: rnd.Int64N(2) * rnd.Int64N(9),
		Copies: c.Duplicates > 0}
	left := u.Measured
	for _, p := range report.Places {
		for _, by := range []string{"ring: rx_dropped", "interface e: rx_dropped"} {
			if n := rnd.Int64N(left + 1); rnd.IntN(3) == 0 {
				left -= n
				d := report.Drop{Place: p, By: by, Frames: n, Ours: rnd.IntN(2) == 0}
				if !d.Ours {
					d.Frames += rnd.Int64N(100)
				}
				r.Drops = append(r.Drops, d)
			}
		}
	}
	c.Sent = c.Received + c.Late + c.CorruptOnly + c.SendFailed + u.Measured
	c.Locate(u, r.Drops)
	if rnd.IntN(8) == 0 { // counters that could not be read
		c.LostUncertain = c.Lost
	}
	return r
}

// shown are the numbers of frames that texts show, by their names.
type shown map[string]bounds

func (s shown) read(t *testing.T, where, name, text string) {
	t.Helper()
	b, err := parseBounds(text)
	if err != nil {
		t.Errorf("%s: %s: %v", where, name, err)
	}
	s[strings.ToLower(name)] = b
}

var (
	tags              = regexp.MustCompile(`<[^>]*>`)
	separators        = regexp.MustCompile(`[\x{202f},]`)
	term              = regexp.MustCompile(`<dt>([^<]*)</dt><dd>([^<]*)</dd>`)
	line              = regexp.MustCompile(`^ *(\w+(?: \w+)*?)  +(\S.*?)  +\S`)
	row               = regexp.MustCompile(`<tr><th scope="row">(\w+(?: \w+)?)</th><td>([^<]*)</td><td>[^<]*</td></tr>`)
	headCell, rowCell = regexp.MustCompile(`<th scope="col">([^<]*)</th>`), regexp.MustCompile(`<td>([^<]*)</td>`)
	zero              = regexp.MustCompile(`(^|.{0,80}[^\d.])0 ns`)
	parts             = []string{"received", "lost", "not sent", "dropped here", "refused there", "dropped there",
		"unknown", "rejected only", "late"}
	counts = regexp.MustCompile(
		`(sent|received|lost|not sent|dropped here|refused there|dropped there|unknown|rejected only|late|duplicates|reordered|rejected) ([\d,]+|between [\d,]+ and [\d,]+|unknown)  `)
)

// Text, page, comparison, sweep and JSON show the same numbers of frames, the parts add up to the probes sent, and the
// percentiles are those of the samples.
func TestNumbersAgree(t *testing.T) {
	rnd := rand.New(rand.NewPCG(22, 5))
	n := needs.Cases(60, 15)
	for i := range n {
		r := randomReport(rnd, uint64(i+1))
		other := randomReport(rnd, 1<<20+uint64(i))
		r.Label, other.Label = "a", "b"
		c := compare.Reports(r, other)
		text, page, both, bothPage := show(t, PrintReport, r), show(t, Report, r), show(t, PrintComparison, c),
			show(t, comparisonPage, c)
		var sweep bytes.Buffer
		must.OK(t, Sweep(&sweep, []*report.Report{r, other}, []Link{{"a", "a"}, {"b", "b"}}))
		all := map[string]shown{"text": {}, "page": {}, "comparison": {}, "page of the comparison": {}, "sweep": {}}
		for _, m := range counts.FindAllStringSubmatch(text, -1) {
			all["text"].read(t, "text", m[1], m[2])
		}
		for _, m := range term.FindAllStringSubmatch(page[strings.Index(page, "<h2>Frames</h2>"):strings.Index(page,
			"What was not ideal")], -1) {
			all["page"].read(t, "page", m[1], html.UnescapeString(m[2]))
		}
		for _, text := range strings.Split(both[strings.Index(both, "frames"):], "\n")[1:] {
			if m := line.FindStringSubmatch(text); m != nil {
				all["comparison"].read(t, "comparison", m[1], m[2])
			}
		}
		for _, m := range row.FindAllStringSubmatch(bothPage, -1) {
			for _, name := range append(parts, "sent", "duplicates", "reordered", "rejected") {
				if strings.EqualFold(m[1], name) {
					all["page of the comparison"].read(t, "page of the comparison", m[1], html.UnescapeString(m[2]))
				}
			}
		}
		heads, cells := headCell.FindAllStringSubmatch(sweep.String(), -1),
			rowCell.FindAllStringSubmatch(sweep.String(), -1)
		for k, h := range heads[1:] {
			if k >= 6 {
				all["sweep"].read(t, "sweep", h[1], html.UnescapeString(cells[k][1]))
			}
		}
		for where, s := range all {
			least, most := int64(0), int64(0)
			for _, p := range parts {
				least, most = least+s[p].least, most+s[p].most
			}
			if where == "sweep" {
				least, most = least+r.Counts.Received, most+r.Counts.Received // which it does not show
			}
			if sent := s["sent"]; sent.least != r.Counts.Sent || least > r.Counts.Sent || most < r.Counts.Sent ||
				least == most && least != r.Counts.Sent {
				t.Errorf("%s: the parts %v add up to %d to %d, sent %d", where, s, least, most, r.Counts.Sent)
			}
			for name, b := range s {
				if want := all["page"][name]; b != want {
					t.Errorf("%s: %s is %v, on the page %v", where, name, b, want)
				}
			}
			for name, want := range all["page"] {
				if _, has := s[name]; !has && want.most > 0 &&
					(where != "sweep" || name != "received" && name != "duplicates" && name != "reordered" &&
						name != "rejected") {
					t.Errorf("%s lacks %s: %v", where, name, want)
				}
			}
		}
		headline, _, _ := strings.Cut(text, "\n")
		if m := regexp.MustCompile(`; (\S+|between \S+ and \S+) of (\S+) lost`).FindStringSubmatch(headline); m == nil {
			t.Errorf("headline %q", headline)
		} else if b, err := parseBounds(m[1]); err != nil || b != all["page"]["lost"] ||
			strings.ReplaceAll(m[2], ",", "") != fmt.Sprint(r.Counts.Sent) {
			t.Errorf("headline %q, on the page %v are lost", headline, all["page"]["lost"])
		}
		for _, p := range parts[2:] {
			if said := regexp.MustCompile(`(\S+|between \S+ and \S+) ` + p + `(,|$)`).MatchString(headline); said != (all["page"][p].most > 0) {
				t.Errorf("headline %q, %s %v", headline, p, all["page"][p])
			}
		}
		words := strings.ReplaceAll(html.UnescapeString(tags.ReplaceAllString(page, "")), "\u00a0", " ")
		if !strings.Contains(words, upperFirst(headline)) {
			t.Errorf("the page lacks the headline %q", headline)
		}
		main := r.Main().Total
		last := 0.0
		for _, st := range compare.Stats(latency.FullTable) {
			m := regexp.MustCompile(`(?m)^` + string(r.Metric) + `:.*?  ` + st.String() + ` (\S+ \S+)`).FindStringSubmatch(text)
			if m == nil {
				t.Fatalf("no %s in\n%s", st, text)
			}
			if m[1] != latency.FormatNS(st.Of(main)) || !strings.Contains(page, `<th scope="row">`+st.String()+`</th><td>`+strings.ReplaceAll(m[1], " ", "\u00a0")+`</td>`) {
				t.Errorf("%s is %s, want %s; the page differs", st, m[1], latency.FormatNS(st.Of(main)))
			}
			if st != compare.Mean {
				if v := st.Of(main); v < last {
					t.Errorf("%s is %v, below the one before, %v", st, v, last)
				} else {
					last = v
				}
			}
		}
		dir := t.TempDir()
		must.OK(t, report.Write(dir, r, Report))
		back, err := report.Read(dir)
		if err != nil || !reflect.DeepEqual(back.Counts, r.Counts) || !reflect.DeepEqual(back.Drops, r.Drops) ||
			back.Main().Total.Count != main.Count {
			t.Errorf("%v: read %+v %+v, want %+v %+v", err, back.Counts, back.Drops, r.Counts, r.Drops)
		}
		if t.Failed() {
			t.Fatalf("report %d: %+v %+v\n%s", i, r.Counts, r.Drops, text)
		}
	}
}

// A series without samples has no percentiles: none is shown as 0 ns.
func TestNoPercentilesOfNothing(t *testing.T) {
	r := synthetic.Link{Seed: 1, Median: 4000, Seconds: 1, Rate: 40}.Report()
	r.Add(latency.UncorrectedSeries, latency.Merge())
	r.Add(latency.LagSeries, latency.Merge())
	nothing := synthetic.Link{Seed: 1, Median: 4000, Seconds: 1, Rate: 40}.Report()
	nothing.Series, nothing.Counts = nil, report.Counts{Sent: 40, Lost: 40}
	nothing.Add(latency.MainSeries, latency.Merge())
	r.Clock, nothing.Clock = latency.ClockInfo{}, latency.ClockInfo{} // has steps of 0 ns
	for name, rep := range map[string]*report.Report{"an empty series": r, "nothing": nothing} {
		for where, shown := range map[string]string{
			"text": show(t, PrintReport, rep), "page": strings.ReplaceAll(show(t, Report, rep), "\u00a0", " ")} {
			if found := zero.FindString(shown); found != "" {
				t.Errorf("%s of %s shows 0 ns: %s", where, name, found)
			}
			if strings.Contains(shown, "from the actual send</") || strings.Contains(shown, ">from the actual send") {
				t.Errorf("%s of %s draws a series without samples", where, name)
			}
		}
	}
}
