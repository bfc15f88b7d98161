package main

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"rebound/cmd/internal/metrics"
	"rebound/fastpath"
	"rebound/latency"
	"rebound/nic"
	"rebound/polling"
)

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
	ownDesc        = prometheus.NewDesc("rebound_device_own_total", "The device's own counters.", []string{"counter"}, nil)
	sessionsDesc   = prometheus.NewDesc("rebound_stamp_sessions_total", "Test sessions of a stateful STAMP reflector: begun, and ended, which is their place being taken by another.", []string{"queue", "event"}, nil)
	collectedDesc  = prometheus.NewDesc("rebound_collections_total", "Times that the loops were stopped for a garbage collection.", nil, nil)
)

func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{answeredDesc, refusedDesc, waitDesc, turnaroundDesc, gapDesc, framesDesc, bytesDesc, troubleDesc, ownDesc, sessionsDesc, collectedDesc} {
		ch <- d
	}
}

func (c *collector) Collect(ch chan<- prometheus.Metric) {
	for _, l := range c.loops {
		queue := strconv.Itoa(l.queue)
		collectVerdicts(ch, l.responder.Stats(), queue)
		sessions := l.responder.Sessions()
		metrics.Count(ch, sessionsDesc, sessions.Begun, queue, "begun")
		metrics.Count(ch, sessionsDesc, sessions.Ended, queue, "ended")
		ch <- waits(&l.responder.Loop.Gap, c.clock, queue)
		for _, h := range []struct {
			d *prometheus.Desc
			h *polling.Histogram
		}{{turnaroundDesc, &l.responder.Loop.Turnaround}, {gapDesc, &l.responder.Loop.Gap}} {
			var t ticks
			t.add(h.h)
			ch <- histogram(h.d, &t, tick(c.clock), c.start, queue)
		}
	}
	collectDevice(ch, c.dev)
	metrics.Count(ch, collectedDesc, uint64(c.collections.Load()))
}

// collectVerdicts is what became of frames, by kind and reason.
func collectVerdicts(ch chan<- prometheus.Metric, counts fastpath.Stats, queue string) {
	for i, n := range counts {
		d, verdict := refusedDesc, fastpath.Verdict(i)
		if verdict.Answered() {
			d = answeredDesc
		}
		metrics.Count(ch, d, n, queue, verdict.String())
	}
}

func collectDevice(ch chan<- prometheus.Metric, p nic.Port) {
	var s nic.Stats
	if p.ReadStats(&s) != nil {
		return
	}
	metrics.Count(ch, framesDesc, s.RxFrames, "rx")
	metrics.Count(ch, framesDesc, s.TxFrames, "tx")
	metrics.Count(ch, bytesDesc, s.RxBytes, "rx")
	metrics.Count(ch, bytesDesc, s.TxBytes, "tx")
	for _, n := range troubles(&s) {
		metrics.Count(ch, troubleDesc, n.value, n.name)
	}
	for name, n := range s.Extra {
		metrics.Count(ch, ownDesc, n, name)
	}
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

// tick is the length of the counter's tick in seconds.
func tick(c *latency.Clock) float64 { return float64(c.Nanoseconds(1<<32)) / (1 << 32) / 1e9 }

// kernelCollector collects what a program in the kernel counts. Its frames are of no one queue.
type kernelCollector struct{ *inTheKernel }

var (
	programDesc  = prometheus.NewDesc("rebound_turnaround_seconds", "From the program's start to its end, of a random reply in sixteen.", []string{"queue"}, nil)
	deliveryDesc = prometheus.NewDesc("rebound_delivery_seconds", "From the card's time stamp to the program's start, of the same replies, where the card's times are to be had.", []string{"queue"}, nil)
)

func (k kernelCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{answeredDesc, refusedDesc, programDesc, deliveryDesc, framesDesc, bytesDesc, troubleDesc, ownDesc} {
		ch <- d
	}
}

func (k kernelCollector) Collect(ch chan<- prometheus.Metric) {
	const all = "all"
	collectVerdicts(ch, k.device.Verdicts(), all)
	t := ticksOf(k.device.Turnaround())
	ch <- histogram(programDesc, &t, 1e-9, k.device.Since(), all)
	if h := k.device.Delivery(); h.Greatest > 0 {
		t := ticksOf(h)
		ch <- histogram(deliveryDesc, &t, 1e-9, k.device.Since(), all)
	}
	collectDevice(ch, k.device)
}
