package measure

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/latency/schedule"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/golden"
	"github.com/rebound-nic/rebound/proof/must"
)

// What settings become when they are completed, or why they exclude each other, the variants of a sweep, and those of
// -ab. The inputs are the lines of the file that are not indented.
func TestSettingsAreCompleted(t *testing.T) {
	const path, key = "testdata/complete.txt", "/key"
	dir := t.TempDir()
	must.OK(t, os.WriteFile(dir+key, []byte(strings.Repeat("5a", 32)+"\n"), 0o600))
	usual := reflect.ValueOf(Default())
	var b strings.Builder
	inputs := 0
	for list := range strings.Lines(string(must.Get(os.ReadFile(path))(t))) {
		if strings.HasPrefix(list, "\t") {
			continue
		}
		inputs++
		b.WriteString(list)
		list = strings.TrimSuffix(list, "\n")
		s := Default()
		var err error
		if ab, ok := strings.CutPrefix(list, "-ab "); ok {
			if s, err = s.Vary(ab); err != nil {
				fmt.Fprintf(&b, "\t%v\n", err)
			} else {
				fmt.Fprintf(&b, "\t%q, first %q: %v %v\n", s.Name, s.Do, s.Rates, s.Sizes)
			}
			continue
		}
		for item := range strings.FieldsSeq(list) {
			switch name, value, _ := strings.Cut(item, "="); value {
			case "replay":
				s.Arrivals, err = schedule.Replay("f", []int64{0, 1e6, 4e6})
			case "dense":
				s.Arrivals, err = schedule.Replay("f", []int64{0, 1, 8})
			default:
				err = s.Set(name, strings.ReplaceAll(value, "KEY", dir+key))
			}
			if err != nil {
				break
			}
		}
		if err == nil {
			err = s.Complete()
		}
		if err != nil {
			fmt.Fprintf(&b, "\t%v\n", err)
			continue
		}
		v := reflect.ValueOf(s)
		for i := range v.NumField() {
			if f := v.Field(i); !reflect.DeepEqual(f.Interface(), usual.Field(i).Interface()) {
				fmt.Fprintf(&b, "\t%s %+v\n", v.Type().Field(i).Name, f)
			}
		}
		fmt.Fprintf(&b, "\tis %s, TOS %#x, authenticated %t\n", s.Protocol(), s.TOS(), s.STAMP.Packet().Authenticated)
		for _, each := range s.Sweep() {
			fmt.Fprintf(&b, "\tsweep %q %v %v\n", each.Name, each.Rates, each.Sizes)
		}
	}
	golden.Equal(t, path, b.String())
	check.Equal(t, inputs, 97, "%d inputs")
}

// A report is written to a folder that has none, or that may be replaced.
func TestWritable(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) {
		must.OK(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		must.OK(t, os.WriteFile(filepath.Join(dir, name), nil, 0o644))
	}
	file("one/" + report.ReportFile)
	file("two/00-x/" + report.ReportFile)
	file("two/31-y/" + report.ReportFile)
	file("other/1-x/" + report.ReportFile)
	file("file")
	file("a[b]*?\\c/" + report.ReportFile)
	file("abc/" + report.ReportFile)
	for _, c := range []struct{ name, fails string }{
		{"one", "a report is already in DIR/one: use another folder, or -replace"}, {"one/", "already in DIR/one:"},
		{"two", "already in DIR/two/00-x:"}, {"other", ""}, {"new/deep/er", ""}, {"", ""}, {"file", "DIR/file is not a folder"},
		{"file/below/it", "DIR/file is not a folder"}, {"a[b]*?\\c", "already in DIR/a[b]*?\\c:"}, {"a*", ""}, {"a[b]c", ""}, {"?bc", ""},
	} {
		path := filepath.Join(dir, c.name)
		err := Writable(path, false)
		if c.fails == "" {
			check.OK(t, err)
		} else {
			check.Fails(t, c.name, err, nil, "-out "+path+": ", strings.ReplaceAll(c.fails, "DIR", dir))
		}
		check.Equal(t, Writable(path, true) == nil, !strings.HasSuffix(c.fails, "folder"), c.name+" is replaced: %t")
	}
	left := must.Get(filepath.Glob(filepath.Join(dir, ".bench-*")))(t)
	check.Equal(t, len(left), 0, "%d files are left")
	for _, fd := range must.Get(os.ReadDir("/proc/self/fd"))(t) {
		if name, _ := os.Readlink("/proc/self/fd/" + fd.Name()); strings.Contains(name, "/.bench-") {
			t.Errorf("%s is open", name)
		}
	}
	for _, c := range []struct {
		i         int
		name      string
		anonymous bool
		want      string
	}{{0, "a b/c", false, "01-a-b-c"}, {9, "azAZ09._-", false, "10-azAZ09._-"}, {1, "x@[`{:/^", false, "02-x-------"},
		{2, "10.0.0.2", false, "03-10.0.0.2"}, {2, "8.8.8.8", true, "03--address-"}} {
		check.Equal(t, folder(c.i, c.name, c.anonymous), c.want, "folder %s")
	}
}
