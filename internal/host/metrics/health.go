package metrics

import (
	"fmt"
	"net/http"
	"sync"
	"time"
)

// Pulse reports whether loops make progress.
type Pulse struct {
	mu   sync.Mutex
	at   time.Time
	last []uint64
	err  error
}

// Check compares the number of passes of each loop with that at the previous check, one second before or earlier. It
// returns an error if one has made none.
func (p *Pulse) Check(now time.Time, passes ...uint64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.at.IsZero() && now.Sub(p.at) < time.Second {
		return p.err
	}
	p.err = nil
	for i, n := range passes {
		before := uint64(0)
		if i < len(p.last) {
			before = p.last[i]
		}
		if n == before && p.at.IsZero() {
			p.err = fmt.Errorf("loop %d has not started", i)
		} else if n == before {
			p.err = fmt.Errorf("loop %d is stalled: no pass in %v", i, now.Sub(p.at).Round(time.Second/10))
		}
	}
	p.at, p.last = now, append(p.last[:0], passes...)
	return p.err
}

// health answers with status 503 while check returns an error.
func health(check func() error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := check(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
}
