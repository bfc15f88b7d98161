package bench

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/page"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/numbers"
	"github.com/rebound-nic/rebound/proof/synthetic"
)

// recorded matches lines that old reports have saved as text, and environments.
var recorded = regexp.MustCompile(
	`^(note|warning): |^\d[\d.: -]*UTC|BOOT_IMAGE|MHz|GHz|Debian|/|--|^results|[0-9a-f]{2}:[0-9a-f]{2}:|^v?\d+\.\d+\.\d+|^\d{5,}$`)

// All commands write numbers in one way.
func TestOneWayToWriteNumbers(t *testing.T) {
	check := func(what, text string, skip func(string) bool) {
		t.Helper()
		if text == "" {
			t.Errorf("%s: no output", what)
		}
		for _, f := range numbers.Others(text, skip) {
			t.Errorf("%s: %s", what, f)
		}
	}
	dir := t.TempDir()
	var dirs []string
	for i, r := range []*report.Report{
		synthetic.Link{Seed: 1, Median: 4000, Seconds: 20, Rate: 200, Runs: 10}.Report(),
		synthetic.Link{Seed: 2, Median: 3000, Seconds: 20, Rate: 200, Runs: 10}.Report(),
		synthetic.Link{Seed: 3, Median: 900_000, Seconds: 20, Rate: 200, Runs: 1}.Report(),
	} {
		r.Counts.Sent, r.Counts.Received, r.Counts.Lost = 2_376_267, 2_356_266, 20_001
		r.Traffic.Mode, r.Traffic.Rate, r.Label = "open", 20_000, string(rune('a'+i))
		dirs = append(dirs, filepath.Join(dir, r.Label))
		must.OK(t, report.Write(dirs[i], r, page.Report))
		check("page", string(must.Get(os.ReadFile(filepath.Join(dirs[i], report.HTMLFile)))(t)), recorded.MatchString)
	}
	html := filepath.Join(dir, "c.html")
	for _, args := range [][]string{append([]string{"report"}, dirs...), append([]string{"report", "-v"}, dirs...),
		append([]string{"compare"}, dirs...), append([]string{"compare", "-v"}, dirs...),
		{"compare", "-html", html, dirs[0], dirs[2]}, {"compare", "-fail-if", "p50>+1%", dirs[0], dirs[2]},
		{"history", "-out", html + ".history", dir}} {
		var out, log bytes.Buffer
		Run(args, &out, &log)
		check(strings.Join(args[:2], " "), out.String(), nil)
	}
	check("page of a comparison", string(must.Get(os.ReadFile(html))(t)), recorded.MatchString)
	var all []*report.Report
	var links []page.Link
	for _, d := range dirs {
		r := must.Get(report.Read(d))(t)
		all, links = append(all, r), append(links, page.Link{Name: r.Name(), Href: r.Name()})
	}
	for _, c := range []*compare.Comparison{compare.Reports(all[0], all[1:]...), compare.Reports(all[0], all[2])} {
		check("answer", page.Answer(c), nil)
	}
	for i, r := range all {
		r.Traffic.Rate *= float64(i + 1)
	}
	var text, sweep bytes.Buffer
	must.OK(t, printSweep(&text, all))
	must.OK(t, page.Sweep(&sweep, all, links))
	check("sweep", text.String(), nil)
	check("page of a sweep", sweep.String(), recorded.MatchString)
	check("lossless", onTheWire(&all[0].Traffic)+onTheWire(&report.Traffic{FrameSize: 60, Rate: 1}), nil)
	o := &runOptions{}
	o.Paired, o.Runs, o.Duration, o.Slice = true, 1, time.Second, 250*time.Millisecond
	o.Variants = o.base.Sweep()
	if len(o.Variants) > 0 && len(o.Variants[0].Rates) > 0 {
		must.OK(t, o.plan(&runLine{}))
		check("plan", o.advice, nil)
	}
}
