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
	_, err := fmt.Fprintf(w,
		"#[Histogram log format version 1.3]\n#[StartTime: %.3f (seconds since epoch), %s]\n#[BaseTime: %.3f (seconds since epoch)]\n"+
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
	_, err = fmt.Fprintf(w, "%s%.6f,%.6f,%.6f,%s\n", tag, float64(iv.Start)/1e9, float64(iv.End-iv.Start)/1e9,
		float64(iv.Max)/1e6, code)
	return err
}

var tagPattern = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// maxLine bounds a line of a log. The largest histogram that this package writes takes under 400 kB.
const maxLine = 4 << 20

// ReadHlog reads an HdrHistogram log of format 1.x that WriteHlog wrote. Lines without a tag become the main series.
// Relative and absolute timestamps are both made relative to the StartTime line. name is for errors, which give the
// line.
func ReadHlog(r io.Reader, name string) (time.Time, []*latency.Series, error) {
	l, err := readHlog(r, name, false)
	if err != nil {
		return time.Time{}, nil, err
	}
	return l.began(), l.order, nil
}

// Hlog is an HdrHistogram log that any program wrote.
type Hlog struct {
	Start    time.Time
	Series   []*latency.Series // by tag; that of lines without a tag has the name ""
	Restarts []Restart
	Cut      string // what is wrong with the last line, which was cut off; empty if it is complete
}

// Restart is a further StartTime line. The intervals after it have their own origin of time, and none of them overlaps
// those before.
type Restart struct {
	Line int
	At   int64 // ns since the log's Start
}

// ReadForeignHlog reads an HdrHistogram log of another program: with any tags, with histograms of the encodings V0 to
// V2, with several starts, and up to the end of its last complete line. Intervals of one tag that overlap belong to
// several measurements, which is an error.
func ReadForeignHlog(r io.Reader, name string) (*Hlog, error) {
	l, err := readHlog(r, name, true)
	if err != nil {
		return nil, err
	}
	return &Hlog{l.began(), l.order, l.restarts, l.cut}, nil
}

// readHlog reads an HdrHistogram log. An error wraps ErrFormat and names the line. A foreign log, of another tool,
// may end within its last line.
func readHlog(r io.Reader, name string, foreign bool) (*hlog, error) {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 1<<16), maxLine)
	ended := true // the last line has its line break
	s.Split(func(data []byte, atEOF bool) (int, []byte, error) {
		n, line, err := bufio.ScanLines(data, atEOF)
		ended = n == 0 || data[n-1] == '\n'
		return n, line, err
	})
	l := &hlog{foreign: foreign, version: foreign, room: 1 << 20, series: map[string]*ofTag{}}
	for s.Scan() {
		l.at++
		if err := l.line(s.Text()); err != nil {
			if foreign && !ended && len(l.order) > 0 {
				l.cut = fmt.Sprintf("line %d, the last one, is cut off: %v", l.at, err)
				break
			}
			return nil, fmt.Errorf("%s:%d: %w log: %w", name, l.at, ErrFormat, err)
		}
	}
	if err := s.Err(); errors.Is(err, bufio.ErrTooLong) {
		return nil, fmt.Errorf("%s:%d: %w log: line is longer than %d MiB", name, l.at+1, ErrFormat, maxLine>>20)
	} else if err != nil {
		return nil, fmt.Errorf("%s:%d: %w", name, l.at+1, err)
	}
	if !l.version {
		return nil, fmt.Errorf("%s:%d: %w log: no line \"#[Histogram log format version 1.x]\"", name, l.at, ErrFormat)
	}
	for _, ser := range l.order {
		ser.Sum()
	}
	return l, nil
}

// hlog is what has been read of a log.
type hlog struct {
	foreign     bool
	at          int     // line
	version     bool    // its line was read, or is not needed
	origin      float64 // the first start, in seconds since the epoch
	start, base float64 // the last one
	haveBase    bool
	series      map[string]*ofTag
	order       []*latency.Series
	decoder     hdrDecoder
	room, size  int64 // remaining budget of counters, as counted by hdrDecoder, and bytes read
	restarts    []Restart
	end         float64 // latest end of an interval, in seconds since origin
	before      float64 // the same when the last restart was read
	cut         string
}

// ofTag is a series that is being read.
type ofTag struct {
	latency.Series
	line    int // of its last interval
	counted int64
}

func (l *hlog) began() time.Time { return time.UnixMilli(int64(math.Round(l.origin * 1e3))).UTC() }

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
		if to == &l.start {
			if err := l.started(f); err != nil {
				return err
			}
		}
		*to = f
		l.haveBase = l.haveBase || to == &l.base
	}
	return nil
}

// started notes a StartTime line.
func (l *hlog) started(at float64) error {
	switch {
	case len(l.order) == 0:
		l.origin = at
		return nil
	case !l.foreign || l.origin == 0 || !(math.Abs(at-l.origin) < maxSeconds):
		return errors.New("a second StartTime after the first intervals: several logs in one file (put each into its own file)")
	}
	l.restarts = append(l.restarts, Restart{l.at, int64((at - l.origin) * 1e9)})
	l.before, l.haveBase, l.base = l.end, false, 0
	return nil
}

// interval reads a line of four fields: start, length, maximum and histogram, after a tag or none.
func (l *hlog) interval(text string) error {
	tag := latency.MainSeries
	if l.foreign {
		tag = ""
	}
	f := strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' || r == '\r' })
	if strings.HasPrefix(text, "Tag=") {
		if tag = strings.TrimPrefix(f[0], "Tag="); tag == "" || !l.foreign && !tagPattern.MatchString(tag) {
			return fmt.Errorf("tag %q", tag)
		}
		f = f[1:]
	}
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
	h, err := l.decoder.decode(f[3])
	if err != nil {
		return fmt.Errorf("histogram of the interval at %s s: %w", f[0], err)
	}
	if l.room -= l.decoder.cost; l.room < 0 {
		return fmt.Errorf("the histograms so far are much larger than the %d bytes that they were written in: no measurement compresses like that", l.size)
	}
	ser := l.series[tag]
	if ser == nil {
		ser = &ofTag{Series: latency.Series{Name: tag}}
	}
	if h.Count > maxCount-ser.counted {
		return fmt.Errorf("counts of series %s add up to more than %d", tag, int64(maxCount))
	}
	// exact if the writer's Interval_Max has milliseconds with nanosecond precision
	h.RefineMax(int64(math.Round(num[2] * 1e6)))
	at := num[0]
	if !l.haveBase && at > l.start-365*86400 || l.haveBase && l.base != l.start {
		at += l.base - l.start // absolute timestamps, or relative to another time
	}
	at += l.start - l.origin
	if !(math.Abs(at) < maxSeconds) {
		return fmt.Errorf("starts %v s from the beginning of the log: want less than %g s", at, maxSeconds)
	}
	if !(num[1] >= 0 && num[1] < maxSeconds) {
		return fmt.Errorf("length %v s: want 0 to %g s", num[1], maxSeconds)
	}
	from := int64(math.Round(at * 1e9))
	iv := latency.Interval{Start: from, End: from + int64(math.Round(num[1]*1e9)), Histogram: h}
	if l.foreign {
		if err := l.inOrder(ser, iv); err != nil {
			return err
		}
	}
	if ser.line == 0 {
		l.series[tag], l.order = ser, append(l.order, &ser.Series)
	}
	ser.Intervals, ser.line, ser.counted = append(ser.Intervals, iv), l.at, ser.counted+h.Count
	l.end = max(l.end, at+num[1])
	return nil
}

// inOrder returns an error for an interval that overlaps an earlier one of the same tag, or one before the last
// restart.
func (l *hlog) inOrder(ser *ofTag, iv latency.Interval) error {
	const rounding = 2e6 // ns, of the times in a log
	if n := len(l.restarts); n > 0 && float64(iv.Start) < l.before*1e9-rounding {
		return fmt.Errorf("it starts before the end of the intervals that were logged before the restart in line %d: several logs in one file (put each into its own file)", l.restarts[n-1].Line)
	}
	if len(ser.Intervals) == 0 {
		return nil
	}
	last := ser.Intervals[len(ser.Intervals)-1]
	if iv.Start < last.End-min(iv.End-iv.Start, last.End-last.Start)/2-rounding {
		return fmt.Errorf("the interval overlaps that of line %d: several measurements in one file (put each into its own file, or give each a tag)", ser.line)
	}
	return nil
}

// maxSeconds bounds the times of a log: a third of the nanoseconds that fit in an int64.
const maxSeconds = 3e9
