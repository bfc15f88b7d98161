package foreign

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/rebound-nic/rebound/latency/report"
)

// result is the result of pScheduler's rtt, latency and latencybg tests.
type result struct {
	Sent       int64 `json:"sent"`
	Lost       int64 `json:"lost"`
	Duplicates int64 `json:"duplicates"`
	Roundtrips []struct {
		RTT *string `json:"rtt"`
		Seq *int64  `json:"seq"`
	} `json:"roundtrips"`
	PacketsSent       int64            `json:"packets-sent"`
	PacketsLost       int64            `json:"packets-lost"`
	PacketsDuplicated int64            `json:"packets-duplicated"`
	PacketsReordered  int64            `json:"packets-reordered"`
	MaxClockError     *float64         `json:"max-clock-error"`
	Latency           map[string]int64 `json:"histogram-latency"`
}

// readPscheduler reads a result of perfSONAR's pScheduler: owamp and powstream (one way), ping and twping (round trip).
func readPscheduler(f *file) (*measurement, error) {
	var in struct {
		result
		Nested *result `json:"result"`
	}
	if err := f.decode(&in); err != nil {
		return nil, err
	}
	r := &in.result
	if in.Nested != nil {
		r = in.Nested
	}
	if len(r.Roundtrips) > 0 {
		return f.roundtrips(r)
	}
	m := &measurement{tool: "perfSONAR", metric: report.Delay,
		unit:   "ms (pScheduler's default bucket-width of 0.001 s; -unit overrides it)",
		single: "samples have no order in time",
		limits: []string{"one-way delays rounded to 0.01 ms; they include the error of both clocks, which may be unknown"}}
	if e := r.MaxClockError; e != nil && *e >= 0 {
		m.limits[0] = fmt.Sprintf("one-way delays rounded to 0.01 ms; both clocks together may be wrong by %v ms", *e)
	}
	factor := 1e6
	if f.Unit != "" {
		factor, m.unit = units[f.Unit], f.Unit+" (set by -unit)"
	}
	var values, counts []int64
	for key, n := range r.Latency {
		v, err := nanoseconds(key, factor)
		if strings.HasPrefix(key, "-") {
			err = fmt.Errorf("a negative delay of %s: the clocks' error is larger than the delay", key)
		}
		if err != nil {
			return nil, f.bad(0, "histogram-latency: %v", err)
		}
		values, counts = append(values, v), append(counts, n)
	}
	var err error
	if m.whole, err = histogram(values, counts); err != nil {
		return nil, f.bad(0, "histogram-latency: %v", err)
	}
	m.counts = report.Counts{Sent: max(r.PacketsSent, 0), Lost: max(r.PacketsLost, 0),
		Duplicates: max(r.PacketsDuplicated, 0), Reordered: max(r.PacketsReordered, 0)}
	m.counts.Received = max(m.counts.Sent-m.counts.Lost, 0)
	return m, nil
}

var isoDuration = regexp.MustCompile(`^P(?:0D)?T(?:(\d{1,3})H)?(?:(\d{1,4})M)?(?:(\d{1,9}(?:\.\d{1,12})?)S)?$`)

func (f *file) roundtrips(r *result) (*measurement, error) {
	m := &measurement{tool: "perfSONAR", metric: report.RoundTrip, unit: "s (ISO 8601 durations)"}
	seen := map[int64]bool{}
	for i, trip := range r.Roundtrips {
		if trip.RTT == nil {
			continue
		}
		d := isoDuration.FindStringSubmatch(*trip.RTT)
		if d == nil {
			return nil, f.bad(0, "roundtrips[%d]: %q is no ISO 8601 duration", i, *trip.RTT)
		}
		if trip.Seq != nil {
			if seen[*trip.Seq] { // a duplicate
				continue
			}
			seen[*trip.Seq] = true
		}
		seconds := 0.0
		for j, length := range []float64{3600, 60, 1} {
			if v, err := strconv.ParseFloat(d[j+1], 64); err == nil {
				seconds += v * length
			}
		}
		ns, err := scaled(seconds, 1e9)
		if err != nil {
			return nil, f.bad(0, "roundtrips[%d]: %v", i, err)
		}
		if err := m.add(f, 0, 0, ns); err != nil {
			return nil, err
		}
	}
	m.counts = report.Counts{Sent: max(r.Sent, 0), Lost: max(r.Lost, 0), Duplicates: max(r.Duplicates, 0),
		Received: int64(len(m.samples))}
	return m, nil
}
