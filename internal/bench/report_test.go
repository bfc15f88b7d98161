package bench

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rebound-nic/rebound/latency/page"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/synthetic"
)

// rebound-bench report does not change a page that git tracks, unless -html names it.
func TestTrackedPages(t *testing.T) {
	needs.Programs(t, "git")
	dir := t.TempDir()
	for _, name := range []string{"a", "b"} {
		rep := synthetic.Link{Seed: 1, Median: 4000, Seconds: 1, Rate: 500, Runs: 2}.Report()
		must.OK(t, report.Write(filepath.Join(dir, name), rep, page.Report))
	}
	pages := []string{filepath.Join(dir, "index.html"), filepath.Join(dir, "a", report.HTMLFile)}
	for _, path := range pages {
		must.OK(t, os.WriteFile(path, []byte("old"), 0o644))
	}
	must.OK(t, exec.Command("git", "-C", dir, "init", "-q").Run())
	must.OK(t, exec.Command("git", "-C", dir, "add", "index.html", "a").Run())
	for i, of := range []string{dir, filepath.Join(dir, "a")} {
		var out, log bytes.Buffer
		if code := Run([]string{"report", of}, &out, &log); code != 0 ||
			!strings.Contains(out.String(), "page not written: git tracks "+pages[i]+" (-html FILE writes it)\n") {
			t.Errorf("%s: exit %d\n%s%s", of, code, &out, &log)
		}
		if got := must.Get(os.ReadFile(pages[i]))(t); string(got) != "old" {
			t.Errorf("%s was written", pages[i])
		}
		if code := Run([]string{"report", "-html", pages[i], of}, &out, &log); code != 0 ||
			len(must.Get(os.ReadFile(pages[i]))(t)) < 1000 {
			t.Errorf("%s: -html: exit %d\n%s%s", of, code, &out, &log)
		}
	}
	var out, log bytes.Buffer
	if code := Run([]string{"report", filepath.Join(dir, "b")}, &out, &log); code != 0 ||
		!strings.Contains(out.String(), "\npage ") {
		t.Errorf("a page that git does not track: exit %d\n%s%s", code, &out, &log)
	}
}

// -json has the whole report, without names of hosts if it is anonymous.
func TestReportJSON(t *testing.T) {
	rep := synthetic.Link{Seed: 1, Median: 4000, Seconds: 1, Rate: 500, Runs: 2}.Report()
	rep.Host.Hostname = "secret"
	dir := t.TempDir()
	must.OK(t, report.Write(dir, rep, page.Report))
	for _, anonymous := range []bool{false, true} {
		args := []string{"report", "-json", dir}
		if anonymous {
			args = []string{"report", "-json", "-anonymous", dir}
		}
		var out, log bytes.Buffer
		if code := Run(args, &out, &log); code != 0 || strings.Contains(out.String(), "secret") == anonymous ||
			!strings.Contains(out.String(), `"metric": "round trip"`) {
			t.Errorf("%q: exit %d\n%s%s", args, code, &out, &log)
		}
	}
}
