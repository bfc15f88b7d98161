package foreign

import (
	"math"
	"regexp"
	"strconv"
	"strings"

	"github.com/rebound-nic/rebound/latency/report"
)

var (
	sockperfHead   = regexp.MustCompile(`^packet, txTime\(sec\), rxTime\(sec\), (?:latency|rtt)\(usec\)$`)
	sockperfOutput = regexp.MustCompile(
		`(?m)^packet, txTime\(sec\), rxTime\(sec\), |^sockperf: .*(?:\[Valid Duration\]|\[Total Run\]|percentile|Summary: |No messages were received)`)
	sockperfLost = regexp.MustCompile(
		`# dropped messages = (\d+); # duplicated messages = (\d+); # out-of-order messages = (\d+)`)
	sockperfValid = regexp.MustCompile(
		`\[Valid Duration\] RunTime=[\d.]+ sec; SentMessages=(\d+); ReceivedMessages=(\d+)`)
	sockperfPoint   = regexp.MustCompile(`---> (?:percentile +([\d.]+)|<(MAX|MIN)> observation) = +([\d.]+)$`)
	sockperfAverage = regexp.MustCompile(`====> avg-(latency|rtt|lat)=([\d.]+)`)
	// sockperfNoise matches other lines of sockperf: its options, addresses and sums.
	sockperfNoise = regexp.MustCompile(
		`^(?:-*|test was performed using .*|\[ ?\d+\] (?:IP|PORT|Using) .*|sockperf\[(?:CLIENT|SERVER)\] .*|sockperf: (?:== version .*|={3,} .*|\[(?:CLIENT|SERVER|Total Run)\].*|Warmup stage.*|Starting test.*|` +
			`Test end.*|Total \d+ observations.*|Summary: .*|Server closed .*|Latency is .*|(?:using|Setting|Configured|Message Rate|BandWidth|NOTE|Set ).*))$`)
	sockperfNothing = regexp.MustCompile(`No messages were received from the server|No valid observations found`)
)

// readSockperf reads the output of sockperf with --full-log, or what it prints. The column of latencies, and the
// printed percentiles, are half the round trip unless it ran with --full-rtt; with --full-log the round trip is
// computed from the times.
func readSockperf(f *file) (*measurement, error) {
	m := &measurement{tool: "sockperf", metric: report.RoundTrip}
	m.unknown()
	var sent, received, at int64
	inside, began := false, 0.0
	for n, line := range f.lines() {
		line = plainLine(line)
		if inside && line != "" {
			if strings.HasPrefix(line, "---") {
				inside = false
				continue
			}
			tx, ns, err := f.sockperfRow(n, line)
			if err != nil {
				return nil, err
			}
			if len(m.samples) == 0 {
				began = tx
			}
			if err := m.add(f, n, int64(math.Round((tx-began)*1e9)), ns); err != nil {
				return nil, err
			}
			continue
		}
		switch {
		case sockperfHead.MatchString(line):
			if len(m.samples) > 0 {
				return nil, f.bad(n, "a second table: put each measurement into its own file")
			}
			inside = true
		case sockperfLost.MatchString(line):
			for i, to := range []*int64{&m.counts.Lost, &m.counts.Duplicates, &m.counts.Reordered} {
				*to, _ = strconv.ParseInt(sockperfLost.FindStringSubmatch(line)[i+1], 10, 64)
			}
		case sockperfValid.MatchString(line):
			if at > 0 {
				return nil, f.bad(n, "a second measurement: put each into its own file")
			}
			s := sockperfValid.FindStringSubmatch(line)
			sent, _ = strconv.ParseInt(s[1], 10, 64)
			received, _ = strconv.ParseInt(s[2], 10, 64)
			at = int64(n)
		case sockperfAverage.MatchString(line):
			s := sockperfAverage.FindStringSubmatch(line)
			v, err := nanoseconds(s[2], 1e3)
			if err != nil {
				return nil, f.bad(n, "%v", err)
			}
			if m.middle = float64(v); s[1] != "rtt" {
				m.metric = report.HalfTrip
			}
		case sockperfPoint.MatchString(line):
			if err := m.sockperfPoint(f, n, sockperfPoint.FindStringSubmatch(line)); err != nil {
				return nil, err
			}
		case sockperfNothing.MatchString(line):
			m.remark(n, strings.TrimPrefix(line, "sockperf: "))
		case !sockperfNoise.MatchString(line):
			if err := m.unparsed(f, n, line); err != nil {
				return nil, err
			}
		}
	}
	if max(sent, received, m.counts.Lost) > maxCount {
		return nil, f.bad(int(at), "counts above %g", maxCount)
	}
	if len(m.samples) > 0 {
		m.points, m.least, m.most, m.middle = nil, 0, 0, 0
		m.metric, m.unit = report.RoundTrip, "s (by the columns' names)"
		m.limits = []string{"round trips are rxTime - txTime: sockperf prints half of them as latency, unless it ran with --full-rtt"}
		if received > 0 {
			m.differs(int(at), "replies", received, int64(len(m.samples)))
		}
		received = int64(len(m.samples))
	} else {
		m.unit, m.count = "µs (fixed by sockperf)", received
		if m.metric == report.HalfTrip {
			m.limits = []string{"sockperf prints half of the round trip, unless it runs with --full-rtt"}
		}
	}
	m.counts.Received = received
	m.counts.Sent = m.counts.Received + m.counts.Lost
	m.timed = false // its clock has an unknown origin
	return m, m.order(f)
}

// sockperfRow reads a row of the table: when the message was sent, in seconds, and its round trip.
func (f *file) sockperfRow(n int, line string) (tx float64, ns int64, err error) {
	c := cells(line, ",")
	if len(c) != 4 {
		return 0, 0, f.bad(n, "%d columns, expected 4", len(c))
	}
	tx, err = strconv.ParseFloat(c[1], 64)
	rx, err2 := strconv.ParseFloat(c[2], 64)
	if err != nil || err2 != nil || !(tx >= 0 && tx < 1e10) {
		return 0, 0, f.bad(n, "%q is no pair of times", line)
	}
	if ns, err = scaled(rx-tx, 1e9); err != nil {
		return 0, 0, f.bad(n, "%v", err)
	}
	return tx, ns, nil
}

// sockperfPoint records a printed percentile, minimum or maximum.
func (m *measurement) sockperfPoint(f *file, n int, s []string) error {
	ns, err := nanoseconds(s[3], 1e3)
	if err != nil {
		return f.bad(n, "%v", err)
	}
	switch s[2] {
	case "MAX":
		m.most = float64(ns)
	case "MIN":
		m.least = float64(ns)
	default:
		percent, err := strconv.ParseFloat(s[1], 64)
		if err != nil {
			return f.bad(n, "%q is no percentile", s[1])
		}
		return m.point(f, n, percent, ns)
	}
	return nil
}
