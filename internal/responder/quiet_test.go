package responder

import (
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/check"
	"github.com/rebound-nic/rebound/proof/programs"
)

// A start without a problem prints the ready line, and nothing to stderr.
func TestQuietStart(t *testing.T) {
	w := newWire(t)
	for _, driver := range []string{"xdp", "afxdp", "afpacket"} {
		c := exec.Command(program(t), set("nic.driver="+driver, "nic.device="+port,
			"respond.addresses="+ours4+"/24")...)
		p := programs.Start(t, c, w.here.try(t))
		if !strings.HasPrefix(p.Ready, "ready driver="+driver+" ") {
			t.Errorf("%s: %q", driver, p.Ready)
		}
		check.OK(t, p.Process.Signal(unix.SIGTERM))
		p.Wait()
		check.Equal(t, p.Log.String(), "", driver+" logs %q")
	}
}
