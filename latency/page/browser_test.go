package page

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/browser"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/synthetic"
)

// probe observes a page that is drawn, for probed.
const probe = `(() => {
const shown=[...document.querySelectorAll("svg.chart")].filter(s=>getComputedStyle(s).display!="none");
const boxes=e=>[...e].map(p=>{const b=p.getBoundingClientRect();return{w:b.width,h:b.height,l:p.getTotalLength(),stroke:getComputedStyle(p).stroke}});
const tips=shown.filter(s=>s.dataset.x).map(s=>{const b=s.getBoundingClientRect();
s.dispatchEvent(new PointerEvent("pointermove",{clientX:b.left+b.width*.55,clientY:b.top+b.height*.5}));
const t=document.querySelector(".tip"),r=t.getBoundingClientRect();return t.hidden?"":r.left<0||r.right>innerWidth?"outside":t.innerText});
return {width:innerWidth,overflow:document.documentElement.scrollWidth-innerWidth,
ground:getComputedStyle(document.body).backgroundColor,charts:shown.length,tips,
letters:Math.min(...shown.map(s=>{const t=s.querySelector("text.tick");return t?t.getBoundingClientRect().height:0})),
curves:boxes(shown.flatMap(s=>[...s.querySelectorAll("path.curve:not(.dots)")])),dots:shown.flatMap(s=>[...s.querySelectorAll("circle")]).length,
heat:shown.flatMap(s=>[...s.querySelectorAll("path.heat")]).length,
clipped:[...document.querySelectorAll(".headline, .headline dd")].filter(e=>e.scrollWidth>e.clientWidth+1).map(e=>e.textContent),
hidden:[...document.querySelectorAll("td.verdict")].filter(e=>e.getBoundingClientRect().right>Math.min(innerWidth,e.closest(".scroll").getBoundingClientRect().right)).map(e=>e.textContent),
outside:shown.flatMap(s=>[...s.querySelectorAll("text")].filter(t=>{const a=t.getBoundingClientRect(),b=s.getBoundingClientRect();return a.left<b.left-1||a.right>b.right+1}).map(t=>t.textContent))}})()`

type probed struct {
	Width, Overflow float64
	Ground          string
	Charts          int
	Letters         float64 // px, height of the smallest tick label
	Curves          []struct {
		W, H, L float64
		Stroke  string
	}
	Outside []string // texts that extend beyond their figure
	Clipped []string // headline tiles whose text is cut off
	Hidden  []string // verdicts that cannot be seen without scrolling
	Tips    []string // tooltips with the pointer in the middle of each figure
	Dots    int
	Heat    int // number of shades in heat maps
}

// printed returns the name of a PDF that Chromium prints of a page.
func printed(t *testing.T, url string) (pdf string) {
	t.Helper()
	pdf = filepath.Join(t.TempDir(), "p.pdf")
	// A browser that crashes or hangs says nothing about the page, so it is started again.
	for try := 1; ; try++ {
		profile := must.Get(os.MkdirTemp("", "rebound-chromium-"))(t)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		cmd := exec.CommandContext(ctx, "chromium", "--headless", "--no-sandbox", "--disable-gpu",
			"--disable-dev-shm-usage", "--disable-quic",
			"--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
			"--user-data-dir="+profile,
			"--no-pdf-header-footer", "--print-to-pdf="+pdf, url)
		cmd.WaitDelay = time.Second // its child processes may keep the pipes open
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
		out, err := cmd.CombinedOutput()
		cancel()
		// The browser's processes outlive it for a moment and may still write there.
		await.Holds(func() bool { return os.RemoveAll(profile) == nil })
		if err == nil || errors.Is(err, exec.ErrWaitDelay) {
			return pdf
		}
		if try == 3 {
			t.Fatalf("chromium: %v\n%s", err, out)
		}
		t.Logf("chromium: %v: once more", err)
	}
}

// The pages, opened from a file in a real browser: curves are drawn, nothing overflows, and the console has no errors.
func TestPagesInBrowser(t *testing.T) {
	view := browser.Start(t)
	a := synthetic.Link{Seed: 1, Median: 3400, Spread: 0.12, Runs: 8, Seconds: 4, Rate: 3000}.Report()
	a.Label = "AF_XDP on veth"
	b := synthetic.Link{Seed: 2, Median: 5100, Spread: 0.2, Runs: 8, Seconds: 4, Rate: 3000}.Report()
	b.Label = "AF_PACKET on veth"
	few := synthetic.Link{Seed: 4, Median: 123_456_789, Spread: 0.2, Runs: 8, Seconds: 4, Rate: 9}.Report()
	o := synthetic.Link{Seed: 3, Median: 4000, Spread: 0.15, Runs: 2, Seconds: 10, Rate: 4000, Open: true}.Report()
	o.Counts.Lost = 3
	slow := tailed()

	var overview, rates, sizes strings.Builder
	must.OK(t, errors.Join(Overview(&overview, "7 targets", targets(7), nil),
		Sweep(&rates, rateSweep(), links(rateSweep())),
		Sweep(&sizes, sizeSweep(), links(sizeSweep()))))
	pages := []struct {
		name, html     string
		charts, curves int
		high           int // curves that must not be flat
		heat           bool
	}{
		{"report", show(t, Report, a), 6, 5, 3, true},
		{"open", show(t, Report, o), 6, 7, 5, true},
		{"few", show(t, Report, few), 5, 5, 3, true},
		{"attributed", show(t, Report, slow), 8, 5, 3, true},
		{"compare", show(t, comparisonPage, compare.Reports(a, b, o)), 8, 15, 7, false},
		{"overview", overview.String(), 1, 0, 0, false},
		{"rates", rates.String(), 1, 3, 3, false},
		{"sizes", sizes.String(), 1, 3, 3, false},
	}
	for _, p := range pages {
		url, grounds := browser.Saved(t, p.html), map[string]bool{}
		for _, look := range []struct {
			scheme string
			width  int
		}{{"light", 1600}, {"light", 1000}, {"light", 360}, {"dark", 1000}} {
			name := fmt.Sprintf("%s-%s-%d", p.name, look.scheme, look.width)
			view.Scheme(look.scheme)
			view.Open(url, look.width)
			var got probed
			view.Eval(probe, &got)
			got.check(t, name, look.width, p.charts, p.curves, p.high)
			if (got.Heat > 0) != p.heat {
				t.Errorf("%s: %d shades of a heat map", name, got.Heat)
			}
			grounds[got.Ground] = true
		}
		if len(grounds) != 2 {
			t.Errorf("%s: light and dark have the grounds %v", p.name, grounds)
		}
	}
	check.Equal(t, view.Console(), "", "console: %s")
}

// tipPattern matches a position on the horizontal axis followed by a value for each curve.
var tipPattern = regexp.MustCompile(
	strings.ReplaceAll(`^(p[0-9.]+|(?:run|rank) \d+|[-+]?NUMBER\x{a0}\S+)(\n+(.*[ +-])?NUMBER(\x{a0}\S+| samples| differences|\x{a0}%))+$`, "NUMBER", `\d{1,3}(,\d{3})*(\.\d+)?`))

func (got *probed) check(t *testing.T, name string, width, charts, curves, high int) {
	t.Helper()
	if int(got.Width) != width {
		t.Errorf("%s: the page is %v px wide, want %d", name, got.Width, width)
	}
	if got.Overflow > 0 {
		t.Errorf("%s: the page is %v px wider than the screen", name, got.Overflow)
	}
	if got.Charts != charts || len(got.Curves) != curves {
		t.Errorf("%s: %d charts with %d curves, want %d with %d", name, got.Charts, len(got.Curves), charts, curves)
	}
	for i, c := range got.Curves {
		if c.W < 120 || c.L < 120 || c.Stroke == "none" {
			t.Errorf("%s: curve %d is not drawn: %+v", name, i, c)
		}
		if c.H > 60 { // a median over time may be flat
			high--
		}
	}
	if high > 0 {
		t.Errorf("%s: %d curves are flat that must rise: %+v", name, high, got.Curves)
	}
	if got.Letters < 9 {
		t.Errorf("%s: tick labels are %v px high", name, got.Letters)
	}
	if len(got.Clipped) > 0 || len(got.Hidden) > 0 {
		t.Errorf("%s: tiles clip %q, verdicts out of sight: %q", name, got.Clipped, got.Hidden)
	}
	for i, tip := range got.Tips {
		if !tipPattern.MatchString(tip) {
			t.Errorf("%s: figure %d shows %q under the pointer", name, i, tip)
		}
	}
	if len(got.Outside) > 0 {
		t.Errorf("%s: text sticks out of its figure: %q", name, got.Outside)
	}
}

func TestPagesSelfContained(t *testing.T) {
	a := synthetic.Link{Seed: 1, Median: 3400, Spread: 0.1, Seconds: 6, Rate: 1000}.Report()
	a.Label = `<script>alert("x")</script>`
	for name, page := range map[string]string{"report": show(t, Report, a),
		"compare": show(t, comparisonPage, compare.Reports(a, a))} {
		if n := strings.Count(page, "<script"); n != 1 || strings.Contains(page, "<script>alert") {
			t.Errorf("%s has %d scripts, or one of a label", name, n)
		}
		for _, bad := range []string{"http://", "https://", "url(", "@import", "src=", "fetch(", "XMLHttp", "import("} {
			if strings.Contains(page, bad) {
				t.Errorf("%s contains %q", name, bad)
			}
		}
	}
}

// word is a word in pdftotext's output; in points, from the page's upper left corner.
type word struct {
	XMax float64 `xml:"xMax,attr"`
	YMin float64 `xml:"yMin,attr"`
	YMax float64 `xml:"yMax,attr"`
	Text string  `xml:",chardata"`
}

func TestPagesPrinted(t *testing.T) {
	needs.Long(t)
	needs.Programs(t, "chromium", "pdftotext")
	a := synthetic.Link{Seed: 1, Median: 3400, Spread: 0.12, Runs: 8, Seconds: 3, Rate: 1000}.Report()
	b := synthetic.Link{Seed: 2, Median: 123_456, Spread: 0.2, Runs: 8, Seconds: 3, Rate: 1000}.Report()
	a.Label, b.Label, a.Session, b.Session = "AF_XDP on veth", "AF_PACKET on veth", "s", "s"
	headings := []string{"Difference", "Histogram", "Percentiles", "Distribution", "Runs", "Frames", "Environment",
		"Over", "Where", "Numbers", "What"}
	for name, page := range map[string]string{"report": show(t, Report, a),
		"compare": show(t, comparisonPage, compare.Reports(a, b))} {
		out := must.Get(exec.Command("pdftotext", "-bbox", printed(t, browser.Saved(t, page)), "-").Output())(t)
		var doc struct {
			Pages []struct {
				Width float64 `xml:"width,attr"`
				Words []word  `xml:"word"`
			} `xml:"body>doc>page"`
		}
		if err := xml.Unmarshal(out, &doc); err != nil {
			t.Fatalf("%v\n%.400s", err, out)
		}
		words := 0
		for n, sheet := range doc.Pages {
			for _, w := range sheet.Words {
				words++
				if w.XMax > sheet.Width-20 {
					t.Errorf("%s, sheet %d: %q ends %.0f points from the left, the sheet is %.0f wide", name, n+1,
						w.Text, w.XMax, sheet.Width)
				}
				below := slices.ContainsFunc(sheet.Words, func(x word) bool { return x.YMin > w.YMax })
				if !below && w.YMax-w.YMin > 14 && slices.Contains(headings, w.Text) {
					t.Errorf("%s, sheet %d: nothing is below the heading %q", name, n+1, w.Text)
				}
			}
		}
		if len(doc.Pages) < 2 || words < 150 {
			t.Errorf("%s: %d sheets with %d words", name, len(doc.Pages), words)
		}
	}
}
