package foreign

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/report"
)

var (
	pingHead  = regexp.MustCompile(`(?m)^PING6?[ (]\S+`)
	pingReply = regexp.MustCompile(`^(.*?)\b(\d+) bytes from ([^,]+?)[:,]? (?:icmp_)?seq=(\d+)\b(.*)$`)
	pingOther = regexp.MustCompile(`^.*?\b\d+ bytes from \S+(?: \([^)]*\))?[:,] (.*)$`)
	pingTime  = regexp.MustCompile(`time([=<])(-?\d+(?:[.,]\d+)?) ?(us|µs|ms|sec|s)\b`)
	pingError = regexp.MustCompile(`^(?:\[[\d.]+\] )?From (\S+)(?: \([^)]*\))?:? icmp_seq=(\d+) (.*)$`)
	pingLost  = regexp.MustCompile(
		`^(?:\[[\d.]+\] )?(?:no answer yet for icmp_seq=|Request timeout for (?:icmp_)?seq[ =])(\d+)$`)
	pingUnsent = regexp.MustCompile(`^\S*ping6?: (?:sendmsg|sendto|sending packet|wrote \S+ \d+ chars)\b`)
	pingSum    = regexp.MustCompile(`(\d+) packets transmitted, (\d+) (?:packets )?received((?:, .*)?)$`)
	pingMore   = regexp.MustCompile(`\+?(\d+) (duplicates|corrupted|errors)`)
	pingRange  = regexp.MustCompile(
		`^(?:rtt|round-trip)(?: \(ms\))? +min/avg/max(?:/(?:mdev|stddev|std-dev))? = (-?[\d.,]+)/(-?[\d.,]+)/(-?[\d.,]+)`)
	pingClock = regexp.MustCompile(`time of day goes back|invalid tv_u?sec`)
	pingWrong = regexp.MustCompile(`^wrong data byte #\d+`)
	pingDump  = regexp.MustCompile(`^(?:#\d+\t?|cp:|dp:|[0-9a-f]{1,2}(?: +[0-9a-f]{1,2})*)(?:\s+[0-9a-f]{1,2}\b)*$`)
	// pingNoise matches lines that are no outcome of a probe: headers, dots of a flood, routes, dumps of headers.
	pingNoise = regexp.MustCompile(
		`^(?:PATTERN: 0x|--- .* statistics ---|----.*Statistics----|\^C|RR:|TS:|[LS]SRR:|NOP|\(same route\)|Unrecorded hops|` +
			`Vr HL TOS|[0-9a-f] +[0-9a-f] +[0-9a-f]{2} [0-9a-f]{4}\b|(?:TCP|UDP|ICMP): |\d+/\d+ packets(?: received)?[, (]|--- |, pipe \d+|pipe \d+|RTT\[ms\]: )|^[.EC!\x08\x07 ]+(?:--- .* ---)?$|^\t`)
	// pingForeign matches replies in languages other than English.
	pingForeign = regexp.MustCompile(`icmp_seq=\d+ ttl=\d+ \S+=[\d.,]+ ?ms|^\d+ \S+.*\b\d+ ?% ?\S*`)
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
		if err != nil || !(seconds >= 0 && seconds <= maxDate) {
			return f.bad(line, "%q is no time in seconds since 1970", stamp)
		}
		at = m.moment(time.Unix(0, int64(math.Round(seconds*1e9))))
	} else if m.timed {
		return f.bad(line, "no time, which earlier lines have")
	}
	return m.add(f, line, at, ns)
}

// moment returns a time in ns since the first one.
func (m *measurement) moment(now time.Time) int64 {
	if m.start.IsZero() {
		m.start, m.timed = now, true
	}
	return now.Sub(m.start).Nanoseconds()
}

// stamps are the times that tools, or ts of moreutils, put before a line, without brackets.
var stamps = []string{time.RFC3339Nano, "2006-01-02T15:04:05-0700", "2006-01-02 15:04:05", "2006-01-02T15:04:05",
	"Mon Jan _2 15:04:05 2006", "Jan 02 15:04:05"}

// stamp returns the time before a line in seconds since 1970, empty if there is none; ok is unset if the text is
// something else.
func stamp(text string) (seconds string, ok bool) {
	text = strings.Trim(strings.TrimSpace(text), "[]")
	if text == "" || clockTime.MatchString(text) { // a time without a date gives no order across midnight
		return "", true
	}
	if isNumber(text) {
		return text, true
	}
	for _, layout := range stamps {
		if t, err := time.Parse(layout, text); err == nil {
			if t.Year() == 0 {
				return "", true
			}
			return fmt.Sprintf("%d.%09d", t.Unix(), t.Nanosecond()), true
		}
	}
	return "", false
}

var clockTime = regexp.MustCompile(`^\d\d:\d\d:\d\d(?:[.,]\d+)?$`)

// number parses a decimal number with a point or, as some languages write it, a comma.
func number(text string) (float64, error) {
	return strconv.ParseFloat(strings.Replace(text, ",", ".", 1), 64)
}

// probes follows the sequence numbers of a ping.
type probes struct {
	first   int64 // number of the first probe
	highest int64 // of those mentioned, with wraps of 16 bits counted
	seen    bool
	good    map[int64]bool // probes with a reply
	bad     map[int64]bool // probes with a corrupt reply
}

// number returns the number of a probe: the printed numbers start again after 65535.
func (p *probes) number(text string) int64 {
	n, _ := strconv.ParseInt(text, 10, 64)
	if n = min(n, 1<<40); n < 1<<16 && p.highest > 1<<15 {
		n += p.highest >> 16 << 16
		if n < p.highest-1<<15 {
			n += 1 << 16
		} else if n > p.highest+1<<15 && n >= 1<<16 {
			n -= 1 << 16
		}
	}
	if p.first < 0 {
		p.first = n
	}
	p.highest, p.seen = max(p.highest, n), true
	return n
}

// onlyBad returns how many probes got nothing but corrupt replies.
func (p *probes) onlyBad() (n int64) {
	for seq := range p.bad {
		if !p.good[seq] {
			n++
		}
	}
	return n
}

// sum is what a tool's own summary says.
type sum struct {
	line                                int
	sent, received, duplicates, corrupt int64
	least, mean, most                   float64 // ns, NaN if unknown
	lineOfRange                         int
}

// setCounts sets the counts of probes from a summary and the lines, and warns where they differ. answered is how many
// replies the lines have that the tool counts as received.
func (m *measurement) setCounts(f *file, s *sum, answered, duplicates int64) error {
	c := &m.counts
	c.Sent, c.Received = s.sent, int64(len(m.samples))+m.untimed
	if len(m.samples) == 0 && m.untimed == 0 && c.Corrupt == 0 && s.received > 0 { // ping -q, -f
		c.Received, c.Duplicates, c.Corrupt = s.received, s.duplicates, s.corrupt
		m.limits = append(m.limits, "the output has a summary only")
		if err := m.summary(f, s); err != nil {
			return err
		}
	} else {
		m.differs(s.line, "replies", s.received, answered)
		m.differs(s.line, "duplicates", s.duplicates, duplicates)
		c.Received += max(s.received-answered, 0)
	}
	if c.Sent < c.Received {
		m.remark(s.line, fmt.Sprintf("more replies (%d) than probes (%d)", c.Received, c.Sent))
	}
	c.CorruptOnly = min(c.CorruptOnly, max(c.Sent-c.Received, 0))
	c.SendFailed = min(c.SendFailed, max(c.Sent-c.Received-c.CorruptOnly, 0))
	c.Lost = max(c.Sent-c.Received-c.CorruptOnly-c.SendFailed, 0)
	return nil
}

// summary uses minimum, mean and maximum as the whole distribution.
func (m *measurement) summary(f *file, s *sum) error {
	if math.IsNaN(s.least) {
		return nil
	}
	m.least, m.middle, m.most = s.least, s.mean, s.most
	m.count = s.received
	m.points = []latency.Percentile{{Quantile: 0, Value: int64(s.least)}, {Quantile: 1, Value: int64(s.most)}}
	return m.order(f)
}

// extent reads minimum, mean and maximum in ms.
func (s *sum) extent(f *file, line int, texts []string) error {
	for i, to := range []*float64{&s.least, &s.mean, &s.most} {
		v, err := number(texts[i])
		if err != nil || !(v*1e6 >= 0 && v*1e6 <= maxLatency) {
			return f.bad(line, "%q is no time in ms", texts[i])
		}
		*to = v * 1e6
	}
	s.lineOfRange = line
	return nil
}

// pings reads the output of ping.
type pings struct {
	*measurement
	f       *file
	p       probes
	s       sum
	headed  int   // line of the header
	answers int64 // replies that ping counts as received
	copies  int64 // duplicates in the lines
	moved   bool  // the clock was set back in the line before
	last    int64 // the probe whose reply is the last sample
	dump    bool  // the line before is part of a dump of a corrupt reply
}

// readPing reads the output of ping (iputils, inetutils, BusyBox, BSD, macOS) and ping6.
func readPing(f *file) (*measurement, error) {
	r := &pings{f: f, measurement: &measurement{tool: "ping", metric: report.RoundTrip, unit: printed,
		traffic: report.Traffic{Protocol: "icmp"}},
		p: probes{first: -1, good: map[int64]bool{}, bad: map[int64]bool{}}, s: sum{least: math.NaN()}}
	for n, line := range f.lines() {
		if err := r.line(n, plainLine(strings.TrimPrefix(strings.TrimPrefix(line, "^C"), "\a"))); err != nil {
			return nil, err
		}
	}
	m := r.measurement
	m.counts.CorruptOnly = r.p.onlyBad()
	if r.s.line > 0 {
		return m, m.setCounts(f, &r.s, r.answers, r.copies)
	}
	c := &m.counts
	c.Received = int64(len(m.samples)) + m.untimed
	if r.p.seen {
		c.Sent = max(r.p.highest-r.p.first+1, c.Received+c.CorruptOnly)
	} else {
		c.Sent = c.Received
	}
	c.SendFailed = min(c.SendFailed, max(c.Sent-c.Received-c.CorruptOnly, 0))
	c.Lost = max(c.Sent-c.Received-c.CorruptOnly-c.SendFailed, 0)
	m.warnings = append(m.warnings,
		"the output has no statistics at its end: whether probes after the last line were lost is unknown")
	return m, nil
}

// line reads line n of ping's output: a reply, a heading, or a part of the final statistics. An error names the line.
func (r *pings) line(n int, line string) error {
	moved, dump := r.moved, r.dump
	r.moved, r.dump = false, false
	if s := pingReply.FindStringSubmatch(line); s != nil {
		return r.reply(n, s, moved)
	}
	switch {
	case line == "":
	case pingHead.MatchString(line):
		if r.headed > 0 || r.s.line > 0 {
			return r.f.bad(n, "a second measurement: put each into its own file")
		}
		r.headed = n
		switch { // the number of the first probe
		case strings.Contains(line, "bytes of data"):
			r.p.first = 1
		case strings.Contains(line, "data bytes"), strings.HasPrefix(line, "PING6"):
			r.p.first = 0
		}
		r.traffic.Target, _, _ = strings.Cut(strings.TrimSuffix(strings.Fields(line + " ?")[1], ":"), "(")
		if i := strings.LastIndex(line, "--> "); i >= 0 {
			r.traffic.Target = line[i+4:]
		}
	case pingSum.MatchString(line):
		return r.total(n, line)
	case pingRange.MatchString(line):
		return r.s.extent(r.f, n, pingRange.FindStringSubmatch(line)[1:])
	case pingLost.MatchString(line):
		r.p.number(pingLost.FindStringSubmatch(line)[1])
	case pingError.MatchString(line):
		s := pingError.FindStringSubmatch(line)
		r.p.number(s[2])
		r.refused(n, s[3])
	case pingOther.MatchString(line) && !pingTime.MatchString(line): // an ICMP error as BSD prints it
		r.refused(n, pingOther.FindStringSubmatch(line)[1])
	case pingUnsent.MatchString(line):
		r.counts.SendFailed++
		r.remark(n, "a probe was not sent: "+line)
	case pingClock.MatchString(line):
		r.moved = true
		r.remark(n, "the clock was set while ping measured: "+line)
	case pingWrong.MatchString(line):
		r.dump = true
		return r.removeLast(n, line)
	case dump && pingDump.MatchString(line):
		r.dump = true
	case pingNoise.MatchString(line):
	case strings.HasPrefix(line, "ping: ") || strings.HasPrefix(line, "ping6: ") || strings.HasPrefix(line, "WARNING:"):
		r.remark(n, line)
	default:
		if pingForeign.MatchString(line) {
			r.hint = "if it is another language than English, run ping with LC_ALL=C"
		}
		return r.unparsed(r.f, n, line)
	}
	return nil
}

// refused notes an ICMP error. A redirect is no reply and no loss.
func (r *pings) refused(n int, what string) {
	what, _, _ = strings.Cut(what, "(New ")
	r.remark(n, "an ICMP error, which is no reply: "+what)
}

// reply reads a line of a reply.
func (r *pings) reply(n int, s []string, moved bool) error {
	before, from, rest := s[1], s[3], s[5]
	at := r.p.number(s[4])
	switch {
	case strings.Contains(rest, "(DUP!)"):
		r.counts.Duplicates++
		r.copies++
		return nil
	case strings.Contains(rest, "BAD CHECKSUM"):
		r.corrupt(at, n, "a reply with a bad checksum")
		return nil
	case strings.Contains(rest, "DIFFERENT ADDRESS"):
		r.answers++
		r.corrupt(at, n, "a reply from another address than the target, "+from+", which does not count")
		return nil
	case strings.Contains(rest, "truncated"):
		r.answers++
		r.corrupt(at, n, "a truncated reply")
		return nil
	}
	r.answers++
	t := pingTime.FindStringSubmatch(rest)
	if t == nil {
		r.p.good[at] = true
		r.noTime(n, "a reply without a time (ping prints none with -s below 16)")
		return nil
	}
	v, err := number(t[2])
	switch {
	case err != nil:
		return r.f.bad(n, "%q is not a number", t[2])
	case v < 0, moved:
		r.p.good[at] = true
		r.noTime(n, "a reply with a wrong time, because the clock was set: "+t[0])
		return nil
	}
	ns, err := scaled(v, units[t[3]])
	if err != nil {
		return r.f.bad(n, "%v", err)
	}
	when, ok := stamp(before)
	if !ok {
		r.remark(n, fmt.Sprintf("text before a reply that is no time, %.40q", before))
	}
	if t[1] == "<" {
		r.remark(n, "times below the clock's step are counted as "+t[2]+" "+t[3])
	}
	r.p.good[at], r.last = true, at
	return r.dated(r.f, n, when, ns)
}

// noTime counts a reply whose round trip is unknown.
func (m *measurement) noTime(n int, what string) {
	m.untimed++
	m.remark(n, what)
}

func (r *pings) corrupt(at int64, n int, what string) {
	r.counts.Corrupt++
	r.p.bad[at] = true
	r.remark(n, what)
}

// removeLast removes the last reply, whose payload the line says to be wrong.
func (r *pings) removeLast(n int, line string) error {
	if len(r.samples) == 0 || !r.p.good[r.last] {
		return r.unparsed(r.f, n, line)
	}
	r.samples = slices.Delete(r.samples, len(r.samples)-1, len(r.samples))
	delete(r.p.good, r.last)
	r.corrupt(r.last, n, "a reply with a wrong payload")
	return nil
}

// total reads the line with the counts.
func (r *pings) total(n int, line string) error {
	if r.s.line > 0 {
		return r.f.bad(n, "a second measurement: put each into its own file")
	}
	s := pingSum.FindStringSubmatch(line)
	r.s.line = n
	var err, err2 error
	r.s.sent, err = strconv.ParseInt(s[1], 10, 64)
	r.s.received, err2 = strconv.ParseInt(s[2], 10, 64)
	for _, more := range pingMore.FindAllStringSubmatch(s[3], -1) {
		count, err := strconv.ParseInt(more[1], 10, 64)
		if err != nil {
			return r.f.bad(n, "%q is no count", more[1])
		}
		switch more[2] {
		case "duplicates":
			r.s.duplicates = count
		case "corrupted":
			r.s.corrupt = count
		}
	}
	if err != nil || err2 != nil || max(r.s.sent, r.s.received, r.s.duplicates, r.s.corrupt) > maxCount {
		return r.f.bad(n, "counts above %g", maxCount)
	}
	return nil
}

var (
	windowsHead = regexp.MustCompile(
		`(?m): (?:\S+=\d+ )?\S+[=<]\d+ ?ms(?: TTL=\d+)?\s*$|^Pinging \S+.* with \d+ bytes of data:|^\s*\S+: \S+ = \d+, \S+ = \d+, \S+ = \d+ \(\d+ ?%`)
	windowsReply = regexp.MustCompile(`^(?:\S+ )+?(\S+): (?:\S+=\d+ )?\S+?([=<])(\d+) ?ms(?: TTL=\d+)?$`)
	windowsSum   = regexp.MustCompile(`^\S+: \S+ = (\d+), \S+ = (\d+), \S+ = (\d+)`)
	windowsRange = regexp.MustCompile(`^\S+ = (\d+) ?ms, \S+ = (\d+) ?ms, \S+ = (\d+) ?ms$`)
	windowsLost  = regexp.MustCompile(`^(?:Request timed out\.|General failure\.|PING: transmit failed.*)$`)
	windowsError = regexp.MustCompile(`^Reply from \S+: (.*[a-z]\.)$`)
	windowsNoise = regexp.MustCompile(
		`^(?:Pinging .* data:|Ping statistics for .*:|Approximate round trip times in milli-seconds:|Control-C|\^C|\S:\\.*>.*)$`)
)

// readWindows reads the output of Windows' ping. Replies and statistics have one form in all languages. Windows counts
// ICMP errors as received.
func readWindows(f *file) (*measurement, error) {
	m := &measurement{tool: "ping", metric: report.RoundTrip, unit: "ms (printed on each line)",
		traffic: report.Traffic{Protocol: "icmp"},
		limits:  []string{"values are whole milliseconds; those below one count as 1 ms"}}
	var refused, lost int64
	s := sum{least: math.NaN()}
	for n, line := range f.lines() {
		if r := windowsReply.FindStringSubmatch(line); r != nil {
			ns, err := nanoseconds(r[3], 1e6)
			if err != nil {
				return nil, f.bad(n, "%v", err)
			}
			if s.line > 0 {
				return nil, f.bad(n, "a second measurement: put each into its own file")
			}
			m.traffic.Target = r[1]
			if err := m.add(f, n, 0, ns); err != nil {
				return nil, err
			}
			continue
		}
		switch {
		case line == "", windowsNoise.MatchString(line):
		case windowsLost.MatchString(line):
			if lost++; line != "Request timed out." {
				m.counts.SendFailed++
				m.remark(n, "a probe was not sent: "+line)
			}
		case windowsSum.MatchString(line):
			if s.line > 0 {
				return nil, f.bad(n, "a second measurement: put each into its own file")
			}
			s.line = n
			for i, to := range []*int64{&s.sent, &s.received} {
				v, err := strconv.ParseInt(windowsSum.FindStringSubmatch(line)[i+1], 10, 64)
				if err != nil || v > maxCount {
					return nil, f.bad(n, "counts above %g", maxCount)
				}
				*to = v
			}
		case windowsRange.MatchString(line): // minimum, maximum, mean
			r := windowsRange.FindStringSubmatch(line)
			if err := s.extent(f, n, []string{r[1], r[3], r[2]}); err != nil {
				return nil, err
			}
		case windowsError.MatchString(line):
			refused++
			m.remark(n, "an ICMP error, which is no reply: "+windowsError.FindStringSubmatch(line)[1])
		default:
			if err := m.unparsed(f, n, line); err != nil {
				return nil, err
			}
		}
	}
	if s.line > 0 {
		return m, m.setCounts(f, &s, int64(len(m.samples))+refused, 0)
	}
	c := &m.counts
	c.Received = int64(len(m.samples))
	c.Sent = c.Received + refused + lost
	c.Lost = c.Sent - c.Received - c.SendFailed
	m.warnings = append(m.warnings,
		"the output has no statistics at its end: whether probes after the last line were lost is unknown")
	return m, nil
}
