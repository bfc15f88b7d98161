package report_test

import (
	"bytes"
	"errors"
	"fmt"
	"html"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/latency"
	"github.com/rebound-nic/rebound/latency/attribution"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/synthetic"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

func TestWriteAndRead(t *testing.T) {
	rep := synthetic.Link{Seed: 9, Median: 4000, Spread: 0.2, Seconds: 3, Rate: 1000, Open: true, Runs: 2}.Report()
	rep.Label = "a <label> & more"
	forward := int64(2)
	rep.Counts.LostForward = &forward
	rep.Transfers = map[string]int64{"mmio write": 12}
	rep.Add(latency.JitterSeries, latency.FromValues([]int64{900_001})) // more than three digits
	usual := attribution.Probe{Sent: 1, Left: 2, Looked: 40, Seen: 50, Residence: -1, FarWait: -1, ClockError: -1}
	slow := usual
	slow.Seen = 9000
	rep.Attribution = attribution.Explain([]attribution.Probe{slow}, []attribution.Probe{usual},
		attribution.About{Total: 2}, nil)
	must.Equal(t, rep.Attribution.Rows[0].Times[2], attribution.NotKnown, "the time of leaving the NIC: %d")
	dir := filepath.Join(t.TempDir(), "deep", "report")
	check.Fails(t, "a page that fails", report.Write(dir, rep, func(io.Writer, *report.Report) error { return io.ErrNoProgress }),
		io.ErrNoProgress, "report "+dir+" is not written: ")
	for _, slash := range []string{"", "/"} { // the second write replaces the first
		must.OK(t, report.Write(dir+slash, rep, page))
	}
	got := must.Get(report.Read(dir))(t)
	must.Equal(t, len(got.Series), 3, "%d series")
	for i, s := range got.Series {
		w := rep.Series[i]
		if !reflect.DeepEqual(s.Summary, w.Summary) || s.Total.Count != w.Total.Count || s.Total.Max != w.Total.Max ||
			s.Total.Min != w.Total.Min || math.Abs(s.Total.Sum/w.Total.Sum-1) > 1e-12 ||
			s.Total.Quantile(0.999) != w.Total.Quantile(0.999) {
			t.Errorf("series %s: %+v, want %+v", s.Name, s.Summary, w.Summary)
		}
	}
	if len(got.Runs) != 2 || got.Interval != 1e9 || *got.Counts.LostForward != 2 || got.Label != rep.Label {
		t.Errorf("%+v", got)
	}
	var a, b bytes.Buffer
	if err := errors.Join(report.WriteJSON(&a, rep), report.WriteJSON(&b, got)); err != nil ||
		!bytes.Equal(a.Bytes(), b.Bytes()) {
		t.Errorf("report.json changes on a round trip: %v\n%s\n%s", err, &a, &b)
	}
	files := filesOf(t, dir)
	check.Same(t, slices.Sorted(maps.Keys(files)), []string{"raw.csv.zst", "report.html", "report.json", "rtt.hgrm",
		"rtt.hlog"}, "files: %s")
	check.Contains(t, files[report.ReportFile], `"label": "a <label> & more"`) // not \u003c
	z, _ := zstd.NewReader(nil)
	csv, err := z.DecodeAll([]byte(files[report.RawFile]), nil)
	if lines := strings.Split(strings.TrimSpace(string(csv)), "\n"); err != nil || len(lines) != 1001 ||
		lines[0] != "at_ns,from_intended_ns,from_sent_ns" ||
		lines[1000] != fmt.Sprintf("%d,%d,%d", rep.Raw[999].At, rep.Raw[999].FromIntended, rep.Raw[999].FromSent) {
		t.Errorf("raw: %v, %d lines", err, len(lines))
	}
	if left, _ := os.ReadDir(filepath.Dir(dir)); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
}

func TestWriteRefusesForeignFolder(t *testing.T) {
	dir := t.TempDir()
	must.OK(t, os.WriteFile(filepath.Join(dir, "thesis.tex"), []byte("years"), 0o644))
	rep := synthetic.Link{Seed: 9, Median: 4000, Seconds: 2, Rate: 100}.Report()
	check.Fails(t, "a folder with a thesis", report.Write(dir, rep, page), report.ErrExists, "thesis.tex")
	if b, err := os.ReadFile(filepath.Join(dir, "thesis.tex")); err != nil || string(b) != "years" {
		t.Errorf("%q, %v", b, err)
	}
}

// A folder that appears or disappears while a report is written is left alone.
func TestWriteRaces(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "report")
	rep := synthetic.Link{Seed: 9, Median: 4000, Seconds: 2, Rate: 100}.Report()
	write := func(during func() error) error {
		return report.Write(dir, rep, func(io.Writer, *report.Report) error { return during() })
	}
	appears := func() error { return os.MkdirAll(filepath.Join(dir, "theirs"), 0o700) }
	check.Fails(t, "a folder that appears", write(appears), fs.ErrExist, dir+" is not written")
	must.OK(t, os.Remove(filepath.Join(dir, "theirs")))
	check.Fails(t, "a folder that disappears", write(func() error { return os.Remove(dir) }), fs.ErrNotExist, "exchange")
	if left := must.Get(os.ReadDir(filepath.Dir(dir)))(t); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// On a full disk the error says so and names the report, the old report is unchanged, and nothing else is left behind.
func TestWriteFullDisk(t *testing.T) {
	needs.Root(t, "mounting a file system")
	t.Run("Write", func(t *testing.T) { testFullDisk(t, report.Write) })
	t.Run("Folder", func(t *testing.T) {
		testFullDisk(t, func(dir string, rep *report.Report, page report.Page) error {
			f, err := report.OpenFolder(dir, 65534, 65534)
			if err != nil {
				return err
			}
			return f.Write(rep, page)
		})
	})
}

// smallDisk mounts a file system with a few kB.
func smallDisk(t *testing.T, size string) (mount string) {
	t.Helper()
	mount = t.TempDir()
	if err := unix.Mount("rebound-test", mount, "tmpfs", 0, size); err != nil {
		t.Skipf("tmpfs cannot be mounted: %v", err)
	}
	t.Cleanup(func() { check.OK(t, unix.Unmount(mount, 0)) })
	return mount
}

func testFullDisk(t *testing.T, write func(string, *report.Report, report.Page) error) {
	mount := smallDisk(t, "size=64k")
	dir := filepath.Join(mount, "report")
	small := synthetic.Link{Seed: 9, Median: 4000, Spread: 0.001, Seconds: 2, Rate: 20}.Report()
	small.Raw = nil
	big := synthetic.Link{Seed: 9, Median: 4000, Spread: 0.8, Seconds: 20, Rate: 2000}.Report()

	check.Fails(t, "a big report", write(dir, big, page), unix.ENOSPC, dir)
	if left, _ := os.ReadDir(mount); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	must.OK(t, write(dir, small, page))
	check.Fails(t, "a big report in place of a small one", write(dir, big, page), unix.ENOSPC)
	if got, err := report.Read(dir); err != nil || got.Main().Total.Count != small.Main().Total.Count {
		t.Errorf("the old report is not what it was: %v", err)
	}
	if left, _ := os.ReadDir(mount); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
}

// Each kind of broken report is rejected with an error that names the file, and the line if known.
func TestReadErrors(t *testing.T) {
	written := filepath.Join(t.TempDir(), "written")
	rep := synthetic.Link{Seed: 9, Median: 4000, Spread: 0.1, Seconds: 3, Rate: 500}.Report()
	must.OK(t, report.Write(written, rep, page))
	change := func(name string, to func(string) string) func(dir string) error {
		return func(dir string) error {
			path := filepath.Join(dir, name)
			b, err := os.ReadFile(path)
			if s := to(string(b)); s != string(b) {
				return os.WriteFile(path, []byte(s), 0o644)
			}
			return errors.Join(err, errors.New("nothing was changed"))
		}
	}
	edit := func(name, old, with string) func(dir string) error {
		return change(name, func(s string) string { return strings.Replace(s, old, with, 1) })
	}
	cut := func(name string, keep func(s string) int) func(dir string) error {
		return change(name, func(s string) string { return s[:keep(s)] })
	}
	for _, c := range []struct {
		name   string
		damage func(dir string) error
		is     error
		says   string
	}{
		{"no folder", os.RemoveAll, fs.ErrNotExist, "no such file"},
		{"no report.json", func(dir string) error { return os.Remove(filepath.Join(dir, report.ReportFile)) }, fs.ErrNotExist, "report.json"},
		{"no hlog", func(dir string) error { return os.Remove(filepath.Join(dir, report.HlogFile)) }, fs.ErrNotExist, "rtt.hlog"},
		{"newer schema", edit(report.ReportFile, `"schema": 3`, `"schema": 4`), report.ErrSchema, "version 4, this program reads up to 3"},
		{"no schema", edit(report.ReportFile, `"schema": 3`, `"scheme": 3`), report.ErrFormat, "no schema version"},
		{"wrong type", edit(report.ReportFile, `"label": ""`, `"label": 7`), report.ErrFormat, "report.json:5:"},
		{"broken json", edit(report.ReportFile, `"label": ""`, `"label": ,`), report.ErrFormat, "report.json:5:"},
		{"cut json", cut(report.ReportFile, func(s string) int { return len(s) / 2 }), report.ErrFormat, "report.json:"},
		{"cut hlog in a line", cut(report.HlogFile, func(s string) int { return len(s) - 40 }), report.ErrFormat, "rtt.hlog:8: malformed"},
		{"cut hlog between lines", cut(report.HlogFile, func(s string) int { return strings.LastIndexByte(s[:len(s)-1], '\n') + 1 }), report.ErrFormat, "cut off"},
		{"null series", edit(report.ReportFile, `"series": [`, `"series": [null,`), report.ErrFormat, "null"},
		{"series without a name", edit(report.ReportFile, `"name": "rtt"`, `"name": ""`), report.ErrFormat, "series[0].name"},
		{"same series twice", edit(report.ReportFile, `"series": [`, `"series": [{"name": "rtt"},`), report.ErrFormat, "series[1].name"},
		{"min above max", edit(report.ReportFile, `"min_ns": `, `"min_ns": 9000000`), report.ErrFormat, "series[0].summary: min_ns 9000000"},
		{"negative percentile", edit(report.ReportFile, `"p50_ns": `, `"p50_ns": -`), report.ErrFormat, "series[0].summary.p50_ns: -"},
		{"percentile that the log does not have", edit(report.ReportFile, `"p99_ns": `, `"p99_ns": 1`), report.ErrFormat, "series[0].summary"},
		{"mean above max", edit(report.ReportFile, `"mean_ns": `, `"mean_ns": 9000000`), report.ErrFormat, "series[0].summary: mean_ns"},
		{"negative count", edit(report.ReportFile, `"sent": `, `"sent": -`), report.ErrFormat, "counts.sent: -"},
		{"huge count", edit(report.ReportFile, `"lost": `, `"lost": 922337203685477580`), report.ErrFormat, "counts.lost: 9223372036854775800"},
		{"run that ends before it begins", edit(report.ReportFile, `"end_ns": `, `"end_ns": 0, "start_ns": 5, "x": `), report.ErrFormat, "runs[0]"},
		{"interval length", edit(report.ReportFile, `"interval_ns": `, `"interval_ns": -`), report.ErrFormat, "interval_ns: -"},
		{"year", edit(report.ReportFile, `"start": "`, `"start": "0001-02-03T04:05:06Z", "x": "`), report.ErrFormat, "start: 0001"},
		{"big json", func(dir string) error { return os.Truncate(filepath.Join(dir, report.ReportFile), 65<<20) }, report.ErrFormat, "larger than 64 MiB"},
		{"crowded json", edit(report.ReportFile, `"series": [`, `"notes": [`+strings.Repeat(`"",`, 1<<20)+`""], "series": [`), report.ErrFormat, "besides runs"},
		{"counts of two intervals overflow", hlog(hdrLine(t, 3, 1, 3_600_000_000_000, 1), hdrLine(t, 3, 1, 3_600_000_000_000, 1<<53)), report.ErrFormat, "rtt.hlog:3: malformed log: count"},
		{"time out of range", hlog("1e10,1.0,0.1," + hdrLine(t, 3, 1, 3_600_000_000_000, 1)[len("0,1,0,"):]), report.ErrFormat, "rtt.hlog:2: malformed log: starts"},
		{"negative length", hlog("0,-1,0.1," + hdrLine(t, 3, 1, 3_600_000_000_000, 1)[len("0,1,0,"):]), report.ErrFormat, "rtt.hlog:2: malformed log: length"},
		{"huge geometry", hlog(hdrLine(t, 5, 1, math.MaxInt64, 1)), report.ErrFormat, "rtt.hlog:2: malformed log: histogram"},
		{"decompression bomb", hlog(slices.Repeat([]string{hdrLine(t, 3, 1, 3_600_000_000_000, slices.Repeat([]int64{1}, 32<<10)...)}, 1000)...), report.ErrFormat, "larger than"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "report")
			must.OK(t, os.CopyFS(dir, os.DirFS(written)))
			must.OK(t, c.damage(dir))
			check.Fails(t, c.name, check.Err(report.Read(dir)), c.is, c.says, dir)
		})
	}
}

func hlog(lines ...string) func(dir string) error {
	return func(dir string) error {
		text := "#[Histogram log format version 1.3]\n" + strings.Join(lines, "\n") + "\n"
		return os.WriteFile(filepath.Join(dir, report.HlogFile), []byte(text), 0o644)
	}
}

func hdrLine(t *testing.T, digits int64, low, high int64, counts ...int64) string {
	t.Helper()
	code := must.Get(hdrhistogram.Import(&hdrhistogram.Snapshot{LowestTrackableValue: low, HighestTrackableValue: high,
		SignificantFigures: digits,
		Counts:             counts}).Encode(hdrhistogram.V2CompressedEncodingCookieBase))(t)
	return "0,1,0," + string(code)
}

// page replaces the real page function, whose package imports this one. It writes a byte for each sample, so that a
// large report does not fit on a small disk.
func page(w io.Writer, r *report.Report) error {
	_, err := fmt.Fprintf(w, "<p>%s<!--%*s-->", html.EscapeString(r.Name()), r.Main().Total.Count, "")
	return err
}

// Files under version control do not change when the page of a report is written again.
func TestRewritePageLeavesAnEqualFileAlone(t *testing.T) {
	r := &report.Report{Dir: t.TempDir()}
	content := "one"
	write := func() os.FileInfo {
		must.OK(t, r.RewritePage(func(w io.Writer, _ *report.Report) error {
			_, err := io.WriteString(w, content)
			return err
		}))
		return must.Get(os.Stat(filepath.Join(r.Dir, report.HTMLFile)))(t)
	}
	first := write()
	if !os.SameFile(first, write()) {
		t.Error("an equal page replaced the file")
	}
	content = "two"
	if os.SameFile(first, write()) {
		t.Error("another page did not replace the file")
	}
}

func TestTrafficMarks(t *testing.T) {
	m := report.Traffic{VLAN: 5, DSCP: 46, TTL: 3}
	check.Equal(t, strings.Join(m.Marks(), ", "), "VLAN 5, DSCP 46, TTL 3", "marks %q")
	check.Same(t, (&report.Traffic{}).Marks(), nil, "marks of default traffic: %q")
}

// Fill sets the times of what was recorded, and leaves the start if nothing was.
func TestFill(t *testing.T) {
	at := time.Unix(1_700_000_000, 0)
	for _, runs := range [][]latency.Run{nil, {{End: 5}}} {
		r := report.Report{Start: at, Series: []*latency.Series{{}}}
		r.Fill(latency.Recording{Start: at.Add(1), End: at.Add(2), Interval: 3, Runs: runs,
			Series: []*latency.Series{{}}, Raw: []latency.Sample{{}}, RawDropped: 4})
		start, end := at, time.Time{}
		if runs != nil {
			start, end = at.Add(1), at.Add(2)
		}
		if !r.Start.Equal(start) || !r.End.Equal(end) || r.Interval != 3 || len(r.Runs) != len(runs) ||
			len(r.Series) != 2 || len(r.Raw) != 1 || r.RawDropped != 4 {
			t.Errorf("%d runs: %+v", len(runs), r)
		}
	}
}
