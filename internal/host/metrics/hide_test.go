package metrics

import (
	"io"
	"log/slog"
	"net/http"
	"sync/atomic"
	"testing"
)

// slow is a page that blocks a scrape until the test releases it.
type slow struct {
	within, leave chan struct{}
	inside        atomic.Bool
}

func (s *slow) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.inside.Store(true)
	close(s.within)
	<-s.leave
	io.WriteString(w, "slow_total 1\n")
	s.inside.Store(false)
}

// The metrics are hidden before the device is closed and its memory is freed: hide waits for a running scrape.
func TestHideWaitsForScrapes(t *testing.T) {
	s := &slow{within: make(chan struct{}), leave: make(chan struct{})}
	address, hide := listening(t, func(log *slog.Logger) (func(),
		error) {
		return Serve("127.0.0.1:0", nil, s, nil, nil, log)
	})
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		if r, err := http.Get("http://" + address + "/metrics"); err == nil { // hide ends the connection, or does not
			io.Copy(io.Discard, r.Body)
			r.Body.Close()
		}
	}()
	<-s.within
	hidden := make(chan struct{})
	go func() {
		defer close(hidden)
		hide()
		if s.inside.Load() {
			t.Error("hidden, and a scrape is inside")
		}
	}()
	<-asked // the connection is closed: hide has started
	close(s.leave)
	<-hidden
}
