package foreign

import (
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rebound-nic/rebound/latency/report"
)

var (
	pingHead  = regexp.MustCompile(`(?m)^PING \S+`)
	pingReply = regexp.MustCompile(`^(?:\[(\d+\.\d+)\] )?\d+ bytes from .*seq=\d+ .*time[=<](\d+(?:\.\d+)?) ?(us|ms|s)\b(.*)$`)
	pingSum   = regexp.MustCompile(`^(\d+) packets transmitted, (\d+) (?:packets )?received(?:, \+(\d+) duplicates)?`)
)

// printed is the unit of values that are printed with their unit.
const printed = "ms (printed on each line)"

// maxDate bounds times of day: the year 2096.
const maxDate = 4e9 // s since 1970

// dated records a sample with the time of day at the start of a line, in seconds; empty if it has none.
func (m *measurement) dated(f *file, line int, stamp string, ns int64) error {
	var at int64
	if stamp != "" {
		seconds, err := strconv.ParseFloat(stamp, 64)
		if err != nil || seconds > maxDate {
			return f.bad(line, "%q is no time in seconds since 1970", stamp)
		}
		now := time.Unix(0, int64(math.Round(seconds*1e9)))
		if m.start.IsZero() {
			m.start, m.timed = now, true
		}
		at = now.Sub(m.start).Nanoseconds()
	} else if m.timed {
		return f.bad(line, "no time, which earlier lines have")
	}
	return m.add(f, line, at, ns)
}

// readPing reads the output of ping (iputils, BusyBox, BSD).
func readPing(f *file) (*measurement, error) {
	m := &measurement{tool: "ping", metric: report.RoundTrip, unit: printed, traffic: report.Traffic{Protocol: "icmp"}}
	ended := false
	for n, line := range f.lines() {
		if s := pingSum.FindStringSubmatch(line); s != nil {
			if ended {
				return nil, f.bad(n, "a second measurement: put each into its own file")
			}
			ended = true
			for i, to := range []*int64{&m.counts.Sent, &m.counts.Received, &m.counts.Duplicates} {
				*to, _ = strconv.ParseInt(s[i+1], 10, 64) // the third is optional
			}
			m.counts.Lost = max(m.counts.Sent-m.counts.Received, 0)
			continue
		}
		if !strings.Contains(line, " bytes from ") {
			continue
		}
		r := pingReply.FindStringSubmatch(line)
		if r == nil {
			return nil, f.bad(n, "a reply without a time (ping prints none with -s below 16)")
		}
		if strings.Contains(r[4], "DUP") {
			continue
		}
		ns, err := nanoseconds(r[2], units[r[3]])
		if err != nil {
			return nil, f.bad(n, "%v", err)
		}
		if err := m.dated(f, n, r[1], ns); err != nil {
			return nil, err
		}
	}
	if !ended {
		m.warnings = append(m.warnings, "the output has no statistics at its end: the loss is unknown")
	}
	return m, nil
}

var (
	fpingHead  = regexp.MustCompile(`(?m)^(?:\[\d+\.\d+\] )?\S+\s*: (?:\[\d+\], (?:\d+ bytes|timed out)|(?:\d+\.\d+|-)(?: (?:\d+\.\d+|-))*\s*$)`)
	fpingReply = regexp.MustCompile(`^(?:\[(\d+\.\d+)\] )?(\S+)\s*: \[\d+\], (?:\d+ bytes, (\d+(?:\.\d+)?) ms|(timed out))`)
	fpingSum   = regexp.MustCompile(`^(\S+)\s*: xmt/rcv/%loss = (\d+)/(\d+)/`)
	fpingAll   = regexp.MustCompile(`^(\S+)\s*: ((?:\d+(?:\.\d+)?|-)(?: (?:\d+(?:\.\d+)?|-))*)$`)
)

// readFping reads the output of fping -c and -C, with and without -D. Options.Series selects a target.
func readFping(f *file) (*measurement, error) {
	targets := map[string]*measurement{}
	var names []string
	counted := map[string]bool{}
	target := func(name string) *measurement {
		if targets[name] == nil {
			if len(names) < maxRuns {
				names = append(names, name)
			}
			targets[name] = &measurement{tool: "fping", metric: report.RoundTrip, unit: printed, traffic: report.Traffic{Protocol: "icmp", Target: name}}
		}
		return targets[name]
	}
	for n, line := range f.lines() {
		if r := fpingReply.FindStringSubmatch(line); r != nil {
			m := target(r[2])
			if m.counts.Sent++; r[4] != "" {
				m.counts.Lost++
				continue
			}
			ns, err := nanoseconds(r[3], 1e6)
			if err == nil {
				err = m.dated(f, n, r[1], ns)
			}
			if err != nil {
				return nil, f.bad(n, "%v", err)
			}
			continue
		}
		if s := fpingSum.FindStringSubmatch(line); s != nil {
			c := &target(s[1]).counts
			c.Sent, _ = strconv.ParseInt(s[2], 10, 64)
			c.Received, _ = strconv.ParseInt(s[3], 10, 64)
			c.Lost = max(c.Sent-c.Received, 0)
			counted[s[1]] = true
			continue
		}
		all := fpingAll.FindStringSubmatch(line)
		if all == nil || targets[all[1]] != nil && len(targets[all[1]].samples) > 0 { // -C without -q repeats them
			continue
		}
		m := target(all[1])
		counted[all[1]] = true
		for _, v := range strings.Fields(all[2]) {
			if m.counts.Sent++; v == "-" {
				m.counts.Lost++
				continue
			}
			ns, err := nanoseconds(v, 1e6)
			if err != nil {
				return nil, f.bad(n, "%v", err)
			}
			if err := m.add(f, n, 0, ns); err != nil {
				return nil, err
			}
			m.counts.Received++
		}
	}
	name, err := f.choose("target", names)
	if err != nil {
		return nil, err
	}
	m := targets[name]
	if !counted[name] {
		m.counts.Received = int64(len(m.samples))
	}
	return m, nil
}

// choose returns the name that Options.Series selects from several, or the only one.
func (f *file) choose(what string, names []string) (string, error) {
	list := strings.Join(names[:min(len(names), 20)], ", ")
	switch {
	case f.Series != "" && slices.Contains(names, f.Series):
		return f.Series, nil
	case f.Series != "":
		return "", f.bad(0, "no %s %q: it has %s", what, f.Series, list)
	case len(names) == 0:
		return "", f.bad(0, "no %s", what)
	case len(names) > 1:
		return "", f.bad(0, "which %s? Set -series to one of: %s", what, list)
	}
	return names[0], nil
}

const sockperfHead = "packet, txTime(sec), rxTime(sec), latency(usec)"

var sockperfLost = regexp.MustCompile(`# dropped messages = (\d+); # duplicated messages = (\d+); # out-of-order messages = (\d+)`)

// readSockperf reads the output of sockperf --full-log. Its column of latencies is half the round trip; the round trip
// is computed from the times.
func readSockperf(f *file) (*measurement, error) {
	m := &measurement{tool: "sockperf", metric: report.RoundTrip, unit: "s (by the columns' names)",
		limits: []string{"round trips are rxTime - txTime: sockperf prints half of them as latency"}}
	inside, timed := false, 0.0
	for n, line := range f.lines() {
		if s := sockperfLost.FindStringSubmatch(line); s != nil && !inside {
			for i, to := range []*int64{&m.counts.Lost, &m.counts.Duplicates, &m.counts.Reordered} {
				*to, _ = strconv.ParseInt(s[i+1], 10, 64)
			}
		}
		if !inside || line == "" {
			inside = inside || line == sockperfHead
			continue
		}
		if strings.HasPrefix(line, "---") {
			break
		}
		c := cells(line, ",")
		if len(c) != 4 {
			return nil, f.bad(n, "%d columns, expected 4", len(c))
		}
		sent, err := strconv.ParseFloat(c[1], 64)
		received, err2 := strconv.ParseFloat(c[2], 64)
		if err != nil || err2 != nil || !(sent >= 0 && sent < 1e10) {
			return nil, f.bad(n, "%q is no pair of times", line)
		}
		ns, err := scaled(received-sent, 1e9)
		if err != nil {
			return nil, f.bad(n, "%v", err)
		}
		if len(m.samples) == 0 {
			timed = sent
		}
		if err := m.add(f, n, int64(math.Round((sent-timed)*1e9)), ns); err != nil {
			return nil, err
		}
	}
	m.counts.Received = int64(len(m.samples))
	m.counts.Sent = m.counts.Received + m.counts.Lost
	m.timed = false // its clock has an unknown origin
	return m, nil
}

var (
	netperfHead  = regexp.MustCompile(`(?m)^(?:MIGRATED |OMNI )|_LATENCY=|Latency Microseconds`)
	netperfKey   = regexp.MustCompile(`^([A-Z0-9_]+)_LATENCY=(\S+)$`)
	netperfShort = regexp.MustCompile(`^P(\d+)$`)
	netperfLong  = regexp.MustCompile(`^(Minimum|Mean|Maximum|\d+)(?:st|nd|rd|th)?(?: Percentile)? Latency Microseconds$`)
)

// readNetperf reads the latency keys in the output of netperf -k and -o for its omni tests.
func readNetperf(f *file) (*measurement, error) {
	m := &measurement{tool: "netperf", metric: report.RoundTrip, unit: "µs (fixed by netperf)", limits: []string{"percentiles are whole microseconds, from netperf's histogram"}}
	m.unknown()
	set := func(line int, key, value string) error {
		v, err := strconv.ParseFloat(value, 64)
		if err != nil || !(v*1e3 >= 0 && v*1e3 < maxLatency) {
			return f.bad(line, "%s is %q, want a number of microseconds", key, value)
		}
		switch {
		case strings.HasPrefix(key, "Min") || key == "MIN":
			m.least = v * 1e3
		case strings.HasPrefix(key, "Max") || key == "MAX":
			m.most = v * 1e3
		case key == "Mean" || key == "MEAN":
			m.middle = v * 1e3
		default:
			if p := netperfShort.FindStringSubmatch(key); p != nil {
				key = p[1]
			}
			percent, err := strconv.Atoi(key)
			if err != nil {
				return nil // STDDEV, RT
			}
			return m.point(f, line, float64(percent), int64(math.Round(v*1e3)))
		}
		return nil
	}
	var header []string
	for n, line := range f.lines() {
		if k := netperfKey.FindStringSubmatch(line); k != nil {
			if err := set(n, k[1], k[2]); err != nil {
				return nil, err
			}
			continue
		}
		c := cells(line, ",")
		switch {
		case header == nil && strings.Contains(line, "Latency Microseconds"):
			header = c
		case header != nil && len(c) == len(header):
			for i, name := range header {
				if k := netperfLong.FindStringSubmatch(name); k != nil {
					if err := set(n, k[1], c[i]); err != nil {
						return nil, err
					}
				}
			}
		case header != nil && line != "":
			return nil, f.bad(n, "%d columns, expected %d", len(c), len(header))
		}
	}
	if len(m.points) == 0 {
		return nil, f.bad(0, "no percentiles (netperf -t UDP_RR -- -k MIN_LATENCY,MEAN_LATENCY,P50_LATENCY,P90_LATENCY,P99_LATENCY,MAX_LATENCY)")
	}
	return m, m.order(f)
}

var cyclictestHead = regexp.MustCompile(`(?m)^# Histogram\s*$`)

// readCyclictest reads the histogram that cyclictest -h prints, with all threads combined.
func readCyclictest(f *file) (*measurement, error) {
	m := newCyclictest(f)
	sums := map[string][]int64{}
	var values, counts []int64
	threads, inside := 0, false
	for n, line := range f.lines() {
		switch {
		case !inside:
			inside = cyclictestHead.MatchString(line)
			continue
		case line == "":
			continue
		case strings.HasPrefix(line, "# "):
			name, list, ok := strings.Cut(line[2:], ":")
			if !ok || strings.HasPrefix(name, "Thread") || strings.HasPrefix(name, "Histogram Overflow at") {
				continue
			}
			for _, x := range strings.Fields(list) {
				v, err := strconv.ParseInt(x, 10, 64)
				if err != nil || v < 0 || v > 1e12 {
					return nil, f.bad(n, "%q is no count", x)
				}
				sums[name] = append(sums[name], v)
			}
			continue
		}
		c := strings.Fields(line)
		if threads == 0 {
			threads = len(c) - 1
		}
		if len(c) != threads+1 || threads < 1 {
			return nil, f.bad(n, "%d columns, expected %d", len(c), threads+1)
		}
		v, err := nanoseconds(c[0], f.factor())
		if err != nil {
			return nil, f.bad(n, "%v", err)
		}
		for _, x := range c[1:] {
			count, err := strconv.ParseInt(x, 10, 64)
			if err != nil || count < 0 || count > 1e12 {
				return nil, f.bad(n, "%q is no count", x)
			}
			if count > 0 {
				values, counts = append(values, v), append(counts, count)
			}
		}
	}
	for _, x := range sums["Histogram Overflows"] {
		m.beyond += x
	}
	var mean, samples float64
	for i, avg := range sums["Avg Latencies"] {
		if total, over := sums["Total"], sums["Histogram Overflows"]; i < len(total) && i < len(over) {
			mean, samples = mean+float64(avg)*float64(total[i]+over[i]), samples+float64(total[i]+over[i])
		}
	}
	least, most := sums["Min Latencies"], sums["Max Latencies"]
	if len(least) == 0 || len(most) == 0 || samples == 0 {
		return nil, f.bad(0, "no line \"# Min Latencies\", \"# Max Latencies\" or \"# Total\" after the histogram: it is cut off")
	}
	return m, m.overflow(f, values, counts, float64(slices.Min(least)), float64(slices.Max(most)), mean/samples)
}

func newCyclictest(f *file) *measurement {
	m := &measurement{tool: "cyclictest", metric: report.WakeUp, unit: "µs (cyclictest's default; set -unit ns where it ran with -N)", single: "samples have no order in time",
		limits: []string{"values are whole microseconds"}}
	if f.Unit != "" {
		m.unit, m.limits = f.Unit+" (set by -unit)", nil
	}
	return m
}

func (f *file) factor() float64 {
	if f.Unit != "" {
		return units[f.Unit]
	}
	return 1e3
}

// overflow builds the histogram of counts, with m.beyond samples above it, of which only the greatest is known.
func (m *measurement) overflow(f *file, values, counts []int64, least, most, mean float64) error {
	top, err := scaled(most, f.factor())
	if err != nil {
		return f.bad(0, "%v", err)
	}
	m.least, m.most, m.middle = least*f.factor(), float64(top), mean*f.factor()
	if m.beyond > 0 {
		values, counts = append(values, top), append(counts, m.beyond)
	}
	var sum int64
	for _, n := range counts {
		if sum += n; sum > 1e15 {
			return f.bad(0, "counts add up to more than 1e15")
		}
	}
	if m.whole, err = histogram(values, counts); err != nil {
		return f.bad(0, "%v", err)
	}
	return nil
}

var wrkHead = regexp.MustCompile(`(?m)^Running \S+ test @ (\S+)`)

var (
	wrkLine     = regexp.MustCompile(`^(\d+(?:\.\d+)?)%\s+(\d+(?:\.\d+)?)(us|ms|s|m|h)$`)
	wrkRequests = regexp.MustCompile(`^(\d+) requests in `)
	wrkErrors   = regexp.MustCompile(`^(?:Socket errors:|Non-2xx or 3xx responses:)`)
)

// readWrk reads the output of wrk and wrk2 with --latency: the percentiles of wrk, the detailed spectrum of wrk2.
func readWrk(f *file) (*measurement, error) {
	m := &measurement{tool: "wrk", metric: report.Response, unit: "units printed beside the values"}
	m.unknown()
	m.traffic.Target = wrkHead.FindStringSubmatch(f.head)[1]
	wrk2 := spectrumHead.Match(f.text)
	if wrk2 {
		m.tool, m.unit, m.single = "wrk2", "ms (fixed by wrk2)", "samples have no order in time"
		m.traffic.Mode = "open"
	}
	for n, line := range f.lines() {
		if wrkErrors.MatchString(line) {
			m.warnings = append(m.warnings, line)
		}
		if r := wrkRequests.FindStringSubmatch(line); r != nil && !wrk2 {
			m.count, _ = strconv.ParseInt(r[1], 10, 64)
		}
		p := wrkLine.FindStringSubmatch(line)
		if p == nil || wrk2 {
			continue
		}
		factor := units[p[3]]
		switch p[3] {
		case "m":
			factor = 60e9
		case "h":
			factor = 3600e9
		}
		percent, _ := strconv.ParseFloat(p[1], 64)
		ns, err := nanoseconds(p[2], factor)
		if err != nil {
			return nil, f.bad(n, "%v", err)
		}
		if err := m.point(f, n, percent, ns); err != nil {
			return nil, err
		}
	}
	if wrk2 {
		return m, f.spectrum(m, 1e6)
	}
	if len(m.points) == 0 {
		return nil, f.bad(0, "no latency distribution: run it with --latency")
	}
	if m.count > maxCount {
		return nil, f.bad(0, "%d requests: want at most %d", m.count, int64(maxCount))
	}
	m.limits = append(m.limits, "wrk has a closed loop: the time that requests waited to be sent is not in the values")
	return m, m.order(f)
}
