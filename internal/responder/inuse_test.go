package responder

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rebound-nic/rebound/proof/must"
)

// An address that another responder on the same interface answers for is refused, with any pair of drivers, and the
// message names the process.
func TestAddressInUse(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	drivers := []string{"xdp", "afxdp", "afpacket"}
	for _, first := range drivers {
		p := w.start(t, nil, "nic.driver="+first, "cpu.cores=0")
		for _, second := range append(drivers, "auto") {
			_, out, code := w.responder(t, set("nic.device="+port, "respond.addresses="+ours4+"/24", "cpu.cores=1",
				"nic.driver="+second)...)
			want := fmt.Sprintf("address %s: device is in use: process %d (responder) answers for it on %s", ours4,
				p.Process.Pid, port)
			if code != exitFailed || !strings.Contains(out, want) {
				t.Errorf("%s beside %s: exit %d, want %q in\n%s", second, first, code, want, out)
			}
		}
		p.stop(t, unix.SIGTERM)
	}
}

// A local user who holds the names and folders that claims could use does not keep a responder from starting.
func TestNamesOfLocalUsers(t *testing.T) {
	t.Parallel()
	w := newWire(t)
	w.here.do(t, func() { // of earlier versions
		name := fmt.Sprintf("@rebound/answers/%d/%s", must.Get(net.InterfaceByName(port))(t).Index, ours4)
		l := must.Get(net.Listen("unix", name))(t)
		t.Cleanup(func() { l.Close() })
	})
	theirs := t.TempDir()
	must.OK(t, os.Chmod(theirs, 0o777))
	p := w.start(t, []string{"RUNTIME_DIRECTORY=" + theirs}, "nic.driver=afpacket", "cpu.cores=0")
	if log := p.Log.String(); strings.Contains(log, "answers for it") {
		t.Errorf("the log says what is not so:\n%s", log)
	}
	w.run(t, "ping", "-c", "3", "-i", "0.01", "-W", "60", ours4)
	p.stop(t, unix.SIGTERM)
}
