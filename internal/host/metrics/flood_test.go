package metrics

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rebound-nic/rebound/proof/must"
)

// pipes is a listener without a network, so that the test controls time.
type pipes struct {
	come chan net.Conn
	once sync.Once
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
	p.come <- far
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
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
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

// Clients that do not read their response block no other client, and are disconnected when there are many of them.
func TestSlowReadersMakeRoom(t *testing.T) {
	flooded(t, func(p *pipes, _ *atomic.Int64) {
		began := time.Now()
		var ended atomic.Int64
		for range 3 * connections {
			c := p.dial()
			defer c.Close()
			must.Get(io.WriteString(c, request))(t)
			go func() { // reads nothing of the page, and notices that it is disconnected
				for err := error(nil); err == nil; {
					time.Sleep(10 * time.Millisecond)
					_, err = io.WriteString(c, "x")
				}
				ended.Add(1)
			}()
		}
		c := p.dial()
		defer c.Close()
		if _, err := scrapeOnce(c); err != nil {
			t.Error(err)
		}
		if d := time.Since(began); d > time.Second {
			t.Errorf("the page came after %v", d)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if n := ended.Load(); n < 2*connections {
			t.Errorf("%d of %d were disconnected, want all but %d", n, 3*connections, connections)
		}
	})
}

// Connections with incomplete requests are closed to make room.
func TestHalfRequestsMakeRoom(t *testing.T) {
	flooded(t, func(p *pipes, _ *atomic.Int64) {
		var ended atomic.Int64
		for range 3 * connections {
			c := p.dial()
			defer c.Close()
			must.Get(io.WriteString(c, request[:20]))(t)
			go func() {
				io.Copy(io.Discard, c)
				ended.Add(1)
			}()
		}
		synctest.Wait() // hardly any time passes
		if n := ended.Load(); n != 2*connections {
			t.Errorf("%d of %d were disconnected, want all but %d", n, 3*connections, connections)
		}
		c := p.dial()
		defer c.Close()
		if _, err := scrapeOnce(c); err != nil {
			t.Error(err)
		}
	})
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
	})
}

// An edition in progress when the metrics are hidden is completed, and nothing is collected afterwards.
func TestHideWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		collected := 0
		s := newEditions(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { collected++ }))
		ask := func() int {
			w := &answer{header: http.Header{}}
			s.ServeHTTP(w, &http.Request{Header: http.Header{}})
			return w.code
		}
		if code := ask(); code != http.StatusOK {
			t.Errorf("status %d", code)
		}
		done := make(chan int)
		began := time.Now()
		go func() { done <- ask() }()
		synctest.Wait()
		s.shut()
		if code := <-done; code != http.StatusServiceUnavailable || ask() != code || collected != 1 || time.Since(began) != 0 {
			t.Errorf("status %d, collected %d times, after %v", code, collected, time.Since(began))
		}
	})
}
