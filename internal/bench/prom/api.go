package prom

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/rebound-nic/rebound/latency/plain"
)

// Server is a Prometheus, asked by its HTTP API.
type Server struct {
	Base   string
	Client *http.Client // nil for the default one
}

const (
	maxAnswer = 512 << 20 // bytes
	patience  = 2 * time.Minute
)

// Series is one of an answer.
type Series struct {
	Metric     map[string]string
	Values     []Value
	Histograms []Moment
}

// Value is a number at a moment.
type Value struct {
	At time.Time
	V  float64
}

// Moment is a native histogram at a moment: all that was counted since the series began.
type Moment struct {
	At      time.Time
	Count   float64
	Sum     float64
	Buckets []Bucket
}

// Bucket counts values between two bounds, in the unit of the metric.
type Bucket struct{ Low, High, Count float64 }

// Range evaluates query at from, and every step after it up to to.
func (s *Server) Range(ctx context.Context, query string, from, to time.Time, step time.Duration) ([]Series, error) {
	return s.ask(ctx, "query_range", url.Values{"query": {query}, "start": {seconds(from)}, "end": {seconds(to)}, "step": {fmt.Sprintf("%.3f", step.Seconds())}})
}

// Instant evaluates query at a moment.
func (s *Server) Instant(ctx context.Context, query string, at time.Time) ([]Series, error) {
	return s.ask(ctx, "query", url.Values{"query": {query}, "time": {seconds(at)}})
}

func seconds(t time.Time) string { return fmt.Sprintf("%.3f", float64(t.UnixMilli())/1e3) }

func (s *Server) ask(ctx context.Context, path string, form url.Values) ([]Series, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	// By POST: a query may be longer than a server takes in a URL.
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.Base+"/api/v1/"+path, strings.NewReader(form.Encode()))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	client := s.Client
	if client == nil {
		client = http.DefaultClient
	}
	answer, err := client.Do(r)
	if err != nil {
		return nil, fmt.Errorf("Prometheus: %w", err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer+1))
	if err != nil {
		return nil, fmt.Errorf("Prometheus at %s: %w", s.Base, err)
	}
	if len(body) > maxAnswer {
		return nil, fmt.Errorf("Prometheus at %s: the answer is longer than %d MiB: ask for less", s.Base, maxAnswer>>20)
	}
	all, err := decode(body)
	if err != nil && answer.StatusCode != http.StatusOK && !errors.Is(err, errRefused) {
		err = fmt.Errorf("%s", plain.Text(answer.Status))
	}
	if err != nil {
		return nil, fmt.Errorf("Prometheus at %s: %w (query %s)", s.Base, err, form.Get("query"))
	}
	return all, nil
}

var errRefused = errors.New("it refuses the query")

// decode reads an answer of the API.
func decode(body []byte) ([]Series, error) {
	var a struct {
		Status, Error string
		Data          struct {
			ResultType string
			Result     []struct {
				Metric     map[string]string
				Value      json.RawMessage
				Values     []json.RawMessage
				Histogram  json.RawMessage
				Histograms []json.RawMessage
			}
		}
	}
	if err := json.Unmarshal(body, &a); err != nil {
		return nil, fmt.Errorf("that is no answer of its API: %w", err)
	}
	if a.Status != "success" {
		if a.Error != "" {
			return nil, fmt.Errorf("%w: %s", errRefused, plain.Text(a.Error))
		}
		return nil, errors.New("that is no answer of its API: no status")
	}
	if t := a.Data.ResultType; t != "vector" && t != "matrix" {
		return nil, fmt.Errorf("it answers with %q, want a vector or a matrix", t)
	}
	var out []Series
	for _, r := range a.Data.Result {
		s := Series{Metric: r.Metric}
		if len(r.Value) > 0 {
			r.Values = append(r.Values, r.Value)
		}
		if len(r.Histogram) > 0 {
			r.Histograms = append(r.Histograms, r.Histogram)
		}
		for _, v := range r.Values {
			var text string
			at, err := point(v, &text)
			if err != nil {
				return nil, err
			}
			n, err := number(text)
			if err != nil {
				return nil, err
			}
			s.Values = append(s.Values, Value{at, n})
		}
		for _, h := range r.Histograms {
			m, err := decodeHistogram(h)
			if err != nil {
				return nil, err
			}
			s.Histograms = append(s.Histograms, m)
		}
		out = append(out, s)
	}
	return out, nil
}

// point reads [seconds, value].
func point(raw json.RawMessage, value any) (time.Time, error) {
	var pair [2]json.RawMessage
	var at float64
	err := json.Unmarshal(raw, &pair)
	if err == nil {
		err = json.Unmarshal(pair[0], &at)
	}
	if err == nil {
		err = json.Unmarshal(pair[1], value)
	}
	if err == nil && !(math.Abs(at) < 1e11) {
		err = fmt.Errorf("%v is no moment", at)
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("a point of its answer: %w", err)
	}
	return time.UnixMilli(int64(math.Round(at * 1e3))), nil
}

func number(text string) (float64, error) {
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0, fmt.Errorf("%q in its answer is no number", text)
	}
	return n, nil
}

// decodeHistogram reads [seconds, {count, sum, buckets: [[rule, low, high, count], ...]}].
func decodeHistogram(raw json.RawMessage) (m Moment, err error) {
	var h struct {
		Count, Sum string
		Buckets    [][4]json.RawMessage
	}
	if m.At, err = point(raw, &h); err != nil {
		return m, err
	}
	if m.Count, err = number(h.Count); err != nil {
		return m, err
	}
	if m.Sum, err = number(h.Sum); err != nil {
		return m, err
	}
	for _, b := range h.Buckets {
		var v [3]float64
		for i := range v {
			var text string
			if err := json.Unmarshal(b[i+1], &text); err != nil {
				return m, fmt.Errorf("a bucket of its answer: %w", err)
			}
			if v[i], err = number(text); err != nil {
				return m, err
			}
		}
		if !(v[0] <= v[1]) || !(v[2] >= 0 && v[2] < 1e15) {
			return m, fmt.Errorf("a bucket of its answer is from %v to %v and counts %v", v[0], v[1], v[2])
		}
		m.Buckets = append(m.Buckets, Bucket{v[0], v[1], v[2]})
	}
	return m, nil
}
