package responder

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/internal/evidence"
	"github.com/rebound-nic/rebound/latency/page"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/disk"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/synthetic"
)

// If the disk is full when the report is saved, or fills before any of its files, the result is one message and exit
// code 1. The summary is printed, and the folder keeps its previous content.
func TestFullDisk(t *testing.T) {
	w := newWire(t)
	for _, confine := range []string{"off", "require"} {
		for _, free := range []int{0, 1, 3} {
			for _, before := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%d/%v", confine, free, before), func(t *testing.T) {
					small := disk.Small(t, 1000)
					folder := filepath.Join(small, "report")
					had := map[string][]byte{}
					if before {
						must.OK(t, report.Write(folder, synthetic.Link{Median: 4000, Seconds: 1, Rate: 100}.Report(),
							page.Report))
						had = content(t, small)
					}
					disk.Fill(t, small, free)
					p := w.start(t, nil, "nic.driver=afpacket", "trust.confine="+confine, "stats.report="+folder)
					must.OK(t, p.Process.Signal(unix.SIGTERM))
					s := p.end(t, exitFailed)
					lines := problems(p.Log.String())
					check.Contains(t, s, "answered")
					if len(lines) != 1 || !strings.Contains(lines[0], "no space left on device") ||
						!strings.Contains(lines[0], folder) {
						t.Errorf("messages %q", lines)
					}
					if has := content(t, small); !maps.EqualFunc(has, had, bytes.Equal) {
						t.Errorf("the disk has %v, had %v", slices.Sorted(maps.Keys(has)),
							slices.Sorted(maps.Keys(had)))
					}
				})
			}
		}
	}
}

// content returns the files below a folder.
func content(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	must.OK(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && d.Name() != disk.Ballast {
			all[path], err = os.ReadFile(path)
		}
		return err
	}))
	return all
}

// If the disk is too full for its file, a probe prints its findings, and no partial file is left.
func TestFullDiskProbe(t *testing.T) {
	w := newWire(t)
	for _, free := range []int{0, 1} {
		small := disk.Small(t, free)
		stdout, stderr, code := w.responder(t, "probe", "-set", "nic.driver=afpacket", "-stage", "up", "-o", small,
			port)
		if free == 0 && (code != exitFailed || !strings.Contains(stderr, "no space left on device") ||
			!strings.Contains(stderr, small)) {
			t.Errorf("exit %d: %s", code, stderr)
		}
		check.Contains(t, stdout, "stage up succeeded")
		for path := range content(t, small) {
			if _, err := evidence.Read(path); err != nil {
				t.Errorf("%s is left: %v", path, err)
			}
		}
	}
}

// A summary that cannot be printed is an error.
func TestFullOutput(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	for _, args := range [][]string{{"config"}, {"version"}, {"help"}, {"manual"}, {"completion", "zsh"}, {"nics"}} {
		var stderr bytes.Buffer
		if code := command(args, full, &stderr); code != exitFailed ||
			!strings.Contains(stderr.String(), "/dev/full: no space left on device") {
			t.Errorf("%q: exit %d: %s", args, code, &stderr)
		}
	}
}
