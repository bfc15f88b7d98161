package page

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// A responder's page has what had its cores, or says why that is not known. An anonymous one names no thread.
func TestGapTable(t *testing.T) {
	rep := report.New("responder", report.Turnaround)
	text := func() string {
		var b bytes.Buffer
		must.OK(t, Report(&b, rep))
		return b.String()
	}
	const title = "What had the polling cores"
	if strings.Contains(text(), title) {
		t.Error("the page of a responder without gaps has their causes")
	}
	rep.Gaps = &report.Gaps{From: 5000}
	check.Contains(t, text(), title, "No polling gaps of 5.000 µs and more", "not watched (stats.offcore)")
	rep.Gaps = &report.Gaps{From: 5000, Missed: 7, How: "the kernel's tracepoints", MissedCauses: 9, All: []report.Gap{
		{Core: 1, Start: 1, Duration: 1_500_000},
		{Core: 1, Start: 2, Duration: 1_400_000, Text: "descheduled", Name: "<hog>"},
		{Core: 1, Start: 3, Duration: 9, Text: "page fault", Weak: true}}}
	rep.Gaps.Sum()
	check.Contains(t, text(), "1 polling gaps of 5.000 µs and more are recorded; 7 more were not kept",
		"known by the kernel&#39;s tracepoints; 9 more were not kept",
		`<th scope="row">descheduled: &lt;hog&gt;</th><td>1</td><td>1</td>`+
			strings.Repeat("<td>"+Duration(1_400_000)+"</td>", 2),
		`<th scope="row">page fault (weak hint, by counters)</th><td>1</td><td>1</td><td>–</td><td>–</td>`)
	dir := filepath.Join(t.TempDir(), "r")
	must.OK(t, report.Write(dir, rep, Report))
	older := must.Get(report.Read(dir))(t)
	older.Gaps.Kept, older.Gaps.Causes = 0, nil
	var b bytes.Buffer
	must.OK(t, Report(&b, older))
	check.Contains(t, b.String(), "1 polling gaps of", "descheduled: &lt;hog&gt;")
	rep.Anonymize()
	if s := text(); strings.Contains(s, "hog") || !strings.Contains(s, "descheduled: another thread") {
		t.Error("an anonymous page names threads, or lacks their causes")
	}
}
