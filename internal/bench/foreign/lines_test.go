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
	varied = regexp.MustCompile(`[0-9.]+|[A-Za-z0-9+/=]{20,}`) // numbers and base64
	lastNo = regexp.MustCompile(`[0-9.]+([^0-9.]*)$`)
)

// mostLines is how many of the first and of the last lines of a file are changed; of those between, one of each kind.
const mostLines = 8

// TestEachLineOfFiles reads each tool's file, those that other tests make too, and again without one of its lines, with
// a line twice, and with the last number of a line negative, zero, huge and missing. The file has what is read, or
// the error, with a checksum of its numbers.
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
	for _, c := range outcomeCases() {
		files = append(files, lineFile{name: c.name, text: c.text, o: c.o})
	}
	for _, g := range files {
		text := []byte(g.text)
		if text[0] == '{' && bytes.Count(text, []byte("\n")) < 2 { // each member of JSON is a line
			text = bytes.ReplaceAll(text, []byte(","), []byte(",\n"))
		}
		base, _ := outcome(text, g.o)
		fmt.Fprintf(&b, "%s\n= %s\n", g.name, base)
		lines := bytes.SplitAfter(text, []byte("\n"))
		last, from, sum, seen := "", 0, uint32(0), map[string]bool{}
		flush := func(to int) {
			if last != "" {
				fmt.Fprintf(&b, "%d-%d%s [%04x]\n", from+1, to, last, sum&0xffff)
			}
		}
		for i := range lines {
			kind := varied.ReplaceAllString(string(lines[i]), "#")
			if seen[kind] && i >= mostLines && i < len(lines)-mostLines {
				continue
			}
			seen[kind] = true
			key, part := "", uint32(0)
			for _, c := range []struct {
				name string
				line []byte
			}{{"without", nil}, {"twice", slices.Concat(lines[i], lines[i])},
				{"negative", lastNo.ReplaceAll(lines[i], []byte("-1$1"))},
				{"zero", lastNo.ReplaceAll(lines[i], []byte("0$1"))},
				{"huge", lastNo.ReplaceAll(lines[i], []byte("9000000000000000000$1"))},
				{"no number", lastNo.ReplaceAll(lines[i], []byte("x$1"))}} {
				said, short := outcome(bytes.Join(slices.Concat(lines[:i], [][]byte{c.line}, lines[i+1:]), nil), g.o)
				if said == base {
					continue
				}
				text := ": " + digits.ReplaceAllString(short, "#")
				if before, ok := strings.CutSuffix(key, text); ok {
					key = before + ", " + c.name + text
				} else {
					key += "\n\t" + c.name + text
				}
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

// outcome is everything that is read from a text, and the counts of it, or the error.
func outcome(text []byte, o Options) (all, counts string) {
	m, err := parse("f", text, o)
	if err != nil {
		return err.Error(), err.Error()
	}
	r := m.report()
	f := r.Foreign
	counts = unset.ReplaceAllString(fmt.Sprintf("%+v", r.Counts), "")
	sum := crc32.NewIEEE()
	fmt.Fprint(sum, r.Start.UTC(), r.End.UTC(), r.Runs, r.Interval, r.Traffic, r.Label)
	for _, iv := range r.Main().Intervals {
		fmt.Fprint(sum, iv.Start, iv.End, iv.Min, iv.Max, slices.Collect(iv.Buckets))
	}
	all = fmt.Sprintf("%s %s %s, %d runs, %d values, %.6g %.6g %.6g %d %v, all %d; %s", r.Metric, r.Tool, counts,
		len(r.Runs), r.Main().Total.Count, f.Min, f.Mean, f.Max, f.Beyond, f.Points, sum.Sum32(),
		strings.Join(slices.Concat(f.Lines(), r.Warnings), "; "))
	return all, counts
}
