package prom

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/api"
	v1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"

	"github.com/rebound-nic/rebound/internal/bench/answer"
	"github.com/rebound-nic/rebound/latency/sanitize"
)

// Server is a Prometheus server, queried through its HTTP API.
type Server struct {
	Base   string
	Client *http.Client // nil for the default one
}

const (
	maxAnswer = 512 << 20 // bytes
	patience  = 2 * time.Minute
)

// Range evaluates query at from, and every step after it up to to.
func (s *Server) Range(ctx context.Context, query string, from, to time.Time, step time.Duration) ([]answer.Series,
	error) {
	return s.query(ctx, query, func(ctx context.Context, a v1.API) (model.Value, error) {
		v, _, _, err := a.QueryRange(ctx, query, v1.Range{Start: from, End: to, Step: step})
		return v, err
	})
}

// instant evaluates query at one time.
func (s *Server) instant(ctx context.Context, query string, at time.Time) ([]answer.Series, error) {
	return s.query(ctx, query, func(ctx context.Context, a v1.API) (model.Value, error) {
		v, _, _, err := a.Query(ctx, query, at)
		return v, err
	})
}

// query makes one call of the query API, within patience. Errors name the server, and what it said is escaped.
func (s *Server) query(ctx context.Context, query string, call func(context.Context, v1.API) (model.Value, error)) (
	[]answer.Series, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	client := http.Client{}
	if s.Client != nil {
		client = *s.Client
	}
	client.Transport = limited{client.Transport}
	c, err := api.NewClient(api.Config{Address: s.Base, Client: &client})
	if err != nil {
		return nil, fmt.Errorf("Prometheus at %s: %w", s.Base, err)
	}
	v, err := call(ctx, v1.NewAPI(c))
	var refused *v1.Error
	if errors.As(err, &refused) {
		// Msg and Detail come from the server.
		if refused.Type == v1.ErrBadData || refused.Type == v1.ErrExec {
			err = fmt.Errorf("it rejected the query: %s", sanitize.Text(refused.Msg))
		} else {
			err = fmt.Errorf("%s: %s", refused.Type, sanitize.Text(refused.Msg))
		}
	}
	var all []answer.Series
	if err == nil {
		all, err = answer.FromValue(v)
	}
	if err != nil {
		return nil, fmt.Errorf("Prometheus at %s: %w (query %s)", s.Base, err, query)
	}
	return all, nil
}

// limited is a transport that aborts a response that is too long.
type limited struct{ next http.RoundTripper }

func (l limited) RoundTrip(r *http.Request) (*http.Response, error) {
	next := l.next
	if next == nil {
		next = http.DefaultTransport
	}
	a, err := next.RoundTrip(r)
	if err == nil {
		a.Body = http.MaxBytesReader(nil, a.Body, maxAnswer)
	}
	return a, err
}
