package metrics

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

func TestHostAllowed(t *testing.T) {
	own, _ := os.Hostname()
	listed := []string{"Metrics.Example.org", "svc.ns.svc.cluster.local"}
	for host, want := range map[string]bool{
		"127.0.0.1": true, "127.0.0.1:9470": true, "10.1.2.3:80": true, "[::1]:9470": true, "[fe80::1%eth0]": true,
		"[2001:db8::1]": true, "": true,
		"localhost": true, "LOCALHOST:9470": true, "a.localhost.": true, own: true, own + ":9470": true,
		strings.ToUpper(own):  true,
		"metrics.example.org": true, "metrics.example.org.:9470": true, "svc.ns.svc.cluster.local:1": true,
		"evil.example": false, "127.0.0.1.evil.example": false, "localhost.evil.example:9470": false,
		"xlocalhost": false, "svc": false,
		own + ".evil.example": false, "127.0.0.1:80:80": false, "evil.example:80:80": false, "any": false,
	} {
		check.Equal(t, hostAllowed(host, listed), want, host+": allowed %v")
	}
	if !hostAllowed("evil.example", []string{anyHost}) {
		t.Error("any does not turn the check off")
	}
}

func FuzzHost(f *testing.F) {
	f.Add("a.example:80", "a.example")
	f.Add("[::1]:80", "x")
	f.Fuzz(func(t *testing.T, header, name string) {
		if _, err := checkHost(name); err == nil && !hostAllowed(name+":80", []string{name}) {
			t.Errorf("%q is listed and not allowed", name)
		}
		hostAllowed(header, nil)
	})
}

// serve serves a small page, and returns the server's address.
func serve(t *testing.T, hosts []string, status http.Handler) string {
	t.Helper()
	page := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "x 0\n") })
	address, hide := listening(t, func(log *slog.Logger) (func(),
		error) {
		return Serve("127.0.0.1:0", hosts, page, status, nil, log)
	})
	t.Cleanup(hide)
	return address
}

// listening starts a server, and returns the address that it logs.
func listening(t *testing.T, start func(*slog.Logger) (hide func(), err error)) (address string, hide func()) {
	t.Helper()
	var log strings.Builder
	hide = must.Get(start(slog.New(slog.NewTextHandler(&log, nil))))(t)
	return regexp.MustCompile(`url=http://(\S+)/`).FindStringSubmatch(log.String())[1], hide
}

// ask requests a path of a server, with a Host header.
func ask(t *testing.T, method, address, path, host string) (answer *http.Response, body string) {
	t.Helper()
	r := must.Get(http.NewRequest(method, "http://"+address+path, nil))(t)
	r.Host = host
	answer = must.Get(http.DefaultClient.Do(r))(t)
	defer answer.Body.Close()
	return answer, string(must.Get(io.ReadAll(answer.Body))(t))
}

// GET and HEAD are answered for allowed hosts. A rejected request does not count as a scrape.
func TestMethodsAndHosts(t *testing.T) {
	address := serve(t, []string{"listed.example"}, nil)
	for range 20 {
		for _, method := range []string{"POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "X"} {
			if a, _ := ask(t, method, address, "/metrics", address); a.StatusCode != http.StatusMethodNotAllowed ||
				a.Header.Get("Allow") != "GET, HEAD" {
				t.Fatalf("%s: %s, Allow %q", method, a.Status, a.Header.Get("Allow"))
			}
		}
		if a, _ := ask(t, "GET", address, "/metrics", "evil.example"); a.StatusCode != http.StatusForbidden {
			t.Fatalf("foreign host: %s", a.Status)
		}
	}
	if a, _ := ask(t, "GET", address, "/metrics", "listed.example:80"); a.StatusCode != http.StatusOK {
		t.Errorf("listed host: %s", a.Status)
	}
	h := httptest.NewRecorder()
	checked(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {}), nil).ServeHTTP(h,
		httptest.NewRequest("HEAD", "http://127.0.0.1/metrics", nil))
	if h.Code != http.StatusOK {
		t.Errorf("HEAD: %d", h.Code)
	}
}

// The status page has the limits of the metrics and restrictive headers for browsers. Requests for it do not use up the
// metrics' rate limit.
func TestStatusPage(t *testing.T) {
	status := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "status "+r.URL.Path) })
	address := serve(t, []string{"listed.example"}, status)
	for _, c := range []struct {
		method, path, host string
		status             int
	}{
		{"POST", "/", address, http.StatusMethodNotAllowed},
		{"GET", "/", "evil.example", http.StatusForbidden},
		{"GET", "/other", address, http.StatusNotFound},
		{"GET", "/metrics", address, http.StatusOK},
	} {
		if a, _ := ask(t, c.method, address, c.path, c.host); a.StatusCode != c.status {
			t.Errorf("%s %s of %s: %s", c.method, c.path, c.host, a.Status)
		}
	}
	a, body := ask(t, "GET", address, "/", "listed.example")
	if a.StatusCode != http.StatusOK || body != "status /" {
		t.Errorf("status page: %s, %q", a.Status, body)
	}
	policy := a.Header.Get("Content-Security-Policy")
	if !strings.Contains(policy, "default-src 'none'") || strings.Contains(policy, "script") ||
		a.Header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("headers %v", a.Header)
	}
}

func TestServerBounds(t *testing.T) {
	s := newServer(http.NotFoundHandler(), nil)
	for name, d := range map[string]time.Duration{"read header": s.ReadHeaderTimeout, "read": s.ReadTimeout,
		"write": s.WriteTimeout, "idle": s.IdleTimeout} {
		if d <= 0 {
			t.Errorf("no time-out: %s", name)
		}
	}
	c := must.Get(net.Dial("tcp", serve(t, nil, nil)))(t)
	defer c.Close()
	go fmt.Fprintf(c, "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nX: %s\r\n\r\n", strings.Repeat("x", 64<<10))
	a, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || a.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("a header of 64 KiB: %v, %v", a, err)
	}
}

// Clients that connect and send nothing do not keep another one out: the oldest of them are disconnected.
func TestIdleClientsMakeRoom(t *testing.T) {
	address := serve(t, nil, nil)
	first := must.Get(net.Dial("tcp", address))(t)
	defer first.Close()
	for range 3 * connections {
		defer must.Get(net.Dial("tcp", address))(t).Close()
	}
	// ends when the server closes it
	if _, err := io.ReadAll(first); err != nil && !strings.Contains(err.Error(), "reset") {
		t.Error(err)
	}
	a, _ := ask(t, "GET", address, "/metrics", address)
	check.Equal(t, a.Status, "200 OK", "%s")
}

// Without a status page, / links to what is there.
func TestIndex(t *testing.T) {
	address, hide := listening(t, func(log *slog.Logger) (func(), error) {
		return Serve("127.0.0.1:0", nil, &slow{}, nil, func() error { return nil }, log)
	})
	defer hide()
	a, body := ask(t, "GET", address, "/", address)
	check.Equal(t, a.StatusCode, 200, "/ answers with %d")
	for _, link := range []string{`<a href="/metrics">`, `<a href="/healthz">`} {
		if !strings.Contains(body, link) {
			t.Errorf("/ has no %s:\n%s", link, body)
		}
	}
	if a.Header.Get("Content-Security-Policy") == "" || !strings.HasPrefix(a.Header.Get("Content-Type"), "text/html") {
		t.Errorf("headers of /: %v", a.Header)
	}
	a, _ = ask(t, "GET", address, "/nothing", address)
	check.Equal(t, a.StatusCode, 404, "/nothing answers with %d")
}
