// Package answer reads the answers of Prometheus' HTTP API to queries of native histograms, and makes reports of them.
package answer

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/common/model"

	"github.com/rebound-nic/rebound/latency/sanitize"
)

// Series is a time series in a query's result.
type Series struct {
	Metric     map[string]string
	Values     []Value
	Histograms []Moment
}

// Value is a sample.
type Value struct {
	At time.Time
	V  float64
}

// Moment is a native histogram at one time: everything counted since the series started.
type Moment struct {
	At      time.Time
	Count   float64
	Sum     float64
	Buckets []Bucket
}

// Bucket counts values between two bounds, in the unit of the metric.
type Bucket struct{ Low, High, Count float64 }

// Parse parses a response of Prometheus' HTTP API to a query or a range query.
func Parse(text []byte) ([]Series, error) {
	var a struct {
		Status, Error string
		Data          struct {
			ResultType model.ValueType
			Result     json.RawMessage
		}
	}
	if err := json.Unmarshal(text, &a); err != nil {
		return nil, err
	}
	if a.Status != "success" {
		return nil, fmt.Errorf("status %s: %s", sanitize.Text(a.Status), sanitize.Text(a.Error))
	}
	var v model.Value
	var err error
	switch a.Data.ResultType {
	case model.ValVector:
		var vector model.Vector
		err = json.Unmarshal(a.Data.Result, &vector)
		v = vector
	case model.ValMatrix:
		var matrix model.Matrix
		err = json.Unmarshal(a.Data.Result, &matrix)
		v = matrix
	default:
		return nil, fmt.Errorf("a result of type %s, want vector or matrix", a.Data.ResultType)
	}
	if err != nil {
		return nil, err
	}
	return FromValue(v)
}

var (
	errEmpty = errors.New("its answer lacks a result")
	errOrder = errors.New("the timestamps of its answer are not in order")
)

// maxCount bounds a counter's value, so that sums do not overflow.
const maxCount = 1e15

// FromValue converts a vector or a matrix.
func FromValue(v model.Value) ([]Series, error) {
	var out []Series
	switch v := v.(type) {
	case model.Vector:
		for _, x := range v {
			if x == nil {
				return nil, errEmpty
			}
			s := Series{Metric: labels(x.Metric)}
			if x.Histogram != nil {
				s.Histograms = []Moment{moment(x.Timestamp, x.Histogram)}
			} else {
				s.Values = []Value{{x.Timestamp.Time(), float64(x.Value)}}
			}
			out = append(out, s)
		}
	case model.Matrix:
		for _, x := range v {
			if x == nil {
				return nil, errEmpty
			}
			s := Series{Metric: labels(x.Metric)}
			for _, p := range x.Values {
				s.Values = append(s.Values, Value{p.Timestamp.Time(), float64(p.Value)})
			}
			for _, p := range x.Histograms {
				if p.Histogram == nil {
					return nil, errEmpty
				}
				s.Histograms = append(s.Histograms, moment(p.Timestamp, p.Histogram))
			}
			out = append(out, s)
		}
	case nil:
		return nil, errEmpty
	default:
		return nil, fmt.Errorf("it answers with a %v, want a vector or a matrix", v.Type())
	}
	for _, s := range out {
		for i, x := range s.Values {
			if !(x.V >= 0 && x.V < maxCount) {
				return nil, fmt.Errorf("a counter of its answer is %v: want 0 to %g", x.V, maxCount)
			}
			if i > 0 && !x.At.After(s.Values[i-1].At) {
				return nil, errOrder
			}
		}
		for i, m := range s.Histograms {
			if i > 0 && !m.At.After(s.Histograms[i-1].At) {
				return nil, errOrder
			}
			sum := 0.0
			for _, b := range m.Buckets {
				if sum += b.Count; !(b.Low <= b.High) || !(b.Count >= 0 && sum < maxCount) {
					return nil, fmt.Errorf("a bucket of its answer is from %v to %v and counts %v", b.Low, b.High,
						b.Count)
				}
			}
		}
	}
	return out, nil
}

func labels(m model.Metric) map[string]string {
	out := make(map[string]string, len(m))
	for name, value := range m {
		out[string(name)] = string(value)
	}
	return out
}

func moment(at model.Time, h *model.SampleHistogram) Moment {
	m := Moment{At: at.Time(), Count: float64(h.Count), Sum: float64(h.Sum)}
	for _, b := range h.Buckets {
		if b != nil {
			m.Buckets = append(m.Buckets, Bucket{float64(b.Lower), float64(b.Upper), float64(b.Count)})
		}
	}
	return m
}
