// Package browser drives a real Chromium in tests: it opens pages, clicks with the mouse, and reads the clipboard and
// downloaded files.
package browser

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/await"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

// Browser is a running Chromium with one page. It speaks the DevTools protocol over a pipe.
type Browser struct {
	Downloads string // folder
	t         testing.TB
	to        *os.File
	session   string
	mu        sync.Mutex
	next      int
	waiting   map[int]chan message
	console   []string
	ended     chan struct{}
}

type message struct {
	ID     int
	Method string
	Params json.RawMessage
	Result json.RawMessage
	Error  *struct{ Message string }
}

// Start starts a browser, which is stopped when the test ends. It skips the test if Chromium is not installed, and
// under -short.
func Start(t testing.TB) *Browser {
	t.Helper()
	needs.Long(t)
	needs.Programs(t, "chromium")
	b := &Browser{t: t, Downloads: t.TempDir(), waiting: map[int]chan message{}, ended: make(chan struct{})}
	profile, err := os.MkdirTemp("", "rebound-chromium-")
	if err != nil {
		t.Fatal(err)
	}
	in, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	from, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	b.to = to
	cmd := exec.Command("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
		"--disable-quic", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--user-data-dir="+profile,
		"--remote-debugging-pipe", "about:blank")
	cmd.ExtraFiles = []*os.File{in, out} // the browser's descriptors 3 and 4
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	in.Close()
	out.Close()
	go b.read(from)
	t.Cleanup(func() {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		cmd.Wait()
		<-b.ended
		to.Close()
		await.Holds(func() bool { return os.RemoveAll(profile) == nil }) // child processes may still write there
	})
	var target struct{ TargetID string }
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct{ SessionID string }
	b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	b.call("Browser.setDownloadBehavior", map[string]any{"behavior": "allow", "downloadPath": b.Downloads}, nil)
	b.call("Browser.grantPermissions", map[string]any{"permissions": []string{"clipboardReadWrite",
		"clipboardSanitizedWrite"}}, nil)
	b.session = attached.SessionID
	b.call("Runtime.enable", nil, nil)
	b.call("Page.enable", nil, nil)
	return b
}

// read delivers each reply to its call and collects the messages of the page's console.
func (b *Browser) read(from *os.File) {
	defer close(b.ended)
	defer from.Close()
	r := bufio.NewReader(from)
	for {
		line, err := r.ReadBytes(0)
		if err != nil {
			return
		}
		var m message
		if json.Unmarshal(line[:len(line)-1], &m) != nil {
			continue
		}
		b.mu.Lock()
		switch {
		case m.ID != 0:
			if c := b.waiting[m.ID]; c != nil {
				c <- m
			}
		case m.Method == "Runtime.consoleAPICalled", m.Method == "Runtime.exceptionThrown":
			b.console = append(b.console, string(m.Params))
		}
		b.mu.Unlock()
	}
}

// call calls a method of the DevTools protocol.
func (b *Browser) call(method string, params map[string]any, result any) {
	b.t.Helper()
	if err := b.try(method, params, result); err != nil {
		b.t.Fatal(err)
	}
}

// try is call, but returns the browser's refusal.
func (b *Browser) try(method string, params map[string]any, result any) error {
	b.t.Helper()
	b.mu.Lock()
	b.next++
	id, answer := b.next, make(chan message, 1)
	b.waiting[id] = answer
	b.mu.Unlock()
	text, err := json.Marshal(struct {
		ID      int            `json:"id"`
		Method  string         `json:"method"`
		Params  map[string]any `json:"params,omitempty"`
		Session string         `json:"sessionId,omitempty"`
	}{id, method, params, b.session})
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.to.Write(append(text, 0)); err != nil {
		b.t.Fatalf("%s: %v", method, err)
	}
	select {
	case m := <-answer:
		if m.Error != nil {
			return fmt.Errorf("%s: %s", method, m.Error.Message)
		}
		if result != nil {
			if err := json.Unmarshal(m.Result, result); err != nil {
				b.t.Fatalf("%s: %v", method, err)
			}
		}
	case <-b.ended:
		b.t.Fatalf("%s: chromium ended", method)
	case <-time.After(3 * time.Minute):
		b.t.Fatalf("%s: no answer in three minutes", method)
	}
	return nil
}

// Scheme selects the "light" or "dark" colour scheme of pages that have both.
func (b *Browser) Scheme(name string) {
	b.t.Helper()
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{
		{"name": "prefers-color-scheme", "value": name}}}, nil)
}

// Open opens an address in a window with the given width in pixels and waits until it is loaded.
func (b *Browser) Open(url string, width int) {
	b.t.Helper()
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": 900, "deviceScaleFactor": 1,
		"mobile": width < 500}, nil)
	b.call("Page.navigate", map[string]any{"url": "about:blank"}, nil)
	b.Until("document.readyState == 'complete' && location.href == 'about:blank'")
	b.call("Page.navigate", map[string]any{"url": url}, nil)
	b.call("Page.bringToFront", nil, nil)
	b.Until("document.readyState == 'complete' && location.href != 'about:blank'")
}

// Eval returns the value of an expression, which may be a promise, as JSON.
func (b *Browser) Eval(expression string, value any) {
	b.t.Helper()
	if err := b.eval(expression, value); err != nil {
		b.t.Fatal(err)
	}
}

func (b *Browser) eval(expression string, value any) error {
	b.t.Helper()
	var got struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails json.RawMessage
	}
	if err := b.try("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true,
		"awaitPromise": true, "userGesture": true}, &got); err != nil {
		return err
	}
	if got.ExceptionDetails != nil {
		b.t.Fatalf("%s: %s", expression, got.ExceptionDetails)
	}
	if value != nil {
		if err := json.Unmarshal(got.Result.Value, value); err != nil {
			b.t.Fatalf("%s: %v: %s", expression, err, got.Result.Value)
		}
	}
	return nil
}

// Until waits until an expression is true. A page that is being replaced has no value.
func (b *Browser) Until(expression string) {
	b.t.Helper()
	var err error
	if !await.Holds(func() (ok bool) { err = b.eval("Boolean("+expression+")", &ok); return err == nil && ok }) {
		b.t.Fatalf("%s does not become true (%v); the console: %s", expression, err, b.Console())
	}
}

// Click scrolls the element that an expression returns into view and clicks on its middle.
func (b *Browser) Click(element string) {
	b.t.Helper()
	var at struct{ X, Y float64 }
	b.Eval(fmt.Sprintf("(e => { e.scrollIntoView({block: 'center'}); const r = e.getBoundingClientRect(); return {X: r.x + r.width/2, Y: r.y + r.height/2} })(%s)", element), &at)
	for _, kind := range []string{"mousePressed", "mouseReleased"} {
		b.call("Input.dispatchMouseEvent", map[string]any{"type": kind, "x": at.X, "y": at.Y, "button": "left",
			"clickCount": 1}, nil)
	}
}

// Clipboard returns the text in the clipboard.
func (b *Browser) Clipboard() (text string) {
	b.t.Helper()
	b.Eval("navigator.clipboard.readText()", &text)
	return text
}

// Downloaded waits for a downloaded file and returns its content.
func (b *Browser) Downloaded(name string) (content []byte) {
	b.t.Helper()
	if !await.Holds(func() bool {
		var err error
		content, err = os.ReadFile(filepath.Join(b.Downloads, name))
		return err == nil && len(content) > 0
	}) {
		found, _ := os.ReadDir(b.Downloads)
		b.t.Fatalf("%s was not downloaded; there is %v", name, found)
	}
	return content
}

// Console returns the console's messages since the start, errors included.
func (b *Browser) Console() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Join(b.console, "\n")
}

// Saved writes a page into a file of the test, and returns its address.
func Saved(t testing.TB, page string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "page.html")
	must.OK(t, os.WriteFile(path, []byte(page), 0o644))
	return "file://" + path
}

// ExportButton is an expression for the nth button below the plot with a title, which exports the plot.
func ExportButton(title string, n int) string {
	return fmt.Sprintf(`[...document.querySelectorAll("section.plot")].find(p => p.querySelector("h2").textContent == %q).querySelectorAll(".export button")[%d]`, title, n)
}

// Copied clicks an export button that copies, and returns what the clipboard has then.
func (b *Browser) Copied(title string, n int) string {
	b.Click(ExportButton(title, n))
	b.Until(ExportButton(title, n) + `.closest(".export").querySelector("span").textContent == "Copied."`)
	return b.Clipboard()
}
