package report_test

import (
	"bytes"
	"errors"
	"fmt"
	"html"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"rebound/latency"
	"rebound/latency/report"
	"rebound/latency/synthetic"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

func TestWriteAndRead(t *testing.T) {
	rep := synthetic.Link{Seed: 9, Median: 4000, Spread: 0.2, Seconds: 3, Rate: 1000, Open: true, Runs: 2}.Report()
	rep.Label = "a <label> & more"
	forward := int64(2)
	rep.Counts.LostForward = &forward
	rep.Transfers = map[string]int64{"mmio write": 12}
	rep.Add(latency.JitterSeries, latency.FromValues([]int64{20, 21, 900}))
	dir := filepath.Join(t.TempDir(), "deep", "report")
	for range 2 { // the second replaces the first
		if err := report.Write(dir, rep, page); err != nil {
			t.Fatal(err)
		}
	}
	got, err := report.Read(dir)
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
	if err := errors.Join(report.WriteJSON(&a, rep), report.WriteJSON(&b, got)); err != nil || !bytes.Equal(a.Bytes(), b.Bytes()) {
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
	raw, err := os.ReadFile(filepath.Join(dir, report.RawFile))
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
	rep := synthetic.Link{Seed: 9, Median: 4000, Seconds: 2, Rate: 100}.Report()
	if err := report.Write(dir, rep, page); !errors.Is(err, report.ErrExists) || !strings.Contains(err.Error(), "thesis.tex") {
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
	small := synthetic.Link{Seed: 9, Median: 4000, Spread: 0.001, Seconds: 2, Rate: 20}.Report()
	small.Raw = nil
	big := synthetic.Link{Seed: 9, Median: 4000, Spread: 0.8, Seconds: 20, Rate: 2000}.Report()

	if err := report.Write(dir, big, page); !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), dir) {
		t.Errorf("error %v, want one of no space that names %s", err, dir)
	}
	if left, _ := os.ReadDir(mount); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	if err := report.Write(dir, small, page); err != nil {
		t.Fatal(err)
	}
	if err := report.Write(dir, big, page); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("error %v, want one of no space", err)
	}
	if got, err := report.Read(dir); err != nil || got.Main().Total.Count != small.Main().Total.Count {
		t.Errorf("the old report is not what it was: %v", err)
	}
	if left, _ := os.ReadDir(mount); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
}

// Each way a report can be broken ends in an error that names the file, and the line where there is one.
func TestReadErrors(t *testing.T) {
	rep := synthetic.Link{Seed: 9, Median: 4000, Spread: 0.1, Seconds: 3, Rate: 500}.Report()
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
		{"no report.json", func(dir string) error { return os.Remove(filepath.Join(dir, report.ReportFile)) }, fs.ErrNotExist, "report.json"},
		{"no hlog", func(dir string) error { return os.Remove(filepath.Join(dir, report.HlogFile)) }, fs.ErrNotExist, "rtt.hlog"},
		{"newer schema", edit(report.ReportFile, `"schema": 1`, `"schema": 2`), report.ErrSchema, "version 2, this program reads up to 1"},
		{"no schema", edit(report.ReportFile, `"schema": 1`, `"scheme": 1`), report.ErrFormat, "no schema version"},
		{"wrong type", edit(report.ReportFile, `"label": ""`, `"label": 7`), report.ErrFormat, "report.json:5:"},
		{"cut json", cut(report.ReportFile, func(b []byte) int { return len(b) / 2 }), report.ErrFormat, "report.json:"},
		{"cut hlog in a line", cut(report.HlogFile, func(b []byte) int { return len(b) - 40 }), report.ErrFormat, "rtt.hlog:8: malformed"},
		{"cut hlog between lines", cut(report.HlogFile, func(b []byte) int { return bytes.LastIndexByte(b[:len(b)-1], '\n') + 1 }), report.ErrFormat, "cut off"},
		{"null series", edit(report.ReportFile, `"series": [`, `"series": [null,`), report.ErrFormat, "null"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "report")
			if err := report.Write(dir, rep, page); err != nil {
				t.Fatal(err)
			}
			if err := c.damage(dir); err != nil {
				t.Fatal(err)
			}
			_, err := report.Read(dir)
			if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), dir) {
				t.Errorf("error %v, want %v that says %q and names %s", err, c.is, c.says, dir)
			}
		})
	}
}

// page stands for the real one, which lies above this package. It has a byte for each sample, so that a big report does
// not fit a small disk.
func page(w io.Writer, r *report.Report) error {
	_, err := fmt.Fprintf(w, "<p>%s<!--%*s-->", html.EscapeString(r.Name()), r.Main().Total.Count, "")
	return err
}
