package endtoend

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/latency/page"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/synthetic"
)

// nights writes one report per night: the 13th and all later ones are slower, and have another kernel.
func nights(t *testing.T, dir string, n int, change func(i int, r *report.Report)) {
	t.Helper()
	for i := range n {
		median := 4000.0
		if i >= 12 {
			median = 4400
		}
		r := synthetic.Link{Seed: uint64(i), Median: median * (1 + 0.01*float64(i*7%5-2)), Seconds: 2,
			Rate: 1000}.Report()
		r.Host.Kernel, r.Label = "6.1.0-28", ""
		if i >= 12 {
			r.Host.Kernel = "6.12.5"
		}
		r.Start = time.Date(2026, 11, 1+i, 3, 0, 0, 0, time.UTC)
		if change != nil {
			change(i, r)
		}
		// the names are not in chronological order
		must.OK(t, report.Write(filepath.Join(dir, fmt.Sprintf("n%02d", (i*11)%n)), r, page.Report))
	}
}

func TestHistory(t *testing.T) {
	needs.Long(t)
	history := func(args ...string) result {
		return inProcess(append([]string{"history", "-out", filepath.Join(t.TempDir(), "h.html")}, args...)...)
	}
	dir := t.TempDir()
	nights(t, dir, 25, nil)
	must.OK(t, os.WriteFile(filepath.Join(dir, "notes.txt"), []byte("no report"), 0o644))
	html := filepath.Join(t.TempDir(), "history.html")
	r := history(dir, "-out", html)
	r.prints(t, "6.1.0-28", "6.12.5")
	first := regexp.MustCompile(
		`^p(50|99) rose by 1\d(\.\d+)? % \(.* µs to .* µs\) with n\d\d of 2026-11-13, the last of 2 changes\n`)
	if !first.MatchString(r.out) || strings.Count(r.out, "2026-11-13") != 3 {
		t.Error(r.out)
	}
	text := content(t, html)
	check.Contains(t, text, "6.12.5")
	// two figures, for desktop and phone
	check.Equal(t, strings.Count(text, `class="rule"`), 4, "%d lines mark a change")
	for _, c := range []struct {
		name string
		n    int
		do   func(int, *report.Report)
		args []string
		want string
	}{
		{"before the change", 12, nil, nil, "no change of level found in 12 reports\n"},
		{"too few", 7, nil, nil, "no change can be found in 7 reports: there must be 4 on each side of it\n"},
		{"two kinds", 24, func(i int, r *report.Report) { r.Traffic.FrameSize = []int{64, 1500}[i/12] }, nil, "no change of level found in 12 reports\n"},
		{"too few samples", 12, nil, []string{"-stat", "p99.99"}, "p99.99 (round trip"},
		{"terminal codes", 24, func(i int, r *report.Report) { r.Host.Kernel = fmt.Sprintf("\x1b]0;%d\a\n6", i/12) }, nil, "p50 rose"},
	} {
		dir := t.TempDir()
		nights(t, dir, c.n, c.do)
		r := history(append(c.args, dir)...)
		r.prints(t, c.want)
		harmlessText(t, r)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{nil, 2, "which reports?"},
		{[]string{t.TempDir()}, 1, "no report is in"},
		{[]string{filepath.Join(dir, "gone")}, 1, "gone"},
		{[]string{"-stat", "p101", dir}, 2, "-stat"},
	} {
		history(c.args...).fails(t, c.code, c.want)
	}
}

// Files of another tool have no times: they are ordered by name.
func TestHistoryOfOtherTools(t *testing.T) {
	dir := t.TempDir()
	for i := range 20 {
		var b strings.Builder
		for k := range 400 {
			fmt.Fprintln(&b, 100+10*(i/10)+k%5)
		}
		must.OK(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%02d.txt", i)), []byte(b.String()), 0o644))
	}
	inProcess("history", "-unit", "us", "-stat", "p50", "-out", filepath.Join(dir, "h.html"), dir).
		prints(t, "p50 rose by 9.8 % (102.0 µs to 112.1 µs) with 10.txt", "in the order in which they were named")
}
