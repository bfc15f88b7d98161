package metrics

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// pipes is a listener without a network, so that the test controls time.
type pipes struct {
	come chan net.Conn
	once sync.Once
	left atomic.Int64 // connections that the server closed
}

// counted is the server's end of a connection.
type counted struct {
	net.Conn
	closed func()
}

func (c *counted) Close() error {
	c.closed()
	return c.Conn.Close()
}

func (p *pipes) Accept() (net.Conn, error) {
	c, ok := <-p.come
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.come) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p *pipes) dial() net.Conn {
	time.Sleep(time.Microsecond) // no two at one moment
	near, far := net.Pipe()
	p.come <- &counted{far, sync.OnceFunc(func() { p.left.Add(1) })}
	return near
}

// flooded serves a page in a synctest bubble. The page contains the number of collections so far.
func flooded(t *testing.T, attack func(p *pipes, collected *atomic.Int64)) {
	synctest.Test(t, func(t *testing.T) {
		var collected atomic.Int64
		s := newServer(newEditions(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, "%d %s", collected.Add(1), strings.Repeat("x", 1<<15))
		})), nil)
		p := &pipes{come: make(chan net.Conn)}
		served := make(chan error)
		go func() { served <- s.Serve(p) }()
		attack(p, &collected)
		s.Close()
		check.Fails(t, "Serve", <-served, http.ErrServerClosed)
	})
}

const request = "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"

// scrapeOnce gets the page on a connection and returns its number.
func scrapeOnce(c net.Conn) (n int64, err error) {
	if _, err := io.WriteString(c, request); err != nil {
		return 0, err
	}
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0, err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode != http.StatusOK {
		err = errors.New(r.Status)
	}
	if err == nil {
		_, err = fmt.Sscan(string(b), &n)
	}
	return n, err
}

// crowd has three times as many clients as there may be send a text, and then one that scrapes, in no time.
func crowd(t *testing.T, p *pipes, text string) {
	began := time.Now()
	for range 3 * connections {
		c := p.dial()
		defer c.Close()
		must.Get(io.WriteString(c, text))(t)
	}
	c := p.dial()
	defer c.Close()
	check.OK(t, check.Err(scrapeOnce(c)))
	if d := time.Since(began); d > time.Second {
		t.Errorf("the page came after %v", d)
	}
	synctest.Wait()
	check.Equal(t, p.left.Load(), 2*connections+1, "%d were disconnected")
}

// Clients that do not read their response block no other client, and are disconnected when there are many of them.
func TestSlowReadersMakeRoom(t *testing.T) {
	flooded(t, func(p *pipes, _ *atomic.Int64) { crowd(t, p, request) })
}

// Connections with incomplete requests are closed to make room.
func TestHalfRequestsMakeRoom(t *testing.T) {
	flooded(t, func(p *pipes, _ *atomic.Int64) { crowd(t, p, request[:20]) })
}

// Clients that scrape continuously do not delay another one: it gets a page that was collected after its request. The
// page is collected at most five times a second.
func TestFloodOfScrapes(t *testing.T) {
	flooded(t, func(p *pipes, collected *atomic.Int64) {
		began := time.Now()
		var stop atomic.Bool
		var floods sync.WaitGroup
		for range 8 {
			floods.Go(func() {
				c := p.dial()
				defer c.Close()
				for !stop.Load() {
					if _, err := scrapeOnce(c); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		for range 50 {
			time.Sleep(time.Second / 7)
			before, asked := collected.Load(), time.Now()
			c := p.dial()
			n, err := scrapeOnce(c)
			if err != nil || n <= before {
				t.Errorf("collected %d times when asked, got page %d: %v", before, n, err)
			}
			if d := time.Since(asked); d > 2*scrapePause {
				t.Errorf("answered after %v", d)
			}
			c.Close()
		}
		stop.Store(true)
		floods.Wait()
		if n, most := collected.Load(), int64(time.Since(began)/scrapePause)+1; n > most {
			t.Errorf("collected %d times in %v, want at most %d", n, time.Since(began), most)
		}
		time.Sleep(time.Minute)
		asked := time.Now()
		check.OK(t, check.Err(scrapeOnce(p.dial())))
		if d := time.Since(asked); d > time.Second/10 {
			t.Errorf("after a minute without a scrape, answered after %v", d)
		}
	})
}

// Each client gets the page in the form that it accepts.
func TestVariantsOfThePage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		page := newEditions(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, r.Header.Get("Accept"), "|", r.Header.Get("Accept-Encoding"))
		}))
		for accept, protobuf := range map[string]bool{"": false, "text/plain": false,
			"application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited": true} {
			for _, encoding := range []string{"", "gzip", "deflate, gzip;q=1.0"} {
				r := httptest.NewRequest("GET", "/metrics", nil)
				r.Header.Set("Accept", accept)
				r.Header.Set("Accept-Encoding", encoding)
				w := httptest.NewRecorder()
				page.ServeHTTP(w, r)
				kind, gzip, _ := strings.Cut(w.Body.String(), "|")
				if strings.Contains(kind, "protobuf") != protobuf || (gzip == "gzip") != (encoding != "") {
					t.Errorf("%q and %q become %q", accept, encoding, w.Body)
				}
			}
		}
	})
}

// An edition in progress when the metrics are hidden is completed, and nothing is collected afterwards.
func TestHideWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		collected := 0
		s := newEditions(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { collected++ }))
		ask := func() int {
			w := httptest.NewRecorder()
			s.ServeHTTP(w, &http.Request{Header: http.Header{}})
			return w.Code
		}
		if code := ask(); code != http.StatusOK {
			t.Errorf("status %d", code)
		}
		done := make(chan int)
		began := time.Now()
		go func() { done <- ask() }()
		synctest.Wait()
		s.shut()
		if code := <-done; code != http.StatusServiceUnavailable || ask() != code || collected != 1 ||
			time.Since(began) != 0 {
			t.Errorf("status %d, collected %d times, after %v", code, collected, time.Since(began))
		}
	})
}
