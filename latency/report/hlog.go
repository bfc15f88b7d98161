package report

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/rebound-nic/rebound/latency"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// WriteHlog writes the intervals of all series as an HdrHistogram log, format 1.3. The main series carries no tag,
// every other series its name. Timestamps are relative to start, as the StartTime and BaseTime lines state;
// Interval_Max is in milliseconds with six decimals, so it is exact to the nanosecond.
func WriteHlog(w io.Writer, start time.Time, series []*latency.Series) error {
	b := bufio.NewWriter(w)
	WriteHlogHead(b, start)
	for _, s := range series {
		for _, iv := range s.Intervals {
			if err := WriteHlogLine(b, s.Name, iv); err != nil {
				return err
			}
		}
	}
	return b.Flush()
}

// WriteHlogHead writes the first lines of a log. WriteHlogLine writes one interval of a series, relative to start.
func WriteHlogHead(w io.Writer, start time.Time) error {
	seconds := float64(start.UnixMilli()) / 1e3
	_, err := fmt.Fprintf(w, "#[Histogram log format version 1.3]\n#[StartTime: %.3f (seconds since epoch), %s]\n#[BaseTime: %.3f (seconds since epoch)]\n"+
		"#[Values are in nanoseconds, Interval_Max in milliseconds]\n"+
		"\"StartTimestamp\",\"Interval_Length\",\"Interval_Max\",\"Interval_Compressed_Histogram\"\n",
		seconds, start.UTC().Format("2006-01-02T15:04:05.000Z"), seconds)
	return err
}

// WriteHlogLine writes an interval of the named series. Names consist of letters, digits, '_' and '-'.
func WriteHlogLine(w io.Writer, name string, iv latency.Interval) error {
	tag := ""
	if name != latency.MainSeries {
		if !tagPattern.MatchString(name) {
			return fmt.Errorf("series name %q is not of letters, digits, '_' and '-'", name)
		}
		tag = "Tag=" + name + ","
	}
	code, err := iv.HDR().Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		return fmt.Errorf("series %s: %w", name, err)
	}
	_, err = fmt.Fprintf(w, "%s%.6f,%.6f,%.6f,%s\n", tag, float64(iv.Start)/1e9, float64(iv.End-iv.Start)/1e9, float64(iv.Max)/1e6, code)
	return err
}

var tagPattern = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// maxLine bounds a line of a log. The largest histogram that this package writes takes under 400 kB.
const maxLine = 4 << 20

// ReadHlog reads an HdrHistogram log of format 1.x. Lines without a tag become the main series. Relative and absolute
// timestamps are both made relative to the StartTime line. name is for errors, which give the line.
func ReadHlog(r io.Reader, name string) (time.Time, []*latency.Series, error) {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 1<<16), maxLine)
	l := hlog{room: 1 << 20, series: map[string]*latency.Series{}, counted: map[string]int64{}}
	line := 0
	bad := func(err error) (time.Time, []*latency.Series, error) {
		return time.Time{}, nil, fmt.Errorf("%s:%d: %w log: %w", name, line, ErrFormat, err)
	}
	for s.Scan() {
		line++
		if err := l.line(s.Text()); err != nil {
			return bad(err)
		}
	}
	if err := s.Err(); errors.Is(err, bufio.ErrTooLong) {
		line++
		return bad(fmt.Errorf("line is longer than %d MiB", maxLine>>20))
	} else if err != nil {
		return time.Time{}, nil, fmt.Errorf("%s:%d: %w", name, line+1, err)
	}
	if !l.version {
		return bad(errors.New("no line \"#[Histogram log format version 1.x]\""))
	}
	for _, ser := range l.order {
		ser.Sum()
	}
	return time.UnixMilli(int64(math.Round(l.start * 1e3))).UTC(), l.order, nil
}

// hlog is what has been read of a log.
type hlog struct {
	version     bool    // its line was read
	start, base float64 // seconds since the epoch
	haveBase    bool
	series      map[string]*latency.Series
	order       []*latency.Series
	counted     map[string]int64 // samples by series
	room, size  int64            // remaining budget of counters, as counted by decodeHDR, and bytes read
}

func (l *hlog) line(text string) error {
	l.size += int64(len(text)) + 1
	l.room += 8 * int64(len(text))
	switch {
	case text == "" || text[0] == '"':
		return nil
	case text[0] == '#':
		return l.comment(text)
	case !l.version:
		return errors.New("no line \"#[Histogram log format version 1.x]\" before the first interval")
	}
	return l.interval(text)
}

// comment reads a line that begins with #, which may have the version or a time.
func (l *hlog) comment(text string) error {
	if v, ok := strings.CutPrefix(text, "#[Histogram log format version "); ok {
		l.version = true
		if !strings.HasPrefix(v, "1.") {
			return fmt.Errorf("format version %s, this program reads 1.x", strings.TrimSuffix(v, "]"))
		}
	}
	for prefix, to := range map[string]*float64{"#[StartTime: ": &l.start, "#[BaseTime: ": &l.base} {
		v, ok := strings.CutPrefix(text, prefix)
		if !ok {
			continue
		}
		v, _, _ = strings.Cut(v, " ")
		f, err := strconv.ParseFloat(v, 64)
		if err != nil || !(math.Abs(f) < 1e11) {
			return fmt.Errorf("%q is no time in seconds since the epoch", v)
		}
		*to = f
		l.haveBase = l.haveBase || to == &l.base
	}
	return nil
}

// interval reads a line of four fields: start, length, maximum and histogram, after a tag or none.
func (l *hlog) interval(text string) error {
	tag := latency.MainSeries
	if t, ok := strings.CutPrefix(text, "Tag="); ok {
		if tag, text, ok = strings.Cut(t, ","); !ok {
			return errors.New("a tag and nothing after it")
		}
		if !tagPattern.MatchString(tag) {
			return fmt.Errorf("tag %q", tag)
		}
	}
	f := strings.Split(text, ",")
	if len(f) != 4 {
		return fmt.Errorf("%d fields, expected 4 (start, length, max, histogram)", len(f))
	}
	var num [3]float64
	for i := range num {
		var err error
		if num[i], err = strconv.ParseFloat(f[i], 64); err != nil || !(math.Abs(num[i]) < 1e11) {
			return fmt.Errorf("field %d, %q, is no number in range", i+1, f[i])
		}
	}
	h, counters, err := decodeHDR(f[3])
	if err != nil {
		return fmt.Errorf("histogram of the interval at %s s: %w", f[0], err)
	}
	if l.room -= counters; l.room < 0 {
		return fmt.Errorf("the histograms so far are much larger than the %d bytes that they were written in: no measurement compresses like that", l.size)
	}
	if h.Count > maxCount-l.counted[tag] {
		return fmt.Errorf("counts of series %s add up to more than %d", tag, int64(maxCount))
	}
	l.counted[tag] += h.Count
	h.RefineMax(int64(math.Round(num[2] * 1e6))) // exact if the writer's Interval_Max has milliseconds with nanosecond precision
	at := num[0]
	if !l.haveBase && l.start != 0 && at > l.start-365*86400 || l.haveBase && l.base != l.start {
		at += l.base - l.start // absolute timestamps, or relative to another time
	}
	if !(math.Abs(at) < maxSeconds) {
		return fmt.Errorf("starts %v s from the beginning of the log: want less than %g s", at, maxSeconds)
	}
	if !(num[1] >= 0 && num[1] < maxSeconds) {
		return fmt.Errorf("length %v s: want 0 to %g s", num[1], maxSeconds)
	}
	ser := l.series[tag]
	if ser == nil {
		ser = &latency.Series{Name: tag}
		l.series[tag], l.order = ser, append(l.order, ser)
	}
	from := int64(math.Round(at * 1e9))
	ser.Intervals = append(ser.Intervals, latency.Interval{Start: from, End: from + int64(math.Round(num[1]*1e9)), Histogram: h})
	return nil
}

// maxSeconds bounds the times of a log: a third of the nanoseconds that fit in an int64.
const maxSeconds = 3e9

// maxCounters bounds the geometry of a foreign histogram: four digits over any range, or five over a short one.
const maxCounters = 1 << 20

// decodeHDR decodes a base64 V2 compressed histogram. It also returns the cost of the histogram in memory and time, in
// counters: a line of a hundred bytes can contain thirty thousand counters of 1, and a file of such lines would exhaust
// any memory. Measured data has less than one counter per byte; empty counters only cost the time to scan them.
func decodeHDR(code string) (*latency.Histogram, int64, error) {
	h, err := hdrhistogram.Decode([]byte(code))
	if err != nil {
		return nil, 0, err
	}
	empty := h.ByteSize() / 8
	if empty > maxCounters {
		return nil, 0, fmt.Errorf("%d counters: want at most %d, by fewer digits or a lower highest value", empty, maxCounters)
	}
	out, err := latency.FromHDR(h)
	if err != nil {
		return nil, 0, err
	}
	return out, int64(max(out.Counters(), empty/64)), nil
}
