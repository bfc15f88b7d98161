package report_test

import (
	"bytes"
	"compress/zlib"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

// encodeOld encodes counters with three digits from 1 to an hour as versions 0 and 1 of the encoding do: the header of
// V0 has 32 bytes and the total count, that of V1 40 bytes with the length of the counters. Each counter takes word
// bytes.
func encodeOld(t *testing.T, version, word int, counts []int64) string {
	t.Helper()
	var in, out bytes.Buffer
	put := func(b *bytes.Buffer, values ...any) {
		for _, v := range values {
			must.OK(t, binary.Write(b, binary.BigEndian, v))
		}
	}
	size, mark := uint32(word<<4), [2]uint32{0x1c849308, 0x1c849301}[version]
	if version == 0 {
		put(&in, mark|size, uint32(3), int64(1), int64(3_600_000_000_000), int64(len(counts)))
	} else {
		put(&in, mark|size, uint32(word*len(counts)), uint32(0), uint32(3), int64(1), int64(3_600_000_000_000),
			float64(1))
	}
	for _, n := range counts {
		put(&in, map[int]any{2: uint16(n), 4: uint32(n), 8: uint64(n)}[word])
	}
	var zip bytes.Buffer
	w := zlib.NewWriter(&zip)
	must.Get(w.Write(in.Bytes()))(t)
	must.OK(t, w.Close())
	put(&out, (mark+1)|size, uint32(zip.Len()), zip.Bytes())
	return base64.StdEncoding.EncodeToString(out.Bytes())
}

const logHead = "#[Histogram log format version 1.3]\n#[StartTime: 1000.000 (seconds since epoch)]\n#[BaseTime: 1000.000 (seconds since epoch)]\n"

func foreign(text string) (*report.Hlog, error) {
	return report.ReadForeignHlog(strings.NewReader(text), "x.hlog")
}

func TestOldEncodings(t *testing.T) {
	counts := make([]int64, 5000)
	counts[7], counts[2047], counts[2048], counts[4097] = 2, 1, 300, 5
	// from 8192 on, the steps have a width of 8
	want := latency.FromCounts([]int64{7, 2047, 2048, 8207}, []int64{2, 1, 300, 5})
	for _, c := range [][2]int{{0, 8}, {0, 2}, {1, 2}, {1, 4}, {1, 8}} {
		l := must.Get(foreign(logHead + "0.5,1.0,0.008," + encodeOld(t, c[0], c[1], counts) + "\n"))(t)
		got := l.Series[0].Intervals[0]
		if got.Count != 308 || got.Quantile(0.5) != want.Quantile(0.5) || got.Min != 7 || got.Max != 8207 ||
			got.CountAbove(2048) != 5 || got.Start != 5e8 {
			t.Errorf("V%d with %d bytes: %+v, want %+v", c[0], c[1], got.Histogram, want)
		}
	}
}

// Histograms of any geometry have the counts and values that hdrhistogram-go decodes.
func TestDecodesAsLibrary(t *testing.T) {
	random := rand.New(rand.NewPCG(45, 6))
	for _, digits := range needs.Each(2, []int64{1, 2, 3, 4}) {
		for _, lowest := range []int64{1, 7, 1000, 4096} {
			h := hdrhistogram.New(lowest, 60_000_000_000, int(digits))
			for range 300 {
				must.OK(t, h.RecordValue(lowest+random.Int64N(1<<(1+random.IntN(34)))))
			}
			code := must.Get(h.Encode(hdrhistogram.V2CompressedEncodingCookieBase))(t)
			l := must.Get(foreign(logHead + "0,1,0," + string(code) + "\n"))(t)
			var buckets []latency.Bucket
			for _, b := range h.Distribution() {
				buckets = append(buckets, latency.Bucket{Low: b.From, High: b.To, Count: b.Count})
			}
			if got, want := fmt.Sprintf("%+v", *l.Series[0].Intervals[0].Histogram),
				fmt.Sprintf("%+v", *latency.FromBuckets(buckets)); got != want {
				t.Errorf("%d digits from %d: %.300s, want %.300s", digits, lowest, got, want)
			}
		}
	}
}

func TestForeignLogs(t *testing.T) {
	code := encodeOld(t, 1, 8, []int64{0, 0, 1})
	line := func(at string) string { return at + ",1.0,0.0," + code + "\n" }
	restart := "#[StartTime: 1100.000 (seconds since epoch)]\n#[BaseTime: 1100.000 (seconds since epoch)]\n"
	for _, c := range []struct {
		name, text, fails string
		tags              string
		intervals         int
		restarts          int
		cut               string
	}{
		{"tags of any text but commas and blanks", logHead + "Tag=GET:/a?b=ü," + line("0") + "Tag=x.y," + line("0") + line("0"), "", "GET:/a?b=ü|x.y|", 3, 0, ""},
		{"blanks between fields", logHead + "Tag=a, 0.0, 1.0, 2.0, " + code + "\r\n", "", "a", 1, 0, ""},
		{"no line with a version", line("0"), "", "", 1, 0, ""},
		{"a log that is cut in its last line", logHead + line("0") + line("1")[:20], "", "", 1, 0, "line 5, the last one, is cut off: histogram of the interval at 1 s"},
		{"a log that is cut in a tag", logHead + line("0") + "Tag=n", "", "", 1, 0, "line 5, the last one, is cut off"},
		{"a log that is cut in its first interval", logHead + line("1")[:20], "x.hlog:4: malformed log: histogram of the interval", "", 0, 0, ""},
		{"a broken line with lines after it", logHead + line("0")[:20] + "\n" + line("1"), "x.hlog:4: malformed log", "", 0, 0, ""},
		{"a log that restarts", logHead + line("0") + line("1") + restart + line("0"), "", "", 3, 1, ""},
		{"a log that restarts before its end", logHead + line("0") + line("150") + restart + line("0"), "x.hlog:8: malformed log: it starts before the end of the intervals that were logged before the restart in line 6", "", 0, 0, ""},
		{"a log that restarts in the past", logHead + line("0") + strings.ReplaceAll(restart, "1100", "900") + line("0"), "x.hlog:7: malformed log: it starts before", "", 0, 0, ""},
		{"two logs in one, line by line", logHead + line("0.0") + line("0.1") + line("1.0") + line("1.1"), "x.hlog:5: malformed log: the interval overlaps that of line 4: several measurements in one file", "", 0, 0, ""},
		{"times that go back", logHead + line("5") + line("2"), "x.hlog:5: malformed log: the interval overlaps that of line 4", "", 0, 0, ""},
		{"times that are rounded", logHead + line("0.000") + line("0.999") + line("1.9985"), "", "", 3, 0, ""},
		{"intervals that overlap by half, of rounded times", logHead + line("0") + line("0.498"), "", "", 2, 0, ""},
		{"intervals that overlap by more", logHead + line("0") + line("0.497999999"), "x.hlog:5: malformed log: the interval overlaps", "", 0, 0, ""},
		{"an interval at the time of a restart", logHead + line("0") + strings.ReplaceAll(restart, "1100", "1001") + line("-0.002"), "", "", 2, 1, ""},
		{"an interval before a restart", logHead + line("0") + strings.ReplaceAll(restart, "1100", "1001") + line("-0.002000001"), "x.hlog:7: malformed log: it starts before", "", 0, 0, ""},
		{"a restart without a start", line("0") + restart, "x.hlog:2: malformed log: a second StartTime", "", 0, 0, ""},
		{"a restart a century later", logHead + line("0") + strings.ReplaceAll(restart, "1100", "3000001000"), "x.hlog:5: malformed log: a second StartTime", "", 0, 0, ""},
		{"a tag without a name", logHead + "Tag=," + line("0"), "x.hlog:4: malformed log: tag \"\"", "", 0, 0, ""},
		{"floating-point values", logHead + "0,1,1," + base64.StdEncoding.EncodeToString([]byte{0x0c, 0x72, 0x12, 0x4f, 0, 0, 0, 0}) + "\n", "DoubleHistogram", "", 0, 0, ""},
	} {
		l, err := foreign(c.text)
		if c.fails != "" {
			check.Fails(t, c.name, err, report.ErrFormat, c.fails)
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		var tags []string
		n := 0
		for _, s := range l.Series {
			tags, n = append(tags, s.Name), n+len(s.Intervals)
		}
		if strings.Join(tags, "|") != c.tags || n != c.intervals || len(l.Restarts) != c.restarts ||
			!strings.Contains(l.Cut, c.cut) || c.cut == "" && l.Cut != "" {
			t.Errorf("%s: tags %q, %d intervals, restarts %v, cut %q", c.name, tags, n, l.Restarts, l.Cut)
		}
		if c.restarts > 0 {
			last := l.Series[0].Intervals[c.intervals-1]
			check.Equal(t, last.Start == 100e9 || last.Start == 998e6, true, c.name+": the time is right: %t")
		}
	}
	_, _, err := report.ReadHlog(strings.NewReader(logHead+line("0")+restart+line("0")), "own.hlog")
	check.Fails(t, "a restart in our own log", err, report.ErrFormat, "own.hlog:5: malformed log: a second StartTime")
}

// A log may have 2^20 counters, and eight more for each of its bytes.
func TestLogsHaveLimitedRoom(t *testing.T) {
	const each = 3000
	line := hdrLine(t, 3, 1, 3_600_000_000_000, slices.Repeat([]int64{1}, each)...)
	plain := append(header(0x1c849301|2<<4, 2*each, 3, 1, 3_600_000_000_000), bytes.Repeat([]byte{0, 1}, each)...)
	for _, line := range []string{line, "0,1,0," + base64.StdEncoding.EncodeToString(plain)} {
		const head = "#[Histogram log format version 1.3]"
		room, n := 1<<20+8*len(head), 0
		for ; room >= 0 && n < 600; n++ {
			room += 8*len(line) - each
		}
		_, _, err := report.ReadHlog(strings.NewReader(head+strings.Repeat("\n"+line, n)), "x.hlog")
		if room >= 0 {
			check.OK(t, err)
			continue
		}
		check.Fails(t, "a crowded log", err, report.ErrFormat, fmt.Sprintf("x.hlog:%d: malformed log: the histograms "+
			"so far are much larger than the %d bytes", n+1, len(head)+1+n*(len(line)+1)))
	}
}

// The memory to decode an interval is kept for the next one: reading takes a time that depends on the counters that are
// not empty, not on the range of the histogram.
func TestLogsAllocateLittle(t *testing.T) {
	var b bytes.Buffer
	report.WriteHlogHead(&b, time.Unix(1e9, 0))
	for i := range int64(150) {
		must.OK(t, report.WriteHlogLine(&b, latency.MainSeries,
			latency.Interval{Start: i * 1e9, End: (i + 1) * 1e9, Histogram: latency.FromValues([]int64{4000, 12_345})}))
	}
	read := func(n int) float64 {
		text := b.Bytes()
		for range 150 - n {
			text = text[:bytes.LastIndexByte(text[:len(text)-1], '\n')+1]
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		must.Get(report.ReadForeignHlog(bytes.NewReader(text), "x"))(t)
		runtime.ReadMemStats(&after)
		return float64(after.TotalAlloc - before.TotalAlloc)
	}
	if each := (read(150) - read(50)) / 100; each > 2000 {
		t.Errorf("%.0f bytes of memory for an interval of two values", each)
	}
}

func FuzzForeignHlog(f *testing.F) {
	code := must.Get(hdrhistogram.New(1, 3_600_000_000_000, 3).Encode(hdrhistogram.V2CompressedEncodingCookieBase))(f)
	f.Add([]byte(logHead + "Tag=a b," + "0,1,1," + string(code) + "\n0,1,2,HISTFAAAAA=="))
	f.Add([]byte("Tag=a,0,1,1,HISTiQAAAAA=\n#[StartTime: 5]\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		l, err := report.ReadForeignHlog(bytes.NewReader(in), "f.hlog")
		if err != nil {
			check.Fails(t, "an error without a file", err, nil, "f.hlog:")
			return
		}
		for _, s := range l.Series {
			for i, iv := range s.Intervals {
				if iv.Count < 0 || iv.Min > iv.Max || iv.End < iv.Start || i > 0 &&
					iv.Start < s.Intervals[i-1].Start-2e6 {
					t.Errorf("interval %d of %q: %+v", i, s.Name, iv)
				}
			}
		}
	})
}
