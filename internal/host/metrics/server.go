package metrics

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"
)

// AnyHost among the configured host names turns the check of the Host header off.
const AnyHost = "any"

// connections is how many clients may be connected: beyond it the one that has been idle longest is disconnected.
const connections = 64

// newServer returns the server of h at /metrics, for GET and HEAD.
func newServer(h http.Handler, hosts []string) *http.Server {
	mux := http.NewServeMux()
	mux.Handle("/metrics", h)
	idle := idlers{since: map[net.Conn]time.Time{}}
	return &http.Server{
		Handler:           checked(mux, hosts),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       5 * time.Minute, // longer than scrape intervals
		MaxHeaderBytes:    16 << 10,
		ConnState:         idle.change,
	}
}

// checked answers GET and HEAD requests whose Host is this server's, and passes them to h.
func checked(h http.Handler, hosts []string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !hostAllowed(r.Host, hosts):
			http.Error(w, "this server does not answer for that Host: use an IP address, or add the name to stats.hosts", http.StatusForbidden)
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
		default:
			h.ServeHTTP(w, r)
		}
	})
}

// hostAllowed reports whether a request with that Host header is answered. A web page that has its own name resolve to this server (DNS
// rebinding) sends that name, so that IP addresses are safe; so are localhost, this host's own name, and those that the user lists. Clients
// of HTTP/1.0 send none, which no browser does.
func hostAllowed(header string, hosts []string) bool {
	host := header
	if h, _, err := net.SplitHostPort(header); err == nil {
		host = h
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if _, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")); err == nil || header == "" {
		return true
	}
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	if own, err := os.Hostname(); err == nil && own != "" && host == strings.ToLower(own) {
		return true
	}
	for _, h := range hosts {
		if h == AnyHost || host == strings.ToLower(strings.TrimSuffix(h, ".")) {
			return true
		}
	}
	return false
}

// CheckHost returns an error for what is no host name to be listed. Names come without a port.
func CheckHost(name string) (string, error) {
	if name == "" || strings.ContainsAny(name, ":/ *[]") {
		return "", fmt.Errorf("%q is not a host name, without a port, nor %q", name, AnyHost)
	}
	return name, nil
}

// idlers are the connections on which no request is being answered.
type idlers struct {
	mu    sync.Mutex
	since map[net.Conn]time.Time
}

// change is http.Server.ConnState.
func (i *idlers) change(c net.Conn, s http.ConnState) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if s != http.StateNew && s != http.StateIdle {
		delete(i.since, c)
		return
	}
	i.since[c] = time.Now()
	if len(i.since) <= connections {
		return
	}
	oldest := c
	for o, at := range i.since {
		if at.Before(i.since[oldest]) {
			oldest = o
		}
	}
	delete(i.since, oldest)
	oldest.Close()
}
