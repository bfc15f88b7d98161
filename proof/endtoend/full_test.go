package endtoend

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rebound-nic/rebound/internal/bench/foreign"
	"github.com/rebound-nic/rebound/latency/page"
	"github.com/rebound-nic/rebound/latency/report"
	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/disk"
	"github.com/rebound-nic/rebound/proof/must"
	"github.com/rebound-nic/rebound/proof/needs"
	"github.com/rebound-nic/rebound/proof/programs"
	"github.com/rebound-nic/rebound/proof/synthetic"
)

// wholeFiles fails if a file in a folder is incomplete: every report and every log can be read, and every page has its
// end.
func wholeFiles(t *testing.T, dir string) (files int) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == disk.Ballast {
			return err
		}
		files++
		b, err := os.ReadFile(path)
		switch {
		case err != nil:
			return err
		case strings.HasPrefix(d.Name(), "."):
			t.Errorf("%s is left behind", path)
		case filepath.Ext(path) == ".html":
			if !bytes.HasSuffix(bytes.TrimSpace(b), []byte("</html>")) {
				t.Errorf("%s has no end", path)
			}
		case d.Name() == report.ReportFile:
			check.OK(t, check.Err(report.Read(filepath.Dir(path))))
		case strings.HasPrefix(d.Name(), "20") && filepath.Ext(path) == ".hlog":
			check.OK(t, check.Err(foreign.Read(path, foreign.Options{})))
		}
		return nil
	})
	must.OK(t, err)
	return files
}

// saysFull fails if a command on a full disk does not end with exit code 1, the reason and the path, or does not print
// its result.
func saysFull(t *testing.T, r result, dir, want string) {
	t.Helper()
	r.fails(t, 1, "no space left on device", dir)
	check.Contains(t, r.out, want)
	if strings.Contains(r.errors, "goroutine ") {
		t.Errorf("it crashed: %s", r.errors)
	}
}

// Every command that measures completes on a disk that is full, or that becomes full before any of its files or in the
// middle of one; it prints its result, says what was not written, and leaves no unreadable file.
func TestFullDiskRun(t *testing.T) {
	n := newNetwork(t)
	for _, c := range []struct {
		name   string
		args   []string
		prints string
		free   []int // pages of 4 KiB
	}{
		{"run", []string{"-target", far4, "-count", "800", "-runs", "4"}, "sent 800", []int{0, 1, 6, 14, 24}},
		{"raw", []string{"-target", far4, "-count", "4000", "-runs", "2", "-raw"}, "sent 4,000", []int{14}},
		{"json", []string{"-target", far4, "-count", "800", "-runs", "4", "-json"}, `"sent": 800`, []int{0}},
		{"targets", []string{far4, far6, "-duration", "100ms", "-slice", "10ms"}, "A: ", []int{14}},
		{"ab", []string{"-ab", "target=" + far4 + ",size=64", "-ab", "target=" + far4 + ",size=200", "-duration", "100ms", "-slice", "10ms"}, "A: ", []int{0}},
		{"sweep", []string{"-target", far4, "-size", "64,200", "-count", "800", "-runs", "4"}, "size-200", []int{0, 14}},
		{"lossless", []string{"-target", far4, "-size", "64,200", "-lossless", "50", "-duration", "100ms"}, "rate/s", []int{14}},
	} {
		for _, free := range c.free {
			t.Run(fmt.Sprintf("%s/%d", c.name, free), func(t *testing.T) {
				dir := disk.Small(t, free)
				r := n.bench(append(quick(c.args...), "-driver", "afpacket", "-out", filepath.Join(dir, "r"))...)
				if c.name == "lossless" && strings.Contains(r.errors, "every rate down to 1 per second lost probes") {
					t.Skip("this machine is too busy for 50 probes a second in time")
				}
				saysFull(t, r, dir, c.prints)
				files := wholeFiles(t, dir)
				if free == 0 && files != 0 {
					t.Errorf("%d files are left behind on a disk without room", files)
				}
				if free < 24 {
					return
				}
				out := filepath.Join(dir, "r") // there is room for some of the runs
				if rep, err := report.Read(out); err != nil || len(rep.Runs) == 0 ||
					rep.Main().Total.Count != rep.Counts.Received || !strings.Contains(r.errors, "bench report "+out) {
					t.Errorf("want one report that names what it has: %v\n%s", err, r.errors)
				}
			})
		}
	}
	t.Run("file size limit", func(t *testing.T) {
		self := must.Get(os.Executable())(t)
		out := filepath.Join(t.TempDir(), "r")
		c := n.prepare(append([]string{"-c", `ulimit -f 8; exec "$0" "$@"`, self},
			quick("-target", far4, "-driver", "afpacket", "-count", "800", "-runs", "4", "-out", out)...)...)
		c.Path = "/bin/sh"
		r := c.begin().wait()
		r.fails(t, 1, "file too large", out)
		check.Contains(t, r.out, "sent 800")
		wholeFiles(t, filepath.Dir(out))
	})
}

// The demo takes long: it is tested with two fill levels only.
func TestFullDiskDemo(t *testing.T) {
	needs.Long(t)
	needRoot(t)
	for _, free := range []int{0, 10} {
		dir := disk.Small(t, free)
		c := alone(t, "demo", "-rounds", "1", "-duration", "50ms", "-driver", "afpacket", "-out",
			filepath.Join(dir, "r"))
		c.Path = programs.Path(t, "bench")
		c.Env = append(os.Environ(), "PATH="+filepath.Dir(programs.Path(t, "responder"))+":"+os.Getenv("PATH"))
		saysFull(t, c.begin().wait(), dir, "A: ")
		wholeFiles(t, dir)
	}
}

// A command that shows saved results also prints them on a full disk, and does not change an existing page.
func TestFullDiskPages(t *testing.T) {
	saved := t.TempDir()
	var good []string
	for i, name := range []string{"one", "two"} {
		rep := synthetic.Link{Seed: uint64(i), Median: 4000, Spread: 0.2, Seconds: 3, Rate: 200, Runs: 9}.Report()
		rep.Start = time.Date(2026, 11, 1+i, 0, 0, 0, 0, time.UTC)
		good = append(good, filepath.Join(saved, name))
		must.OK(t, report.Write(good[i], rep, page.Report))
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		now := float64(time.Now().Unix())
		answer(w, "success", "", "matrix", []any{map[string]any{
			"metric": map[string]string{"target": "icmp:10.0.0.2", "instance": "here"},
			"values": [][2]any{{now - 1800, "10"}, {now - 60, "20"}}}})
	}))
	defer server.Close()
	for _, c := range []struct {
		name   string
		args   []string
		file   string // output file
		prints string
		most   int // pages of 4 KiB that it does not need
	}{
		{"report", []string{"report"}, "one/report.html", "p99.9", 12},
		{"report -anonymous", []string{"report", "-anonymous"}, "one/report.json", "p99.9", 0},
		{"report -html", []string{"report", "-html", "FILE", good[0]}, "page.html", "p99.9", 12},
		{"compare", []string{"compare", "-html", "FILE", good[0], good[1]}, "page.html", "p99.9", 12},
		{"history", []string{"history", saved, "-out", "FILE"}, "page.html", "no change can be found", 3},
		{"matrix", []string{"matrix", "-prom", server.URL, "-out", "FILE"}, "page.html", "icmp:10.0.0.2", 1},
	} {
		for _, before := range []bool{false, true} {
			free := c.most
			if before {
				free = 0
			}
			t.Run(fmt.Sprintf("%s/%d", c.name, free), func(t *testing.T) {
				dir := disk.Small(t, 1000)
				file := filepath.Join(dir, c.file)
				args := slices.Clone(c.args)
				if i := slices.Index(args, "FILE"); i >= 0 {
					args[i] = file
				}
				if c.file != "page.html" {
					for _, name := range []string{"one", "two"} {
						must.OK(t, os.CopyFS(filepath.Join(dir, name), os.DirFS(filepath.Join(saved, name))))
						args = append(args, filepath.Join(dir, name))
					}
				}
				old, _ := os.ReadFile(file)
				switch {
				case before && filepath.Ext(file) == ".html":
					old = []byte("another page</html>")
					must.OK(t, os.WriteFile(file, old, 0o644))
				case filepath.Ext(file) == ".html":
					old = nil
					os.Remove(file)
				}
				disk.Fill(t, dir, free)
				r := inProcess(args...)
				saysFull(t, r, dir, c.prints)
				if c.name == "report" && strings.Count(r.out, "p99.9 ") < 2 {
					t.Errorf("the second report is not printed:\n%s", r.out)
				}
				if now, _ := os.ReadFile(file); !bytes.Equal(now, old) {
					t.Errorf("%s was changed: %d bytes, %d before", file, len(now), len(old))
				}
				wholeFiles(t, dir)
			})
		}
	}
}

// Output that cannot be printed is an error, for every command.
func TestFullOutput(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "r")
	must.OK(t, report.Write(dir, synthetic.Link{Median: 4000, Spread: 0.2, Seconds: 3, Rate: 200, Runs: 9}.Report(),
		page.Report))
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer full.Close()
	for _, args := range [][]string{{"report", dir}, {"report", "-json", dir}, {"compare", dir, dir},
		{"compare", "-v", dir, dir}, {"history", "-out", filepath.Join(t.TempDir(), "h"), dir},
		{"version"}, {"config"}, {"manual"}, {"completion", "bash"}, {"-h"}, {"run", "-h"}, {"run", "-help-all"}} {
		var stderr bytes.Buffer
		code := run(args, full, &stderr)
		result{args: args, code: code, errors: stderr.String()}.fails(t, 1, "/dev/full: no space left on device")
	}
	n := newNetwork(t)
	out := filepath.Join(t.TempDir(), "r")
	c := n.prepare(quick("-target", far4, "-driver", "afpacket", "-count", "200", "-out", out)...)
	c.Stdout = full
	c.begin().wait().fails(t, 1, "no space left on device")
	check.OK(t, check.Err(report.Read(out)))
}

// A watch continues to measure, reports once that it cannot write, and ends with exit code 1 if its last interval is
// lost. Its logs can be read.
func TestFullDiskWatch(t *testing.T) {
	n := newNetwork(t)
	for i, free := range []int{0, 1} {
		t.Run(fmt.Sprint(free), func(t *testing.T) {
			n := &network{t: t, near: n.near, far: n.far}
			dir := disk.Small(t, free)
			w := n.watch(9190+i, "-target", far4, "-driver", "afpacket", "-rate", "200", "-dir",
				filepath.Join(dir, "logs"), "-interval", "1s")
			w.says("cannot be written")
			w.until("probes after that", func(v map[string]float64) bool {
				return v[of("rebound_probes_total", "icmp:"+far4)] > 0
			})
			n.must(w.Process.Signal(syscall.SIGTERM))
			io.Copy(io.Discard, w.Lines)
			err := w.Wait()
			said, code := w.Log.String(), w.ProcessState.ExitCode()
			if free > 0 && strings.Contains(said, "is written again") { // the last interval was short enough to fit
				code++
			} else if !strings.Contains(said, "could not be written to the logs; the last error: ") {
				t.Errorf("the end does not say why:\n%s", said)
			}
			if code != 1 || !strings.Contains(said, "cannot be written") || !strings.Contains(said, "write "+dir) {
				t.Errorf("%v\n%s", err, said)
			}
			wholeFiles(t, dir)
		})
	}
}
