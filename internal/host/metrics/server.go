package metrics

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"
)

// anyHost in the list of host names disables the check of the Host header.
const anyHost = "any"

// connections is the maximum number of idle clients, and of clients being answered. Beyond it, the oldest connection is
// closed.
const connections = 64

// newServer returns the server of h, for GET and HEAD.
func newServer(h http.Handler, hosts []string) *http.Server {
	all := &clients{next: checked(h, hosts), idle: map[net.Conn]uint64{}, answered: map[net.Conn]uint64{}}
	return &http.Server{
		Handler:           all,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       5 * time.Minute, // longer than scrape intervals
		MaxHeaderBytes:    16 << 10,
		ConnState:         all.change,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, c)
		},
	}
}

// checked passes GET and HEAD requests with an allowed Host to h.
func checked(h http.Handler, hosts []string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !hostAllowed(r.Host, hosts):
			http.Error(w, "Host not allowed: use an IP address, or add the name to stats.hosts", http.StatusForbidden)
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
		default:
			h.ServeHTTP(w, r)
		}
	})
}

// hostAllowed reports whether a request with that Host header is answered. An attacker's web page whose name resolves
// to this server (DNS rebinding) sends that name, so IP addresses are safe, and so are localhost, this host's own name,
// and those that the user lists. HTTP/1.0 clients may send none, but browsers always do.
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
		if h == anyHost || host == strings.ToLower(strings.TrimSuffix(h, ".")) {
			return true
		}
	}
	return false
}

// checkHost returns an error if name is not a host name without a port.
func checkHost(name string) (string, error) {
	if name == "" || strings.ContainsAny(name, ":/ *[]") {
		return "", fmt.Errorf("%q is neither a host name without a port nor %q", name, anyHost)
	}
	return name, nil
}

// clients tracks connections. One whose request is incomplete counts as idle.
type clients struct {
	next           http.Handler
	mu             sync.Mutex
	moves          uint64
	idle, answered map[net.Conn]uint64 // the move that placed each
}

type connKey struct{}

// change is http.Server.ConnState.
func (s *clients) change(c net.Conn, state http.ConnState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch state {
	case http.StateNew:
		s.place(s.idle, c)
	case http.StateClosed, http.StateHijacked:
		delete(s.idle, c)
		delete(s.answered, c)
	}
}

func (s *clients) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := r.Context().Value(connKey{}).(net.Conn)
	s.move(c, s.idle, s.answered)
	defer s.move(c, s.answered, s.idle)
	s.next.ServeHTTP(w, r)
}

func (s *clients) move(c net.Conn, from, to map[net.Conn]uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := from[c]; ok { // it was not disconnected
		delete(from, c)
		s.place(to, c)
	}
}

// place adds c to m. If m is full, the oldest connection is closed. The caller holds the lock.
func (s *clients) place(m map[net.Conn]uint64, c net.Conn) {
	s.moves++
	m[c] = s.moves
	if len(m) <= connections {
		return
	}
	oldest := c
	for o, at := range m {
		if at < m[oldest] {
			oldest = o
		}
	}
	delete(m, oldest)
	oldest.Close()
}
