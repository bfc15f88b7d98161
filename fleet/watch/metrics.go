package watch

import (
	"fmt"
	"maps"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rebound-nic/rebound/fleet/registry"
	"github.com/rebound-nic/rebound/fleet/targets"
	"github.com/rebound-nic/rebound/internal/host/metrics"
	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/outcome"
)

// collector collects the metrics of a watch. It does not describe them in advance, because each target has its own
// labels.
type collector struct{ *watch }

func (collector) Describe(chan<- *prometheus.Desc) {}

var (
	targetsDesc = prometheus.NewDesc("rebound_watch_targets",
		"Targets that are watched: those that the sources name, or with peers the chosen ones.", nil, nil)
	lagDesc = prometheus.NewDesc("rebound_watch_lag_seconds", "How late probes left, against the schedule.", nil,
		nil)
	gapDesc = prometheus.NewDesc("rebound_watch_gap_seconds",
		"Time between two polls for replies, while one is expected: how late the watch may notice it.", nil, nil)
	sourceDesc = prometheus.NewDesc("rebound_watch_source_failures_total",
		"Times that a source of targets could not be read; its previous targets were kept.", nil, nil)
	diskDesc = prometheus.NewDesc("rebound_watch_disk_failures_total",
		"Times that the log of the hour could not be written.", nil, nil)
	unwrittenDesc = prometheus.NewDesc("rebound_watch_unwritten_intervals_total",
		"Intervals of a target that are missing from the logs because of that.", nil, nil)
	removedDesc = prometheus.NewDesc("rebound_watch_files_removed_total",
		"Logs removed, the oldest first, to keep the folder within its bound.", nil, nil)
	bytesDesc   = prometheus.NewDesc("rebound_watch_disk_bytes", "Bytes of all logs.", nil, nil)
	droppedDesc = prometheus.NewDesc("rebound_watch_events_dropped_total",
		"Events that the measuring loop could not hand over; no other metric counts them.", nil, nil)
	hereDesc = prometheus.NewDesc("rebound_dropped_here_total",
		"Frames that this host's ring, socket, NIC or kernel dropped on receipt, of all targets and perhaps of other traffic.", []string{"wire"}, nil)
	membersDesc = prometheus.NewDesc("rebound_fleet_members",
		"Members of the fleet from which this watch chose its peers, itself included. Only with peers.", nil, nil)
	leftOutDesc = prometheus.NewDesc("rebound_fleet_duties_left_out",
		"Pairs of zones that this watch should probe and that are too many. Only with peers.", nil, nil)
	selfDesc = prometheus.NewDesc("rebound_fleet_self_info",
		"This watch as a member of the fleet; always 1. Only with peers.", []string{"node", "zone", "rack"}, nil)
	pushesDesc = prometheus.NewDesc("rebound_pushes_total",
		"Times that the metrics were pushed, or could not be. Only with push.", nil, nil)
	pushFailDesc = prometheus.NewDesc("rebound_push_failures_total",
		"Of rebound_pushes_total, those that failed: no answer, a refusal, or a part that was rejected. Only with push.", nil, nil)
	reopenDesc = prometheus.NewDesc("rebound_watch_reopened_total",
		"Times that a device or socket failed and was opened again.", nil, nil)
)

func (c collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	clock := c.loop.clock
	for d, h := range map[*prometheus.Desc]*latency.Histogram{lagDesc: latency.FromHot(&c.loop.Lag, clock),
		gapDesc: latency.FromHot(&c.loop.Gap, clock)} {
		ch <- native(d, h, metrics.Finest, c.start)
	}
	registry.Count(ch, droppedDesc, c.loop.events.dropped.Load())
	registry.Count(ch, sourceDesc, uint64(c.sourceFailures.Load()))
	registry.Count(ch, reopenDesc, uint64(c.reopened.Load()))
	gauge(c.probeDesc, 1)
	if c.pusher != nil {
		pushes, failures := c.pusher.Counts()
		registry.Count(ch, pushesDesc, pushes)
		registry.Count(ch, pushFailDesc, failures)
	}
	if f := c.fleet.now.Load(); f != nil {
		gauge(membersDesc, float64(f.members))
		gauge(leftOutDesc, float64(f.short))
		gauge(selfDesc, 1, f.me.Name, f.me.Zone, f.me.Rack)
	}

	k := c.archive
	k.mu.Lock()
	defer k.mu.Unlock()
	for wire, n := range k.dropped {
		registry.Count(ch, hereDesc, uint64(n), wire)
	}
	if k.dir != nil {
		registry.Count(ch, diskDesc, uint64(k.failures))
		registry.Count(ch, unwrittenDesc, uint64(k.unwritten))
		registry.Count(ch, removedDesc, uint64(k.removed))
		gauge(bytesDesc, float64(k.bytes))
	}
	watched := 0
	for _, s := range k.byName {
		d := describe(s.Target)
		n := &s.all
		if !s.gone { // its counts stay until the interval ends, but it has no state any more
			watched++
			gauge(d.ready, float64(one(s.probed())))
			if up, known := s.up(); known {
				gauge(d.up, float64(one(up)))
			}
		}
		registry.Count(ch, d.probes, uint64(n.Sent))
		registry.Count(ch, d.lost, uint64(n.LostLeast()))
		registry.Count(ch, d.uncertain, uint64(n.LostUncertain))
		registry.Count(ch, d.places, uint64(n.DroppedHere), "here")
		registry.Count(ch, d.places, uint64(n.RefusedThere), "there")
		for kind, count := range map[string]int64{"late": n.Late, "duplicate": n.Duplicates, "reordered": n.Reordered,
			"corrupt": n.Corrupt, "icmp_error": n.refused,
			"untimed": n.untimed, "too_late": n.tooLate, "send_failed": n.SendFailed,
			"corrupt_only": n.CorruptOnly} {
			registry.Count(ch, d.trouble, uint64(count), kind)
		}
		for why, count := range n.rejected[1:] {
			registry.Count(ch, d.rejected, uint64(count), outcome.Reason(why+1).String())
		}
		if there, back, known := s.oneWay(); known {
			registry.Count(ch, d.oneWay, uint64(there), "forward")
			registry.Count(ch, d.oneWay, uint64(back), "backward")
		}
		for _, side := range s.sides() {
			registry.Count(ch, d.slow, s.slow.probes[side], sideLabels[side])
			ch <- prometheus.MustNewConstMetric(d.slowTime, prometheus.CounterValue, float64(s.slow.spent[side])/1e9,
				sideLabels[side])
		}
		s.collectPaths(d, func(d *prometheus.Desc, n int64, port string) { registry.Count(ch, d, uint64(n), port) },
			gauge)
		ch <- native(d.rtt, s.rtt.Histogram(), c.options.Schema, s.since)
		for stat, j := range s.verdicts {
			if j.verdict != compare.Unknown {
				gauge(d.change, map[compare.Verdict]float64{compare.Noise: 0, compare.Faster: -1,
					compare.Slower: 1}[j.verdict], stat)
				gauge(d.shift, j.shift/1e9, stat)
			}
		}
	}
	gauge(targetsDesc, float64(watched))
}

func one(b bool) int {
	if b {
		return 1
	}
	return 0
}

// native converts a histogram to a metric, with each value at the middle of its bucket.
func native(d *prometheus.Desc, h *latency.Histogram, schema int32, since time.Time) prometheus.Metric {
	return registry.Histogram(d, func(yield func(float64, uint64) bool) {
		for b := range h.Buckets {
			if !yield(float64(b.Low+b.High)/2/1e9, uint64(b.Count)) {
				return
			}
		}
	}, h.Sum/1e9, schema, since)
}

// descs are the metrics of one target.
type descs struct {
	ready, up, probes, lost, uncertain, places, trouble, rejected, oneWay, rtt, change, shift, slow,
	slowTime *prometheus.Desc
	pathUp, pathProbes, pathLost, lastHop *prometheus.Desc // with several source ports
}

func describe(t targets.Target) descs {
	labels := prometheus.Labels{"target": t.Name(), "proto": t.Proto.String()}
	maps.Copy(labels, t.Labels)
	of := func(name, help string, variable ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, variable, labels)
	}
	return descs{
		ready: of("rebound_target_ready",
			"Whether the target is probed: 0 while name lookup, routing, neighbour resolution or sending fails."),
		up: of("rebound_target_up",
			"1 while the target answers, 0 after three probes in a row without a reply. Absent before the first probes are decided, and while rebound_target_ready is 0 and it was not down before: whether it answers is unknown."),
		probes: of("rebound_probes_total", "Probes sent, and those that could not be sent (send_failed)."),
		lost: of("rebound_lost_total",
			"Probes sent and not answered within twice the timeout, while this host dropped no frame: lost between the hosts, or dropped or refused silently by the target, whose counters the watch does not read."),
		uncertain: of("rebound_lost_uncertain_total",
			"Probes not answered within twice the timeout while this host dropped frames or the target reported a closed port: lost between the hosts or in the target, dropped here, or refused there."),
		places: of("rebound_lost_uncertain_place_total",
			"Of rebound_lost_uncertain_total, the probes that this host may have dropped (here) and that the target may have refused (there). A probe can be in both.", "place"),
		trouble: of("rebound_replies_trouble_total",
			"Replies that were late, too late (after twice the timeout: their probes count as lost), duplicate, reordered, rejected (corrupt), an ICMP error or untimed, and probes that could not be sent (send_failed) or that only rejected replies answered (corrupt_only).", "kind"),
		rejected: of("rebound_replies_rejected_total",
			"Replies that the watch did not accept, by the first thing that is wrong in them; rebound_replies_trouble_total has their sum as corrupt.", "reason"),
		oneWay: of("rebound_lost_oneway_total",
			"Probes lost on the way there (forward) and replies lost on the way back (backward), by the numbers of a stateful STAMP reflector.", "direction"),
		rtt: of("rebound_rtt_seconds", "Round trips, from the actual send."),
		change: of("rebound_change",
			"This hour against the same hour on previous days: 1 slower, -1 faster, 0 no change seen. At most 5 % of unchanged hours of a target show any 1 or -1.", "stat"),
		shift: of("rebound_change_shift_seconds", "By how much this hour exceeds the same hour on previous days.",
			"stat"),
		slow: of("rebound_slow_total",
			"Round trips, from the actual send, of more than twice the usual one, by the side that caused more than half of what they took beyond that: "+
				"this_host, responder, network, elsewhere (not this host, because the responder did not report when its loop ran), or unknown.", "side"),
		slowTime: of("rebound_slow_seconds_total",
			"Time that the round trips of rebound_slow_total took beyond the usual one, by the side where it was spent. "+
				"The shares of the sides are ratios of its rates.", "side"),

		pathUp: of("rebound_path_up",
			"0 while probes from this source port are lost and those from other ports are not, otherwise 1. Only with several source ports, like all rebound_path metrics.", "source_port"),
		pathProbes: of("rebound_path_probes_total", "Of rebound_probes_total, the probes from this source port.",
			"source_port"),
		pathLost: of("rebound_path_lost_total", "Of rebound_lost_total, the probes from this source port.",
			"source_port"),
		lastHop: of("rebound_path_last_hop",
			"Number of the last hop that answered a trace from this source port, 0 for none. Only while the path or the target is down.", "source_port", "hop"),
	}
}

// probeInfo describes the common properties of all probes, as labels of a metric with the value 1.
func (o *Options) probeInfo() *prometheus.Desc {
	return prometheus.NewDesc("rebound_watch_info", "What all probes of this watch have in common; always 1.", nil,
		prometheus.Labels{
			"rate": fmt.Sprintf("%.6g", 1/o.Sources.Interval.Seconds()), "size": fmt.Sprint(o.Sources.Size),
			"timeout": o.Timeout.String(), "transport": o.Transport, "driver": o.NIC.Driver,
			"idle": o.Idle, "interval": o.Interval.String()})
}
