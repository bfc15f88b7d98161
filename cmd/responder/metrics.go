package main

import (
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"rebound/fastpath"
	"rebound/latency"
	"rebound/nic"
	"rebound/polling"
)

// metricsHandler serves a registry of its own: the default one's Go collector stops the world.
func metricsHandler(v *view) http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister((*collector)(v))
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(r, promhttp.HandlerOpts{}))
	return mux
}

type collector view

var (
	answeredDesc   = prometheus.NewDesc("rebound_answered_total", "Frames answered.", []string{"queue", "kind"}, nil)
	refusedDesc    = prometheus.NewDesc("rebound_refused_total", "Frames refused.", []string{"queue", "reason"}, nil)
	turnaroundDesc = prometheus.NewDesc("rebound_turnaround_seconds", "From the start of a pass that found frames to its last reply being posted: one value for each pass.", []string{"queue"}, nil)
	waitDesc       = prometheus.NewDesc("rebound_wait_seconds", "What a frame that arrives at a random moment waits for the polling loop: the gaps, weighted by their length. The sum is left at 0.", []string{"queue"}, nil)
	gapDesc        = prometheus.NewDesc("rebound_gap_seconds", "From one pass of the polling loop to the next: one value for each pass. See rebound_wait_seconds.", []string{"queue"}, nil)
	framesDesc     = prometheus.NewDesc("rebound_device_frames_total", "Frames through the device.", []string{"direction"}, nil)
	bytesDesc      = prometheus.NewDesc("rebound_device_bytes_total", "Bytes through the device.", []string{"direction"}, nil)
	troubleDesc    = prometheus.NewDesc("rebound_device_trouble_total", "What went wrong at the device.", []string{"kind"}, nil)
	ownDesc        = prometheus.NewDesc("rebound_device_counter_total", "The device's own counters.", []string{"counter"}, nil)
	collectedDesc  = prometheus.NewDesc("rebound_collections_total", "Times that the loops were stopped for a garbage collection.", nil, nil)
)

func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{answeredDesc, refusedDesc, waitDesc, turnaroundDesc, gapDesc, framesDesc, bytesDesc, troubleDesc, ownDesc, collectedDesc} {
		ch <- d
	}
}

func (c *collector) Collect(ch chan<- prometheus.Metric) {
	count := func(d *prometheus.Desc, n uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	for _, l := range c.loops {
		queue := strconv.Itoa(l.queue)
		for i, n := range l.responder.Stats() {
			d, verdict := refusedDesc, fastpath.Verdict(i)
			if verdict.Answered() {
				d = answeredDesc
			}
			count(d, n, queue, verdict.String())
		}
		ch <- waits(&l.responder.Loop.Gap, c.clock, queue)
		ch <- quantiles(turnaroundDesc, &l.responder.Loop.Turnaround, c.clock, queue)
		ch <- quantiles(gapDesc, &l.responder.Loop.Gap, c.clock, queue)
	}
	var s nic.Stats
	if c.dev.ReadStats(&s) == nil {
		count(framesDesc, s.RxFrames, "rx")
		count(framesDesc, s.TxFrames, "tx")
		count(bytesDesc, s.RxBytes, "rx")
		count(bytesDesc, s.TxBytes, "tx")
		for _, n := range troubles(&s) {
			count(troubleDesc, n.value, n.name)
		}
		for name, n := range s.Extra {
			count(ownDesc, n, name)
		}
	}
	count(collectedDesc, uint64(c.collections.Load()))
}

func waits(h *polling.Histogram, clock *latency.Clock, queue string) prometheus.Metric {
	var t ticks
	t.add(h)
	q := map[float64]float64{1: float64(clock.Nanoseconds(t.greatest)) / 1e9}
	for _, p := range []float64{0.5, 0.9, 0.99, 0.999, 0.9999} {
		q[p] = float64(clock.Nanoseconds(t.wait(p))) / 1e9
	}
	return prometheus.MustNewConstSummary(waitDesc, t.n, 0, q, queue)
}

func quantiles(d *prometheus.Desc, h *polling.Histogram, clock *latency.Clock, queue string) prometheus.Metric {
	var t ticks
	t.add(h)
	q := map[float64]float64{1: float64(clock.Nanoseconds(t.greatest)) / 1e9}
	for _, p := range []float64{0.5, 0.9, 0.99, 0.999, 0.9999} {
		q[p] = float64(clock.Nanoseconds(t.quantile(p))) / 1e9
	}
	return prometheus.MustNewConstSummary(d, t.n, t.sum*float64(clock.Nanoseconds(1<<32))/(1<<32)/1e9, q, queue)
}
