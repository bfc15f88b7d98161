package report_test

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
)

// A responder's gaps and causes survive writing and reading. An anonymous report does not name threads, also if it
// became one later.
func TestGapsFile(t *testing.T) {
	page := func(io.Writer, *report.Report) error { return nil }
	all := []report.Gap{{Core: 1, Start: 1e18, Duration: 12_000},
		{Core: 1, Start: 1e18 + 5, Duration: 9_000, Text: "polling thread descheduled on cpu 1", Name: "a,\"b\""},
		{Core: -1, Start: 1e18 + 7, Text: "pause of Go's runtime", Weak: true}}
	r := report.New("responder", report.Turnaround)
	r.Gaps = &report.Gaps{From: 5000, How: "the kernel's tracepoints", All: all}
	dir := filepath.Join(t.TempDir(), "r")
	must.OK(t, report.Write(dir, r, page))
	read := func() *report.Report {
		t.Helper()
		r := must.Get(report.Read(dir))(t)
		must.OK(t, r.ReadGaps())
		return r
	}
	got := read()
	check.Equal(t, got.Gaps.From, 5000, "from %d")
	check.Same(t, got.Gaps.All, all, "gaps %v, want %v")
	got.Anonymize()
	must.OK(t, got.Rewrite(page))
	got = read()
	check.Equal(t, got.Gaps.All[1].Name, "another thread", "name %q")

	for what, content := range map[string]string{"another file": "not zstd"} {
		must.OK(t, os.WriteFile(filepath.Join(dir, report.GapsFile), []byte(content), 0o644))
		if err := got.ReadGaps(); err == nil {
			t.Errorf("%s is read", what)
		}
	}
}
