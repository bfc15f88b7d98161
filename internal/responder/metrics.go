package responder

import (
	"math"
	"slices"
	"strconv"

	dto "github.com/prometheus/client_model/go"

	"github.com/rebound-nic/rebound/fastpath"
	"github.com/rebound-nic/rebound/internal/host/metrics"
	"github.com/rebound-nic/rebound/internal/host/osnoise"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/nic"
	"github.com/rebound-nic/rebound/polling"
)

// common are the families that every responder's page has.
type common struct {
	answered, refused, turnaround, frames, bytes, trouble, own, impaired *metrics.Family

	info     nic.Info
	counters nic.Stats
	ticks    ticks // of the histogram being written: too large for a stack, so it is kept
}

func newCommon(p *metrics.Page, info nic.Info, turnaround string) common {
	return common{
		info:       info,
		answered:   p.Counter("rebound_answered_total", "Frames answered.", "kind", "queue"),
		refused:    p.Counter("rebound_refused_total", "Frames refused.", "queue", "reason"),
		turnaround: p.Family(dto.MetricType_HISTOGRAM, "rebound_turnaround_seconds", turnaround, "queue"),
		frames:     p.Counter("rebound_device_frames_total", "Frames through the device.", "direction"),
		bytes:      p.Counter("rebound_device_bytes_total", "Bytes through the device.", "direction"),
		trouble: p.Counter("rebound_device_trouble_total", "Errors and drops of the device, and its resets.",
			"kind"),
		impaired: p.Family(dto.MetricType_GAUGE, "rebound_impaired",
			"1 while requests are lost or answered twice because of the interface: it is down; its MAC "+
				"has changed; its MTU was raised; the kernel got the responder's address; it has queues that are not served.", "reason"),
		own: p.Counter("rebound_device_own_total", "The device's own counters.", "counter"),
	}
}

// verdicts exports the counts of frames by kind and reason.
func (c *common) verdicts(counts fastpath.Stats, queue string) {
	for i, n := range counts {
		if verdict := fastpath.Verdict(i); verdict.Answered() {
			c.answered.Set(float64(n), verdict.String(), queue)
		} else {
			c.refused.Set(float64(n), queue, verdict.String())
		}
	}
}

func (c *common) device(p nic.Port) {
	if f, ok := p.(nic.Impaired); ok {
		applies := f.Impaired()
		for _, reason := range nic.Impairments {
			c.impaired.Set(map[bool]float64{true: 1}[slices.Contains(applies, reason)], reason)
		}
	}
	s := &c.counters
	if p.ReadStats(s) != nil {
		return
	}
	c.frames.Set(float64(s.RxFrames), "rx")
	c.frames.Set(float64(s.TxFrames), "tx")
	if !c.info.NoByteCounter {
		c.bytes.Set(float64(s.RxBytes), "rx")
		c.bytes.Set(float64(s.TxBytes), "tx")
	}
	for _, n := range troubles(c.info, s) {
		c.trouble.Set(float64(n.value), n.name)
	}
	for name, n := range s.Extra {
		c.own.Set(float64(n), name)
	}
}

// scraped holds the metrics of a responder with loops.
type scraped struct {
	*pollingLoops
	common
	wait, gap, sessions, collected *metrics.Family
	offcore, events, unseen        *metrics.Family
	long, longs                    *metrics.Family

	queues    []string
	quantiles []metrics.Quantile
	unit      float64 // seconds of a tick
}

func newPage(v *pollingLoops) (*metrics.Page, *scraped) {
	out := new(metrics.Page)
	p := &scraped{
		pollingLoops: v,
		common: newCommon(out, v.info,
			"From the start of a loop iteration that found frames to its last reply being posted: one value per iteration."),
		wait: out.Family(dto.MetricType_SUMMARY, "rebound_wait_seconds",
			"How long a frame that arrives at a random time waits for the polling loop: gaps, weighted by their length. The sum is always 0.", "queue"),
		gap: out.Family(dto.MetricType_HISTOGRAM, "rebound_gap_seconds",
			"From one iteration of the polling loop to the next: one value per iteration. See rebound_wait_seconds.",
			"queue"),
		sessions: out.Counter("rebound_stamp_sessions_total",
			"Test sessions of a stateful STAMP reflector: begun; ended (replaced after respond.stamp_idle); displaced (replaced before that).", "event", "mode", "queue"),
		collected: out.Counter("rebound_collections_total",
			"How often the loops were stopped for a garbage collection."),
		unit: tick(v.clock),
	}
	p.offcore = out.Counter("rebound_offcore_seconds_total",
		"Time in which a polling loop did not run because something else had its core, by cause; name is the "+
			"thread, interrupt or softirq. source: trace, of the kernel's tracepoints, or counter, of /proc, which seldom has durations.", "cause", "name", "source")
	p.events = out.Counter("rebound_offcore_total", "How often a cause of rebound_offcore_seconds_total occurred.",
		"cause", "name", "source")
	p.unseen = out.Counter("rebound_offcore_dropped_total",
		"Causes missing in rebound_offcore_seconds_total because the buffer was full.")
	p.long = out.Counter("rebound_long_gap_seconds_total",
		"Time of the polling loops' iterations of 5 µs or more, by the buckets' middles: what rebound_offcore_seconds_total "+
			"divides, and iterations that answered many frames.", "queue")
	p.longs = out.Counter("rebound_long_gaps_total", "How many these iterations are.", "queue")
	for _, l := range v.loops {
		p.queues = append(p.queues, strconv.Itoa(l.queue))
	}
	for _, q := range []float64{0.5, 0.9, 0.99, 0.999, 0.9999, 1} {
		p.quantiles = append(p.quantiles, metrics.Quantile{Of: q})
	}
	return out, p
}

func (p *scraped) countSessions(s fastpath.Sessions, mode, queue string) {
	p.sessions.Set(float64(s.Begun), "begun", mode, queue)
	p.sessions.Set(float64(s.Ended), "ended", mode, queue)
	p.sessions.Set(float64(s.Displaced), "displaced", mode, queue)
}

// collect puts the current numbers on the page. It makes next to no garbage (TestScrapeLeavesLittle).
func (p *scraped) collect() {
	for i, l := range p.loops {
		queue := p.queues[i]
		p.verdicts(l.responder.Stats(), queue)
		open, sealed := l.responder.Sessions()
		p.countSessions(open, "unauthenticated", queue)
		p.countSessions(sealed, "authenticated", queue)
		p.load(&l.responder.Loop.Turnaround)
		writeHistogram(p.turnaround, &p.ticks, p.unit, p.since, queue)
		p.load(&l.responder.Loop.Gap)
		writeHistogram(p.gap, &p.ticks, p.unit, p.since, queue)
		seconds, n := p.ticks.beyond(osnoise.Threshold.Seconds(), p.unit)
		p.long.Set(seconds, queue)
		p.longs.Set(float64(n), queue)
		for j := range p.quantiles {
			q := &p.quantiles[j]
			ticks := p.ticks.greatest
			if q.Of < 1 {
				ticks = p.ticks.wait(q.Of)
			}
			if q.Value = float64(p.clock.Nanoseconds(ticks)) / 1e9; p.ticks.n == 0 {
				q.Value = math.NaN()
			}
		}
		p.wait.Summary(p.ticks.n, p.quantiles, queue)
	}
	p.device(p.dev)
	p.collected.Set(float64(p.collections.Load()))
	p.causes()
}

// causes puts what had the cores on the page.
func (p *scraped) causes() {
	if p.noise != nil {
		p.noise.Totals(func(t osnoise.Total) {
			p.offcore.Set(t.Seconds, t.Cause.String(), t.Name, t.Source())
			p.events.Set(float64(t.Count), t.Cause.String(), t.Name, t.Source())
		})
		p.unseen.Set(float64(p.noise.Lost()))
	}
}

func (p *scraped) load(h *polling.Histogram) {
	p.ticks = ticks{}
	p.ticks.add(h)
}

// tick is the length of the counter's tick in seconds.
func tick(c *latency.Clock) float64 { return float64(c.Nanoseconds(1<<32)) / (1 << 32) / 1e9 }

// kernelScraped holds the metrics of a program in the kernel, which has no queues.
type kernelScraped struct {
	*kernelProgram
	common
	delivery *metrics.Family
}

func newKernelPage(k *kernelProgram) (*metrics.Page, *kernelScraped) {
	out := new(metrics.Page)
	return out, &kernelScraped{k,
		newCommon(out, k.info, "From the program's start to its end, for one reply in sixteen, chosen at random."),
		out.Family(dto.MetricType_HISTOGRAM, "rebound_delivery_seconds",
			"From the card's timestamp to the program's start, for the same replies, if the card's timestamps are available.", "queue")}
}

func (p *kernelScraped) collect() {
	const all = "all"
	p.verdicts(p.kernelProgram.device.Verdicts(), all)
	p.ticks = ticksOf(p.kernelProgram.device.Turnaround())
	writeHistogram(p.turnaround, &p.ticks, 1e-9, p.since, all)
	if h := p.kernelProgram.device.Delivery(); h.Greatest > 0 {
		p.ticks = ticksOf(h)
		writeHistogram(p.delivery, &p.ticks, 1e-9, p.since, all)
	}
	p.common.device(p.kernelProgram.device)
}
