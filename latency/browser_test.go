package latency

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// probe runs in the page after it was drawn and leaves what it saw in the document.
const probe = `<script>addEventListener("load",()=>{
const shown=[...document.querySelectorAll("svg.chart")].filter(s=>getComputedStyle(s).display!="none");
const boxes=e=>[...e].map(p=>{const b=p.getBoundingClientRect();return{w:b.width,h:b.height,l:p.getTotalLength(),stroke:getComputedStyle(p).stroke}});
const out=parent.document.createElement("pre");out.id="probe";
out.textContent=JSON.stringify({width:innerWidth,overflow:document.documentElement.scrollWidth-innerWidth,
ground:getComputedStyle(document.body).backgroundColor,charts:shown.length,
letters:Math.min(...shown.map(s=>{const t=s.querySelector("text.tick");return t?t.getBoundingClientRect().height:0})),
curves:boxes(shown.flatMap(s=>[...s.querySelectorAll("path.curve")])),
outside:shown.flatMap(s=>[...s.querySelectorAll("text")].filter(t=>{const a=t.getBoundingClientRect(),b=s.getBoundingClientRect();return a.left<b.left-1||a.right>b.right+1}).map(t=>t.textContent))});
parent.document.body.append(out)});</script>`

type probed struct {
	Width, Overflow float64
	Ground          string
	Charts          int
	Letters         float64 // px, height of the smallest tick label
	Curves          []struct {
		W, H, L float64
		Stroke  string
	}
	Outside []string
}

var probeResult = regexp.MustCompile(`(?s)<pre id="probe">(.*?)</pre>`)

func chromium(t *testing.T, args ...string) (stdout, stderr string) {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("chromium is not installed (Debian package chromium)")
	}
	args = append([]string{"--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--hide-scrollbars", "--enable-logging=stderr", "--log-level=0", "--user-data-dir=" + t.TempDir()}, args...)
	cmd := exec.Command(path, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("chromium: %v\n%s", err, errs.String())
	}
	return out.String(), errs.String()
}

// The pages, opened from a file in a real browser: curves are drawn, nothing sticks out, nothing complains.
func TestPagesInBrowser(t *testing.T) {
	if _, err := exec.LookPath("chromium"); err != nil {
		t.Skip("chromium is not installed (Debian package chromium)")
	}
	a := link{seed: 1, median: 3400, spread: 0.12, runs: 1, seconds: 30, rate: 3000}.report(t)
	a.Label = "AF_XDP on veth"
	b := link{seed: 2, median: 5100, spread: 0.2, runs: 1, seconds: 30, rate: 3000}.report(t)
	b.Label = "AF_PACKET on veth"
	o := link{seed: 3, median: 4000, spread: 0.15, runs: 2, seconds: 10, rate: 4000, open: true}.report(t)
	o.Counts.Lost = 3

	dir := t.TempDir()
	if keep := os.Getenv("KEEP_PAGES"); keep != "" {
		dir = keep
	}
	write := func(name string, to func(*bytes.Buffer) error) string {
		var page bytes.Buffer
		if err := to(&page); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, page.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	pages := []struct {
		path           string
		charts, curves int
		high           int // curves that cannot be flat
	}{
		{write("report.html", func(w *bytes.Buffer) error { return WriteHTML(w, a) }), 3, 5, 3},
		{write("open.html", func(w *bytes.Buffer) error { return WriteHTML(w, o) }), 3, 7, 5},
		{write("compare.html", func(w *bytes.Buffer) error { return Compare(a, b, o).WriteHTML(w) }), 2, 6, 6},
	}
	for _, p := range pages {
		grounds := map[string]string{}
		for _, look := range []struct {
			name, scheme string
			width        int
		}{{"light", "1", 1200}, {"dark", "0", 1200}, {"phone", "1", 390}} {
			t.Run(strings.TrimSuffix(filepath.Base(p.path), ".html")+"/"+look.name, func(t *testing.T) {
				content, err := os.ReadFile(p.path)
				if err != nil {
					t.Fatal(err)
				}
				content = append(content, probe...)
				if look.width < 500 { // a window is never narrower, a frame may be
					content = fmt.Appendf(nil, `<!doctype html><link rel="icon" href="data:,"><body style="margin:0"><iframe style="border:0;width:%dpx;height:4600px" srcdoc="%s"></iframe>`,
						look.width, html.EscapeString(string(content)))
				}
				withProbe := filepath.Join(t.TempDir(), "page.html")
				if err := os.WriteFile(withProbe, content, 0o644); err != nil {
					t.Fatal(err)
				}
				args := []string{"--blink-settings=preferredColorScheme=" + look.scheme, fmt.Sprintf("--window-size=%d,3600", max(look.width, 500))}
				if keep := os.Getenv("KEEP_PAGES"); keep != "" {
					chromium(t, append(args, "--screenshot="+strings.TrimSuffix(p.path, ".html")+"-"+look.name+".png", "file://"+withProbe)...)
				}
				dom, log := chromium(t, append(args, "--dump-dom", "file://"+withProbe)...)
				for line := range strings.Lines(log) {
					if strings.Contains(line, "CONSOLE") {
						t.Errorf("console: %s", line)
					}
				}
				m := probeResult.FindStringSubmatch(dom)
				if m == nil {
					t.Fatalf("no probe in the page:\n%.2000s", dom)
				}
				var got probed
				if err := json.Unmarshal([]byte(html.UnescapeString(m[1])), &got); err != nil {
					t.Fatal(err)
				}
				if int(got.Width) != look.width {
					t.Errorf("the page is %v px wide, want %d", got.Width, look.width)
				}
				if got.Overflow > 0 {
					t.Errorf("the page is %v px wider than the screen", got.Overflow)
				}
				if got.Charts != p.charts || len(got.Curves) != p.curves {
					t.Errorf("%d charts with %d curves, want %d with %d", got.Charts, len(got.Curves), p.charts, p.curves)
				}
				high := 0
				for i, c := range got.Curves {
					if c.W < 150 || c.L < 150 || c.Stroke == "none" {
						t.Errorf("curve %d is not drawn: %+v", i, c)
					}
					if c.H > 60 { // a median over time may be flat
						high++
					}
				}
				if high < p.high {
					t.Errorf("%d curves rise, want %d: %+v", high, p.high, got.Curves)
				}
				if got.Letters < 9 {
					t.Errorf("tick labels are %v px high", got.Letters)
				}
				if len(got.Outside) > 0 {
					t.Errorf("text sticks out of its figure: %q", got.Outside)
				}
				grounds[look.name] = got.Ground
			})
		}
		if grounds["light"] == grounds["dark"] {
			t.Errorf("%s: light and dark have the same ground %q", p.path, grounds["light"])
		}
	}
}

// A page asks nothing of a network, and has no script.
func TestPagesSelfContained(t *testing.T) {
	a := link{seed: 1, median: 3400, spread: 0.1, seconds: 6, rate: 1000}.report(t)
	a.Label = `<script>alert("x")</script>`
	for name, to := range map[string]func(*bytes.Buffer) error{
		"report":  func(w *bytes.Buffer) error { return WriteHTML(w, a) },
		"compare": func(w *bytes.Buffer) error { return Compare(a, a).WriteHTML(w) },
	} {
		var page bytes.Buffer
		if err := to(&page); err != nil {
			t.Fatal(err)
		}
		for _, bad := range []string{"<script", "http://", "https://", "url(", "@import", "src="} {
			if strings.Contains(page.String(), bad) {
				t.Errorf("%s contains %q", name, bad)
			}
		}
	}
}
