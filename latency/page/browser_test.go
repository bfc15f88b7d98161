package page

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"rebound/latency/compare"
	"rebound/latency/synthetic"
)

// probe runs in the page after it was drawn and leaves what it saw in the document.
const probe = `<script>addEventListener("load",()=>{
const shown=[...document.querySelectorAll("svg.chart")].filter(s=>getComputedStyle(s).display!="none");
const boxes=e=>[...e].map(p=>{const b=p.getBoundingClientRect();return{w:b.width,h:b.height,l:p.getTotalLength(),stroke:getComputedStyle(p).stroke}});
const out=parent.document.createElement("pre");out.className="probe";
out.textContent=JSON.stringify({name:window.name,width:innerWidth,overflow:document.documentElement.scrollWidth-innerWidth,
ground:getComputedStyle(document.body).backgroundColor,charts:shown.length,
letters:Math.min(...shown.map(s=>{const t=s.querySelector("text.tick");return t?t.getBoundingClientRect().height:0})),
curves:boxes(shown.flatMap(s=>[...s.querySelectorAll("path.curve")])),
outside:shown.flatMap(s=>[...s.querySelectorAll("text")].filter(t=>{const a=t.getBoundingClientRect(),b=s.getBoundingClientRect();return a.left<b.left-1||a.right>b.right+1}).map(t=>t.textContent))});
parent.document.body.append(out)});</script>`

type probed struct {
	Name            string
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

var probeResult = regexp.MustCompile(`(?s)<pre class="probe">(.*?)</pre>`)

func chromium(t *testing.T, args ...string) (stdout, stderr string) {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("chromium is not installed (Debian package chromium)")
	}
	args = append([]string{"--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--hide-scrollbars", "--enable-logging=stderr", "--log-level=0",
		"--disable-dev-shm-usage"}, args...) // a container's /dev/shm is too small for it
	// A browser that falls over, or hangs, says nothing of the page: it is asked again. A page that it shows wrong stays wrong.
	for try := 1; ; try++ {
		profile, err := os.MkdirTemp("", "rebound-chromium-")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		cmd := exec.CommandContext(ctx, path, append(args[:len(args):len(args)], "--user-data-dir="+profile)...)
		cmd.WaitDelay = time.Second // its children may hold the pipes
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		err = cmd.Run()
		cancel()
		// It leaves processes behind for a moment, which may still write there.
		for range 100 {
			if os.RemoveAll(profile) == nil {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		complete := !slices.Contains(args, "--dump-dom") || strings.Contains(out.String(), "</html>")
		if complete && (err == nil || errors.Is(err, exec.ErrWaitDelay)) {
			return out.String(), errs.String()
		}
		if try == 3 {
			t.Fatalf("chromium: %v\n%s", err, errs.String())
		}
		t.Logf("chromium: %v: once more", err)
	}
}

// The pages, opened from a file in a real browser: curves are drawn, nothing sticks out, nothing complains.
func TestPagesInBrowser(t *testing.T) {
	if _, err := exec.LookPath("chromium"); err != nil {
		t.Skip("chromium is not installed (Debian package chromium)")
	}
	a := synthetic.Link{Seed: 1, Median: 3400, Spread: 0.12, Runs: 1, Seconds: 30, Rate: 3000}.Report()
	a.Label = "AF_XDP on veth"
	b := synthetic.Link{Seed: 2, Median: 5100, Spread: 0.2, Runs: 1, Seconds: 30, Rate: 3000}.Report()
	b.Label = "AF_PACKET on veth"
	o := synthetic.Link{Seed: 3, Median: 4000, Spread: 0.15, Runs: 2, Seconds: 10, Rate: 4000, Open: true}.Report()
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
		{write("report.html", func(w *bytes.Buffer) error { return Report(w, a) }), 3, 5, 3},
		{write("open.html", func(w *bytes.Buffer) error { return Report(w, o) }), 3, 7, 5},
		{write("compare.html", func(w *bytes.Buffer) error { return Comparison(w, compare.Reports(a, b, o)) }), 2, 6, 6},
	}
	// All pages are shown at once, each in a frame of its width: a frame is narrower than any window may be.
	grounds := map[string]string{}
	for _, look := range []struct {
		name, scheme string
		widths       []int
	}{{"light", "1", []int{1200, 390}}, {"dark", "0", []int{1200}}} {
		var all bytes.Buffer
		all.WriteString(`<!doctype html><link rel="icon" href="data:,"><body style="margin:0">`)
		for _, p := range pages {
			content, err := os.ReadFile(p.path)
			if err != nil {
				t.Fatal(err)
			}
			for _, width := range look.widths {
				name := fmt.Sprintf("%s-%s-%d", strings.TrimSuffix(filepath.Base(p.path), ".html"), look.name, width)
				frame := fmt.Sprintf(`<iframe name="%s" style="border:0;display:block;width:%dpx;height:4600px" srcdoc="%s"></iframe>`, name, width, html.EscapeString(string(content)+probe))
				all.WriteString(frame)
				if keep := os.Getenv("KEEP_PAGES"); keep != "" {
					one := filepath.Join(t.TempDir(), "one.html")
					if err := os.WriteFile(one, []byte(`<!doctype html><body style="margin:0">`+frame), 0o644); err != nil {
						t.Fatal(err)
					}
					chromium(t, "--blink-settings=preferredColorScheme="+look.scheme, fmt.Sprintf("--window-size=%d,3400", max(width, 500)),
						"--screenshot="+filepath.Join(keep, name+".png"), "file://"+one)
				}
			}
		}
		path := filepath.Join(t.TempDir(), "all.html")
		if err := os.WriteFile(path, all.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		dom, log := chromium(t, "--blink-settings=preferredColorScheme="+look.scheme, "--window-size=1200,3600", "--dump-dom", "file://"+path)
		for line := range strings.Lines(log) {
			if strings.Contains(line, "CONSOLE") {
				t.Errorf("console: %s", line)
			}
		}
		found := map[string]probed{}
		for _, m := range probeResult.FindAllStringSubmatch(dom, -1) {
			var got probed
			if err := json.Unmarshal([]byte(html.UnescapeString(m[1])), &got); err != nil {
				t.Fatal(err)
			}
			found[got.Name] = got
		}
		for _, p := range pages {
			for _, width := range look.widths {
				name := fmt.Sprintf("%s-%s-%d", strings.TrimSuffix(filepath.Base(p.path), ".html"), look.name, width)
				got := found[name]
				got.check(t, name, width, p.charts, p.curves, p.high)
				if other := grounds[p.path]; other == got.Ground && look.name == "dark" {
					t.Errorf("%s: light and dark have the same ground %q", name, other)
				}
				grounds[p.path] = got.Ground
			}
		}
	}
}

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
		if c.W < 150 || c.L < 150 || c.Stroke == "none" {
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
	if len(got.Outside) > 0 {
		t.Errorf("%s: text sticks out of its figure: %q", name, got.Outside)
	}
}

// A page asks nothing of a network, and has no script.
func TestPagesSelfContained(t *testing.T) {
	a := synthetic.Link{Seed: 1, Median: 3400, Spread: 0.1, Seconds: 6, Rate: 1000}.Report()
	a.Label = `<script>alert("x")</script>`
	for name, to := range map[string]func(*bytes.Buffer) error{
		"report":  func(w *bytes.Buffer) error { return Report(w, a) },
		"compare": func(w *bytes.Buffer) error { return Comparison(w, compare.Reports(a, a)) },
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
