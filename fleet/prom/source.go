// Package prom reads the data of watches from a Prometheus: the native histograms of round trips in a time range, as a
// report whose runs are windows of that range.
package prom

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/compare"
	"github.com/rebound-nic/rebound/latency/sanitize"
)

// Prefix starts the name of a source where a report's folder could be given as well.
const Prefix = "prom:"

// Source is a time range and a series of a Prometheus:
// "prom:http://127.0.0.1:9090?target=icmp:10.0.0.2&from=now-2h&to=now-1h".
type Source struct {
	Base     string // URL of the server, without a trailing slash
	Metric   string
	Labels   []Label // required labels of the series, including target; ascending by name
	From, To time.Time
	Windows  int
}

// Label is a label with its value.
type Label struct{ Name, Value string }

// Defaults of a Source, and its bounds.
const (
	DefaultMetric  = "rebound_rtt_seconds"
	DefaultWindows = 12
	maxWindows     = 1000
)

const example = "want prom:http://HOST:9090?target=icmp:10.0.0.2&from=2026-11-22T10:00:00Z&to=2026-11-22T11:00:00Z"

// Parse parses a source. In addition to target, from and to it may have windows (the number of runs that the time range
// is divided into), metric, and required labels of the series: instance=a:9470. from and to may be relative to now.
func Parse(text string, now time.Time) (*Source, error) {
	fail := func(format string, args ...any) (*Source, error) {
		return nil, fmt.Errorf("%q: %w; %s", text, fmt.Errorf(format, args...), example)
	}
	rest, ok := strings.CutPrefix(text, Prefix)
	if !ok {
		return fail("it does not begin with %s", Prefix)
	}
	base, query, _ := strings.Cut(rest, "?")
	s := &Source{Metric: DefaultMetric, Windows: DefaultWindows}
	var err error
	if s.Base, err = ParseBase(base); err != nil {
		return fail("%w", err)
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return fail("%w", err)
	}
	target := false
	for name, list := range values {
		if len(list) != 1 {
			return fail("%s is given %d times", name, len(list))
		}
		v := list[0]
		switch name {
		case "from":
			s.From, err = ParseTime(v, now)
		case "to":
			s.To, err = ParseTime(v, now)
		case "windows":
			if s.Windows, err = strconv.Atoi(v); err != nil || s.Windows < 1 || s.Windows > maxWindows {
				err = fmt.Errorf("%q is not 1 to %d", v, maxWindows)
			}
		case "metric":
			if s.Metric = v; !metricName.MatchString(v) {
				err = fmt.Errorf("%q is not the name of a metric", v)
			}
		default:
			if CheckLabel(name) != nil {
				return fail("%q: want from, to, windows, metric or the name of a label", name)
			}
			target = target || name == "target"
			s.Labels = append(s.Labels, Label{name, v})
		}
		if err != nil {
			return fail("%s: %w", name, err)
		}
	}
	slices.SortFunc(s.Labels, func(a, b Label) int { return strings.Compare(a.Name, b.Name) })
	switch {
	case !target:
		return fail("target is missing: name one of the watch's targets")
	case s.From.IsZero() || s.To.IsZero():
		return fail("from and to are both required")
	case !s.From.Before(s.To):
		return fail("from (%s) is not before to (%s)", s.From.Format(time.RFC3339), s.To.Format(time.RFC3339))
	case s.Step() < time.Second:
		return fail("%v split into %d windows: want at least a second each", s.To.Sub(s.From), s.Windows)
	}
	return s, nil
}

// ParseBase parses the URL of a server.
func ParseBase(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.Fragment != "" || u.RawQuery != "" {
		return "", fmt.Errorf("%q is not the URL of a server (http:// or https://)", text)
	}
	return strings.TrimRight(u.String(), "/"), nil
}

// CheckLabel returns an error for an invalid label name.
func CheckLabel(name string) error {
	if !labelName.MatchString(name) {
		return fmt.Errorf("%q is not the name of a label: want letters, digits and underscores, not a digit first",
			name)
	}
	return nil
}

var (
	metricName = regexp.MustCompile(`^[a-zA-Z_:][a-zA-Z0-9_:]*$`)
	labelName  = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)
)

// Step is the length of a window.
func (s *Source) Step() time.Duration { return s.To.Sub(s.From) / time.Duration(s.Windows) }

// selector is the series in PromQL.
func (s *Source) selector(metric string) string {
	pairs := make([]string, len(s.Labels))
	for i, l := range s.Labels {
		pairs[i] = l.Name + "=" + strconv.Quote(l.Value)
	}
	return metric + "{" + strings.Join(pairs, ",") + "}"
}

// Name is the name of the source in tables.
func (s *Source) Name() string {
	target, others := "", ""
	for _, l := range s.Labels {
		if l.Name == "target" {
			target = l.Value
		} else {
			others += " " + l.Name + "=" + l.Value
		}
	}
	return fmt.Sprintf("%s%s %s", target, others, s.From.UTC().Format("2006-01-02 15:04Z"))
}

// ParseTime parses a time: RFC 3339, "2026-11-22T10:00" or "2026-11-22" in UTC, seconds since 1970, "now", or a
// relative time such as "now-90m".
func ParseTime(text string, now time.Time) (time.Time, error) {
	text = strings.ReplaceAll(text, " ", "+") // a query decodes the plus sign of a time zone as a space
	if rest, ok := strings.CutPrefix(text, "now"); ok {
		if rest == "" {
			return now, nil
		}
		back := rest
		if n, ok := strings.CutSuffix(rest, "d"); ok {
			days, err := strconv.ParseFloat(n, 64)
			if err != nil || !(days > -40000 && days < 40000) {
				return now, fmt.Errorf("%q is not a time", text)
			}
			back = fmt.Sprintf("%fh", 24*days)
		}
		d, err := time.ParseDuration(back)
		if err != nil || !strings.HasPrefix(rest, "-") {
			return now, fmt.Errorf("%q: want now, now-90m, now-2h or now-7d", text)
		}
		return now.Add(d), nil
	}
	if seconds, err := strconv.ParseFloat(text, 64); err == nil {
		if !(seconds >= 0 && seconds < 1e11) {
			return now, fmt.Errorf("%q is not a number of seconds since 1970", text)
		}
		return time.UnixMilli(int64(seconds * 1e3)).UTC(), nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04", "2006-01-02"} {
		if t, err := time.Parse(layout, text); err == nil && t.Year() >= 1970 && t.Year() < 4000 {
			return t, nil
		}
	}
	return now, fmt.Errorf("%q is not a time, like 2026-11-22T10:00:00Z, now-2h or 1795341600", text)
}

// Advice states the limits of a comparison with a side from a Prometheus. width is that of the coarsest bucket, as a
// share.
func Advice(s *Source, width float64) []string {
	out := []string{fmt.Sprintf(
		"%s: each of %s of %s counts as one run; a verdict needs %d on each side, with enough samples in each",
		s.Name(), sanitize.Count(s.Windows, "window"), timeText(s.Step()), compare.MinRuns)}
	if width > 0 {
		out = append(out, fmt.Sprintf(
			"%s: percentiles are accurate to %s, the width of Prometheus' buckets; a shift within one bucket is not seen", s.Name(), latency.FormatShare(width)))
	}
	return append(out, fmt.Sprintf(
		"%s: minimum and maximum are bounds of buckets; single round trips, their order and this host's own delays are unknown", s.Name()))
}
