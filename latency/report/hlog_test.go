package report_test

import (
	"bytes"
	"compress/zlib"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/synthetic"
)

// independent is a reader of HdrHistogram logs and histograms that shares no code with the code under test or with
// hdrhistogram-go: it was written from the published description of the V2 encoding. It maps the lowest value of each
// bucket to its count, for each interval.
type independentLine struct {
	tag                string
	start, length, max float64
	counts             map[int64]int64
}

// hlogLine matches the line of an interval, which may have a tag.
var hlogLine = regexp.MustCompile(`(?m)^(?:Tag=([^,]*),)?([^#",\n][^,\n]*),([^,\n]*),([^,\n]*),([^,\n]*)$`)

func readIndependently(t *testing.T, text string) (lines []independentLine) {
	t.Helper()
	for _, m := range hlogLine.FindAllStringSubmatch(text, -1) {
		l := independentLine{tag: m[1], counts: decodeIndependently(t, m[5])}
		for i, to := range []*float64{&l.start, &l.length, &l.max} {
			*to = must.Get(strconv.ParseFloat(m[2+i], 64))(t)
		}
		lines = append(lines, l)
	}
	return lines
}

// decodeIndependently: base64 of { cookie 0x1c849314 (V2 compressed, word size nibble 1), length, zlib of { cookie
// 0x1c849313, payload length, normalising index offset, significant digits, lowest, highest, ratio, payload } }, big
// endian. The payload is ZigZag LEB128: a positive number is the next counter, a negative one the number of empty
// counters.
func decodeIndependently(t *testing.T, code string) map[int64]int64 {
	t.Helper()
	b := must.Get(base64.StdEncoding.DecodeString(code))(t)
	must.Equal(t, binary.BigEndian.Uint32(b), 0x1c849314, "outer cookie %#x")
	if n := int(binary.BigEndian.Uint32(b[4:])); n != len(b)-8 {
		t.Fatalf("compressed length %d, there are %d bytes", n, len(b)-8)
	}
	z := must.Get(zlib.NewReader(bytes.NewReader(b[8:])))(t)
	p := must.Get(io.ReadAll(z))(t)
	be := binary.BigEndian
	must.Equal(t, be.Uint32(p), 0x1c849313, "inner cookie %#x")
	if n := int(be.Uint32(p[4:])); n != len(p)-40 {
		t.Fatalf("payload length %d, there are %d bytes", n, len(p)-40)
	}
	must.Equal(t, be.Uint32(p[8:]), 0, "normalising index offset %d shifts every bucket")
	sig := be.Uint32(p[12:])
	lowest, highest := be.Uint64(p[16:]), be.Uint64(p[24:])
	must.Equal(t, math.Float64frombits(be.Uint64(p[32:])), 1, "conversion ratio %v")
	if highest < 60e9 {
		t.Fatalf("highest trackable value %d is below a minute", highest)
	}
	// The layout, from the definition: enough linear steps that no step is wider than 10^-sig of its value.
	steps := 1 << bits.Len(uint(2*math.Pow10(int(sig))-1))
	unit := bits.Len64(lowest) - 1
	counts := map[int64]int64{}
	index := 0
	for p = p[40:]; len(p) > 0; {
		var u uint64
		for shift := 0; ; shift += 7 {
			c := p[0]
			p = p[1:]
			if shift == 56 { // the ninth byte contains eight bits
				u |= uint64(c) << 56
				break
			}
			u |= uint64(c&0x7f) << shift
			if c < 0x80 {
				break
			}
		}
		v := int64(u>>1) ^ -int64(u&1)
		if v < 0 {
			index += int(-v)
			continue
		}
		if v > 0 {
			bucket, step := index/(steps/2)-1, index%(steps/2)+steps/2
			if bucket < 0 {
				bucket, step = 0, step-steps/2
			}
			counts[int64(step)<<(bucket+unit)] = v
		}
		index++
	}
	return counts
}

func TestHlogByIndependentReader(t *testing.T) {
	rep := synthetic.Link{Seed: 5, Median: 4200, Spread: 0.4, Seconds: 4, Rate: 2000, Open: true}.Report()
	var b bytes.Buffer
	must.OK(t, report.WriteHlog(&b, rep.Start, rep.Series))
	start := fmt.Sprintf("%.3f ", float64(rep.Start.UnixMilli())/1e3)
	check.Contains(t, b.String(), "#[StartTime: "+start, "#[BaseTime: "+start)
	got := readIndependently(t, b.String())
	i := 0
	for _, s := range rep.Series {
		tag := s.Name
		if tag == latency.MainSeries {
			tag = ""
		}
		for _, iv := range s.Intervals {
			l := got[i]
			i++
			if l.tag != tag || math.Abs(l.start-float64(iv.Start)/1e9) > 1e-6 ||
				math.Abs(l.length-float64(iv.End-iv.Start)/1e9) > 1e-6 || int64(math.Round(l.max*1e6)) != iv.Max {
				t.Errorf("line %d: %q %v %v %v, want %q %d %d max %d", i, l.tag, l.start, l.length, l.max, tag,
					iv.Start, iv.End-iv.Start, iv.Max)
			}
			n := 0
			for bucket := range iv.Buckets {
				n++
				if l.counts[bucket.Low] != bucket.Count {
					t.Fatalf("line %d: %d values of %d ns, want %d", i, l.counts[bucket.Low], bucket.Low, bucket.Count)
				}
			}
			if n != len(l.counts) {
				t.Errorf("line %d: %d buckets, want %d", i, len(l.counts), n)
			}
		}
	}
	if i != len(got) || i != strings.Count(b.String(), ",HIST") || i < 8 {
		t.Errorf("%d lines, want %d", len(got), i)
	}
}

func TestHlogByJavaScript(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("node is not installed (Debian package nodejs)")
	}
	modules := filepath.Dir(needs.NPM(t, "hdr-histogram-js"))
	rep := synthetic.Link{Seed: 6, Median: 5000, Spread: 0.5, Seconds: 5, Rate: 2000, Open: true}.Report()
	dir := filepath.Join(t.TempDir(), "report")
	must.OK(t, report.Write(dir, rep, page))
	const script = `
const hdr = require("hdr-histogram-js"), fs = require("fs");
const r = new hdr.HistogramLogReader(fs.readFileSync(process.argv[1], "utf8"));
const out = {};
for (let h; (h = r.nextIntervalHistogram()) != null;) {
  const tag = h.tag == "NO TAG" ? "rtt" : h.tag;
  if (!out[tag]) out[tag] = {sum: hdr.build({bitBucketSize: 64, lowestDiscernibleValue: 1, highestTrackableValue: 3.6e12, numberOfSignificantValueDigits: 3}), first: h.startTimeStampMsec, n: 0};
  out[tag].sum.add(h); out[tag].n++;
}
for (const k in out) { const s = out[k].sum; out[k] = {Count: s.totalCount, P50: s.getValueAtPercentile(50), P99: s.getValueAtPercentile(99), P999: s.getValueAtPercentile(99.9), Max: s.maxValue, Min: s.minNonZeroValue, Mean: s.mean, N: out[k].n, First: out[k].first}; }
console.log(JSON.stringify(out));`
	cmd := exec.Command(node, "-e", script, filepath.Join(dir, report.HlogFile))
	cmd.Env = append(os.Environ(), "NODE_PATH="+modules)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("node: %v\n%s", err, out)
	}
	var got map[string]struct {
		Count, P50, P99, P999, Max, Min, N int64
		Mean, First                        float64
	}
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, s := range rep.Series {
		g, h := got[s.Name], s.Total
		for _, x := range []struct {
			what      string
			got, want int64
		}{{"p50", g.P50, h.Quantile(0.5)}, {"p99", g.P99, h.Quantile(0.99)}, {"p99.9", g.P999, h.Quantile(0.999)},
			{"max", g.Max, h.Max}, {"min", g.Min, h.Min}} {
			if !sameBucket(x.got, x.want) {
				t.Errorf("%s: JavaScript has %s = %d, we %d", s.Name, x.what, x.got, x.want)
			}
		}
		if g.Count != h.Count || int(g.N) != len(s.Intervals) || math.Abs(g.Mean/h.Mean()-1) > 0.001 {
			t.Errorf("%s: JavaScript has %d values in %d intervals, mean %v; we %d, %d, %v", s.Name, g.Count, g.N,
				g.Mean, h.Count, len(s.Intervals), h.Mean())
		}
		if want := float64(rep.Start.UnixMilli()) + float64(s.Intervals[0].Start)/1e6; math.Abs(g.First-want) > 2 {
			t.Errorf("%s: JavaScript starts at %v, we at %v", s.Name, g.First, want)
		}
	}
}

// Every truncated log, and every log with a byte missing, is rejected with its file and line, except for a log
// truncated at the end of a line, which only report.json can reveal (see TestReadErrors).
func TestHlogDamaged(t *testing.T) {
	rep := synthetic.Link{Seed: 5, Median: 4200, Spread: 0.1, Seconds: 2, Rate: 300}.Report()
	var b bytes.Buffer
	must.OK(t, report.WriteHlog(&b, rep.Start, rep.Series))
	whole := b.String()
	first := strings.Index(whole, "\n0.000000") + 1
	for cut := first + 1; cut < len(whole); cut++ {
		if whole[cut-1] == '\n' || whole[cut] == '\n' {
			continue
		}
		_, _, err := report.ReadHlog(strings.NewReader(whole[:cut]), "x.hlog")
		if !errors.Is(err, report.ErrFormat) || !strings.HasPrefix(err.Error(), "x.hlog:") {
			t.Fatalf("cut at %d of %d: %v", cut, len(whole), err)
		}
	}
	_, _, err := report.ReadHlog(io.MultiReader(strings.NewReader(whole), iotest.ErrReader(io.ErrNoProgress)), "x.hlog")
	check.Fails(t, "a disk that fails", err, io.ErrNoProgress, fmt.Sprintf("x.hlog:%d: ", strings.Count(whole, "\n")+1))
	for name, text := range map[string]string{
		"x.hlog:0": "",
		"x.hlog:2: malformed log: line is longer than 4 MiB": "#[Histogram log format version 1.3]\n" +
			strings.Repeat("#", 4<<20),
		"x.hlog:1:": "#[Histogram log format version 2.0]\n",
		"x.hlog:2:": "#[Histogram log format version 1.3]\n#[StartTime: yesterday (seconds since epoch)]\n",
		"x.hlog:3:": "#[Histogram log format version 1.3]\n\n0.0,1.0,NaN,HISTFAAAAA==\n",
	} {
		_, _, err := report.ReadHlog(strings.NewReader(text), "x.hlog")
		if !errors.Is(err, report.ErrFormat) || !strings.HasPrefix(err.Error(), name) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// The text format, read by an independent parser: four columns, a header, and percentiles that match their values.
func TestHgrm(t *testing.T) {
	rep := synthetic.Link{Seed: 8, Median: 4200, Spread: 0.4, Seconds: 5, Rate: 3000}.Report()
	h := rep.Main().Total
	var b bytes.Buffer
	must.OK(t, report.WriteHgrm(&b, h))
	text := b.String()
	lines := strings.Split(text, "\n")
	if f := strings.Fields(lines[0]); strings.Join(f, " ") != "Value Percentile TotalCount 1/(1-Percentile)" ||
		lines[1] != "" {
		t.Errorf("header %q, %q", lines[0], lines[1])
	}
	if !strings.Contains(text, "#[Unit    = microseconds]") ||
		!strings.Contains(text, fmt.Sprintf("Total count    = %12d]", h.Count)) {
		t.Errorf("footer is incomplete:\n%s", text[len(text)-300:])
	}
	squares := 0.0
	for b := range h.Buckets {
		d := float64(b.Low+b.High)/2 - h.Sum/float64(h.Count)
		squares += d * d * float64(b.Count)
	}
	check.Contains(t, text, fmt.Sprintf("\n#[Mean    = %12.3f, StdDeviation   = %12.3f]\n", h.Sum/float64(h.Count)/1e3,
		math.Sqrt(squares/float64(h.Count))/1e3), fmt.Sprintf("\n#[Max     = %12.3f, Total count", float64(h.Max)/1e3),
		"\n#[Buckets =           32, SubBuckets     =         2048]\n")
	rows, last := 0, 0.0
	for _, l := range lines[2:] {
		if strings.HasPrefix(l, "#") || l == "" {
			continue
		}
		rows++
		f := strings.Fields(l)
		value, _ := strconv.ParseFloat(f[0], 64)
		q, _ := strconv.ParseFloat(f[1], 64)
		n, _ := strconv.ParseInt(f[2], 10, 64)
		if len(f) == 4 {
			inverse, _ := strconv.ParseFloat(f[3], 64)
			if math.Abs(inverse-1/(1-q)) > 0.006+inverse*1e-6 {
				t.Errorf("row %q: 1/(1-q) is %v", l, 1/(1-q))
			}
		}
		if want := float64(h.Quantile(max(q, 1e-9))) / 1e3; q > 0 && math.Abs(value-want) > 0.0005 {
			t.Errorf("row %q: quantile is %v", l, want)
		}
		if above := h.Count - h.CountAbove(int64(math.Round(value*1e3))); n != above {
			t.Errorf("row %q: %d values do not exceed it", l, above)
		}
		if value < last {
			t.Errorf("row %q is below the one before", l)
		}
		last = value
	}
	if rows < 50 || last != float64(h.Max)/1e3 {
		t.Errorf("%d rows, the last %v µs, max %d ns", rows, last, h.Max)
	}
}

func FuzzHlog(f *testing.F) {
	rep := synthetic.Link{Seed: 5, Median: 4200, Spread: 0.1, Seconds: 2, Rate: 100}.Report()
	var b bytes.Buffer
	must.OK(f, report.WriteHlog(&b, rep.Start, rep.Series))
	f.Add(b.Bytes())
	f.Add([]byte("#[Histogram log format version 1.2]\nTag=A,1e300,-1,5,HISTFAAAAA==\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		_, series, err := report.ReadHlog(bytes.NewReader(in), "f.hlog")
		if err != nil {
			check.Fails(t, "an error without a file", err, nil, "f.hlog:")
			return
		}
		var out bytes.Buffer
		must.OK(t, report.WriteHlog(&out, time.Unix(0, 0), series))
		_, again, err := report.ReadHlog(&out, "again.hlog")
		if err != nil || len(again) != len(series) {
			t.Fatalf("what was read does not read again: %v", err)
		}
		for i, s := range series {
			if again[i].Total.Count != s.Total.Count {
				t.Errorf("%d values, then %d", s.Total.Count, again[i].Total.Count)
			}
		}
	})
}

func sameBucket(a, b int64) bool {
	return latency.Merge(latency.FromValues([]int64{a}), latency.FromValues([]int64{b})).CountAbove(min(a, b)) == 0
}
