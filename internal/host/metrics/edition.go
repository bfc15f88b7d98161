package metrics

import (
	"bytes"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/common/expfmt"
)

// scrapes is the maximum number of editions of the page per second. Each leaves garbage, and a garbage collection stops
// the loops; the limit keeps frequent scrapes from triggering one.
const scrapes = 5

// scrapePause is the minimum time between two editions. A test of the cost of scrapes sets it to 0.
var scrapePause = time.Second / scrapes

// editions answers scrapes. All requests that arrive before an edition of the page is started share it, so no client
// waits for another, however many there are and however slowly they read.
type editions struct {
	page http.Handler

	mu    sync.Mutex
	next  [variants]*edition // not started yet
	free  []*edition         // whose memory is used again
	kinds map[string]bool    // by the client's Accept header: whether it selects protobuf

	making sync.Mutex // serializes the collection of editions
	made   time.Time  // when the latest was
	done   chan struct{}
}

// A variant of the page is one of its formats, with or without compression.
const (
	inProtobuf = 1 << iota
	compressed
	variants = 1 << iota
)

// edition is a snapshot of the page. It is the http.ResponseWriter for the page.
type edition struct {
	ready   chan struct{} // closed when it is made
	readers int           // requests that use it
	code    int
	header  http.Header
	body    bytes.Buffer
}

func (e *edition) Header() http.Header         { return e.header }
func (e *edition) WriteHeader(code int)        { e.code = code }
func (e *edition) Write(b []byte) (int, error) { return e.body.Write(b) }

func newEditions(page http.Handler) *editions {
	return &editions{page: page, kinds: map[string]bool{}, done: make(chan struct{})}
}

// ServeHTTP answers with the next edition of the client's variant. The first request for an edition makes it; the
// others wait for it.
func (s *editions) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	v := s.variant(r.Header)
	e := s.next[v]
	first := e == nil
	if first {
		e = &edition{header: http.Header{}}
		if n := len(s.free); n > 0 {
			e, s.free = s.free[n-1], s.free[:n-1]
		}
		e.ready, e.code = make(chan struct{}), http.StatusOK
		s.next[v] = e
	}
	e.readers++
	s.mu.Unlock()
	defer s.release(e)
	if first {
		s.make(v, e)
	}
	select {
	case <-e.ready:
	case <-r.Context().Done():
		return
	}
	for name, values := range e.header {
		w.Header()[name] = values
	}
	w.WriteHeader(e.code)
	w.Write(e.body.Bytes())
}

// variant returns the variant for a client. The caller holds the lock.
func (s *editions) variant(h http.Header) (v int) {
	accept := h.Get("Accept")
	protobuf, ok := s.kinds[accept]
	if !ok {
		format := expfmt.Negotiate(h)
		if protobuf = format.FormatType() == expfmt.TypeProtoDelim; len(s.kinds) < 16 {
			s.kinds[strings.Clone(accept)] = protobuf
		}
	}
	if protobuf {
		v |= inProtobuf
	}
	if strings.Contains(h.Get("Accept-Encoding"), "gzip") {
		v |= compressed
	}
	return v
}

// requests are the requests to the page for each variant.
var requests = func() (all [variants]*http.Request) {
	for v := range all {
		all[v] = &http.Request{Method: http.MethodGet, URL: &url.URL{Path: "/"}, Header: http.Header{}}
		if v&inProtobuf != 0 {
			all[v].Header.Set("Accept", string(expfmt.NewFormat(expfmt.TypeProtoDelim)))
		}
		if v&compressed != 0 {
			all[v].Header.Set("Accept-Encoding", "gzip")
		}
	}
	return all
}()

// make waits until the next edition is due, and makes it.
func (s *editions) make(v int, e *edition) {
	s.making.Lock()
	defer s.making.Unlock()
	if wait := scrapePause - time.Since(s.made); !s.made.IsZero() && wait > 0 {
		select {
		case <-time.After(wait):
		case <-s.done:
		}
	}
	s.mu.Lock()
	s.next[v] = nil // later requests share the next edition
	s.mu.Unlock()
	select {
	case <-s.done:
		http.Error(e, "the program is exiting", http.StatusServiceUnavailable)
	default:
		s.page.ServeHTTP(e, requests[v])
		s.made = time.Now()
	}
	close(e.ready)
}

// release is called by each request that is done with an edition.
func (s *editions) release(e *edition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.readers--; e.readers == 0 {
		clear(e.header)
		e.body.Reset()
		s.free = append(s.free, e)
	}
}

// shut returns once the page is idle and will not be requested again.
func (s *editions) shut() {
	close(s.done)
	s.making.Lock()
	defer s.making.Unlock()
}
