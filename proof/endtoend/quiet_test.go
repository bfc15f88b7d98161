package endtoend

import (
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/programs"
)

// progressLine is what a bench without a terminal prints now and then.
var progressLine = regexp.MustCompile(`(?m)^.+: [\d,]+ sent, [\d,]+ answered, [\d.]+ % of .+ done\n`)

// A bench and a watch that have no problem print their result, or the line that says what is watched, and log nothing.
func TestQuietStart(t *testing.T) {
	n := newNetwork(t)
	for _, how := range []string{"-transport=socket", "-driver=afpacket", "-driver=afxdp"} {
		r := n.bench(quick(how, "-target", far4, "-count", "50", "-out", filepath.Join(t.TempDir(), "r"))...)
		r.prints(t)
		if !strings.HasPrefix(r.out, "round trip p50 ") {
			t.Errorf("bench %s: the first line is not the result: %q", how, r.out)
		}
		check.Equal(t, progressLine.ReplaceAllString(r.errors, ""), "", "bench "+how+" prints %q on stderr")
		p := programs.Start(t, child("watch", how, far4), n.near.Do)
		if !strings.HasPrefix(p.Ready, "watching 1 target on core ") {
			t.Errorf("watch %s: %q", how, p.Ready)
		}
		check.OK(t, p.Process.Signal(syscall.SIGTERM))
		p.Wait()
		check.Equal(t, p.Log.String(), "", "watch "+how+" logs %q")
	}
}

// A watch that may open no socket says in one line what to do, and prints nothing else.
func TestWatchWithoutRights(t *testing.T) {
	n := newNetwork(t)
	r := n.prepare("watch", "-driver", "afpacket", far4)
	r.SysProcAttr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
	got := r.begin().wait()
	got.fails(t, 1, "no target can be probed: ", "run as root, or setcap cap_net_raw+ep")
	check.Equal(t, got.out, "", "stdout %q")
	check.Equal(t, strings.Count(got.errors, "\n"), 1, "%d lines on stderr")
}
