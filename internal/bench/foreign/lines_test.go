package foreign

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	compared "github.com/rebound-nic/rebound/proof/golden"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
)

var (
	digits = regexp.MustCompile(`[0-9]+(\.[0-9]+)?`)
	unset  = regexp.MustCompile(` ?\w+:(0|false|<nil>)`)
	lastNo = regexp.MustCompile(`[0-9.]+([^0-9.]*)$`)
)

// mostLines is how many of the first and of the last lines of a file are changed; those between are of the same kind.
const mostLines = 8

// TestEachLineOfFiles reads each tool's file, those that other tests make too, and again without one of its lines, with
// a line twice, and with the last number of a line negative, zero and missing. The file has what is read, or the error,
// with a checksum of its numbers.
func TestEachLineOfFiles(t *testing.T) {
	needs.Long(t)
	var b strings.Builder
	var files []lineFile
	for _, g := range golden {
		text := must.Get(os.ReadFile(filepath.Join("testdata", g.file)))(t)
		files = append(files, lineFile{name: g.file, text: string(text), o: g.o})
	}
	for _, f := range lineFiles(t) {
		if _, err := os.Stat(filepath.Join("testdata", f.name)); err != nil { // made by the test
			files = append(files, f)
		}
	}
	for _, g := range files {
		text := []byte(g.text)
		base := outcome(text, g.o)
		fmt.Fprintf(&b, "%s\n= %s\n", g.name, base)
		lines := bytes.SplitAfter(text, []byte("\n"))
		last, from, sum := "", 0, uint32(0)
		flush := func(to int) {
			if last != "" {
				fmt.Fprintf(&b, "%d-%d%s [%04x]\n", from+1, to, last, sum&0xffff)
			}
		}
		for i := range lines {
			if i >= mostLines && i < len(lines)-mostLines {
				continue
			}
			key, part := "", uint32(0)
			for _, c := range []struct {
				name string
				line []byte
			}{{"without", nil}, {"twice", slices.Concat(lines[i], lines[i])},
				{"negative", lastNo.ReplaceAll(lines[i], []byte("-1$1"))},
				{"zero", lastNo.ReplaceAll(lines[i], []byte("0$1"))},
				{"no number", lastNo.ReplaceAll(lines[i], []byte("x$1"))}} {
				said := outcome(bytes.Join(slices.Concat(lines[:i], [][]byte{c.line}, lines[i+1:]), nil), g.o)
				if said == base {
					continue
				}
				key += "\n\t" + c.name + ": " + digits.ReplaceAllString(said, "#")
				part = crc32.Update(part, crc32.IEEETable, []byte(said))
			}
			if key != last {
				flush(i)
				last, from, sum = key, i, 0
			}
			sum = sum*31 + part
		}
		flush(len(lines))
	}
	compared.Equal(t, "testdata/lines.golden", b.String())
}

func outcome(text []byte, o Options) string {
	m, err := parse("f", text, o)
	if err != nil {
		return err.Error()
	}
	r := m.report()
	f := r.Foreign
	counts := unset.ReplaceAllString(fmt.Sprintf("%+v", r.Counts), "")
	all := crc32.NewIEEE()
	fmt.Fprint(all, r.Start.UTC(), r.End.UTC(), r.Runs, r.Interval, r.Traffic, r.Label)
	for _, iv := range r.Main().Intervals {
		fmt.Fprint(all, iv.Start, iv.End, iv.Min, iv.Max, slices.Collect(iv.Buckets))
	}
	return fmt.Sprintf("%s %s %s, %d runs, %d values, %.6g %.6g %.6g %d %v, all %d; %s", r.Metric, r.Tool, counts,
		len(r.Runs), r.Main().Total.Count, f.Min, f.Mean, f.Max, f.Beyond, f.Points, all.Sum32(),
		strings.Join(slices.Concat(f.Lines(), r.Warnings), "; "))
}
