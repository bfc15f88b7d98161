package foreign

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/rebound-nic/rebound/latency/report"
)

var (
	fpingHead = regexp.MustCompile(
		`(?m)^(?:\[[^\]\n]+\] )?\S+(?: \([^)\n]*\))?\s*: (?:\[\d+\], (?:\d+ bytes|timed out)|duplicate for \[|xmt/rcv/%loss = |(?:\d+[.,]\d+|-)(?: (?:\d+(?:[.,]\d+)?|-))*\s*$)`)
	fpingLine = regexp.MustCompile(
		`^(?:\[([^\]]*\d[^\]]*)\] )?(\S+(?: \([^)]*\))?)\s*: \[(\d+)\], (?:\d+ bytes, (-?\d+(?:[.,]\d+)?) ms|(timed out))`)
	fpingCopy = regexp.MustCompile(`^(?:\[[^\]]*\] )?(\S+(?: \([^)]*\))?)\s*: duplicate for \[\d+\]`)
	fpingSum  = regexp.MustCompile(
		`^(\S+(?: \([^)]*\))?)\s*: xmt/rcv/%(?:loss|return) = (\d+)/(\d+)/[^,]*(?:, min/avg/max = ([\d.,]+)/([\d.,]+)/([\d.,]+))?`)
	fpingAll  = regexp.MustCompile(`^(\S+(?: \([^)]*\))?)\s*: ((?:\d+(?:[.,]\d+)?|-)(?: (?:\d+(?:[.,]\d+)?|-))*)$`)
	fpingICMP = regexp.MustCompile(`^(ICMP .*) from \S+ for ICMP Echo sent to (\S+)`)
	fpingSpan = regexp.MustCompile(`^\[\d\d:\d\d:\d\d\]$`)
	fpingMore = regexp.MustCompile(
		`^(?:\d+ (?:targets|alive|unreachable|unknown addresses|timeouts\b.*|ICMP .*|other ICMP received)|[\d.]+ (?:ms|sec) \(.*\))$`)
	fpingJSON = regexp.MustCompile(
		`^\s*\{\s*"(?:(?:resp|timeout|summary|vSum|intSum)"\s*:\s*\{\s*"(?:host|time)"|stats"\s*:\s*\{\s*"targets")`)
)

// fpings reads the output of fping, by target.
type fpings struct {
	f       *file
	targets map[string]*fpingTarget
	names   []string
}

type fpingTarget struct {
	measurement
	s      sum
	seen   map[int64]bool
	copies int64
	all    bool // it has the line of -C
}

func newFpings(f *file) *fpings { return &fpings{f: f, targets: map[string]*fpingTarget{}} }

func (r *fpings) target(name string) *fpingTarget {
	t := r.targets[name]
	if t == nil {
		if len(r.names) < maxRuns {
			r.names = append(r.names, name)
		}
		t = &fpingTarget{seen: map[int64]bool{}, s: sum{least: math.NaN()}}
		t.measurement = measurement{tool: "fping", metric: report.RoundTrip, unit: printed,
			traffic: report.Traffic{Protocol: "icmp", Target: name}}
		r.targets[name] = t
	}
	return t
}

// readFping reads the output of fping -c and -C, with and without -D, -A, -n and -q. Options.Series selects a target.
func readFping(f *file) (*measurement, error) {
	r := newFpings(f)
	var odd measurement // lines that belong to no target
	span := false
	for n, line := range f.lines() {
		handled, err := r.line(n, line, span)
		if err != nil {
			return nil, err
		}
		if handled {
			continue
		}
		switch {
		case line == "":
			span = false
		case fpingSpan.MatchString(line): // the summaries of an interval follow (-Q)
			span = true
		case fpingMore.MatchString(line):
		case fpingICMP.MatchString(line):
			odd.remark(n, "an ICMP error, which is no reply: "+fpingICMP.FindStringSubmatch(line)[1])
		case strings.Contains(line, ": Name or service not known"), strings.Contains(line, "address not found"),
			strings.HasPrefix(line, "fping: "):
			odd.remark(n, line)
		default:
			if err := odd.unparsed(f, n, line); err != nil {
				return nil, err
			}
		}
	}
	return r.chosen(&odd)
}

// line reads a line of a target; handled is unset if it is none.
func (r *fpings) line(n int, line string, span bool) (handled bool, err error) {
	if s := fpingLine.FindStringSubmatch(line); s != nil {
		seq, _ := strconv.ParseInt(s[3], 10, 64)
		if s[5] != "" {
			return true, r.lost(n, s[2], seq)
		}
		v, err := number(s[4])
		if err != nil {
			return true, r.f.bad(n, "%q is not a number", s[4])
		}
		when, ok := stamp(s[1])
		if !ok {
			r.target(s[2]).remark(n, fmt.Sprintf("a time in a form that is not understood, %.40q", s[1]))
		}
		return true, r.reply(n, s[2], seq, v, when)
	}
	if s := fpingCopy.FindStringSubmatch(line); s != nil {
		t := r.target(s[1])
		t.counts.Duplicates++
		return true, nil
	}
	if s := fpingSum.FindStringSubmatch(line); s != nil {
		if span {
			if t := r.targets[s[1]]; t == nil || t.s.line == 0 || len(t.samples) > 0 {
				r.target(s[1])
				return true, nil
			}
		}
		t := r.target(s[1])
		if t.s.line > 0 {
			return true, r.f.bad(n, "a second summary of %s: put each measurement into its own file", s[1])
		}
		t.s.line = n
		for i, to := range []*int64{&t.s.sent, &t.s.received} {
			v, err := strconv.ParseInt(s[i+2], 10, 64)
			if err != nil || v > maxCount {
				return true, r.f.bad(n, "a count above %g", maxCount)
			}
			*to = v
		}
		if s[4] != "" {
			return true, t.s.extent(r.f, n, s[4:7])
		}
		return true, nil
	}
	if s := fpingAll.FindStringSubmatch(line); s != nil {
		values := make([]*float64, 0, len(s[2])/2)
		for _, text := range strings.Fields(s[2]) {
			if text == "-" {
				values = append(values, nil)
				continue
			}
			v, err := number(text)
			if err != nil {
				return true, r.f.bad(n, "%q is not a number", text)
			}
			values = append(values, &v)
		}
		return true, r.values(n, s[1], values)
	}
	return false, nil
}

// once returns an error for a probe that was seen before.
func (t *fpingTarget) once(f *file, n int, name string, seq int64) error {
	if t.seen[seq] || t.s.line > 0 || t.all {
		return f.bad(n, "probe %d of %s again: put each measurement into its own file", seq, name)
	}
	t.seen[seq] = true
	t.counts.Sent++
	return nil
}

func (r *fpings) lost(n int, name string, seq int64) error {
	return r.target(name).once(r.f, n, name, seq)
}

// reply records a round trip in ms.
func (r *fpings) reply(n int, name string, seq int64, ms float64, when string) error {
	t := r.target(name)
	if err := t.once(r.f, n, name, seq); err != nil {
		return err
	}
	if ms < 0 {
		t.noTime(n, "a reply with a negative time, because the clock was set")
		return nil
	}
	ns, err := scaled(ms, 1e6)
	if err != nil {
		return r.f.bad(n, "%v", err)
	}
	return t.dated(r.f, n, when, ns)
}

// values reads the round trips of -C, of which nil is lost. Without -q they repeat the lines.
func (r *fpings) values(n int, name string, values []*float64) error {
	t := r.target(name)
	if t.all || t.s.line > 0 {
		return r.f.bad(n, "a second summary of %s: put each measurement into its own file", name)
	}
	t.all = true
	answered, before := int64(0), t.counts.Sent
	for _, v := range values {
		if v == nil {
			continue
		}
		if answered++; before > 0 {
			continue
		}
		ns, err := scaled(*v, 1e6)
		if err != nil {
			return r.f.bad(n, "%v", err)
		}
		if err := t.add(r.f, n, 0, ns); err != nil {
			return err
		}
	}
	if before > 0 {
		t.differs(n, "replies", answered, int64(len(t.samples))+t.untimed)
		t.differs(n, "probes", int64(len(values)), before)
	}
	t.counts.Sent = max(before, int64(len(values)))
	return nil
}

// chosen returns the measurement of the target that Options.Series selects.
func (r *fpings) chosen(odd *measurement) (*measurement, error) {
	name, err := r.f.choose("target", r.names)
	if err != nil {
		return nil, err
	}
	t := r.targets[name]
	m := &t.measurement
	m.counts.Unparsed += odd.counts.Unparsed
	m.remarks, m.odd = append(m.remarks, odd.remarks...), odd.odd
	if t.s.line > 0 {
		return m, m.setCounts(r.f, &t.s, int64(len(m.samples))+m.untimed, 0)
	}
	m.counts.Received = int64(len(m.samples)) + m.untimed
	m.counts.Lost = max(m.counts.Sent-m.counts.Received, 0)
	if last := slices.Max(append(slices.Collect(maps.Keys(t.seen)), -1)); last+1 > int64(len(t.seen)) && !t.all {
		m.warnings = append(m.warnings,
			fmt.Sprintf("of %d probes up to number %d, %d have no line: whether they were lost is unknown", last+1,
				last, last+1-int64(len(t.seen))))
	}
	return m, nil
}

// readFpingJSON reads the output of fping -J: a JSON object on each line.
func readFpingJSON(f *file) (*measurement, error) {
	r := newFpings(f)
	var odd measurement
	for n, line := range f.lines() {
		if line == "" {
			continue
		}
		var in struct {
			Resp, Timeout *struct {
				Host string   `json:"host"`
				Seq  int64    `json:"seq"`
				RTT  *float64 `json:"rtt"`
			}
			Summary *struct {
				Host                   string `json:"host"`
				Sent                   int64  `json:"xmt"`
				Received               int64  `json:"rcv"`
				RTTMin, RTTAvg, RTTMax *float64
			}
			Values *struct {
				Host   string     `json:"host"`
				Values []*float64 `json:"values"`
			} `json:"vSum"`
			Stats, IntSum *json.RawMessage
		}
		if err := json.Unmarshal([]byte(line), &in); err != nil {
			if line[0] == '{' {
				return nil, f.bad(n, "%v", err)
			}
			if err := odd.unparsed(f, n, line); err != nil { // warnings are no JSON
				return nil, err
			}
			continue
		}
		var err error
		switch {
		case in.Resp != nil && in.Resp.RTT != nil:
			err = r.reply(n, in.Resp.Host, in.Resp.Seq, *in.Resp.RTT, "")
		case in.Timeout != nil:
			err = r.lost(n, in.Timeout.Host, in.Timeout.Seq)
		case in.Values != nil:
			err = r.values(n, in.Values.Host, in.Values.Values)
		case in.Summary != nil:
			err = r.summary(n, in.Summary.Host, in.Summary.Sent, in.Summary.Received,
				[]*float64{in.Summary.RTTMin, in.Summary.RTTAvg, in.Summary.RTTMax})
		case in.Stats != nil, in.IntSum != nil:
		default:
			err = odd.unparsed(f, n, line)
		}
		if err != nil {
			return nil, err
		}
	}
	return r.chosen(&odd)
}

// summary reads the counts of a target in JSON, with minimum, mean and maximum in ms.
func (r *fpings) summary(n int, name string, sent, received int64, times []*float64) error {
	t := r.target(name)
	if t.s.line > 0 {
		return r.f.bad(n, "a second summary of %s: put each measurement into its own file", name)
	}
	if min(sent, received) < 0 || max(sent, received) > maxCount {
		return r.f.bad(n, "%d sent and %d received: want 0 to %g", sent, received, maxCount)
	}
	t.s.line, t.s.sent, t.s.received = n, sent, received
	if slices.Contains(times, nil) {
		return nil
	}
	var texts []string
	for _, v := range times {
		texts = append(texts, strconv.FormatFloat(*v, 'g', -1, 64))
	}
	return t.s.extent(r.f, n, texts)
}
