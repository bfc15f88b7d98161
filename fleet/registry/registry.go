// Package registry serves the metrics of a Prometheus collector, for programs whose garbage collector runs. A responder
// uses the page of package metrics, which leaves no garbage, and does without client_golang, which is a tenth of a
// program's memory.
package registry

import (
	"iter"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"

	"github.com/rebound-nic/rebound/internal/host/metrics"
	"github.com/rebound-nic/rebound/latency/sanitize"
)

// New returns a registry of the metrics that c collects, those of the process, and its build. It does not have the
// default registry's Go collector, which stops the world.
func New(c prometheus.Collector) *prometheus.Registry {
	r := prometheus.NewRegistry()
	help, labels := metrics.Build()
	build := prometheus.NewGauge(prometheus.GaugeOpts{Name: "rebound_build_info", Help: help, ConstLabels: labels})
	build.Set(1)
	r.MustRegister(c, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), build)
	return r
}

// Listen serves the metrics of a registry, as metrics.Serve does.
func Listen(address string, hosts []string, r *prometheus.Registry, status http.Handler, healthy func() error,
	log *slog.Logger) (hide func(), err error) {
	return metrics.Serve(address, hosts, promhttp.HandlerFor(r, promhttp.HandlerOpts{}), status, healthy, log)
}

// Count exports the value of a counter. Label values are escaped, because a name from outside may not be UTF-8.
func Count(ch chan<- prometheus.Metric, d *prometheus.Desc, n uint64, labels ...string) {
	for i := range labels {
		labels[i] = sanitize.Text(labels[i])
	}
	ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
}

// Histogram is a metric with the given values, in seconds, and how often each occurred. It is both a native and a
// classic histogram; the scraped format decides which one is sent. sum is the sum of all values, schema the resolution
// of the native histogram, up to Finest.
func Histogram(d *prometheus.Desc, values iter.Seq2[float64, uint64], sum float64, schema int32, since time.Time,
	labels ...string) prometheus.Metric {
	native, zeros, all := map[int]int64{}, uint64(0), uint64(0)
	cumulative := make([]uint64, len(metrics.Classic))
	for v, n := range values {
		all += n
		if v == 0 {
			zeros += n
		} else {
			native[metrics.NativeBucket(v, schema)] += int64(n)
		}
		for b := range metrics.Classic {
			if v <= metrics.Classic[b] {
				cumulative[b] += n
			}
		}
	}
	m, err := prometheus.NewConstNativeHistogram(d, all, sum, native, nil, zeros, schema, 1e-12, since, labels...)
	if err != nil {
		return prometheus.NewInvalidMetric(d, err)
	}
	return &bothKinds{m, cumulative}
}

// bothKinds is a native histogram with classic buckets beside.
type bothKinds struct {
	prometheus.Metric
	cumulative []uint64 // for metrics.Classic
}

// Write implements prometheus.Metric.
func (b *bothKinds) Write(m *dto.Metric) error {
	if err := b.Metric.Write(m); err != nil {
		return err
	}
	h := &dto.Histogram{ // another one: that of the native metric stays as it is
		SampleCount: m.Histogram.SampleCount, SampleSum: m.Histogram.SampleSum,
		CreatedTimestamp: m.Histogram.CreatedTimestamp,
		Schema:           m.Histogram.Schema, ZeroThreshold: m.Histogram.ZeroThreshold,
		ZeroCount:    m.Histogram.ZeroCount,
		PositiveSpan: m.Histogram.PositiveSpan, PositiveDelta: m.Histogram.PositiveDelta,
	}
	for i := range metrics.Classic {
		h.Bucket = append(h.Bucket, &dto.Bucket{UpperBound: &metrics.Classic[i], CumulativeCount: &b.cumulative[i]})
	}
	m.Histogram = h
	return nil
}
