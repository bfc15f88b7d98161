package campaign

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/rebound-nic/rebound/internal/bench/testbed"
)

// scraper reads the responder's metrics, as Prometheus does but more often.
type scraper struct {
	space *testbed.Namespace
	at    func() string

	mu          sync.Mutex
	values      map[string]float64 // of the running process, by name and labels
	read, limit uint64             // pages read, and pages refused by the rate limit
	failed      uint64
	ok          bool // the last request succeeded
	stop, done  chan struct{}
}

func scrape(space *testbed.Namespace, at func() string) *scraper {
	s := &scraper{space: space, at: at, stop: make(chan struct{}), done: make(chan struct{})}
	go s.run()
	return s
}

func (s *scraper) run() {
	defer close(s.done)
	t := time.NewTicker(250 * time.Millisecond) // the responder allows five requests per second
	defer t.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-t.C:
		}
		at := s.at()
		if at == "" {
			continue
		}
		values, status, err := get(s.space, at, 5*time.Second)
		s.mu.Lock()
		switch {
		case err != nil:
			s.failed++
			s.ok = false
		case status == http.StatusTooManyRequests:
			s.limit++
		default:
			s.read++
			s.ok, s.values = true, values
		}
		s.mu.Unlock()
	}
}

// dial connects from inside a namespace.
func dial(space *testbed.Namespace, at string, limit time.Duration) (c net.Conn, err error) {
	err = space.Do(func() (err error) {
		c, err = net.DialTimeout("tcp", at, limit)
		return err
	})
	return c, err
}

func get(space *testbed.Namespace, at string, limit time.Duration) (values map[string]float64, status int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	c, err := dial(space, at, limit)
	if err != nil {
		return nil, 0, err
	}
	defer c.Close()
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn,
		error) {
		return c, nil
	}}
	defer transport.CloseIdleConnections()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at+"/metrics", nil)
	if err != nil {
		return nil, 0, err
	}
	r, err := transport.RoundTrip(q)
	if err != nil {
		return nil, 0, err
	}
	defer r.Body.Close()
	values = map[string]float64{}
	lines := bufio.NewScanner(io.LimitReader(r.Body, 4<<20))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		name, value, ok := strings.Cut(lines.Text(), " ")
		var v float64
		if _, err := fmt.Sscan(value, &v); ok && err == nil && name != "#" && !strings.Contains(name, "_bucket{") {
			values[name] = v
		}
	}
	return values, r.StatusCode, lines.Err()
}

// value returns the last value read, 0 if there is none.
func (s *scraper) value(name string) float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.values[name]
}

// fresh waits, with a timeout, for a page that was requested after the call.
func (s *scraper) fresh() {
	pages := func() uint64 {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.read
	}
	was := pages()
	for end := time.Now().Add(3 * time.Second); pages() < was+2 && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
}

func (s *scraper) end() {
	close(s.stop)
	<-s.done
}
