package foreign

import (
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/rebound-nic/rebound/latency/report"
)

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

var (
	netperfHead  = regexp.MustCompile(`(?m)^(?:MIGRATED |OMNI )|_LATENCY=|Latency Microseconds`)
	netperfKey   = regexp.MustCompile(`^([A-Z0-9_]+)_LATENCY=(\S+)$`)
	netperfShort = regexp.MustCompile(`^P(\d+)$`)
	netperfNoise = regexp.MustCompile(
		`^(?:[A-Z][A-Z0-9_]*=|OMNI |MIGRATED |Size |Socket |bytes |Send |Recv |Local |Remote |Using |=+$)`) // other keys and headers
	// netperfOther matches what may be a percentile that is not understood.
	netperfOther = regexp.MustCompile(`^P\d+_|^[A-Z0-9_]*LAT|(?:Percen|Laten|Microsec)`)
	netperfTest  = regexp.MustCompile(`^(?:MIGRATED |OMNI ).* (?:TEST|Test)\b`)
	netperfLong  = regexp.MustCompile(
		`^(Minimum|Mean|Maximum|Stddev|\d+)(?:st|nd|rd|th)?(?: Percentile)? Latency Microseconds$`)
)

// readNetperf reads the latency keys in the output of netperf -k and -o for its omni tests.
func readNetperf(f *file) (*measurement, error) {
	m := &measurement{tool: "netperf", metric: report.RoundTrip, unit: "µs (fixed by netperf)",
		limits: []string{"percentiles are whole microseconds, from netperf's histogram"}}
	m.unknown()
	seen := map[string]bool{}
	headed, filled := false, false
	set := func(line int, key, value string) error {
		v, err := strconv.ParseFloat(value, 64)
		if err != nil || !(v*1e3 >= 0 && v*1e3 < maxLatency) {
			return f.bad(line, "%s is %q, want a number of microseconds", key, value)
		}
		if seen[key] {
			return f.bad(line, "%s again: put each measurement into its own file", key)
		}
		seen[key] = true
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
			if err != nil && (key == "STDDEV" || key == "Stddev" || key == "RT") {
				return nil
			} else if err != nil {
				return m.unparsed(f, line, key+"_LATENCY")
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
		case netperfTest.MatchString(line):
			if headed {
				return nil, f.bad(n, "a second measurement: put each into its own file")
			}
			headed = true
		case strings.Contains(line, "Latency Microseconds"):
			if header != nil {
				return nil, f.bad(n, "the column names again: put each measurement into its own file")
			}
			header = c
			for _, name := range c {
				if netperfOther.MatchString(name) && !netperfLong.MatchString(name) {
					if err := m.unparsed(f, n, name); err != nil {
						return nil, err
					}
				}
			}
		case header != nil && len(c) == len(header):
			if filled {
				return nil, f.bad(n, "a second measurement: put each into its own file")
			}
			filled = true
			for i, name := range header {
				if k := netperfLong.FindStringSubmatch(name); k != nil {
					if err := set(n, k[1], c[i]); err != nil {
						return nil, err
					}
				}
			}
		case header != nil && line != "":
			return nil, f.bad(n, "%d columns, expected %d", len(c), len(header))
		case line != "" && (!netperfNoise.MatchString(line) || netperfOther.MatchString(line)):
			if err := m.unparsed(f, n, line); err != nil {
				return nil, err
			}
		}
	}
	if len(m.points) == 0 {
		return nil, f.bad(0, "no percentiles (netperf -t UDP_RR -- -k MIN_LATENCY,MEAN_LATENCY,P50_LATENCY,P90_LATENCY,P99_LATENCY,MAX_LATENCY)")
	}
	return m, m.order(f)
}

var (
	cyclictestHead = regexp.MustCompile(`(?m)^# Histogram\s*$`)
	// cyclictestSum matches the lines after the histogram, and cyclictestNoise what cyclictest prints before and after
	// it.
	cyclictestSum   = regexp.MustCompile(`^(?:Total|Min Latencies|Avg Latencies|Max Latencies|Histogram Overflows)$`)
	cyclictestNoise = regexp.MustCompile(
		`^(?:# (?:/dev/cpu_dma_latency|Thread \d+:|Histogram Overflow at).*|(?:T: ?\d+ \(|policy: |WARN: |/dev/cpu_dma_latency ).*)?$`)
)

// readCyclictest reads the histogram that cyclictest -h prints, with all threads combined.
func readCyclictest(f *file) (*measurement, error) {
	m := newCyclictest(f)
	sums := map[string][]int64{}
	var values, counts []int64
	threads, inside := 0, false
	for n, line := range f.lines() {
		switch {
		case cyclictestHead.MatchString(line):
			if inside {
				return nil, f.bad(n, "a second histogram: put each measurement into its own file")
			}
			inside = true
			continue
		case cyclictestNoise.MatchString(line):
			continue
		case !inside || strings.HasPrefix(line, "#"):
			name, list, _ := strings.Cut(strings.TrimPrefix(line, "# "), ":")
			if !inside || !cyclictestSum.MatchString(name) {
				if err := m.unparsed(f, n, line); err != nil {
					return nil, err
				}
				continue
			}
			if sums[name] != nil {
				return nil, f.bad(n, "%s again: put each measurement into its own file", name)
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
	var total, inFile int64
	for _, x := range sums["Total"] {
		total += x
	}
	for _, x := range counts {
		inFile += x
	}
	m.differs(0, "samples in the histogram", total, inFile)
	return m, m.overflow(f, values, counts, float64(slices.Min(least)), float64(slices.Max(most)), mean/samples)
}

func newCyclictest(f *file) *measurement {
	m := &measurement{tool: "cyclictest", metric: report.WakeUp,
		unit: "µs (cyclictest's default; set -unit ns where it ran with -N)", single: "samples have no order in time",
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
	wrkNoise    = regexp.MustCompile(
		`^(?:Running |\d+ threads and \d+ connections$|Thread (?:Stats|calibration)\b|Latency +[\d.]|Req/Sec +\S|Latency Distribution\b|Requests/sec: |Transfer/sec: |Initialised \d|Uncorrected Latency|Detailed Percentile spectrum:)`)
	wrkErrors = regexp.MustCompile(`^(?:Socket errors:|Non-2xx or 3xx responses:)`)
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
	headed, inside := false, false
	for n, line := range f.lines() {
		if strings.HasPrefix(line, "Running ") {
			if headed {
				return nil, f.bad(n, "a second measurement: put each into its own file")
			}
			headed = true
		}
		// see spectrum
		if inside = wrk2 && (inside || spectrumHead.MatchString(line)) && !strings.HasPrefix(line, "-----"); inside {
			continue
		}
		p := wrkLine.FindStringSubmatch(line)
		switch r := wrkRequests.FindStringSubmatch(line); {
		case wrkErrors.MatchString(line):
			m.warnings = append(m.warnings, line)
		case r != nil && !wrk2:
			m.count, _ = strconv.ParseInt(r[1], 10, 64)
		case line == "", r != nil, p != nil, strings.HasPrefix(line, "-----"), wrkNoise.MatchString(line):
		default:
			if err := m.unparsed(f, n, line); err != nil {
				return nil, err
			}
		}
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
