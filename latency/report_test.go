package latency

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

func TestWriteAndRead(t *testing.T) {
	rep := link{seed: 9, median: 4000, spread: 0.2, seconds: 3, rate: 1000, open: true, runs: 2}.report(t)
	rep.Label = "a <label> & more"
	forward := int64(2)
	rep.Counts.LostForward = &forward
	rep.Transfers = map[string]int64{"mmio write": 12}
	rep.Add(JitterSeries, FromValues([]int64{20, 21, 900}))
	dir := filepath.Join(t.TempDir(), "deep", "report")
	for range 2 { // the second replaces the first
		if err := Write(dir, rep); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Series) != 3 {
		t.Fatalf("%d series", len(got.Series))
	}
	for i, s := range got.Series {
		w := rep.Series[i]
		if !reflect.DeepEqual(s.Summary, w.Summary) || s.Total.Count != w.Total.Count || s.Total.Max != w.Total.Max || s.Total.Quantile(0.999) != w.Total.Quantile(0.999) {
			t.Errorf("series %s: %+v, want %+v", s.Name, s.Summary, w.Summary)
		}
	}
	if len(got.Runs) != 2 || got.Interval != 1e9 || *got.Counts.LostForward != 2 || got.Label != rep.Label {
		t.Errorf("%+v", got)
	}
	var a, b bytes.Buffer
	if err := errors.Join(rep.writeJSON(&a), got.writeJSON(&b)); err != nil || !bytes.Equal(a.Bytes(), b.Bytes()) {
		t.Errorf("report.json changes on a round trip: %v\n%s\n%s", err, &a, &b)
	}
	names := []string{}
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if s := strings.Join(names, " "); s != "raw.csv.zst report.html report.json rtt.hgrm rtt.hlog" {
		t.Errorf("files: %s", s)
	}
	raw, err := os.ReadFile(filepath.Join(dir, rawFile))
	if err != nil {
		t.Fatal(err)
	}
	z, _ := zstd.NewReader(nil)
	csv, err := z.DecodeAll(raw, nil)
	if lines := strings.Split(strings.TrimSpace(string(csv)), "\n"); err != nil || len(lines) != 1001 || lines[0] != "at_ns,from_intended_ns,from_sent_ns" {
		t.Errorf("raw: %v, %d lines", err, len(lines))
	}
	if left, _ := os.ReadDir(filepath.Dir(dir)); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
}

// A folder that is no report is left alone.
func TestWriteRefusesForeignFolder(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "thesis.tex"), []byte("years"), 0o644); err != nil {
		t.Fatal(err)
	}
	rep := link{seed: 9, median: 4000, seconds: 2, rate: 100}.report(t)
	if err := Write(dir, rep); !errors.Is(err, ErrExists) || !strings.Contains(err.Error(), "thesis.tex") {
		t.Errorf("error %v", err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "thesis.tex")); err != nil || string(b) != "years" {
		t.Errorf("%q, %v", b, err)
	}
}

// On a full disk the error says so and names the report, the old report stays whole, and nothing else remains.
func TestWriteFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting a small tmpfs needs root")
	}
	mount := t.TempDir()
	if err := unix.Mount("rebound-test", mount, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("tmpfs cannot be mounted: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(mount, 0); err != nil {
			t.Error(err)
		}
	})
	dir := filepath.Join(mount, "report")
	small := link{seed: 9, median: 4000, spread: 0.001, seconds: 2, rate: 20}.report(t)
	small.Raw = nil
	big := link{seed: 9, median: 4000, spread: 0.8, seconds: 20, rate: 2000}.report(t)

	if err := Write(dir, big); !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), dir) {
		t.Errorf("error %v, want one of no space that names %s", err, dir)
	}
	if left, _ := os.ReadDir(mount); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	if err := Write(dir, small); err != nil {
		t.Fatal(err)
	}
	if err := Write(dir, big); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("error %v, want one of no space", err)
	}
	if got, err := Read(dir); err != nil || got.Main().Total.Count != small.Main().Total.Count {
		t.Errorf("the old report is not what it was: %v", err)
	}
	if left, _ := os.ReadDir(mount); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
}

// Each way a report can be broken ends in an error that names the file, and the line where there is one.
func TestReadErrors(t *testing.T) {
	rep := link{seed: 9, median: 4000, spread: 0.1, seconds: 3, rate: 500}.report(t)
	edit := func(name, old, with string) func(dir string) error {
		return func(dir string) error {
			path := filepath.Join(dir, name)
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			s := strings.Replace(string(b), old, with, 1)
			if s == string(b) {
				return errors.New("nothing was changed")
			}
			return os.WriteFile(path, []byte(s), 0o644)
		}
	}
	cut := func(name string, keep func(b []byte) int) func(dir string) error {
		return func(dir string) error {
			b, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(dir, name), b[:keep(b)], 0o644)
		}
	}
	for _, c := range []struct {
		name   string
		damage func(dir string) error
		is     error
		says   string
	}{
		{"no folder", os.RemoveAll, fs.ErrNotExist, "no such file"},
		{"no report.json", func(dir string) error { return os.Remove(filepath.Join(dir, reportFile)) }, fs.ErrNotExist, "report.json"},
		{"no hlog", func(dir string) error { return os.Remove(filepath.Join(dir, hlogFile)) }, fs.ErrNotExist, "rtt.hlog"},
		{"newer schema", edit(reportFile, `"schema": 1`, `"schema": 2`), ErrSchema, "version 2, this program reads up to 1"},
		{"no schema", edit(reportFile, `"schema": 1`, `"scheme": 1`), ErrFormat, "no schema version"},
		{"wrong type", edit(reportFile, `"label": ""`, `"label": 7`), ErrFormat, "report.json:5:"},
		{"cut json", cut(reportFile, func(b []byte) int { return len(b) / 2 }), ErrFormat, "report.json:"},
		{"cut hlog in a line", cut(hlogFile, func(b []byte) int { return len(b) - 40 }), ErrFormat, "rtt.hlog:8: malformed"},
		{"cut hlog between lines", cut(hlogFile, func(b []byte) int { return bytes.LastIndexByte(b[:len(b)-1], '\n') + 1 }), ErrFormat, "cut off"},
		{"null series", edit(reportFile, `"series": [`, `"series": [null,`), ErrFormat, "null"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "report")
			if err := Write(dir, rep); err != nil {
				t.Fatal(err)
			}
			if err := c.damage(dir); err != nil {
				t.Fatal(err)
			}
			_, err := Read(dir)
			if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), dir) {
				t.Errorf("error %v, want %v that says %q and names %s", err, c.is, c.says, dir)
			}
		})
	}
}

// A report with nothing in it can be written, read and shown: an interrupted run may have no reply.
func TestEmptyReport(t *testing.T) {
	r, err := NewRecorder(testClock(), RecorderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r.Begin(1)
	r.End(2)
	rep := NewReport("bench", RoundTrip)
	r.Fill(rep)
	dir := filepath.Join(t.TempDir(), "empty")
	if err := Write(dir, rep); err != nil {
		t.Fatal(err)
	}
	got, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	c := Compare(got, got)
	if err := errors.Join(c.Print(&out), c.WriteHTML(&out), got.Print(&out)); err != nil || !strings.Contains(out.String(), "no samples") {
		t.Errorf("%v\n%s", err, &out)
	}
}

func FuzzReport(f *testing.F) {
	rep := link{seed: 9, median: 4000, seconds: 1, rate: 10}.report(f)
	b, err := json.Marshal(rep)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"schema":1,"series":[{"name":"rtt"}],"runs":[{}],"metric":""}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		rep, err := parseReport(bytes.NewReader(in), "f.json")
		if err != nil {
			if !strings.HasPrefix(err.Error(), "f.json:") {
				t.Errorf("the error names no file: %v", err)
			}
			return
		}
		// Whatever can be read can be shown.
		var out bytes.Buffer
		c := Compare(rep, rep)
		if err := errors.Join(c.Print(&out), c.WriteHTML(&out), WriteHTML(&out, rep), rep.Print(&out)); err != nil {
			t.Error(err)
		}
	})
}
