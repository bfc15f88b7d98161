package report_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/synthetic"
)

// OpenFolder accepts a new folder, an empty one or a report, the folder belongs to the user afterwards, and a second
// report replaces the first.
func TestFolder(t *testing.T) {
	needs.Root(t, "giving a folder away")
	const user = 65534
	dir := filepath.Join(t.TempDir(), "report")
	link := synthetic.Link{Seed: 9, Median: 4000, Spread: 0.2, Seconds: 1, Rate: 20}
	raw, plain := link.Report(), link.Report()
	plain.Raw = nil
	if len(raw.Raw) == 0 {
		t.Fatal("a report without raw values replaces no file of the one before")
	}
	for _, rep := range []*report.Report{raw, plain} {
		f := must.Get(report.OpenFolder(dir, user, user))(t)
		must.OK(t, f.Write(rep, page))
		check.OK(t, check.Err(report.Read(dir)))
		if _, err := os.Stat(filepath.Join(dir, report.RawFile)); (err == nil) != (len(rep.Raw) > 0) {
			t.Errorf("%s of a report with %d raw series: %v", report.RawFile, len(rep.Raw), err)
		}
		info, err := os.Stat(dir)
		if err != nil || info.Sys().(*syscall.Stat_t).Uid != user || info.Mode().Perm() != 0o755 {
			t.Errorf("the folder is %v, want mode 755 and uid %d: %v", info, user, err)
		}
	}

	symlink := filepath.Join(t.TempDir(), "link")
	empty := t.TempDir()
	must.OK(t, os.Symlink(empty, symlink))
	foreign := t.TempDir()
	must.OK(t, os.WriteFile(filepath.Join(foreign, "thesis.tex"), nil, 0o600))
	check.Fails(t, "a folder with something else", check.Err(report.OpenFolder(foreign, user, user)), report.ErrExists,
		"report "+foreign+": the folder cannot be given to uid 65534: ")
	check.Fails(t, "a symbolic link", check.Err(report.OpenFolder(symlink, user, user)), nil)
	for _, d := range []string{foreign, empty} {
		if info, err := os.Stat(d); err != nil || info.Sys().(*syscall.Stat_t).Uid != 0 {
			t.Errorf("%s was given away: %v", d, err)
		}
	}
}
