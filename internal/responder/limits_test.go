package responder

import (
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/programs"
)

// With any limit of open files, the responder and the bench start, or end with an error that names the limit.
func TestFewFiles(t *testing.T) {
	w := newWire(t)
	bench := programs.Path(t, "bench")
	for files := 3; files <= 64; files++ {
		if files > 16 && files%8 != 0 {
			continue
		}
		for name, args := range map[string][]string{
			"afpacket": append([]string{program(t)}, w.command(t, "nic.driver=afpacket").Args[1:]...),
			"xdp":      append([]string{program(t)}, w.command(t, "nic.driver=xdp").Args[1:]...),
			"bench":    {bench, "run", "127.0.0.1", "-transport", "socket", "-count", "1"},
		} {
			limited := exec.Command("prlimit", append([]string{"--nofile=" + strconv.Itoa(files)}, args...)...)
			if _, stderr, code := w.here.outcome(t, limited); code != exitFailed ||
				!strings.Contains(stderr, "ulimit -n") || !strings.Contains(stderr,
				"the limit of open files is "+strconv.Itoa(files)) ||
				strings.Contains(stderr, "goroutine ") {
				t.Errorf("%s with %d files: exit %d\n%s", name, files, code, stderr)
			}
		}
	}
}

// With as many files as the check wants, and with any limit of locked memory, both start.
func TestEnoughFiles(t *testing.T) {
	for _, driver := range []string{"afpacket", "afxdp", "xdp"} {
		for _, memory := range []string{"0", "65536", "8388608"} {
			w := newWire(t)
			c := w.command(t, "nic.driver="+driver)
			c.Args = append([]string{"prlimit", "--nofile=96", "--memlock=" + memory, program(t)}, c.Args[1:]...)
			c.Path, c.Err = "/usr/bin/prlimit", nil
			p := &child{programs.Start(t, c, w.here.try(t))}
			p.stop(t, unix.SIGTERM)
		}
	}
}
